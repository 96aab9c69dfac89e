"""The endpoints that OpenAI clients know."""
