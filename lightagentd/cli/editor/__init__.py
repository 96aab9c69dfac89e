"""`lactl acp`: the Agent Client Protocol, version 1, on standard input and output.

    agent       the methods that an editor calls; it owns the connection and the turns that run
    turn        one turn: its events as updates of the session, and what a person is asked meanwhile
    calls       tool calls, changes of files and plans in the protocol's shapes
    history     a stored conversation as updates
    prompt      the content of a prompt: its text and its attachments
    daemon      calls of the daemon
    lines       lines of JSON on standard input and output, with a bound

The shapes are those of the package agent-client-protocol (`acp`), which takes most of a second to import, so
only `lightagentd.cli.acp` imports this package, when an editor has started it.
"""
