"""The journal: the entry of each event, and its way to journald."""
