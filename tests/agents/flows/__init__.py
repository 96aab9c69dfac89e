"""Runs of flows, in a daemon of their own."""
