"""Policy: the one place that decides whether a tool call may run."""
