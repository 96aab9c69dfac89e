"""Models: one protocol (`protocol`) and the clients behind it.

`factory` makes the client of a model string. `http_client` is the client of every HTTP endpoint: it speaks
one of the `dialects` through an `endpoint`. `runbook` is the embedded model.
"""
