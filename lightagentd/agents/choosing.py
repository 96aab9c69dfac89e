"""What a prompt chooses for its turn: a model, fewer tools, effects and steps, the form of the answer.

A `Choice` is a plain value. It is stored with the question that begins the turn, so a turn that goes on after
a restart has it too. It only narrows: it is checked when the prompt comes, and laid over the agent's
definition again at each use, so what an administrator takes from the agent meanwhile is gone from the turn as
well (`AgentParts.for_turn`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lightagentd.agents.answers.schema import checked_schema
from lightagentd.agents.definition import AgentDefinition
from lightagentd.config.stubs import Stub, stubs_in
from lightagentd.errors import (
    ChoiceTooWide,
    InvalidArgument,
    LimitExceeded,
    SchemaUnsupported,
    ToolNotFound,
)
from lightagentd.events.store.states import checked
from lightagentd.llm.providers import RUNBOOK
from lightagentd.tool import Effect

if TYPE_CHECKING:
    from lightagentd.agents.parts import AgentParts
    from lightagentd.llm.protocol import ModelClient

MOST_TOOLS = 1000
"""How many tools a choice may name."""
_LISTS = ("tools", "skills", "agents")
"""What a definition lists, and has all of without a list."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What one turn is to have. What is missing is as the agent and the session have it."""

    model: str = ""
    """The model that is asked first."""
    tools: tuple[str, ...] | None = None
    """`tool` or `tool.action`; the turn has these of the agent's."""
    effects: tuple[Effect, ...] | None = None
    skills: tuple[str, ...] | None = None
    system: str = ""
    """More text for the system prompt."""
    max_steps: int | None = None
    deliberate: bool | None = None
    """Whether drafts of a plan come first; None as the agent has it."""
    alone: bool | None = None
    """Whether the turn has nothing at all but `tools`: nothing that agents have besides."""
    schema: dict[str, Any] | None = field(default=None, hash=False)
    """The JSON Schema that the answer has to fit."""
    stubs: tuple[Stub, ...] | None = field(default=None, hash=False)
    """What calls say that run nowhere; with it, even without any, only what observes runs, and the turn has
    one model."""

    def to_dict(self) -> dict[str, Any]:
        """What was chosen, as it is stored; empty when nothing was."""
        found = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if value not in (None, "")
        }
        return found if self.stubs is None else found | {"stubs": [one.to_dict() for one in self.stubs]}

    def told(self) -> dict[str, Any]:
        """What the history says of it: of the schema, the text and the stubs only that there are some."""
        found = self.to_dict()
        return {name: True if name in ("schema", "system", "stubs") else one for name, one in found.items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Choice:
        """Raises TypeError, ValueError for what `to_dict` does not make."""
        value = checked(
            dict(stored),
            **dict.fromkeys(("model", "system"), str),
            **dict.fromkeys(("tools", "effects", "skills", "stubs"), list),
            max_steps=int,
            deliberate=bool,
            alone=bool,
            schema=dict,
        )
        for name in ("tools", "skills"):
            if name in value:
                value[name] = tuple(map(str, value[name]))
        if "effects" in value:
            value["effects"] = tuple(map(Effect, value["effects"]))
        if "stubs" in value:
            value["stubs"] = tuple(map(Stub.model_validate, value["stubs"]))
        return cls(**value)


NOTHING = Choice()


async def chosen(
    *,
    model: str = "",
    tools: Sequence[str] | None = None,
    effects: Sequence[str] | None = None,
    max_steps: int | None = None,
    schema: Any = None,
    stubs: Any = None,
    deliberate: bool | None = None,
) -> Choice:
    """The choice in what a caller gave; `admit` says whether an agent has it. `schema` is an object or its
    text, `stubs` a list of objects. Raises InvalidArgument, SchemaInvalid, LimitExceeded.
    """
    if tools is not None and len(tools) > MOST_TOOLS:
        raise LimitExceeded(f"A prompt may choose {MOST_TOOLS} tools, and this one names {len(tools)}.")
    if effects is not None and not effects:
        raise InvalidArgument(
            "The prompt chooses no effect at all.",
            field="effects",
            suggestion="Name at least one of observe, reach and change; without tools nothing is called.",
        )
    if max_steps is not None and max_steps < 1:
        raise InvalidArgument(
            f"A turn has at least 1 step, and max_steps is {max_steps}.",
            field="max_steps",
            suggestion="A step is one call of the model with the tool calls that it asks for.",
        )
    return Choice(
        model=model,
        tools=None if tools is None else tuple(dict.fromkeys(tools)),
        effects=None if effects is None else tuple(dict.fromkeys(map(_effect, effects))),
        max_steps=max_steps,
        deliberate=deliberate,
        schema=None if schema is None else await checked_schema(schema),
        stubs=None if stubs is None else stubs_in(stubs),
    )


def admit(choice: Choice, parts: AgentParts, model: str = "") -> None:
    """Check that an agent has what a prompt chose. `model` is the one of the session.

    Raises InvalidArgument for an unknown model, ToolNotFound, also for that of a stub, ChoiceTooWide with the
    names of what is too wide, and SchemaUnsupported.
    """
    agent, now = parts.definition.name, parts.for_turn(NOTHING)
    if choice.model and choice.model not in (names := parts.models()):
        raise InvalidArgument(
            f"The agent {agent} has no model {choice.model[:100]!r}.",
            field="model",
            suggestion=f"It has: {', '.join(names)}. An administrator adds others to fallback.",
        )
    _admit_tools(choice.tools or (), now)
    for stub in choice.stubs or ():
        now.toolbox.find(stub.tool, stub.action)
    if wide := [one for one in choice.effects or () if one not in now.definition.front.effects]:
        has = ", ".join(now.definition.front.effects) or "none"
        raise ChoiceTooWide(
            f"The agent {agent} does not have the effects {', '.join(wide)}.",
            field="effects",
            suggestion=f"It has: {has}. A prompt can choose fewer of them, and no others.",
        )
    if choice.max_steps is not None and choice.max_steps > now.max_steps:
        raise ChoiceTooWide(
            f"The agent {agent} may take {now.max_steps} steps in a turn, and the prompt chooses"
            f" {choice.max_steps}.",
            field="max_steps",
            suggestion="Choose fewer, or have an administrator raise max_steps in the agent's limits.",
        )
    if choice.deliberate and now.definition.front.deliberate is None:
        raise ChoiceTooWide(
            f"The agent {agent} does not deliberate.",
            field="deliberate",
            suggestion="It costs model calls; an administrator allows it in AGENT.md with deliberate: {}",
        )
    if choice.schema is not None:
        parts.clients_for(choice.model or model, schema=True)
    _admit_content(choice, parts)


def _admit_tools(names: Sequence[str], parts: AgentParts) -> None:
    """Raises ToolNotFound, ChoiceTooWide."""
    known: dict[str, list[str]] = {}
    for action in parts.toolbox.functions.values():
        known.setdefault(action.tool, []).append(action.name)
    wide = []
    for name in names:
        tool, dot, wanted = name.partition(".")
        actions = [one for one in known.get(tool, ()) if not dot or one == wanted]
        if not actions:
            raise ToolNotFound(
                f"There is no tool {name[:100]!r}.",
                field="tools",
                suggestion="Write TOOL or TOOL.ACTION; 'lactl tools list' names them.",
            )
        if not any(parts.definition.offers(tool, one) for one in actions):
            wide.append(name)
    if wide:
        raise ChoiceTooWide(
            f"The agent {parts.definition.name} does not have the tools {', '.join(wide)[:500]}.",
            field="tools",
            suggestion="A prompt can choose fewer of the agent's tools, and no others.",
        )


def _admit_content(choice: Choice, parts: AgentParts) -> None:
    """Raises InvalidArgument for what would be stored with a secret in it."""
    said = choice.to_dict()
    if said and parts.history.redactor.value(said) != said:
        raise InvalidArgument(
            "What the prompt chooses holds what looks like a key or a password.",
            field=next((one for one in ("schema", "stubs") if getattr(choice, one) is not None), "tools"),
            suggestion="Take it out: it would be stored with the prompt.",
        )


def check_schema_client(client: ModelClient) -> None:
    """Raises SchemaUnsupported for a model that writes no JSON of its own."""
    if client.name == RUNBOOK:
        raise SchemaUnsupported(
            "The model runbook answers with the report of a skill, which fits no schema.",
            field="schema",
            suggestion="Choose a language model, or leave the schema out.",
        )


def narrowed(
    definition: AgentDefinition, choice: Choice, now: AgentDefinition | None = None
) -> AgentDefinition:
    """The definition that a turn uses: what the agent has, the choice has, and `now` has, the definition as
    the files say it meanwhile. The same object where that takes nothing away.
    """
    front = definition.front
    lists = {name: getattr(front, name) for name in _LISTS}
    effects = front.effects
    if now is not None and now is not definition:
        lists = {name: both(one, getattr(now.front, name)) for name, one in lists.items()}
        effects = [one for one in effects if one in now.front.effects]
    for name, one in (("tools", choice.tools), ("skills", choice.skills)):
        lists[name] = both(lists[name], one)
    effects = [one for one in effects if choice.effects is None or one in choice.effects]
    if choice.alone:
        definition, lists["context_skill"] = replace(definition, alone=True), ""
    update = {
        name: one for name, one in (lists | {"effects": effects}).items() if one != getattr(front, name)
    }
    return replace(definition, front=front.model_copy(update=update)) if update else definition


def both(one: Iterable[str] | None, other: Iterable[str] | None) -> list[str] | None:
    """What is in two lists of tools (`tool`, `tool.action`), skills or agents; None stands for all."""
    if one is None or other is None:
        rest = other if one is None else one
        return None if rest is None else list(rest)
    first, second = list(one), list(other)
    kept = [name for name in first if _has(second, name)]
    return [*kept, *(name for name in second if name not in kept and _has(first, name))]


def _has(names: Sequence[str], name: str) -> bool:
    return name in names or name.partition(".")[0] in names


def _effect(name: str) -> Effect:
    try:
        return Effect(name)
    except ValueError:
        raise InvalidArgument(
            f"{name[:60]!r} is not an effect.",
            field="effects",
            suggestion="The effects are observe, reach and change.",
        ) from None
