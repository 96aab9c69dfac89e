"""Programs for the desktop of a person who uses the daemon: `lightagent-notify` shows what waits for him."""
