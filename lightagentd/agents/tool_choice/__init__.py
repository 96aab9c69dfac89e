"""Which of an agent's functions its model is offered, where it has more than one request should carry.

`words` takes texts apart, `synonyms` says which words administrators use for which, `index` ranks functions
by words, `room` says how many a small window has room for, and `choice` makes of that what one turn offers.
No model is asked.
"""
