"""Rules that are about nothing that there is: most likely a word in them is misspelled.

That is no error, because the tool may come later, but an administrator has to hear of it: a rule that denies
and never matches holds nobody.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence

from lightagentd.policy.rulefiles import RuleSet
from lightagentd.policy.rules import LoadedRule

Actions = Mapping[tuple[str, str], Collection[str]]
"""The names of the arguments of each tool and action."""


def doubts(rules: RuleSet, actions: Actions) -> tuple[str, ...]:
    """A sentence on each rule that no call can match; none when nothing is known of the tools."""
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
