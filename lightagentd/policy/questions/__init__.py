"""Stored questions to people: approvals of calls, and questions of agents (`human.ask`)."""
