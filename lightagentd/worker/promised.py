"""What a worker for change runs later without another signature, because the call before it had one.

A change on terms (`config.terms`) promises the call that takes it back: exactly that one may run, once it is
due. A call that asks a person promises that it goes on with their answer: it has the state that it gave out,
and nothing else of it has changed. Both are on the disk before the first part begins or ends, and are used up
before the second one begins.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any, Literal

from lightagentd.errors import LimitExceeded, PolicyDenied
from lightagentd.signed.keeping import Log
from lightagentd.signed.statement import canonical

FILE = "promised"
Kind = Literal["back", "rest"]
BACK: Kind = "back"
REST: Kind = "rest"
TRIES = 2
"""How often it may be begun to take one change back: the first time may have been cut off."""
SLACK_S = 2.0
"""The daemon's clocks and these are looked at one after the other."""
BACK_S = 8 * 86_400.0
"""How long a change can be taken back after its time: the machine may have been off meanwhile."""
REST_S = 31 * 86_400.0
"""The longest time for an answer."""
MOST = 2000
ONLY = "Only what the change itself promised runs without a person. Ask for the call."
_REWRITE_BYTES = 1 << 20


def _boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Promises:
    """Those of one worker, in its own state folder. Its owner calls `close`."""

    def __init__(self, folder: Path) -> None:
        """Raises StorageError."""
        self._log = Log(folder / FILE)
        self._all: dict[tuple[str, str], dict[str, Any]] = {}
        for one in self._log.records:
            self._take(one)
        self._log.records.clear()

    def promise_back(self, call_id: str, back: dict[str, Any], within_s: int) -> None:
        """Promise the call that takes a change back, as `tool`, `action` and `args`; its time counts from
        now. Raises StorageError, LimitExceeded.
        """
        span_us, now_us = within_s * 1_000_000, time.time_ns() // 1000
        clocks = {"due_us": now_us + span_us, "boot": _boot_id(), "boot_due_us": _boot_us() + span_us}
        until_us = now_us + span_us + int(BACK_S * 1e6)
        self._add(BACK, call_id, back=back, **clocks, until_us=until_us, tries=0)

    def back_of(self, call_id: str) -> dict[str, Any]:
        """The call that takes a change back. Raises PolicyDenied."""
        found = self._get(BACK, call_id)
        if found is None or found["tries"] >= TRIES:
            raise PolicyDenied(
                f"No change of the call {call_id} is there to be taken back.",
                suggestion=ONLY,
            )
        if not self._due(found):
            raise PolicyDenied(f"The time to confirm the change of the call {call_id} is not over.")
        back: dict[str, Any] = found["back"]
        return back

    def begin_back(self, call_id: str) -> None:
        """Count a try to take a change back, which `back_of` has. Raises StorageError."""
        found = self._all[BACK, call_id]
        self._store({**found, "tries": found["tries"] + 1})

    def promise_rest(
        self, call_id: str, digest: str, asked: dict[str, Any], expected: dict[str, Any]
    ) -> None:
        """Promise that a call goes on after what it `asked` a person, with this `state` of it. Raises
        StorageError, LimitExceeded.
        """
        until_us = time.time_ns() // 1000 + int(REST_S * 1e6)
        state, question = _sha256(asked["state"]), asked["question"]
        about = {"digest": digest, "state": state, "question": question, "expected": expected}
        self._add(REST, call_id, **about, until_us=until_us)

    def rest_of(self, call_id: str, digest: str, state: Any) -> dict[str, Any]:
        """The promise that a call goes on, with its `question` and what it `expected`.

        Raises PolicyDenied.
        """
        found = self._get(REST, call_id)
        if found is None or (found["digest"], found["state"]) != (digest, _sha256(state)):
            raise PolicyDenied(
                f"The call {call_id} does not go on: it, or what it asked, is not what it was.",
                suggestion="It has stopped in the middle. Look at what it did, and ask for it again.",
            )
        return found

    def over(self, kind: Kind, call_id: str) -> None:
        """Forget a promise. Raises StorageError."""
        if (kind, call_id) in self._all:
            self._store({"kind": kind, "call_id": call_id, "until_us": 0})

    def close(self) -> None:
        self._log.close()

    def _add(self, kind: Kind, call_id: str, **record: Any) -> None:
        if len(self._all) >= MOST:
            self._rewrite()
        if len(self._all) >= MOST:
            raise LimitExceeded("Too many changes of this agent can still be taken back, or go on.")
        self._store({"kind": kind, "call_id": call_id, **record})

    def _get(self, kind: Kind, call_id: str) -> dict[str, Any] | None:
        found = self._all.get((kind, call_id))
        return found if found is not None and found["until_us"] > time.time_ns() // 1000 else None

    @staticmethod
    def _due(found: dict[str, Any]) -> bool:
        """Whether the wall clock or that since the boot says so, as `agents.confirming.records` counts."""
        slack_us = int(SLACK_S * 1e6)
        if time.time_ns() // 1000 >= found["due_us"] - slack_us or found["boot"] != _boot_id():
            return True
        return bool(_boot_us() >= found["boot_due_us"] - slack_us)

    def _store(self, record: dict[str, Any]) -> None:
        if self._log.size_bytes > _REWRITE_BYTES:
            self._rewrite()
        self._log.add(record)
        self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        key = (record["kind"], record["call_id"])
        if record["until_us"]:
            self._all[key] = record
        else:
            self._all.pop(key, None)

    def _rewrite(self) -> None:
        now_us = time.time_ns() // 1000
        self._all = {key: one for key, one in self._all.items() if one["until_us"] > now_us}
        self._log.rewrite(self._all.values())


def _sha256(state: Any) -> str:
    return hashlib.sha256(canonical(state)).hexdigest()
