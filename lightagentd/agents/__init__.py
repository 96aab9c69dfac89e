"""Agents: their definitions, the registry that runs them, sessions and the turn loop."""
