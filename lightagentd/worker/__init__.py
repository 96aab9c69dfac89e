"""Both ends of the worker: `pool` is the daemon's side, `program` the process that runs calls.

`sandbox` says how a worker is started and what then holds it, `process` is the one module that spawns.
"""
