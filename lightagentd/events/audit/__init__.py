"""What shows tampering: signed checkpoints, verification, the comparison with the journal."""
