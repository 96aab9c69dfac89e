"""Flows as files: what a definition may say, the faults in one, and its picture."""
