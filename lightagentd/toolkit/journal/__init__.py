"""Reading the journal."""
