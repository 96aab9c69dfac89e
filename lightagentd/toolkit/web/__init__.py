"""HTTP requests of the tool `web`."""
