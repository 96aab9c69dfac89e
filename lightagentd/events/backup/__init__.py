"""The store as a file: backup and restore, export and import, and reading it without the daemon."""
