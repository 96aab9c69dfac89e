"""Every operation of the daemon, once. The control planes only translate names, types and errors.

Each operation takes the caller first and checks their permission before anything else. Operations raise
LightagentError only. The planes are made from `INTERFACES`.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightagentd.control.operations.access import Access
from lightagentd.control.operations.agents import Agents
from lightagentd.control.operations.answers import Answers
from lightagentd.control.operations.approvals import Approvals
from lightagentd.control.operations.confirmations import Confirmations
from lightagentd.control.operations.contexts import Contexts
from lightagentd.control.operations.conversations import Conversations
from lightagentd.control.operations.declared import Method, Operations, methods_of
from lightagentd.control.operations.doctor import Doctor
from lightagentd.control.operations.evals import Evals
from lightagentd.control.operations.events import Events
from lightagentd.control.operations.flows import Flows
from lightagentd.control.operations.history import History
from lightagentd.control.operations.hooks import Hooks
from lightagentd.control.operations.inputs import Inputs
from lightagentd.control.operations.kits import Kits
from lightagentd.control.operations.manager import Manager
from lightagentd.control.operations.mcp import Mcp
from lightagentd.control.operations.memory import Memory
from lightagentd.control.operations.models import Models
from lightagentd.control.operations.plans import Plans
from lightagentd.control.operations.policy import Policy
from lightagentd.control.operations.replays import Replays
from lightagentd.control.operations.rules import Rules
from lightagentd.control.operations.safety import Safety
from lightagentd.control.operations.sessions import Sessions
from lightagentd.control.operations.skills import Skills
from lightagentd.control.operations.tokens import Tokens
from lightagentd.control.operations.tools import Tools
from lightagentd.control.operations.triggers import Triggers
from lightagentd.control.operations.undo import Undo
from lightagentd.control.operations.usage import Usage

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime


class Service:
    """The operations, one object for each noun. The daemon makes it, and owns all parts that it works on."""

    def __init__(self, runtime: Runtime) -> None:
        registry, history, panic = runtime.registry, runtime.history, runtime.panic
        shared = registry.shared
        access = Access(runtime.authority, runtime.seats, registry, history, runtime.now, runtime.owners)
        managing = asyncio.Lock()
        self.redactor = history.redactor
        """Takes secrets out of whatever leaves the daemon."""
        self.manager = Manager(access, runtime, managing)
        self.safety = Safety(access, runtime)
        self.doctor = Doctor(access, runtime)
        self.agents = Agents(access, runtime, managing)
        self.kits = Kits(access, runtime, managing)
        self.sessions = Sessions(access, runtime)
        self.conversations = Conversations(access, runtime, self.sessions)
        self.replays = Replays(access, runtime)
        self.contexts = Contexts(access, runtime)
        self.triggers = Triggers(access, runtime)
        self.flows = Flows(access, runtime)
        self.evals = Evals(access, runtime)
        self.plans = Plans(access, shared.plans)
        self.inputs = Inputs(access, shared.asked.inputs, panic)
        self.memory = Memory(access, registry)
        self.models = Models(access, runtime)
        self.usage = Usage(access, registry)
        self.events = Events(access, history, runtime.feed)
        self.history = History(access, history, runtime.upkeep, runtime.now)
        self.tokens = Tokens(access, runtime)
        self.tools = Tools(access, runtime)
        self.skills = Skills(access, shared.content)
        self.approvals = Approvals(access, registry)
        self.rules = Rules(access, runtime)
        self.confirmations = Confirmations(access, shared.confirmations)
        self.answers = Answers(access, runtime, self.approvals)
        self.policy = Policy(access, registry, history)
        self.hooks = Hooks(access, runtime)
        self.mcp = Mcp(access, runtime)
        self.undo = Undo(access, registry, history, panic)
        self._of = {type(one): one for one in vars(self).values() if isinstance(one, Operations)}

    def of(self, operations: type[Operations]) -> Operations:
        """The object of a class of operations."""
        return self._of[operations]


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One interface, of one class of operations or several."""

    name: str
    doc: str
    methods: tuple[Method, ...]


_CLASSES: tuple[type[Operations], ...] = (
    Manager,
    Safety,
    Doctor,
    Agents,
    Kits,
    Sessions,
    Conversations,
    Replays,
    Contexts,
    Triggers,
    Flows,
    Evals,
    Plans,
    Inputs,
    Memory,
    Models,
    Usage,
    Events,
    History,
    Tokens,
    Tools,
    Skills,
    Approvals,
    Rules,
    Confirmations,
    Answers,
    Policy,
    Hooks,
    Mcp,
    Undo,
)


def _interfaces() -> tuple[Interface, ...]:
    docs: dict[str, str] = {}
    methods: dict[str, list[Method]] = {}
    for one in _CLASSES:
        docs.setdefault(one.interface, inspect.getdoc(one) or "")
        for method in methods_of(one):
            methods.setdefault(method.interface, []).append(method)
    return tuple(Interface(name=name, doc=doc, methods=tuple(methods[name])) for name, doc in docs.items())


INTERFACES = _interfaces()
"""All interfaces that take calls, in the order of the documentation."""
