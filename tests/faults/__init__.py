"""What the daemon does when disk, clock, limits and signals do their worst; the shim has them do it."""
