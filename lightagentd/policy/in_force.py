"""Puts the rules of policy.d in force, at start and at reload, and tells the history which they are."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from lightagentd.errors import ConfigError
from lightagentd.events.history import History
from lightagentd.events.types.policy import RulesBroken, RulesLoaded
from lightagentd.policy.decide import Policy
from lightagentd.policy.lint import Actions, doubts
from lightagentd.policy.rulefiles import load_texts, read_files, rule_files

_log = logging.getLogger(__name__)

TOPIC = "policy.rules"


async def take_rules(policy: Policy, folder: Path, history: History, actions: Actions) -> None:
    """Put the rules of a folder in force. `actions` are those that there are.

    Raises ConfigError, StorageError, and then the rules stay as they were.
    """
    texts = await asyncio.to_thread(lambda: read_files(rule_files(folder)))
    rules = load_texts(texts)  # here, since regular expressions can be bounded in the main thread alone
    loaded = RulesLoaded(
        folder=str(folder),
        rules=len(rules.rules),
        files=[{"name": file.name.rpartition("/")[2], "sha256": file.sha256} for file in rules.files],
        sha256=rules.sha256,
    )
    await history.append(loaded.event())
    policy.rules, policy.problem = rules, ""
    policy.doubts = doubts(rules, actions)


async def retake_rules(policy: Policy, folder: Path, history: History, actions: Actions) -> list[str]:
    """As `take_rules`, but a broken file leaves the rules as they are, and is a problem of the policy's.

    Says what was done, in words for the administrator; nothing when the files are the same.
    """
    before = policy.rules
    try:
        await take_rules(policy, folder, history, actions)
    except ConfigError as err:
        policy.problem = f"The rules of policy.d are still the old ones: {err.message}"
        _log.error("%s", policy.problem)
        await history.append(RulesBroken(message=err.message, sha256=policy.rules.sha256).event())
        return ["kept the old rules of policy.d, because the new ones are broken"]
    rules = policy.rules
    if rules.sha256 == before.sha256:
        return []
    return [f"took {len(rules.rules)} rules from {len(rules.files)} files of policy.d"]
