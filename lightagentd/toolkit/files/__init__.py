"""The parts of the tool `file`: reading as text, searching, atomic changes, and undo."""
