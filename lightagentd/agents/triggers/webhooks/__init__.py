"""Requests of other programs that fire triggers: who signed them, and what they say."""
