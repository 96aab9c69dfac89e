"""Watching files: what the tool inotify is made of, in the worker."""
