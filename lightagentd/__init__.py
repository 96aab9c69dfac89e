"""lightagentd: the agent daemon for Linux.

The map of the package, from the edges in: `daemon` assembles everything; `control` adapts one
`service.Service` to Varlink; `agents` holds the registry, the sessions and the turn loop; `llm`,
`policy`, `worker` and `events` are what a turn uses; `errors` and `config` import nothing of the
package. `tool` is what a tool author imports, `client` what a program that talks to the daemon imports.
"""

__version__ = "0.1.0"
