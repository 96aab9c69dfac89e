"""Tool calls: from the request of a model or a person to the stored result."""
