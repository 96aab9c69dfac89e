"""The generators of the man pages; see generate.py beside this folder."""
