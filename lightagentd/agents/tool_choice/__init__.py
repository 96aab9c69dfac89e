"""Picks the functions to offer to a model when an agent has too many for one request.

`words` splits texts into terms, `synonyms` lists words of administrators and their meanings, `index` ranks
functions by words, and `choice` picks the functions of one turn that fit into the window. No model is asked.
"""
