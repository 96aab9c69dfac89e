"""Reveals tampering: signed checkpoints, verification, and the comparison with the journal."""
