"""Kills a daemon at random points under load, and looks whether anything was lost; see `__main__`."""
