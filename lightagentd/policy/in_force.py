"""Activates the rules of policy.d at start and at reload, and records them in the history.

A rule that no call can match probably has a misspelled word. That is not an error, because the tool may be
added later. But the administrator is told, because a deny rule that never matches has no effect.
"""

from __future__ import annotations

import asyncio
import fnmatch
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from lightagentd.errors import ConfigError
from lightagentd.events.history import History
from lightagentd.events.types.policy import RulesBroken, RulesLoaded
from lightagentd.policy.decide import Policy
from lightagentd.policy.rulefiles import RuleSet, hashed, load_texts, read_files, rule_files
from lightagentd.policy.rules import LoadedRule

_log = logging.getLogger(__name__)

TOPIC = "policy.rules"
Actions = Mapping[tuple[str, str], Collection[str]]
"""The names of the arguments of each tool and action."""


async def take_rules(policy: Policy, folder: Path, history: History, actions: Actions) -> None:
    """Activate the rules of a folder. `actions` are the existing actions.

    Raises ConfigError and StorageError; the old rules then stay active.
    """
    texts = await asyncio.to_thread(lambda: read_files(rule_files(folder)))
    rules = load_texts(texts)  # here, since regular expressions can be bounded in the main thread alone
    loaded = RulesLoaded(
        folder=str(folder),
        rules=len(rules.rules),
        **({"guards": len(rules.guards)} if rules.guards else {}),
        files=[{"name": file.name.rpartition("/")[2], "sha256": file.sha256} for file in rules.files],
        sha256=rules.sha256,
    )
    await history.append(loaded.event())
    policy.rules, policy.problem = rules, ""
    policy.lint = lint(rules, actions)


async def retake_rules(policy: Policy, folder: Path, history: History, actions: Actions) -> list[str]:
    """As `take_rules`, but a broken file keeps the old rules and sets the policy's `problem`.

    Returns a description for the administrator; empty when nothing new is in force.
    """
    before = policy.rules
    try:
        await take_rules(policy, folder, history, actions)
    except ConfigError as err:
        policy.problem = f"The rules of policy.d are still the old ones: {err.message}"
        _log.error("%s", policy.problem)
        await history.append(RulesBroken(message=err.message, sha256=policy.rules.sha256).event())
        return []
    rules = policy.rules
    if rules.sha256 == before.sha256:
        return []
    guards = f" and {len(rules.guards)} guards" if rules.guards else ""
    return [f"took {len(rules.rules)} rules{guards} from {len(rules.files)} files of policy.d"]


async def not_in_force(policy: Policy, folder: Path) -> str:
    """Says that the files of the folder are not the active rules; empty when they are."""
    if policy.problem:
        return policy.problem
    try:
        texts = await asyncio.to_thread(lambda: read_files(rule_files(folder)))
    except ConfigError as err:
        return f"The rules of policy.d could not be read again: {err.message}"
    if RuleSet(files=hashed(texts)).sha256 == policy.rules.sha256:
        return ""
    return "The files of policy.d were changed since they were read, and are not in force: lactl reload"


def lint(rules: RuleSet, actions: Actions) -> tuple[str, ...]:
    """A sentence for each rule that no call can match; none when the tools are unknown."""
    found = (_doubt(rule, actions) for rule in rules.rules) if actions else ()
    return tuple(text for text in found if text)


def _doubt(loaded: LoadedRule, actions: Actions) -> str:
    rule = loaded.rule
    meant = [
        arguments
        for (tool, action), arguments in actions.items()
        if _any_glob(rule.tool, tool) and _any_glob(rule.action, action)
    ]
    where = f"{loaded.origin}: the rule {loaded.name!r} can match no call: there is no"
    if not meant:
        return f"{where} such tool or action."
    for condition in loaded.arguments:
        first = condition.name.partition(".")[0]
        if not any(first in arguments for arguments in meant):
            return f"{where} argument {first!r} of the tools and actions that it is about."
    return ""


def _any_glob(globs: Sequence[str] | None, text: str) -> bool:
    return globs is None or any(fnmatch.fnmatchcase(text, glob) for glob in globs)
