"""An agent as a server of the Model Context Protocol, for programs that speak it.

The program on the other end has a model of its own, whose words count as text from outside: its calls and
prompts are judged as in a tainted session. It has no rights but those of the user who runs this, and the
daemon is asked as by anybody else. `server.Server` knows no transport: it is given messages and a way to send
them. https://modelcontextprotocol.io/specification/2026-07-28 and, for clients that begin with `initialize`,
2025-11-25 and earlier.
"""
