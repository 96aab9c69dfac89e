"""The Varlink plane: an adapter over the operations."""
