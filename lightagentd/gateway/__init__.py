"""The HTTP gateway: a program of its own, which talks to the daemon as whoever its clients prove to be."""
