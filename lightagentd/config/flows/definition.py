"""`flows/NAME.toml`: a graph of steps that runs the same way every time.

    description = "Look for updates"
    agent = "ops"

    [inputs.host]
    type = "string"

    [[step]]
    name = "updates"
    call = "bash.run"
    args = { command = "apt-get -s upgrade" }

    [[step]]
    name = "report"
    depends_on = ["updates"]
    prompt = "Say what is to be updated on {inputs.host}: {updates.output}"

A step is one of four kinds: a prompt to an agent, a call of a tool, another flow, or a question to a person.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr, model_validator

from lightagentd.config.flows.conditions import Condition, Finite, check_pattern, pattern_fits
from lightagentd.config.flows.references import NOT_STEPS
from lightagentd.config.section import Section
from lightagentd.config.terms import COMMAND_CHARS, Terms, terms_of
from lightagentd.errors import InvalidArgument, LimitExceeded
from lightagentd.text.strict_json import is_deeper

FLOWS = "flows"
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
MOST_STEPS = 2000
MOST_ITEMS = 1000
"""How many times a step with for_each runs at most."""
MOST_INPUT_CHARS = 10_000
MOST_LIST_CHARS = 100_000
_MOST_DEPTH = 32
_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


def _as_json(value: Any) -> Any:
    """Raises ValueError for what JSON, and so a stored run, does not have."""
    if is_deeper(value, _MOST_DEPTH):
        raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, float) and not math.isfinite(one):
            raise ValueError(f"{one} is not a number of JSON")
        elif isinstance(one, int) and not -(1 << 63) <= one < 1 << 63:
            raise ValueError("a number is too large")
        elif one is not None and not isinstance(one, str | int | float):
            raise ValueError("a date or time has to stand in quotes")
    return value


Json = Annotated[Any, AfterValidator(_as_json)]
Table = Annotated[dict[str, Any], AfterValidator(_as_json)]
Plain = StrictStr | StrictInt | Finite
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
FlowName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}(\.[a-z][a-z0-9_-]{0,63})?$")]
Agent = Annotated[str, Field(min_length=1, max_length=129, pattern=r"^[^\x00-\x20\x7f]*$")]
Call = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$")]
Conditions = Annotated[
    tuple[Condition, ...],
    BeforeValidator(lambda one: [one] if isinstance(one, dict) else one),
    Field(max_length=50),
]
Kind = Literal["prompt", "call", "flow", "ask"]
KINDS: tuple[Kind, ...] = ("prompt", "call", "flow", "ask")
_ONLY_FOR: Mapping[str, tuple[Kind, ...]] = {
    "agent": ("prompt", "call"),
    "fallback_agent": ("prompt", "call"),
    "args": ("call",),
    "inputs": ("flow",),
    "choices": ("ask",),
    "schema": ("prompt", "call"),
    "check": ("prompt", "call"),
    "undo": ("prompt", "call"),
    "confirm_within": ("call",),
    "confirm_check": ("call",),
    "inverse": ("call",),
    "requires_approval": ("prompt", "call", "flow"),
    "for_each": ("prompt", "call", "flow"),
    "max_retry": ("prompt", "call", "flow"),
}


class FlowInput(Section):
    """A value that a run is given."""

    type: Literal["string", "integer", "number", "boolean", "list"] = "string"
    description: str = Field(default="", max_length=1000)
    default: Json = None
    """Without it, a run has to give the value."""
    choices: tuple[Plain, ...] = Field(default=(), max_length=1000)
    pattern: str = Field(default="", max_length=1000)
    """A regular expression that fits the whole of a string, or of each string of a list."""

    @model_validator(mode="after")
    def _default_fits(self) -> Self:
        check_pattern("pattern", self.pattern)
        if self.pattern and self.type not in ("string", "list"):
            raise ValueError(f"pattern does not go with the type {self.type}")
        if any(self._as_type([one] if self.type == "list" else one) is None for one in self.choices):
            raise ValueError(f"choices are not of the type {self.type}")
        if self.default is not None:
            try:
                self.typed("default", self.default)
            except InvalidArgument as err:
                raise ValueError(err.message) from None
        return self

    def read(self, name: str, given: Any) -> Any:
        """The value, as its type; a text is read as that. Raises InvalidArgument."""
        value = self.typed(name, given)
        texts = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
        try:
            fits = not self.pattern or all(pattern_fits(self.pattern, one, whole=True) for one in texts)
        except LimitExceeded as err:
            raise InvalidArgument(f"The input {name}: {err.message}", field=name) from None
        if not fits:
            raise InvalidArgument(f"The input {name} does not fit its pattern, {self.pattern}.", field=name)
        return value

    def typed(self, name: str, given: Any) -> Any:
        """The value, but for its pattern. Raises InvalidArgument."""
        value = self._as_type(given)
        if value is None:
            raise InvalidArgument(f"The input {name} is not of the type {self.type}.", field=name)
        each = value if isinstance(value, list) else [value]
        if self.choices and any(one not in self.choices for one in each):
            named = ", ".join(map(str, self.choices))
            raise InvalidArgument(f"The input {name} is one of: {named}.", field=name)
        lengths = [len(one) for one in each if isinstance(one, str)]
        if max(lengths, default=0) > MOST_INPUT_CHARS:
            raise InvalidArgument(
                f"The input {name} is longer than {MOST_INPUT_CHARS} characters.", field=name
            )
        if sum(lengths) > MOST_LIST_CHARS:
            raise InvalidArgument(
                f"The input {name} has more than {MOST_LIST_CHARS} characters together.", field=name
            )
        return value

    def _as_type(self, given: Any) -> Any:
        """None for what is not of the type."""
        if self.type == "string":
            return given if isinstance(given, str) else None
        if self.type == "list":
            given = [one for one in given.split(",") if one] if isinstance(given, str) else given
            is_list = isinstance(given, list | tuple) and all(map(_is_plain, given))
            return list(given) if is_list and len(given) <= MOST_ITEMS else None
        if self.type == "boolean":
            text = str(given).lower() if isinstance(given, bool | str) else ""
            return _TRUTHS.get(text)
        return self._number(given)

    def _number(self, given: Any) -> int | float | None:
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            return None
        try:
            number = float(given)
            if self.type == "number":
                return number if math.isfinite(number) else None
            return int(given) if number == int(number) and abs(number) < 1 << 63 else None
        except (ValueError, OverflowError):
            return None


def _is_plain(one: Any) -> bool:
    """Whether an item of a list is a text or a number."""
    return isinstance(one, str) or (
        isinstance(one, int | float) and not isinstance(one, bool) and abs(one) < 1 << 63
    )


class Undo(Section):
    """The call that takes back what a step did. It is offered to a person when a later step fails."""

    call: Call
    args: Table = Field(default_factory=dict)


class Step(Section):
    """One step: `prompt`, `call`, `flow` or `ask`, and how it runs."""

    name: Name
    depends_on: tuple[Name, ...] = ()
    """The steps that are over, and did not stop the run, before it begins."""
    agent: Agent | None = None
    """Who answers the prompt, or as whom the call is made; without it the agent of the flow."""
    prompt: str | None = Field(default=None, min_length=1, max_length=100_000)
    call: Call | None = Field(default=None, examples=["bash.run"])
    args: Table = Field(default_factory=dict)
    """The arguments of the call."""
    flow: FlowName | None = None
    inputs: dict[Name, Json] = Field(default_factory=dict)
    """The inputs of the flow that it runs."""
    ask: str | None = Field(default=None, min_length=1, max_length=4000)
    choices: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        default=(), max_length=20
    )
    """The answers to choose from; without it, any text."""
    when: Conditions = ()
    """It is skipped unless all of these hold."""
    cancel_if: Conditions = ()
    """The run is cancelled before it when all of these hold."""
    timeout_s: float | None = Field(default=None, gt=0, le=7 * 86_400)
    max_retry: int = Field(default=0, ge=0, le=10)
    """How often it is tried again, after a pause that grows, when nothing was changed."""
    fallback_agent: Agent | None = None
    """Who tries it last."""
    requires_approval: bool = False
    check: str = Field(default="", max_length=10_000)
    """A command that observes; it ends with 0 when the step did what it should."""
    for_each: StrictStr | tuple[Plain, ...] | None = None
    """A list, or a reference to one: it runs once for each, which is `{item}`."""
    at_once: int = Field(default=1, ge=1, le=64)
    on_failure: Name = "stop"
    """`stop`, `continue`, or the name of a step that runs only then."""
    undo: Undo | None = None
    confirm_within: str = Field(default="", max_length=20)
    """How long the change of the call stands without a confirmation, such as `5m`; then it is taken back."""
    confirm_check: str = Field(default="", max_length=COMMAND_CHARS)
    """A command that confirms the change when it ends with 0."""
    inverse: str = Field(default="", max_length=COMMAND_CHARS)
    """The command that takes the change back, where what was changed does not say how."""
    schema_: Table | None = Field(default=None, alias="schema")
    """The JSON Schema that the output fits."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"needs one of prompt, call, flow and ask, and has {' and '.join(given) or 'none'}"
            )
        for key, kinds in _ONLY_FOR.items():
            if ("schema_" if key == "schema" else key) in self.model_fields_set and given[0] not in kinds:
                raise ValueError(f"{key} does not go with {given[0]}")
        if self.name in NOT_STEPS or self.name in ("stop", "continue"):
            raise ValueError(f"{self.name} is a word with another meaning; give the step another name")
        if isinstance(self.for_each, tuple) and len(self.for_each) > MOST_ITEMS:
            raise ValueError(f"for_each has {len(self.for_each)} items, and {MOST_ITEMS} is the most")
        terms_of(self.confirm_within, self.confirm_check, self.inverse)
        if "at_once" in self.model_fields_set and self.for_each is None:
            raise ValueError("at_once goes with for_each; the flow has an at_once of its own")
        return self

    @property
    def terms(self) -> Terms | None:
        """As which the change of its call has to be confirmed."""
        return terms_of(self.confirm_within, self.confirm_check, self.inverse)

    @property
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def handler(self) -> str:
        """The step that runs when it fails; empty for none."""
        return "" if self.on_failure in ("stop", "continue") else self.on_failure

    def templates(self) -> Iterator[tuple[str, Any]]:
        """The values that may have references, by their keys."""
        for key in ("prompt", "args", "inputs", "ask", "check", "for_each"):
            if value := getattr(self, key):
                yield key, value
        if self.undo is not None:
            yield "undo", self.undo.args


class Flow(Section):
    """A flow."""

    description: str = Field(max_length=2000)
    agent: Agent | None = None
    """For steps that name none."""
    inputs: dict[Name, FlowInput] = Field(default_factory=dict, max_length=100)
    at_once: int = Field(default=4, ge=1, le=64)
    """How many steps run at once."""
    timeout_s: float = Field(default=86_400, gt=0, le=30 * 86_400)
    step: tuple[Step, ...] = Field(min_length=1, max_length=MOST_STEPS)

    def given(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a run. Raises InvalidArgument."""
        if unknown := sorted(set(values) - set(self.inputs)):
            named = ", ".join(self.inputs) or "none"
            raise InvalidArgument(
                f"There is no input {unknown[0][:60]!r}; there are: {named}.", field="inputs"
            )
        found: dict[str, Any] = {}
        for name, one in self.inputs.items():
            if name not in values and one.default is None:
                raise InvalidArgument(f"The input {name} is missing. {one.description}".strip(), field=name)
            found[name] = one.read(name, values.get(name, one.default))
        return found

    def before(self) -> dict[str, tuple[str, ...]]:
        """For each step those that are over before it begins: with those whose failure it is for."""
        found = {step.name: list(step.depends_on) for step in self.step}
        for step in self.step:
            if step.handler in found and step.name not in found[step.handler]:
                found[step.handler].append(step.name)
        return {name: tuple(steps) for name, steps in found.items()}
