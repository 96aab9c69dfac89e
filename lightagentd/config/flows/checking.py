"""Reads the definition of a flow, and finds its faults before anything runs, each with file and line."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lightagentd.config.configuration import parse_toml, read_text
from lightagentd.config.flows.conditions import Condition
from lightagentd.config.flows.definition import Flow, Step
from lightagentd.config.flows.references import INPUTS, ITEM, NOT_STEPS, OF_STEP, Reference, references
from lightagentd.config.flows.shell import is_command, misplaced
from lightagentd.errors import ConfigError, LightagentError

_HEADER = re.compile(r"^\s*\[\[\s*step\s*\]\]")
_LINE = re.compile(r"\(at line (\d+)")
OF_RUN = ("id", "flow", "owner")
MOST_BYTES = 4 << 20
MOST_TOLD = 50
"""Of the faults of a flow, how many are told."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a text says, and the faults and warnings about it, as sentences with file and line."""

    flow: Flow | None = None
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def usable(self) -> Flow:
        """Raises ConfigError with the first faults."""
        if self.flow is None or self.faults:
            more = len(self.faults) - 3
            said = " ".join(self.faults[:3]) + (f" And {more} more faults." if more > 0 else "")
            raise ConfigError(said, suggestion="See: lactl flows check")
        return self.flow


@dataclass(frozen=True, kw_only=True)
class Known:
    """What there is for a flow to name: None where that is not known."""

    agents: Collection[str] | None = None
    flows: Mapping[str, Flow] | None = None
    has_action: Callable[[str, str], bool] | None = None
    """Whether an agent has an action, `tool.action`."""


@dataclass
class _Text:
    """A file, and where its steps begin."""

    path: str
    lines: list[int] = field(default_factory=list)

    def at(self, step: int | None) -> str:
        line = self.lines[step] if step is not None and step < len(self.lines) else 0
        return f"{self.path}:{line}" if line else self.path


def read_flow(path: Path, known: Known = Known(), *, agent: str = "") -> Checked:
    """Read a file; `agent` is for a flow that names none. What cannot be read is a fault."""
    try:
        return check_flow(read_text(path), str(path), known, agent=agent)
    except LightagentError as err:
        return Checked(faults=(err.message,))


def check_flow(text: str, path: str, known: Known = Known(), *, agent: str = "") -> Checked:
    """Check a text; `path` is what the faults call it."""
    if len(text) > MOST_BYTES:
        return Checked(faults=(f"{path}: it has more than {MOST_BYTES >> 20} MiB.",))
    try:
        values = parse_toml(text, path)
    except ConfigError as err:
        return Checked(faults=(_LINE.sub(r"(line \1", err.message).rstrip(".") + ".",))
    return check_values(values, text, path, known, agent=agent)


def check_values(
    values: dict[str, Any], text: str, path: str, known: Known = Known(), *, agent: str = ""
) -> Checked:
    """Check tables; `text` is where they were read, for the lines."""
    steps = values.get("step")
    headers = [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
    exact = isinstance(steps, list) and len(headers) == len(steps)
    where = _Text(path, headers if exact else [])
    try:
        flow = Flow.model_validate(values)
    except ValidationError as err:
        return Checked(faults=tuple(_explained(err, steps, where))[:MOST_TOLD])
    if flow.agent is None and agent:
        flow = flow.model_copy(update={"agent": agent})
    faults = [*_names(flow, where)]
    if not faults:
        faults += [*_graph(flow, where)]
    if not faults:
        faults += [*_of_steps(flow, where, known)]
    return Checked(
        flow=flow, faults=tuple(dict.fromkeys(faults))[:MOST_TOLD], warnings=tuple(_isolated(flow, where))
    )


def _explained(err: ValidationError, steps: Any, where: _Text) -> Iterator[str]:
    found = err.errors(include_url=False, include_input=False)
    for one in [one for one in found if one["type"] != "too_short" or len(found) == 1]:
        loc = tuple(str(part) for part in one["loc"])
        number, name = None, ""
        if len(loc) > 1 and loc[0] == "step" and loc[1].isdecimal():
            number, loc = int(loc[1]), loc[2:]
            table = steps[number] if isinstance(steps, list) and number < len(steps) else None
            named = table.get("name") if isinstance(table, dict) else None
            name = f"step {named[:64] if isinstance(named, str) else number + 1}: "
        key = ".".join(
            part for part in loc if "[" not in part and part not in ("tuple", "str", "value_error")
        )
        said = one["msg"].removeprefix("Value error, ").rstrip(".")
        if one["type"] == "missing":
            said = f"the key {key!r} is missing"
        elif one["type"] == "extra_forbidden":
            said = f"the key {key!r} is not known"
        elif key:
            said = f"{key}: {said}"
        yield f"{where.at(number)}: {name}{said}."


def _names(flow: Flow, where: _Text) -> Iterator[str]:
    """Names that are there twice, and names of steps that there are not."""
    seen: dict[str, int] = {}
    names = {step.name for step in flow.step}
    for number, step in enumerate(flow.step):
        at = f"{where.at(number)}: step {step.name}"
        if step.name in seen:
            yield f"{at}: there is another step with this name, at {where.at(seen[step.name])}."
        seen.setdefault(step.name, number)
        for one in (*step.depends_on, *filter(None, [step.handler])):
            if one not in names:
                key = "on_failure" if one == step.handler else "depends_on"
                yield f"{at}: {key} names {one}, and there is no such step.{_near(one, names)}"
        if step.name in (*step.depends_on, step.handler):
            yield f"{at}: it waits for itself."


def _graph(flow: Flow, where: _Text) -> Iterator[str]:
    sorter = graphlib.TopologicalSorter(flow.before())
    try:
        sorter.prepare()
    except graphlib.CycleError as err:
        circle = list(reversed(err.args[1]))
        number = next(place for place, step in enumerate(flow.step) if step.name == circle[0])
        yield f"{where.at(number)}: the steps wait for each other: {' → '.join(circle)}."


def _isolated(flow: Flow, where: _Text) -> Iterator[str]:
    """Steps that nothing leads to or from, where there are others."""
    before = flow.before()
    named = {name for steps in before.values() for name in steps}
    for number, step in enumerate(flow.step):
        if len(flow.step) > 1 and not before[step.name] and step.name not in named:
            yield f"{where.at(number)}: step {step.name} is isolated: nothing leads to it or from it."


def _of_steps(flow: Flow, where: _Text, known: Known) -> Iterator[str]:
    """Faults of single steps, in a flow whose graph is whole."""
    before = flow.before()
    above: dict[str, set[str]] = {}
    for name in graphlib.TopologicalSorter(before).static_order():
        above[name] = {one for step in before[name] for one in (step, *above[step])}
    by_name = {step.name: step for step in flow.step}
    handlers = {step.handler for step in flow.step if step.handler}
    for number, step in enumerate(flow.step):
        at = f"{where.at(number)}: step {step.name}"
        for key, value in step.templates():
            try:
                for reference in references(value):
                    seen = {*above[step.name], *([step.name] if key in ("undo", "check") else [])}
                    why = _wrong(reference, step, flow, seen, by_name, handlers)
                    if why:
                        yield f"{at}: {key}: {reference} {why}."
            except ValueError as err:
                yield f"{at}: {key}: {err}."
        for key, template in _commands(step):
            try:
                if found := misplaced(template):
                    yield f"{at}: {key}: {found}, where it cannot be quoted. Put it outside: it is one word."
            except ValueError:
                pass  # it was told above
        for condition in (*step.when, *step.cancel_if):
            if why := _wrong_condition(condition, flow, above[step.name]):
                yield f"{at}: a condition is about {why}."
        yield from (f"{at}: {why}" for why in _unknown(step, flow, known))


def _commands(step: Step) -> Iterator[tuple[str, str]]:
    """The templates of a step that a shell reads."""
    if step.check:
        yield "check", step.check
    calls = [("args", step.call, step.args)]
    if step.undo is not None:
        calls.append(("undo", step.undo.call, step.undo.args))
    for where, call, args in calls:
        for key, value in args.items():
            if call is not None and is_command(call, key) and isinstance(value, str):
                yield f"{where}.{key}", value


def _wrong(
    reference: Reference,
    step: Step,
    flow: Flow,
    above: Collection[str],
    by_name: Mapping[str, Step],
    handlers: Collection[str],
) -> str:
    """Why a reference of a step can have no value, as words; empty when it can."""
    to, path = reference.to, reference.path
    if to == INPUTS:
        if len(path) != 1 or path[0] not in flow.inputs:
            return f"names no input; there are: {', '.join(flow.inputs) or 'none'}"
    elif to == ITEM:
        return "" if step.for_each is not None else "is only in a step with for_each"
    elif to in NOT_STEPS:
        return "" if len(path) == 1 and path[0] in OF_RUN else f"has one of: {', '.join(OF_RUN)}"
    elif to not in by_name:
        return f"names no step.{_near(to, by_name)}".rstrip(".")
    elif to not in above:
        return "is about a step that is not before this one; name it in depends_on"
    elif not path or path[0] not in OF_STEP or (path[0] != "json" and len(path) > 1):
        return f"has one of {', '.join(OF_STEP)} behind the step, such as {{{to}.output}}"
    elif path[0] != "status" and not reference.optional and (why := _may_have_none(by_name[to], handlers)):
        return f"may have no value, since {why}; write ? at its end, as in {{{to}.output?}}"
    return ""


def _may_have_none(step: Step, handlers: Collection[str]) -> str:
    """Why a step that is over may have no output."""
    if step.name in handlers:
        return f"{step.name} runs only when another step fails"
    if step.when:
        return f"{step.name} is skipped unless its when holds"
    return f"{step.name} may fail, and the run goes on" if step.on_failure != "stop" else ""


def _wrong_condition(condition: Condition, flow: Flow, above: Collection[str]) -> str:
    if condition.input and condition.input not in flow.inputs:
        return f"the input {condition.input}, and there is none"
    if condition.step and condition.step not in above:
        return f"the step {condition.step}, which is not before this one; name it in depends_on"
    return ""


def _unknown(step: Step, flow: Flow, known: Known) -> Iterator[str]:
    """What a step names and there is not, as sentences."""
    who = step.agent or flow.agent
    if step.kind != "flow" and not who:
        yield "it names no agent, and neither does the flow."
    if known.agents is not None:
        for agent in dict.fromkeys(filter(None, [who, step.fallback_agent])):
            if agent not in known.agents:
                yield f"there is no agent {agent}.{_near(agent, known.agents)}"
    calls = [step.call, step.undo.call if step.undo is not None else None]
    if known.has_action is not None and who and (known.agents is None or who in known.agents):
        for call in dict.fromkeys(filter(None, calls)):
            if not known.has_action(who, call):
                yield f"the agent {who} has no action {call}."
    if known.flows is None or step.flow is None:
        return
    if (nested := known.flows.get(step.flow)) is None:
        yield f"there is no flow {step.flow}.{_near(step.flow, known.flows)}"
        return
    if unknown := sorted(set(step.inputs) - set(nested.inputs)):
        yield f"the flow {step.flow} has no input {unknown[0]}."
    needed = {name for name, one in nested.inputs.items() if one.default is None}
    if missing := sorted(needed - set(step.inputs)):
        yield f"the flow {step.flow} needs the input {missing[0]}."


def _near(name: str, known: Collection[str]) -> str:
    import difflib

    found = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {found[0]}?" if found else ""
