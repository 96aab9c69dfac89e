"""A damaged store: found before it is opened, set aside, and read as far as that goes."""
