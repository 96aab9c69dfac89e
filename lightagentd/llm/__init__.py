"""Models: one protocol (`protocol`) and the clients behind it (`openai`, `runbook`)."""
