"""What the tool `file` is made of: reading as text, searching, atomic changes, and what is kept for undo."""
