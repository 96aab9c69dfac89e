"""What happened: the event model, the stored history, the live feed and the journald sink."""
