"""Chooses the functions to offer to a model when an agent has too many for one request.

It offers up to `limits.max_tools` functions, as far as the model's window has room: those that every
conversation needs, those that the session used or searched for, and those that best match the newest prompt.
The choice is kept from prompt to prompt as long as it fits, because an endpoint's cache ends at the first
changed function. The offer does not limit permissions: a function that the agent has but was not offered can
be called all the same, and policy decides about it.

The registry owns `Offers`, which knows the offer of each session; an `Offer` belongs to one turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from lightagentd.agents.definition import SEARCH, AgentDefinition
from lightagentd.agents.model_calls.compaction.window import BYTES_PER_TOKEN, bytes_of_function
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.errors import NotFound
from lightagentd.events.history import History
from lightagentd.llm.protocol import Function, Message, ModelClient
from lightagentd.policy.decide import Policy
from lightagentd.policy.rulefiles import RuleSet

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session
    from lightagentd.agents.tool_choice.index import Hit, ToolIndex

SEARCH_FUNCTION = "_".join(SEARCH)
ALWAYS = (
    SEARCH_FUNCTION,
    "skill_run",
    "bash_exec",
    "human_ask",
    "plan_propose",
    "skill_load",
    "agent_ask",
    "memory_remember",
    "memory_recall",
    "plan_show",
    "memory_forget",
    "skill_list",
    "bash_read_output",
)
"""What every conversation needs, the most needed first; with a small `max_tools` only the first ones."""
_ALWAYS_PART, _USED_PART = 1 / 2, 3 / 4
"""How much of the offer those may take, and together with them what the session used."""
_WINDOW_PART = 1 / 3
"""How much of the window functions may take. The system prompt and the conversation have to fit, too."""
LEAST = 8
"""So many are offered however small the window is; an agent without tools is of no use."""
_LARGE = 128_000
"""In a window of this size all functions fit that `limits.max_tools` usually lets through."""
_MUST_FIT = 16
"""An offer is kept for the next prompt when so many of the functions that fit it best are in it."""
_FAR_OFF = 0.25
"""What fits that much worse than the best is left out, even where there is room."""
_RECENT_PART, _RECENT_MESSAGES, _RECENT_CHARS = 0.3, 6, 400
"""How much the newest messages before the prompt count against it, and how much of them is looked at."""
_FOUND = re.compile(r"^([a-z][a-z0-9_]*)\(", re.MULTILINE)
"""A function in the output of the search (`builtin.tool_search`), which begins a line with it."""
_BUILD_OFF_LOOP = 100
"""From so many functions on an index is made in a thread."""
_COMPACTIONS = "compactions"
_TRANSFER = "agent_transfer"
_WITH_OTHERS = (
    *("agent_ask", "agent_start", "agent_wait", "agent_message", "agent_stop", "message_send"),
    _TRANSFER,
)
"""The functions that are of no use where there is nobody to ask."""
_ACTIVATE, _MOST_NAMES = "skill_activate", 200
_OF_CHILDREN = ("message_parent",)
"""Those that are of use in child sessions alone."""


async def index_of(toolbox: Toolbox) -> ToolIndex:
    """The index of a toolbox. It takes a tenth of a second to make for 2,000 functions, once."""
    if toolbox.has_index or len(toolbox.functions) < _BUILD_OFF_LOOP:
        return toolbox.index
    return await asyncio.to_thread(lambda: toolbox.index)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The names of the functions offered for a prompt; `chosen` has all of them, the most important first."""

    always: tuple[str, ...]
    used: tuple[str, ...]
    hits: tuple[Hit, ...]
    """What fits the prompt and was chosen for that; `others` fits, too, and was left out."""
    others: tuple[Hit, ...]

    @property
    def chosen(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.always, *self.used, *(hit.function for hit in self.hits)]))


def choose(
    ranked: Sequence[Hit], allowed: Iterable[str], *, used: Sequence[str] = (), max_tools: int
) -> Choice:
    """Choose from the functions of an agent. `used` are those that the session used, newest first."""
    has = frozenset(allowed)
    always = [name for name in ALWAYS if name in has][: int(max_tools * _ALWAYS_PART)]
    before = [name for name in dict.fromkeys(used) if name in has and name not in always]
    before = before[: int(max_tools * _USED_PART) - len(always)]
    taken = {*always, *before}
    hits: list[Hit] = []
    others: list[Hit] = []
    for hit in ranked:
        if hit.function in taken:
            continue
        fits = len(hits) < _MUST_FIT or hit.score >= _FAR_OFF * ranked[0].score
        kept = hits if fits and len(taken) + len(hits) < max_tools else others
        kept.append(hit)
    return Choice(always=tuple(always), used=tuple(before), hits=tuple(hits), others=tuple(others))


class Offer:
    """The functions offered in one turn. `functions` gives the same object until one is added."""

    def __init__(self, functions: Sequence[Function], *, whole: bool) -> None:
        self._functions = functions
        self._whole = whole
        """Whether nothing was left out, so that nothing can be added."""
        self._allowed: dict[str, Function] = {}
        self._kept: _Kept | None = None
        self._max_tools = 0

    @classmethod
    def partial(cls, allowed: Sequence[Function], kept: _Kept, max_tools: int) -> Offer:
        offer = cls((), whole=False)
        offer._allowed = {function.name: function for function in allowed}
        offer._kept = kept
        offer._max_tools = max_tools
        offer._functions = offer._make()
        return offer

    def functions(self, messages: Sequence[Message]) -> Sequence[Function]:
        """The functions for the next model call, after these messages of the session."""
        kept = self._kept
        if self._whole or kept is None:
            return self._functions
        new = [name for name in kept.new_in(messages) if name in self._allowed]
        if new := [name for name in new if name not in kept.names]:
            kept.add(new, self._max_tools)
            self._functions = self._make()
        return self._functions

    def _make(self) -> Sequence[Function]:
        """The functions in the order of the toolbox."""
        names = frozenset(self._kept.names if self._kept is not None else ())
        return tuple(function for name, function in self._allowed.items() if name in names)


class _Kept:
    """The last offer of one session and the functions that it used; lives as long as the session."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        """What counts most comes first."""
        self.used: dict[str, None] = {}
        """The newest last."""
        self.allowed: frozenset[str] = frozenset()
        self._seen = 0

    def new_in(self, messages: Sequence[Message]) -> list[str]:
        """The functions named in messages that were not checked yet. Compaction reduces the number of
        messages; then all are checked again.
        """
        start = self._seen if self._seen <= len(messages) else 0
        self._seen = len(messages)
        found = [name for message in messages[start:] for name in named_in(message)]
        for name in found:
            self.used.pop(name, None)
            self.used[name] = None
        return found

    def add(self, names: Sequence[str], max_tools: int) -> None:
        """Offer these too; without room, they replace the least important ones."""
        fixed = [name for name in self.names if name in ALWAYS]
        others = [name for name in self.names if name not in ALWAYS]
        self.names = tuple(dict.fromkeys([*fixed, *names, *others]))[:max_tools]


def named_in(message: Message) -> list[str]:
    """The functions that a message called, or that it found if it is the result of a search."""
    if message.role == "tool" and message.name == SEARCH_FUNCTION:
        return _FOUND.findall(message.content)
    return [call.name for call in message.tool_calls]


_Known = tuple[Toolbox, AgentDefinition, RuleSet, Sequence[Function]]


class Offers:
    """Makes the offer of each turn; one for the daemon."""

    def __init__(
        self,
        history: History,
        policy: Policy,
        members: Callable[[AgentDefinition], Mapping[str, str]],
        skills: Callable[[AgentDefinition], Sequence[str]],
    ) -> None:
        """`members` gives the agents that an agent may ask, `skills` the names of its skills."""
        self._history, self._policy, self._members, self._skills = history, policy, members, skills
        self._sessions: WeakKeyDictionary[Session, _Kept] = WeakKeyDictionary()
        self._all: dict[tuple[Any, ...], _Known] = {}

    def allowed(
        self,
        toolbox: Toolbox,
        agent: AgentDefinition,
        *,
        change: bool,
        plan: Literal["", "observe", "none"],
        child: bool,
    ) -> Sequence[Function]:
        """All functions that the agent's model may be offered; the same object until something changes.
        `child`: in a child session.
        """
        alone, skills = not self._members(agent), tuple(self._skills(agent))
        key = (agent.name, change, plan, alone, child, skills)
        known, rules = self._all.get(key), self._policy.rules
        if known is None or known[0] is not toolbox or known[1] is not agent or known[2] is not rules:
            offered = toolbox.offered(agent, change=change, rules=rules, plan=plan)
            unused = {*(_WITH_OTHERS if alone else ()), *((_TRANSFER,) if child else _OF_CHILDREN)}
            offered = [
                _naming(one, skills) if one.name == _ACTIVATE else one
                for one in offered
                if one.name not in unused and (skills or one.name != _ACTIVATE)
            ]
            known = self._all[key] = (toolbox, agent, rules, tuple(offered))
        return known[3]

    async def begin(
        self,
        session: Session,
        agent: AgentDefinition,
        toolbox: Toolbox,
        client: ModelClient,
        *,
        change: bool,
        max_tools: int,
    ) -> Offer:
        """The offer of a new turn, for its first model; the turn's prompt is the newest of the session's
        messages.
        """
        plan, child = session.plan_gate(agent), bool(session.record.parent)
        allowed = self.allowed(toolbox, agent, change=change, plan=plan, child=child)
        max_tools = most_functions(allowed, client, max_tools)
        if fits(allowed, max_tools):
            self._sessions.pop(session, None)
            return Offer(tuple(one for one in allowed if one.name != SEARCH_FUNCTION), whole=True)
        kept = await self._kept(session)
        kept.new_in(session.messages)
        names = frozenset(function.name for function in allowed)
        index = await index_of(toolbox)
        ranked = rank(index, session.messages, names)
        choice = choose(ranked, names, used=[*reversed(kept.used)], max_tools=max_tools)
        best = {*choice.always, *choice.used, *(hit.function for hit in choice.hits[:_MUST_FIT])}
        if kept.allowed != names or len(kept.names) > max_tools or not best <= {*kept.names}:
            older = [name for name in kept.names if name in names]
            kept.names = tuple(dict.fromkeys([*choice.chosen, *older]))[:max_tools]
            kept.allowed = names
        return Offer.partial(allowed, kept, max_tools)

    async def _kept(self, session: Session) -> _Kept:
        """The state of a session; in the first turn after a start it is made from the whole history."""
        kept = self._sessions.get(session)
        if kept is None:
            kept = _Kept()
            with contextlib.suppress(NotFound):
                self._history.queries.state_of(_COMPACTIONS, session.id)
                events = await asyncio.to_thread(self._history.queries.messages, session.id)
                kept.new_in([Message.from_dict(event.data) for event in events if event.data])
            self._sessions[session] = kept
        return kept


def _naming(function: Function, skills: Sequence[str]) -> Function:
    """The function with the names of the skills that its argument can be."""
    properties = function.parameters["properties"]
    named = {**properties, "name": {**properties["name"], "enum": [*skills[:_MOST_NAMES]]}}
    return replace(function, parameters={**function.parameters, "properties": named})


def fits(allowed: Sequence[Function], max_tools: int) -> bool:
    """Whether all functions of an agent can be offered; otherwise the search is offered too."""
    return sum(function.name != SEARCH_FUNCTION for function in allowed) <= max_tools


def rank(index: ToolIndex, messages: Sequence[Message], among: frozenset[str]) -> list[Hit]:
    """The functions that match the newest prompt, and with less weight the earlier ones."""
    at = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "user"), None)
    if at is None:
        return []
    ranked = index.rank(messages[at].question, among=among)
    before = [one for one in messages[max(0, at - _RECENT_MESSAGES) : at] if one.role != "tool"]
    recent = "\n".join(message.content[:_RECENT_CHARS] for message in before)
    if not recent.strip():
        return ranked
    scores = {hit.function: hit for hit in ranked}
    for hit in index.rank(recent, among=among):
        known = scores.get(hit.function)
        score = hit.score * _RECENT_PART + (known.score if known else 0.0)
        words = known.words if known else hit.words
        scores[hit.function] = replace(hit, score=score, words=words)
    return sorted(scores.values(), key=lambda hit: (-hit.score, hit.function))


def most_functions(functions: Sequence[Function], client: ModelClient, max_tools: int) -> int:
    """The most functions to offer an agent's model: `max_tools`, or fewer if its window is small."""
    window = client.context_tokens if client.window_known else 0
    if not functions or not window or window >= _LARGE:
        return max_tools
    mean_bytes = sum(map(bytes_of_function, functions)) / len(functions)
    return min(max_tools, max(LEAST, int(window * _WINDOW_PART * BYTES_PER_TOKEN / mean_bytes)))
