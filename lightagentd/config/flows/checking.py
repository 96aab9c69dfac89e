"""Reads the definition of a flow, and finds its faults before anything runs, each with file and line."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lightagentd.config.configuration import parse_toml, read_text
from lightagentd.config.flows.conditions import Condition
from lightagentd.config.flows.definition import Flow, FlowInput, Step
from lightagentd.config.flows.references import (
    INPUTS,
    ITEM,
    NOT_STEPS,
    OF_STEP,
    RUN,
    Reference,
    parsed,
    references,
)
from lightagentd.config.flows.shell import is_command, misplaced, read_again
from lightagentd.errors import ConfigError, InvalidArgument, LightagentError

_HEADER = re.compile(r"[ \t]*\[\[[ \t]*step[ \t]*\]\]")
_NAME_LINE = re.compile(r"""[ \t]*["']?name["']?[ \t]*=[ \t]*["']([^"']*)["']""")
_NOT_TOML = re.compile(
    r"(.*) is not TOML: (.*?)(?: \(at line (\d+), column \d+\)| \(at end of document\))?", re.DOTALL
)
CHECK = "bash.exec"
"""The action that runs a `check`."""
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
        found = _NOT_TOML.fullmatch(err.message)
        line = f":{found[3]}" if found is not None and found[3] else ""
        said = f"it is not TOML: {found[2]}" if found is not None else err.message
        return Checked(faults=(f"{path}{line}: {said.rstrip('.')}.",))
    return check_values(values, text, path, known, agent=agent)


def check_values(
    values: dict[str, Any], text: str, path: str, known: Known = Known(), *, agent: str = ""
) -> Checked:
    """Check tables; `text` is where they were read, for the lines."""
    steps = values.get("step")
    where = _Text(path, _lines(steps, text))
    try:
        flow = Flow.model_validate(values)
    except ValidationError as err:
        return Checked(faults=_first(_explained(err, steps, where)))
    if flow.agent is None and agent:
        flow = flow.model_copy(update={"agent": agent})
    faults = (
        _first(_names(flow, where)) or _first(_graph(flow, where)) or _first(_of_steps(flow, where, known))
    )
    warnings = () if faults else _first(chain(_isolated(flow, where), _risky(flow, where)))
    return Checked(flow=flow, faults=faults, warnings=warnings)


def _first(found: Iterator[str]) -> tuple[str, ...]:
    """Those that are told: to look for a name that is near takes its time."""
    return tuple(dict.fromkeys(islice(found, MOST_TOLD)))


def _lines(steps: Any, text: str) -> list[int]:
    """The lines where the steps begin; none when a text of many lines may have a header, too."""
    if not isinstance(steps, list):
        return []
    headers, names = [], list[str | None]()
    for number, line in enumerate(text.split("\n"), 1):
        if _HEADER.match(line):
            headers.append(number)
            names.append(None)
        elif names and names[-1] is None and (named := _NAME_LINE.match(line)):
            names[-1] = named[1]
    wanted = [step.get("name") if isinstance(step, dict) else None for step in steps]
    return headers if names == [one if isinstance(one, str) else None for one in wanted] else []


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
        said = (
            said.replace("valid tuple", "valid list")
            .replace("Tuple", "A list")
            .replace("dictionary or instance of Step", "table")
        )
        said = said.replace("valid dictionary", "valid table")
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
        if len(set(step.depends_on)) < len(step.depends_on):
            yield f"{at}: depends_on names a step twice."


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


def _above(flow: Flow) -> Callable[[str, str], bool]:
    """Whether a step is over before another one begins. Each step has a number, and is a bit."""
    bits = {step.name: 1 << number for number, step in enumerate(flow.step)}
    before, above = flow.before(), dict[str, int]()
    for name in graphlib.TopologicalSorter(before).static_order():
        above[name] = 0
        for one in before[name]:
            above[name] |= above[one] | bits[one]
    return lambda one, step: bool(above[step] & bits[one])


def _of_steps(flow: Flow, where: _Text, known: Known) -> Iterator[str]:
    """Faults of single steps, in a flow whose graph is whole."""
    seen = _Seen(flow)
    for number, step in enumerate(flow.step):
        at = f"{where.at(number)}: step {step.name}"
        for key, value in step.templates():
            try:
                for reference in references(value):
                    if why := seen.wrong(reference, step, key):
                        yield f"{at}: {key}: {reference} {why}."
            except ValueError as err:
                yield f"{at}: {key}: {err}."
        for key, template in _commands(step):
            try:
                if found := misplaced(template):
                    yield f"{at}: {key}: {found}."
            except ValueError:
                pass  # it was told above
        for condition in (*step.when, *step.cancel_if):
            if why := seen.wrong_condition(condition, step):
                yield f"{at}: a condition is about {why}."
        if why := _no_list(step, flow):
            yield f"{at}: for_each {why}."
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


class _Seen:
    """What the steps of a flow can refer to."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._is_above = _above(flow)
        self._steps = {step.name: step for step in flow.step}
        self._handlers = {step.handler for step in flow.step if step.handler}

    def wrong(self, reference: Reference, step: Step, key: str) -> str:
        """Why a reference of a step can have no value, as words; empty when it can."""
        to, path = reference.to, reference.path
        if to == INPUTS:
            if len(path) != 1 or path[0] not in self._flow.inputs:
                return f"names no input; there are: {', '.join(self._flow.inputs) or 'none'}"
        elif to == ITEM:
            if step.for_each is None or key in ("for_each", "undo"):
                return "is only in what a step with for_each runs"
        elif to in NOT_STEPS:
            return "" if len(path) == 1 and path[0] in OF_RUN else f"has one of: {', '.join(OF_RUN)}"
        elif to not in self._steps:
            return f"names no step.{_near(to, self._steps)}".rstrip(".")
        elif to == step.name and key == "check" and step.for_each is not None:
            return "is the list of all items, which is not there yet when one is checked"
        elif not self._is_above(to, step.name) and not (key in ("undo", "check") and to == step.name):
            return "is about a step that is not before this one; name it in depends_on"
        elif not path or path[0] not in OF_STEP or (path[0] != "json" and len(path) > 1):
            return f"has one of {', '.join(OF_STEP)} behind the step, such as {{{to}.output}}"
        elif path[0] != "status" and not reference.optional and (why := self._may_have_none(to, step)):
            return f"may have no value, since {why}; write ? at its end, as in {{{to}.output?}}"
        return ""

    def _may_have_none(self, name: str, user: Step) -> str:
        """Why a step that is over may have no output when another step uses it."""
        if any(one.step == name and one.needs_success for one in user.when) or name == user.name:
            return ""
        step = self._steps[name]
        if name in self._handlers:
            return f"{name} runs only when another step fails"
        if step.when:
            return f"{name} is skipped unless its when holds"
        return f"{name} may fail, and the run goes on" if step.on_failure != "stop" else ""

    def wrong_condition(self, condition: Condition, step: Step) -> str:
        if condition.input and condition.input not in self._flow.inputs:
            return f"the input {condition.input}, and there is none"
        if condition.step and condition.step not in self._steps:
            return (
                f"the step {condition.step}, and there is none.{_near(condition.step, self._steps)}".rstrip(
                    "."
                )
            )
        if condition.step and not self._is_above(condition.step, step.name):
            return f"the step {condition.step}, which is not before this one; name it in depends_on"
        return ""


def _no_list(step: Step, flow: Flow) -> str:
    """Why the text of a for_each is no list, as words."""
    if not isinstance(step.for_each, str):
        return ""
    try:
        parts = parsed(step.for_each)
    except ValueError:
        return ""  # it was told above
    if len(parts) != 1 or not isinstance(parts[0], Reference):
        return "is a list, or one reference to a list"
    to, path = parts[0].to, parts[0].path
    if to == INPUTS and path and path[0] in flow.inputs and flow.inputs[path[0]].type != "list":
        return f"is a list, and the input {path[0]} is of the type {flow.inputs[path[0]].type}"
    if to == RUN or path[:1] in (("output",), ("status",)):
        return f"is a list, and {parts[0]} is a text; the output as JSON is {{{to}.json}}"
    return ""


def _unknown(step: Step, flow: Flow, known: Known) -> Iterator[str]:
    """What a step names and there is not, as sentences."""
    who = step.agent or flow.agent
    if not who and (step.kind != "flow" or not any(one.agent for one in flow.step)):
        yield "it names no agent, and neither does the flow."
    for agent in dict.fromkeys(filter(None, [who, step.fallback_agent])):
        if known.agents is not None and agent not in known.agents:
            yield f"there is no agent {agent}.{_near(agent, known.agents)}"
        elif known.has_action is not None:
            for call in _calls(step, is_first=agent == who):
                if not known.has_action(agent, call):
                    yield f"the agent {agent} has no action {call}."
    if known.flows is None or step.flow is None:
        return
    if (nested := known.flows.get(step.flow)) is None:
        yield f"there is no flow {step.flow}.{_near(step.flow, known.flows)}"
        return
    if unknown := sorted(set(step.inputs) - set(nested.inputs)):
        yield f"the flow {step.flow} has no input {unknown[0]}.{_near(unknown[0], nested.inputs)}"
    needed = {name for name, one in nested.inputs.items() if one.default is None}
    if missing := sorted(needed - set(step.inputs)):
        yield f"the flow {step.flow} needs the input {missing[0]}."
    for name in step.inputs.keys() & nested.inputs.keys():
        if why := _misfit(step.inputs[name], name, nested.inputs[name]):
            yield f"the flow {step.flow}: {why}"


def _calls(step: Step, *, is_first: bool) -> list[str]:
    """The actions that an agent has to have for a step; a fallback undoes nothing."""
    undo = step.undo.call if step.undo is not None and is_first else None
    return list(dict.fromkeys(filter(None, [step.call, undo, CHECK if step.check else None])))


def _misfit(value: Any, name: str, wanted: FlowInput) -> str:
    """Why a value without references is none of an input, as a sentence."""
    try:
        if not any(True for _ in references(value)):
            wanted.typed(name, value)
    except ValueError:
        pass  # a broken template, which was told above
    except InvalidArgument as err:
        return err.message
    return ""


def _risky(flow: Flow, where: _Text) -> Iterator[str]:
    """Commands with a word that a program may read again as code."""
    for number, step in enumerate(flow.step):
        for key, template in _commands(step):
            if program := read_again(template):
                yield (
                    f"{where.at(number)}: step {step.name}: {key}: {program} may read a value again as code,"
                    " and quoting does not help against that."
                )


def _near(name: str, known: Collection[str]) -> str:
    import difflib

    found = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {found[0]}?" if found else ""
