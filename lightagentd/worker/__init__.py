"""Both ends of the worker: `pool` is the daemon's side, `program` the process that runs calls.

`sandbox` and `units` start the workers and confine them.
"""
