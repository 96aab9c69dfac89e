"""What the man pages and completions are made of; see generate.py beside this folder."""
