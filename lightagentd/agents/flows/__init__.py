"""Flows: graphs of steps that run the same way every time, and whose runs survive anything."""
