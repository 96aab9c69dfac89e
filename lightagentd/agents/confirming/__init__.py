"""Changes that take themselves back unless they are confirmed in time."""
