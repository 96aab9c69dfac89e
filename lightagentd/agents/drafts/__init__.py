"""Drafts of tools: what a model or a description made, which waits for an administrator's install."""
