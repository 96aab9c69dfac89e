"""Sends what agents do to a receiver of OpenTelemetry: traces and metrics, as OTLP over HTTP."""
