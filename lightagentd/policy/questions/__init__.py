"""Stored questions to people: approvals of calls, and what agents ask (`human.ask`)."""
