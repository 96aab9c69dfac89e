"""How an attack is played when a hostile MCP server is who speaks.

Shell commands that are to run are the server's own: it runs them in the sandbox of their effect. All else
begins with a call of the server's tool `say`, whose result has the orders: the model does as it reads, with
the daemon's tools, in a session that the result has tainted.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

from tests.attacks.case import ENDED, RAN, Ask, Case
from tests.attacks.cases import CASES

SERVER = "evil"
GULLIBLE = "gullible"
"""The agent that has no rule by which a tainted session may reach out: there the taint is on trial."""
BY_THE_MODEL = {
    "a process that stays": "what a server leaves running ends with the server",
    "a process that stays, and closes its cgroup": "what a server leaves running ends with the server",
}
"""Shell commands that run, and that the model asks for all the same, with the reason. So are those that go on
until they are ended: a server would be lost with them.
"""
ENDLESS = {case.name for case in CASES.values() if case.ends == ENDED}
"""Those that use something up until they are ended; they have the daemon for themselves."""
MOST_ORDERS = 100
"""In one step: a server orders the first hundred of a thousand calls, which take seconds of CPU."""
ENDS = {"signals": ENDED}
"""Where the codes are others: it ends the server, too."""


def acts(case: Case) -> bool:
    """Whether the server's own process does it, or a part of it."""
    shells = any(ask.function == "bash_exec" for step in case.steps for ask in step)
    return shells and case.ends == RAN and case.name not in BY_THE_MODEL


@dataclass(frozen=True, kw_only=True)
class Play:
    """One attack with one effect, and the facts for it; by the server `speaker` if there is one."""

    case: Case
    effect: str
    names: dict[str, str]
    speaker: str = ""

    @property
    def mark(self) -> str:
        return self.names["mark"]

    @property
    def ordered(self) -> bool:
        """Whether the model has its orders from the server."""
        return bool(self.speaker) and not acts(self.case)

    @property
    def lane(self) -> str:
        """Plays of one lane run one after the other; a server would be ended by another play of its own."""
        return f"{self.effect} by the server" if self.speaker and acts(self.case) else "by the model"

    @property
    def agent(self) -> str:
        return GULLIBLE if self.ordered and self.effect == "reach" else self.case.agent

    @property
    def ends(self) -> frozenset[str] | None:
        """The codes with which its calls may end; see `Case`."""
        if self.agent == GULLIBLE:
            return None
        return ENDS.get(self.case.name, self.case.ends) if self.speaker else self.case.ends

    def steps(self) -> list[list[Ask]]:
        most = MOST_ORDERS if self.speaker else None
        return [[self._spoken(ask.filled(self.names)) for ask in step[:most]] for step in self.case.steps]

    def _spoken(self, ask: Ask) -> Ask:
        if not self.speaker or ask.function != "bash_exec" or not acts(self.case):
            return ask
        given = json.loads(str(ask.arguments))
        function = f"{self.speaker}_{given['effect']}"
        return Ask(function=function, arguments=json.dumps({"command": given["command"]}))


def packed(steps: list[list[Ask]]) -> str:
    """Orders as a server says them: some are longer than a result that a model gets whole."""
    asks = [[[ask.function, ask.arguments] for ask in step] for step in steps]
    return base64.b32encode(zlib.compress(json.dumps(asks).encode(), 9)).decode()


def read(messages: list[dict[str, Any]]) -> list[list[Ask]] | None:
    """The orders in the first result that has any, as a model finds them there; None without any."""
    for message in messages:
        found = re.search(r"orders: ([A-Z2-7=]+) end", str(message["content"]))
        if message["role"] == "tool" and found is not None:
            asks = json.loads(zlib.decompress(base64.b32decode(found[1])))
            return [[Ask(function=name, arguments=given) for name, given in step] for step in asks]
    return None
