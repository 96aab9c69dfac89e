"""Programs for the desktop of a user of the daemon: `lightagent-notify` shows what waits for them."""
