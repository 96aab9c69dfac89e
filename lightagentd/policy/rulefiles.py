"""Reads the files of policy.d into a set of rules.

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
from lightagentd.policy.call import PolicyCall
from lightagentd.policy.rules import Example, LoadedRule, Rule, load_rule
from lightagentd.tool import Effect

POLICY_FOLDER = "policy.d"
"""The folder below that of the configuration."""
MAX_RULES = 2000
MATCHING_CPU_S = 0.5
"""The processor time in which the rules about one call are looked for; the rest then counts as undecided."""
EXAMPLES_CPU_S = 1.0
"""The processor time that all examples may take; when it is used up, the files are refused."""
_MAX_SEARCHED = 50
_HEADER = re.compile(r"\s*\[\[\s*(?:rule|'rule'|\"rule\")\s*\]\]")
_TABLE = re.compile(r"\s*\[")


@dataclass(frozen=True, kw_only=True)
class RuleFile:
    """One file of rules, by its SHA-256."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class RuleSet:
    """A set of rules: the active ones, or candidates."""

    rules: tuple[LoadedRule, ...] = ()
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
    """The rules in some files, given by name and text. Raises ConfigError."""
    rules: list[LoadedRule] = []
    by_name: dict[str, LoadedRule] = {}
    until_s = time.thread_time() + EXAMPLES_CPU_S
    for file, text in texts.items():
        for rule in _rules_of(file, text, until_s):
            if len(rules) >= MAX_RULES:
                raise ConfigError(f"{rule.origin}: at most {MAX_RULES} rules can be used.")
            other = by_name.setdefault(rule.name, rule)
            if other is not rule:
                raise ConfigError(
                    f"{rule.origin}: a rule {rule.name} is in {other.origin} already.",
                    suggestion="Give one of them another name.",
                    field="name",
                )
            rules.append(rule)
    files = hashed(texts)
    return RuleSet(rules=tuple(rules), files=files)


def _rules_of(file: str, text: str, until_s: float) -> list[LoadedRule]:
    tables = parse_toml(text, file)
    for key in tables:
        if key != "rule":
            raise ConfigError(
                f"{file}: the key {key!r} is not known.",
                suggestion="A file of rules holds [[rule]] tables and nothing else.",
                field=key,
            )
    found = tables.get("rule", [])
    if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
        raise ConfigError(
            f"{file}: rule is not a list of tables.", suggestion="Write [[rule]].", field="rule"
        )
    spans = _spans(text, len(found))
    lines = text.split("\n")
    return [_rule(file, table, lines, *span, until_s) for table, span in zip(found, spans, strict=True)]


def _rule(
    file: str, table: dict[str, Any], lines: Sequence[str], first: int, last: int, until_s: float
) -> LoadedRule:
    name = table.get("name")
    what = f"the rule {name[:64]!r}" if isinstance(name, str) else "the rule without a name"
    try:
        return load_rule(Rule.model_validate(table), file, first, until_s)
    except ValidationError as err:
        raise _explained(err, table, file, what, lines, first, last) from None
    except RecursionError:
        raise ConfigError(f"{file}:{first}: {what} is nested too deeply.") from None
    except ValueError as err:
        key = str(err).partition(",")[0]
        line = _line_of_key(lines, first, last, key)
        raise ConfigError(
            f"{file}:{line}: {what}: {err}.",
            suggestion="Mend the rule or the example; until then none of the files is used.",
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
        model: type[BaseModel] = Rule if len(wrong["loc"]) == 1 else Example
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


def _spans(text: str, count: int) -> list[tuple[int, int]]:
    """The first and the last line of each rule, counted from 1; the whole file when they are not written as
    `[[rule]]`.
    """
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines, 1) if _HEADER.match(line)]
    if len(starts) != count and len(starts) <= _MAX_SEARCHED:  # one of them stands in a longer text
        starts = [number for number in starts if _whole(lines[: number - 1])]
    if len(starts) != count:
        return [(1, len(lines))] * count
    return list(zip(starts, [*(start - 1 for start in starts[1:]), len(lines)], strict=False))


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
        rf"\s*(?:\[+\s*rule\s*\.\s*)?['\"]?{quoted}['\"]?\s*[.=\]]|.*[{{,]\s*['\"]?{quoted}['\"]?\s*="
    )
    for number in range(first, last + 1):
        if setting.match(lines[number - 1]):
            return number
    return first
