"""The cases of an assessment: files of TOML, each with one case or several.

    [[case]]
    name = "var-is-full"
    prompt = "is /var getting full?"
    effects = ["observe"]

    [case.answer]
    contains = ["97"]

    [[case.calls.must]]
    tool = "skill"
    action = "run"
    args = { name = "disk-check" }

    [[case.stub]]
    tool = "skill"
    action = "run"
    output = "/var is 97 % full."

A case is complete once it is read: the texts of its files are in it. lightagent-eval(5) describes the keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from lightagentd.config.configuration import parse_toml, read_text
from lightagentd.config.section import Section
from lightagentd.config.stubs import MOST_STUBS, PATTERN, Stub, fits
from lightagentd.errors import ConfigError, NotFound
from lightagentd.tool import Effect

MOST_CASES = 5000
MOST_BYTES = 4 << 20
"""How large a file of cases may be."""
MOST_FACT_CHARS = 1 << 20
_HEADER = re.compile(r"^\s*\[\[\s*case\s*\]\]")
_LINE = re.compile(r" \(at line (\d+), column \d+\)")


def _expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as err:
        raise ValueError(f"{pattern!r} is not a regular expression: {err}") from None
    return pattern


def _check_patterns(wanted: Any) -> None:
    """Raises ValueError."""
    if isinstance(wanted, dict):
        if wanted.keys() == {PATTERN}:
            _expression(str(wanted[PATTERN]))
        for one in wanted.values():
            _check_patterns(one)
    elif isinstance(wanted, list):
        for one in wanted:
            _check_patterns(one)


Texts = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=10_000)], ...], Field(max_length=100)]
Pattern = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_expression)]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=100)]


class JsonEquals(Section):
    """One value of an answer that is JSON."""

    path: str = Field(max_length=1000)
    """Names and numbers with dots between them; empty for the whole."""
    equals: Any


class Answer(Section):
    """What an answer has to be like."""

    contains: Texts = ()
    """Texts that are in it, in any case of letters."""
    lacks: Texts = ()
    matches: Patterns = ()
    """Regular expressions that are found in it."""
    matches_not: Patterns = ()
    json_: tuple[JsonEquals, ...] = Field(default=(), alias="json", max_length=100)
    error: str = Field(default="", max_length=100)
    """The code of the error with which the turn has to end, in place of an answer."""


class WantedCall(Section):
    """A call, or those of one tool or action."""

    tool: str = Field(min_length=1, max_length=100)
    action: str = Field(default="", max_length=100)
    args: dict[str, Any] = Field(default_factory=dict)
    """What its arguments have in them; `{"=~" = EXPRESSION}` stands for a text that matches."""

    @model_validator(mode="after")
    def _patterns(self) -> Self:
        _check_patterns(self.args)
        return self

    def is_like(self, tool: str, action: str, args: Any) -> bool:
        return self.tool == tool and self.action in ("", action) and fits(self.args, args, patterns=True)

    def __str__(self) -> str:
        said = f"{self.tool}.{self.action}" if self.action else self.tool
        return f"{said} with {json.dumps(self.args, ensure_ascii=False)}" if self.args else said


class Calls(Section):
    """Which calls are made."""

    must: tuple[WantedCall, ...] = Field(default=(), max_length=100)
    may: tuple[WantedCall, ...] | None = Field(default=None, max_length=100)
    """With it, even an empty list, every call is one of these or of `must`."""
    must_not: tuple[WantedCall, ...] = Field(default=(), max_length=100)


class Judge(Section):
    """A model that says how good the answer is."""

    model: str = Field(default="", max_length=300)
    """Without it, the agent's own."""
    agent: str = Field(default="", max_length=129)
    """Without it, the agent that is assessed; the judge has no tools."""
    rubric: str = Field(min_length=1, max_length=20_000)
    passes_from: float = Field(default=0.7, ge=0, le=1)


class Case(Section):
    """One case."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,119}$")
    prompt: str = Field(default="", max_length=100_000)
    turns: tuple[Annotated[str, Field(min_length=1, max_length=100_000)], ...] = Field(
        default=(), max_length=50
    )
    """In place of the prompt: several prompts in one session. The last answer is judged, and all calls."""
    files: tuple[str, ...] = Field(default=(), max_length=32)
    """Text files, by their names from the file of the case; they go with the first prompt."""
    facts: dict[str, Annotated[str, Field(max_length=MOST_FACT_CHARS)]] = Field(
        default_factory=dict, max_length=32
    )
    """Texts by their names, which go with the first prompt as well."""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """The JSON Schema of the answer."""
    answer: Answer = Answer()
    calls: Calls = Calls()
    effects: tuple[Effect, ...] | None = None
    """The effects that its calls may have."""
    max_steps: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=0)
    max_cost: float | None = Field(default=None, ge=0)
    max_s: float | None = Field(default=None, gt=0, le=86_400)
    check: str = Field(default="", max_length=10_000)
    """A command of the shell that ends with 0; it gets the answer on standard input."""
    check_timeout_s: float = Field(default=60, gt=0, le=3600)
    judge: Judge | None = None
    stub: tuple[Stub, ...] = Field(default=(), max_length=MOST_STUBS)

    @model_validator(mode="after")
    def _has_prompt(self) -> Self:
        if bool(self.prompt.strip()) == bool(self.turns):
            raise ValueError("a case has a prompt, or turns")
        return self

    @property
    def prompts(self) -> tuple[str, ...]:
        return self.turns or (self.prompt,)

    def to_dict(self) -> dict[str, Any]:
        """As it is stored with a run."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class _CaseFile(Section):
    case: tuple[Case, ...] = Field(min_length=1, max_length=MOST_CASES)


def read_cases(path: Path) -> list[Case]:
    """The cases of a file, or of all files below a folder, by the names of these.

    Raises ConfigError, whose message begins with file and line, and NotFound.
    """
    if path.is_dir():
        paths = sorted(one for one in path.rglob("*.toml") if one.is_file() and not _hidden(one, path))
    elif path.exists():
        paths = [path]
    else:
        raise NotFound(f"There is no file or folder {path}.", field="cases")
    if not paths:
        raise NotFound(
            f"The folder {path} has no cases.",
            field="cases",
            suggestion="A file of cases ends in .toml, see lightagent-eval(5).",
        )
    found: list[Case] = []
    places: dict[str, str] = {}
    for one in paths:
        for case, place in _read_file(one):
            if case.name in places:
                raise ConfigError(f"{place}: the name {case.name} is that of {places[case.name]}, too.")
            places[case.name] = place
            found.append(case)
    if len(found) > MOST_CASES:
        raise ConfigError(f"{path} has {len(found)} cases, and {MOST_CASES} is the most.")
    return found


def stored_cases(definition: Any) -> list[Case]:
    """The cases of a stored run. Raises ConfigError."""
    try:
        return [Case.model_validate(one) for one in definition["cases"]]
    except (TypeError, KeyError, ValidationError) as err:
        raise ConfigError(
            f"The cases of the run cannot be read: {err}.", suggestion="Begin a new run."
        ) from None


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _read_file(path: Path) -> Iterator[tuple[Case, str]]:
    """Each case with its place, `FILE:LINE`. Raises ConfigError."""
    text = read_text(path)
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{path} has more than {MOST_BYTES >> 20} MiB.")
    try:
        values = parse_toml(text, path)
    except ConfigError as err:
        line = _LINE.search(err.message)
        said = "it " + _LINE.sub("", err.message.removeprefix(f"{path} "))
        raise ConfigError(f"{path}{f':{line[1]}' if line else ''}: {said}") from None
    lines = text.splitlines()
    headers = [number for number, line in enumerate(lines, 1) if _HEADER.match(line)]
    try:
        found = _CaseFile.model_validate(values)
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False)[0]
        raise ConfigError(_explained(path, first, lines, headers)) from None
    exact = len(headers) == len(found.case)
    for at, case in enumerate(found.case):
        place = f"{path}:{headers[at]}" if exact else str(path)
        yield _with_files(case, path, place), place


def _explained(path: Path, fault: Any, lines: Sequence[str], headers: Sequence[int]) -> str:
    loc = tuple(fault["loc"])
    said = str(fault["msg"]).removeprefix("Value error, ").rstrip(".")
    if fault["type"] == "extra_forbidden":
        said = "there is no such key"
    elif fault["type"] == "missing":
        said = "the key is missing"
    if loc == ("case",):
        return f"{path}: it has no [[case]]."
    if len(loc) < 2 or loc[0] != "case" or not isinstance(loc[1], int) or loc[1] >= len(headers):
        return f"{path}: {'.'.join(map(str, loc))}: {said}."
    first = headers[loc[1]]
    last = headers[loc[1] + 1] - 1 if loc[1] + 1 < len(headers) else len(lines)
    keys = [part for part in loc[2:] if isinstance(part, str)]
    line = _line_of(keys, loc[2:], lines, first, last)
    names = ".".join(map(str, loc[2:])) or "case"
    return f"{path}:{line}: {names}: {said}."


def _line_of(keys: Sequence[str], loc: Sequence[Any], lines: Sequence[str], first: int, last: int) -> int:
    """The line of the innermost key that one names, or of the header of the table around it."""
    start = first
    number = next((part for part in loc if isinstance(part, int)), 0)
    for depth in range(1, len(keys) + 1):
        header = re.compile(r"^\s*\[\[?\s*case\." + r"\.".join(map(re.escape, keys[:depth])) + r"\s*\]\]?")
        own = [at for at in range(first, last + 1) if header.match(lines[at - 1])]
        if own:
            start = own[min(number, len(own) - 1)]
    setting = re.compile(rf"^\s*{re.escape(keys[-1])}\s*[=.]") if keys else None
    for at in range(start, last + 1):
        if at > start and lines[at - 1].lstrip().startswith("["):
            break
        if setting is not None and setting.match(lines[at - 1]):
            return at
    return start


def _with_files(case: Case, path: Path, place: str) -> Case:
    """The case with the texts of its files among its facts. Raises ConfigError."""
    if not case.files:
        return case
    facts = dict(case.facts)
    folder = path.parent.resolve()
    for name in case.files:
        file = (folder / name).resolve()
        if not file.is_relative_to(folder):
            raise ConfigError(f"{place}: files: {name} is outside of the folder of the case.")
        try:
            text = read_text(file)
        except ConfigError as err:
            raise ConfigError(f"{place}: files: {err.message}") from None
        if name in facts or len(text) > MOST_FACT_CHARS:
            raise ConfigError(f"{place}: files: {name} is there twice, or longer than 1 MiB.")
        facts[name] = text
    return case.model_copy(update={"files": (), "facts": facts})
