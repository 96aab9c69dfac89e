"""Feeds broken input to everything that reads bytes from outside or from the disk; see `__main__`."""
