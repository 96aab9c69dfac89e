"""Tool calls: from what a model or a person asked for to a stored result."""
