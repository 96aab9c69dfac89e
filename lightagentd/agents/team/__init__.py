"""Agents that work together: child sessions, which a turn makes with another agent (`children`)."""
