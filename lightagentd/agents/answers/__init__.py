"""Answers that are JSON and fit a schema of the caller's."""
