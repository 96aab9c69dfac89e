"""A model server for tests that speaks what real ones speak, and breaks in every way in which they do.

    async with ModelServer([say("hello"), faults.status(429), call("proc_list", {})]) as server:
        … server.url …  server.asked …

It is real HTTP (or HTTPS) on loopback. One server answers chat completions, Responses and Messages, each at
its own path; what the model says (`said.Said`) is written in the dialect of the request. How it gets over the
wire (`wire.Wire`) is a matter of its own, so that every fault goes with every answer and with other faults;
`faults` has those that have a name. By hand, for lactl or curl:

    python -m tests.model_server --port 8999 hello cut_in_body status_429

`tests.scripted_model` is its little sister: chat completions alone, and fast enough for the benchmarks.
"""
