"""Policy: the one place that says whether a tool call may run."""
