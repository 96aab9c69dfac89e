"""The checks by area; each module registers its own (see checks.py)."""
