"""The machine below the program: processes, paths, files, and the service manager."""
