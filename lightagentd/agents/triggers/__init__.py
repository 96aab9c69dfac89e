"""Triggers: what happens on the machine becomes a question to an agent."""
