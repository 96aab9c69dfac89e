"""The journal: what an event is there, and how it gets there."""
