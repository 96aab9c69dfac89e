"""Picks the functions that a model is offered, where an agent has more than one request should carry.

`words` takes texts apart, `synonyms` says which words administrators use for which, `index` ranks functions
by words, and `choice` picks what one turn offers, as far as the window has room. No model is asked.
"""
