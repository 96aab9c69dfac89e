"""The built-in tools, which use the daemon's own state and run in it: human, memory, plan, tool search.

They are declared like every tool (`lightagentd.tool`), with `place=Place.DAEMON`, and pass through the same
dispatcher and policy. They do not touch the machine and load no administrator's files.
"""

from lightagentd.agents.builtin.running import BuiltinContext, Builtins

__all__ = ["BuiltinContext", "Builtins"]
