"""Processes, read from /proc."""
