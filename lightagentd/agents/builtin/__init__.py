"""The tools that are about the daemon's own state and run in it: asking a person, memories, the plan.

They are declared as every tool is (`lightagentd.tool`), with `place=Place.DAEMON`, and pass through the same
dispatcher and policy. Nothing here touches the machine, and no file of an administrator's is loaded here.
"""

from lightagentd.agents.builtin.running import BuiltinContext, Builtins

__all__ = ["BuiltinContext", "Builtins"]
