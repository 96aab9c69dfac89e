"""What the units of which a machine has one look at before they answer, whatever the daemon says of a call.

`KeyUse` keeps the key store from signing for a daemon that was taken over: what uses a private key runs with
a signature of the approver under exactly this call, used once, or where a rule of root's allows it without a
word of the daemon (`own_rules`). `Questions` has `lightagent-inspect` say in the journal, in its own name,
what it is asked and for whom the daemon says that it is, and bounds how much it is asked.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from pathlib import Path
from typing import Any, Protocol

from lightagentd.errors import (
    ApprovalMismatch,
    ApprovalRequired,
    LimitExceeded,
    Panicked,
    PermissionDenied,
    StorageError,
    WorkerUnavailable,
)
from lightagentd.signed.grant import Grant
from lightagentd.signed.numbers import Numbers
from lightagentd.signed.public_keys import PUBLIC
from lightagentd.signed.statement import Statement
from lightagentd.text.readable import visible
from lightagentd.text.reason import reason
from lightagentd.tool import Effect
from lightagentd.worker.call import Call
from lightagentd.worker.own_rules import OwnRules
from lightagentd.worker.verifying import APPROVER, PANIC

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)

FREE = frozenset(
    ("crypto", action)
    for action in ("generate_key", "generate_keypair", "list_keys", "public_key", "verify_with_key")
)
"""What the key store does for everybody: none of it gives away what a key can do."""
QUESTIONS_PER_MINUTE = 600
"""A runbook asks once, and a turn of a model once for each call of such a tool."""
_MINUTE_S = 60.0


class Admission(Protocol):
    """What a worker asks before it runs a call, or makes a survey of all processes."""

    def call(self, call: Call, args: dict[str, Any], tool_sha256: str) -> None:
        """`args` are the checked arguments. Raises LightagentError."""

    def survey(self, owner: int) -> None:
        """Raises LightagentError."""

    def close(self) -> None: ...


class KeyUse:
    """Of the key store."""

    def __init__(self, state: Path, config: Path, approver: Path = APPROVER) -> None:
        """`state` is the store's own folder; `config` and `approver` are those of these."""
        self._state, self._approver = state, approver
        self._rules = OwnRules(config)
        self._numbers: Numbers | None = None

    def call(self, call: Call, args: dict[str, Any], tool_sha256: str) -> None:
        """Raises PolicyDenied, ApprovalRequired, ApprovalMismatch, Panicked, and others where it cannot be
        told.
        """
        if (call.tool, call.action) in FREE:
            return
        if (self._approver / PANIC).exists():
            raise Panicked(
                "An administrator has stopped everything.",
                suggestion="Nothing runs until an administrator says: lactl panic --off",
            )
        statement = Statement(
            agent=call.agent,
            tool=call.tool,
            action=call.action,
            # The daemon's word would let a rule that allows changes count.
            effect=Effect.OBSERVE.value,
            args=args,
            tool_sha256=tool_sha256,
            call_id=call.call_id,
            session=call.session,
            owner=call.owner,
            trigger=call.trigger,
            kit="",
            above=call.above,
            expected=call.expected,
            **call.terms,
        )
        decided = self._rules.ruling(statement, signed=bool(call.signed))
        if call.signed:
            by = f"user {self._granted(call, statement).by}"
        elif decided is not None:
            by = f"the rule {decided[0]}"
        elif self._rules.trusts_keys():
            by = "the word of the daemon (trust_daemon_keys)"
        else:
            raise ApprovalRequired(
                f"{call.tool}.{call.action} needs a person's approval: no rule allows it by itself.",
                suggestion="Ask for it again.",
            )
        key = visible(str(args.get("handle", "")))[:40]
        said = (call.call_id, f"{call.tool}.{call.action}", key, call.agent, call.owner, by)
        _log.info("%s %s with %s of agent %s and user %d, allowed by %s", *said)

    def survey(self, owner: int) -> None:  # noqa: ARG002 - as the other one
        raise PermissionDenied("The key store looks at no processes.")

    def _granted(self, call: Call, statement: Statement) -> Grant:
        """Use up the signature of a call. Raises ApprovalMismatch, WorkerUnavailable, StorageError."""
        try:
            public = (self._approver / PUBLIC).read_bytes()
        except OSError as err:
            raise WorkerUnavailable(
                f"The approver's public key cannot be read: {reason(err, at=True)}.",
                suggestion="It makes one when it starts: systemctl start lightagent-approver.service",
            ) from err
        grant = Grant.verified(call.signed, [public])
        signed = (grant.digest, grant.agent, grant.effect, grant.owner)
        if signed != (statement.digest, statement.agent, statement.effect, statement.owner):
            raise ApprovalMismatch(
                f"What is about to run is not what was approved: {call.tool}.{call.action}.",
                suggestion="Nothing was signed. If the tool's file has changed: lactl reload, and ask again.",
            )
        try:
            if self._numbers is None:
                self._numbers = Numbers(self._state)
            self._numbers.use(grant, call.call_id)
        except StorageError:
            self.close()
            raise
        return grant

    def close(self) -> None:
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None


class Questions:
    """Of `lightagent-inspect`."""

    def __init__(self, per_minute: int = QUESTIONS_PER_MINUTE) -> None:
        self._per_minute = per_minute
        self._asked_s: deque[float] = deque()
        self._refused = 0

    def call(self, call: Call, args: dict[str, Any], tool_sha256: str) -> None:  # noqa: ARG002 - as the other one
        """Raises LimitExceeded."""
        self._ask(f"{call.tool}.{call.action}", f"agent {call.agent} and user {call.owner}")

    def survey(self, owner: int) -> None:
        """Raises LimitExceeded."""
        self._ask("all processes", f"user {owner}")

    def close(self) -> None:
        """Nothing to do: nothing is held open."""

    def _ask(self, what: str, whom: str) -> None:
        now_s = time.monotonic()
        while self._asked_s and self._asked_s[0] <= now_s - _MINUTE_S:
            self._asked_s.popleft()
        if len(self._asked_s) >= self._per_minute:
            self._refused += 1
            if self._refused == 1:
                _log.warning("more than %d questions in a minute: the rest is refused", self._per_minute)
            raise LimitExceeded(
                f"lightagent-inspect answers {self._per_minute} questions a minute.",
                suggestion="See what asks so much: journalctl -u lightagent-inspect.service",
            )
        if self._refused:
            _log.warning("%d questions were refused", self._refused)
            self._refused = 0
        self._asked_s.append(now_s)
        _log.info("%s, for %s by the word of the daemon", visible(what), visible(whom))
