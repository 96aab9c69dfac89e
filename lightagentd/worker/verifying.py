"""What a worker for change looks at before it runs a call: it believes no word of the daemon about that.

A call runs with a signature of the approver under exactly this statement, used once, or where a rule of
root's allows it. The worker reads the rules and the approver's public key for itself, from folders that the
daemon cannot write, and its agent is the instance of its unit. Who prompted, what began the turn and what the
session has seen is the daemon's word: without a signature a rule that allows counts only where it asks for
none of that (`even_if_tainted`, or `trust_daemon_taint` in the configuration; no `caller`, no `trigger`),
and one that denies or asks counts whatever it says about them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from lightagentd.config import configuration
from lightagentd.errors import (
    ApprovalMismatch,
    ApprovalRequired,
    ConfigError,
    PermissionDenied,
    PolicyDenied,
    WorkerUnavailable,
)
from lightagentd.policy.call import Decision, PolicyCall
from lightagentd.policy.decide import strictest_of
from lightagentd.policy.rulefiles import RuleSet, load_texts, read_files, rule_files
from lightagentd.signed.grant import Grant
from lightagentd.signed.numbers import Numbers
from lightagentd.signed.statement import Statement
from lightagentd.text.reason import reason
from lightagentd.tool import Effect
from lightagentd.worker.call import Call

_log = logging.getLogger(__name__)

KEYS = (Path("/var/lib/lightagent-approver/public"),)
GIVEN = ("credentials", "skills", "own_skills", "must_keep")
"""What a call for change may be given beside what is signed."""


def _state(info: os.stat_result) -> tuple[int, ...]:
    return info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_size


class Verifier:
    """Of one worker. Its owner calls `close`."""

    def __init__(self, agent: str, *, state: Path, config: Path, keys: tuple[Path, ...] = KEYS) -> None:
        """`state` is the worker's own folder, `config` that of the configuration. Raises StorageError."""
        self.agent = agent
        self._config, self._keys = config, keys
        self._numbers = Numbers(state)
        self._read: tuple[object, RuleSet, bool] | None = None

    def permit(self, call: Call, args: dict[str, Any], tool_sha256: str) -> dict[str, Any]:
        """What its tool is given; `args` are the checked arguments. Raises PolicyDenied, ApprovalMismatch,
        ApprovalRequired, and others where it cannot be told.
        """
        if call.agent != self.agent:
            raise PermissionDenied(f"This is the worker of {self.agent} and of no other agent.")
        statement = Statement(
            agent=self.agent,
            tool=call.tool,
            action=call.action,
            effect=Effect.CHANGE.value,
            args=args,
            tool_sha256=tool_sha256,
            call_id=call.call_id,
            session=call.session,
            owner=call.owner,
            trigger=call.trigger,
            kit=call.kit,
            expected=call.expected,
            **call.terms,
        )
        rule = self._ruling(statement, signed=bool(call.signed))
        if call.signed:
            grant = self._granted(call, statement)
            why = f"user {grant.by} (number {grant.number})"
        elif rule:
            why = f"the rule {rule}"
        else:
            raise ApprovalRequired(
                f"{call.tool}.{call.action} needs a person's approval: no rule allows it by itself.",
                suggestion="Ask for it again.",
            )
        _log.warning("%s %s.%s, allowed by %s", call.call_id, call.tool, call.action, why)
        return {name: call.given[name] for name in GIVEN if name in call.given}

    def _granted(self, call: Call, statement: Statement) -> Grant:
        """Use up the signature of a call. Raises ApprovalMismatch, StorageError."""
        grant = Grant.verified(call.signed, self._public())
        signed = (grant.digest, grant.agent, grant.effect, grant.owner)
        if signed != (statement.digest, self.agent, statement.effect, statement.owner):
            raise ApprovalMismatch(
                f"What is about to run is not what was approved: {call.tool}.{call.action}.",
                suggestion="Nothing was run. If the tool's file has changed: lactl reload, and ask again.",
            )
        self._numbers.use(grant, call.call_id)
        return grant

    def _public(self) -> list[bytes]:
        """Raises WorkerUnavailable."""
        try:
            return [one.read_bytes() for one in self._keys]
        except OSError as err:
            raise WorkerUnavailable(
                f"The approver's public key cannot be read: {reason(err, at=True)}.",
                suggestion="It makes one when it starts: systemctl start lightagent-approver.service",
            ) from err

    def _ruling(self, statement: Statement, *, signed: bool) -> str:
        """The rule that allows it without a signature; empty for none. Raises PolicyDenied."""
        rules, trusts = self._rules()
        call = PolicyCall(
            agent=self.agent,
            tool=statement.tool,
            action=statement.action,
            args=statement.args,
            effect=Effect.CHANGE,
            agent_effects=(Effect.CHANGE,),
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
        decided = strictest_of(rules.matching(call) if signed else rules.matching_unsigned(call))
        if decided is None:
            return ""
        if decided.rule.decision is Decision.DENY:
            raise PolicyDenied(f"The rule {decided.label} denies {statement.tool}.{statement.action}.")
        allows = decided.rule.decision is Decision.ALLOW and decided.needs_no_word(trusts_taint=trusts)
        return decided.label if allows else ""

    def _rules(self) -> tuple[RuleSet, bool]:
        """The rules in force, and whether the daemon is trusted with taint. Raises ConfigError."""
        files = [*rule_files(self._config / "policy.d"), *configuration.files(self._config)]
        try:
            state = [(str(one), _state(one.stat())) for one in files]
        except OSError as err:
            raise ConfigError(f"The rules cannot be read: {reason(err, at=True)}.") from err
        if self._read is None or self._read[0] != state:
            rules = load_texts(read_files(rule_files(self._config / "policy.d")))
            trusts = configuration.load(self._config)[0].worker.trust_daemon_taint
            self._read = (state, rules, trusts)
        return self._read[1], self._read[2]

    def close(self) -> None:
        self._numbers.close()
