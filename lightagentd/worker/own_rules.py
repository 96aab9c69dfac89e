"""The rules of policy.d as a worker for change, and the key store, read and evaluate them themselves: for
calls without a signature, and against calls with one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightagentd.config import configuration
from lightagentd.config.terms import Terms
from lightagentd.errors import ConfigError, LightagentError, PolicyDenied
from lightagentd.policy.call import Decision, PolicyCall
from lightagentd.policy.decide import strictest_of
from lightagentd.policy.rulefiles import RuleSet, load_texts, read_files, rule_files
from lightagentd.policy.rules import LoadedRule
from lightagentd.signed.statement import Statement
from lightagentd.text.reason import reason
from lightagentd.tool import Effect


class OwnRules:
    """Those in the folder of the configuration, read again when a file has changed."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._read: tuple[object, RuleSet, configuration.Worker] | None = None

    def ruling(self, statement: Statement, *, signed: bool) -> tuple[str, list[Terms]] | None:
        """The rule that allows it without a signature, for its agent and for those above it, and the terms
        that rules ask for; None for none. Raises PolicyDenied.
        """
        rules, settings = self._rules()
        trusts = settings.trust_daemon_taint
        labels, terms, asks = [], [], False
        for agent in (statement.agent, *statement.above):
            call = _policy_call(statement, agent, signed=signed)
            matched = rules.matching(call) if signed else rules.matching_unsigned(call)
            decided = strictest_of(matched)
            if decided is not None and decided.rule.decision is Decision.DENY:
                raise PolicyDenied(f"The rule {decided.label} denies {statement.tool}.{statement.action}.")
            asks = asks or not _allows(decided, trusts=trusts)
            terms += [one.terms for one in matched if one.terms is not None]
            labels += [] if decided is None else [decided.label]
        return None if asks else (labels[0], terms)

    def trusts_keys(self) -> bool:
        """Whether the daemon is trusted with the use of keys. Raises ConfigError."""
        return self._rules()[1].trust_daemon_keys

    def _rules(self) -> tuple[RuleSet, configuration.Worker]:
        """The rules in force, and with what the daemon is trusted. Raises ConfigError: where they cannot be
        read nobody knows what they deny, and nothing runs.
        """
        try:
            files = [*rule_files(self._config / "policy.d"), *configuration.files(self._config)]
            state = [(str(one), _state(one.stat())) for one in files]
            if self._read is None or self._read[0] != state:
                rules = load_texts(read_files(rule_files(self._config / "policy.d")))
                self._read = (state, rules, configuration.load(self._config)[0].worker)
        except (OSError, LightagentError) as err:
            why = reason(err, at=True) if isinstance(err, OSError) else err.message.rstrip(".")
            raise ConfigError(
                f"Nothing is changed while the rules cannot be read: {why}.", suggestion="lactl policy check"
            ) from err
        return self._read[1], self._read[2]


def is_on_terms_of(decided: tuple[str, list[Terms]], terms: dict[str, Any]) -> bool:
    """Whether a call that a rule allows is on the terms that rules ask for. It may be on shorter ones, but
    how it is taken back nobody but a person or a rule says.
    """
    wanted = min(decided[1], key=lambda one: one.within_s, default=None)
    if wanted is not None and terms == wanted.fields():
        return True
    found = Terms.of(terms)
    if found is None:
        return wanted is None
    return not found.inverse and (wanted is None or found.within_s <= wanted.within_s)


def _allows(decided: LoadedRule | None, *, trusts: bool) -> bool:
    return (
        decided is not None
        and decided.rule.decision is Decision.ALLOW
        and decided.needs_no_word(trusts_taint=trusts)
    )


def _state(info: os.stat_result) -> tuple[int, ...]:
    return info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_size


def _policy_call(statement: Statement, agent: str, *, signed: bool) -> PolicyCall:
    return PolicyCall(
        agent=agent,
        tool=statement.tool,
        action=statement.action,
        args=statement.args,
        effect=Effect(statement.effect),
        agent_effects=(Effect(statement.effect),),
        offered=True,
        agent_skills=None,
        caller=statement.owner if signed else None,
        trigger=statement.trigger if signed else "",
        tainted=True,
        host="",
        known_host=False,
        change_enabled=True,
        plan="",
    )
