"""The endpoint that useChat of the AI SDK knows."""
