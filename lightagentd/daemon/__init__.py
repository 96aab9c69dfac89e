"""The daemon itself: assembles the parts, starts, reloads, drains and stops them."""
