"""What a change is signed as, so that its worker need not believe the daemon."""
