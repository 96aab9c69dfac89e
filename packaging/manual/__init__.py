"""What the man pages are made of; see generate.py beside this folder."""
