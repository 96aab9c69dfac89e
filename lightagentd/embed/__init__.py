"""The agents in a program of your own, without a daemon:

    from lightagentd.embed import ask
    answer = ask("ops", "check disk", state="./agents")
    print(answer.text)

A program that runs an event loop keeps them open:

    async with Agents("./agents") as agents:
        answer = await agents.ask("ops", "check disk", schema=SCHEMA)

They are the daemon's own agents, policy, workers and history, in a folder that belongs to the program. What
is weaker than with the daemon is in `Agents.weaker`, and is logged as a warning when they open.
"""

from lightagentd.agents.turn import Step
from lightagentd.api import Answer
from lightagentd.embed.agents import Agents, PromptContext, ask
from lightagentd.embed.sinks import Sink, to_file, to_function, to_queue, to_sse

__all__ = [
    "Agents",
    "Answer",
    "PromptContext",
    "Sink",
    "Step",
    "ask",
    "to_file",
    "to_function",
    "to_queue",
    "to_sse",
]
