"""The parts of the tool inotify: watching files in a worker."""
