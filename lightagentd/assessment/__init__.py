"""Says how well an agent answers cases: reads them, has the daemon run the trials, judges and reports.

It is a client of the daemon, which keeps the results; `lactl eval` is made of it.
"""
