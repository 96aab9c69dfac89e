"""What `peers` has other agent libraries run, each in its environment, so without the daemon's packages."""
