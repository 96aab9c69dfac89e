"""Text and what is made of it: strict JSON, words and their ranking. It depends on nothing else here."""
