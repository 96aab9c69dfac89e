"""Reads the files of policy.d into a set of rules for calls and guards for text.

Every `*.toml` of the folder is read, in the order of the names. The order has no meaning, since the strictest
matching rule decides. The folder is used as a whole or not at all: one broken file raises a ConfigError that
names file, line, rule and key, so that no written rule is silently missing. At start the daemon then does not
serve, as with a broken lightagentd.toml: an agent without its rules is worse than no agent, and `systemctl
status` shows the error. At reload the old rules stay active, and `lactl status` shows the problem.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from lightagentd.config.configuration import parse_toml, read_text
from lightagentd.errors import ConfigError
from lightagentd.policy.call import Decision, PolicyCall
from lightagentd.policy.guards import Examples, Guard, Guards, LoadedGuard
from lightagentd.policy.looking import load_guard
from lightagentd.policy.rules import Example, LoadedRule, Rule, load_rule
from lightagentd.tool import Effect

POLICY_FOLDER = "policy.d"
"""The folder below that of the configuration."""
MAX_RULES = 2000
MATCHING_CPU_S = 0.5
"""The processor time in which the rules about one call are looked for; the rest then counts as undecided."""
EXAMPLES_CPU_S = 1.0
"""The processor time that all examples may take; when it is used up, the files are refused."""
TEMPLATES_FOLDER = Path(__file__).parent / "templates"
"""The shipped templates, which a file takes with `use`."""
_RULE, _GUARD, _USE = "rule", "guard", "use"
_KINDS: Mapping[str, tuple[type[BaseModel], type[BaseModel]]] = {
    _RULE: (Rule, Example),
    _GUARD: (Guard, Examples),
}
"""The tables of a file, with their models and those of their examples."""
_MAX_SEARCHED = 50
_HEADER = re.compile(r"\s*\[\[\s*(['\"]?)(rule|guard)\1\s*\]\]")


@dataclass(frozen=True, kw_only=True)
class RuleFile:
    """One file of rules, by its SHA-256."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class RuleSet:
    """A set of rules: the active ones, or candidates."""

    rules: tuple[LoadedRule, ...] = ()
    guards: Guards = ()
    files: tuple[RuleFile, ...] = ()

    @property
    def sha256(self) -> str:
        """One digest of all files: the digest of the output of sha256sum(1) for them in their folder."""
        lines = (f"{file.sha256}  {file.name.rpartition('/')[2]}\n" for file in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def matching(self, call: PolicyCall) -> list[LoadedRule]:
        """The rules that match a call."""
        until_s = time.thread_time() + MATCHING_CPU_S
        return [rule for rule in self.rules if rule.matches(call, until_s)]

    def matching_unsigned(self, call: PolicyCall) -> list[LoadedRule]:
        """The same where the caller and the trigger are not known: what allows needs to know them."""
        until_s = time.thread_time() + MATCHING_CPU_S
        return [
            rule
            for rule in self.rules
            if (rule.rule.trigger is None or rule.rule.decision is not Decision.ALLOW)
            and rule.matches(call, until_s, any_trigger=True)
        ]

    def always_deny(self, agent: str, tool: str, action: str, effects: Collection[Effect]) -> bool:
        """Whether no call of this action with one of these effects can run."""
        return any(rule.always_denies(agent, tool, action, effects) for rule in self.rules)


def rule_files(folder: Path) -> list[Path]:
    """The rule files of a folder; none when the folder does not exist. Raises ConfigError."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except FileNotFoundError:
        return []
    except OSError as err:
        raise ConfigError(
            f"{folder} cannot be read: {err.strerror}.",
            suggestion="It must be a folder that the user of lightagentd can read.",
        ) from err
    return [folder / name for name in names if name.endswith(".toml") and not name.startswith(".")]


def read_files(files: Sequence[Path]) -> dict[str, str]:
    """The text of each file by its path. Raises ConfigError, also for a file that others can write."""
    return {str(path): read_text(path) for path in files}


def hashed(texts: Mapping[str, str]) -> tuple[RuleFile, ...]:
    """The files, by name and text."""
    return tuple(
        RuleFile(name=name, sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
        for name, text in texts.items()
    )


def load_texts(texts: Mapping[str, str]) -> RuleSet:
    """The rules and guards in some files, given by name and text, and in the templates that they use. Raises
    ConfigError.
    """
    found: list[LoadedRule | LoadedGuard] = []
    by_name: dict[str, LoadedRule | LoadedGuard] = {}
    until_s = time.thread_time() + EXAMPLES_CPU_S
    parsed = {file: _tables_of(file, text) for file, text in texts.items()}
    whole = dict(texts)
    for file, tables in parsed.copy().items():
        for template in _templates(file, tables):
            if str(template) not in whole:
                whole[str(template)] = template.read_text()
                parsed[str(template)] = _tables_of(str(template), whole[str(template)])
    for file, tables in parsed.items():
        for one in _loaded(file, tables, whole[file], until_s):
            if len(found) >= MAX_RULES:
                raise ConfigError(f"{one.origin}: at most {MAX_RULES} rules and guards can be used.")
            other = by_name.setdefault(one.name, one)
            if other is not one:
                kind = _RULE if isinstance(other, LoadedRule) else _GUARD
                raise ConfigError(
                    f"{one.origin}: a {kind} {one.name} is in {other.origin} already.",
                    suggestion="Give one of them another name.",
                    field="name",
                )
            found.append(one)
    return RuleSet(
        rules=tuple(one for one in found if isinstance(one, LoadedRule)),
        guards=tuple(one for one in found if isinstance(one, LoadedGuard)),
        files=hashed(texts),
    )


def template_names() -> list[str]:
    """The shipped templates."""
    return sorted(path.stem for path in TEMPLATES_FOLDER.glob("*.toml"))


def _templates(file: str, tables: dict[str, Any]) -> list[Path]:
    """The files of the templates that a file uses. Raises ConfigError."""
    named = tables.get(_USE, [])
    names = [named] if isinstance(named, str) else named
    known = template_names()
    if not isinstance(names, list) or not all(isinstance(name, str) and name in known for name in names):
        raise ConfigError(
            f"{file}: use names no template.",
            suggestion=f"The templates are: {', '.join(known)}.",
            field=_USE,
        )
    return [TEMPLATES_FOLDER / f"{name}.toml" for name in names]


def _tables_of(file: str, text: str) -> dict[str, Any]:
    tables = parse_toml(text, file)
    for key in tables:
        if key not in (*_KINDS, _USE):
            raise ConfigError(
                f"{file}: the key {key!r} is not known.",
                suggestion="A file of rules holds [[rule]] and [[guard]] tables, use, and nothing else.",
                field=key,
            )
    return tables


def _loaded(
    file: str, tables: dict[str, Any], text: str, until_s: float
) -> Iterator[LoadedRule | LoadedGuard]:
    spans = _spans(text, {kind: tables.get(kind, []) for kind in _KINDS}, file)
    lines = text.split("\n")
    for kind in _KINDS:
        for table, span in zip(tables.get(kind, []), spans[kind], strict=True):
            yield _one(kind, file, table, lines, *span, until_s)


def _one(
    kind: str, file: str, table: dict[str, Any], lines: Sequence[str], first: int, last: int, until_s: float
) -> LoadedRule | LoadedGuard:
    name = table.get("name")
    what = f"the {kind} {name[:64]!r}" if isinstance(name, str) else f"the {kind} without a name"
    try:
        if kind == _GUARD:
            return load_guard(Guard.model_validate(table), file, first, until_s)
        return load_rule(Rule.model_validate(table), file, first, until_s)
    except ValidationError as err:
        raise _explained(err, table, file, what, lines, first, last, _KINDS[kind]) from None
    except RecursionError:
        raise ConfigError(f"{file}:{first}: {what} is nested too deeply.") from None
    except ValueError as err:
        key = str(err).partition(",")[0]
        line = _line_of_key(lines, first, last, key)
        raise ConfigError(
            f"{file}:{line}: {what}: {err}.",
            suggestion=f"Mend the {kind} or the example; until then none of the files is used.",
            field=key,
        ) from None


def _explained(
    err: ValidationError,
    table: dict[str, Any],
    file: str,
    what: str,
    lines: Sequence[str],
    first: int,
    last: int,
    models: tuple[type[BaseModel], type[BaseModel]],
) -> ConfigError:
    """The first error of a rule, with the line of its key. An unknown key comes first: it may be the
    misspelled form of a missing one.
    """
    found = err.errors(include_url=False, include_input=False)
    wrong = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    missing = wrong["type"] == "missing"
    key = str(wrong["loc"][-1]) if missing else ".".join(_keys_along(table, wrong["loc"]))
    line = first if missing or not key else _line_of_key(lines, first, last, key.partition(".")[0])
    where = f"{file}:{line}: {what}"
    if wrong["type"] == "extra_forbidden":
        last_key = str(wrong["loc"][-1])
        model = models[0] if len(wrong["loc"]) == 1 else models[1]
        near = difflib.get_close_matches(last_key, model.model_fields, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"The keys are: {', '.join(model.model_fields)}."
        return ConfigError(f"{where}: the key {key!r} is not known.", suggestion=hint, field=key)
    message = wrong["msg"].removeprefix("Value error, ")
    said = f"the key {key!r} is missing" if missing else f"{f'{key}: ' if key else ''}{message}"
    return ConfigError(
        f"{where}: {said}.",
        suggestion="Mend the file at the place named; until then none of the files is used.",
        field=key,
    )


def _keys_along(value: Any, loc: Sequence[int | str]) -> Iterator[str]:
    """The part of pydantic's error location that is in the file: items such as `int` or `0` may not be."""
    for part in loc:
        in_table = isinstance(value, dict) and part in value
        if in_table or (isinstance(value, list) and isinstance(part, int)):
            value = value[part]
            yield str(part)


def _spans(text: str, found: Mapping[str, Any], file: str) -> dict[str, list[tuple[int, int]]]:
    """The first and the last line of each rule and guard, counted from 1; the whole file when they are not
    written as `[[rule]]`. Raises ConfigError where they are no tables.
    """
    for kind, tables in found.items():
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError(
                f"{file}: {kind} is not a list of tables.", suggestion=f"Write [[{kind}]].", field=kind
            )
    lines = text.split("\n")
    headers = [(number, header[2]) for number, line in enumerate(lines, 1) if (header := _HEADER.match(line))]
    count = sum(map(len, found.values()))
    if len(headers) != count and len(headers) <= _MAX_SEARCHED:  # one of them stands in a longer text
        headers = [(number, kind) for number, kind in headers if _whole(lines[: number - 1])]
    ends = [*(number - 1 for number, _ in headers[1:]), len(lines)]
    spans = {
        kind: [(number, end) for (number, of), end in zip(headers, ends, strict=False) if of == kind]
        for kind in found
    }
    return {
        kind: spans[kind] if len(spans[kind]) == len(tables) else [(1, len(lines))] * len(tables)
        for kind, tables in found.items()
    }


def _whole(lines: Sequence[str]) -> bool:
    try:
        parse_toml("\n".join(lines), "")
    except ConfigError:
        return False
    return True


def _line_of_key(lines: Sequence[str], first: int, last: int, key: str) -> int:
    """The line that sets a key of the rule or begins its table; the rule's first line if none is found."""
    quoted = re.escape(key)
    setting = re.compile(
        rf"\s*(?:\[+\s*(?:rule|guard)\s*\.\s*)?['\"]?{quoted}['\"]?\s*[.=\]]|.*[{{,]\s*['\"]?{quoted}['\"]?\s*="
    )
    for number in range(first, last + 1):
        if setting.match(lines[number - 1]):
            return number
    return first
