"""The work of `lactl audit verify`, with the rights of the store's owner (`stored.run_as_owner`).

It walks the chain, and compares it with the kept head and with the journal, which it reads from a descriptor.
It trusts the given public keys, else the daemon's own in `<state>/audit`, and the signed hash of the newest
event, which the daemon keeps there too.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lightagentd.errors import NotFound
from lightagentd.events.audit.checkpoints import EXPLAINS, HEAD_FILE, KeptHead
from lightagentd.events.audit.journal_audit import JournalAudit, Run, compare
from lightagentd.events.audit.signing import PUBLIC_FILE, public_keys, short, signed_by
from lightagentd.events.audit.verification import Terms, Verification, verify
from lightagentd.events.store.layout import Environment
from lightagentd.signed.public_keys import PublicKey
from lightagentd.text.reason import reason

_PROGRESS_S = 0.2


def audit_store(
    state: str, terms: Terms, journal_fd: int | None, witnesses: dict[str, list[PublicKey]] | None = None
) -> Iterator[dict[str, Any]]:
    """Where `terms` trust no key, the daemon's own is trusted. `witnesses` are the keys of the approver and
    of workers for change, by unit.

    Yields `{"at": number}` now and then, and at the end `{"chain": {…}, "journal": {…} or None}`, which
    are a `Verification` and a `JournalAudit`. Without a descriptor the journal is not compared.

    Raises NotFound, StorageError, HistoryDamaged.
    """
    if not Path(state, "history", "data.mdb").exists():
        raise NotFound(f"There is no history in {state}.", suggestion="Name the daemon's: --state-dir DIR")
    found: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            reporting = replace(terms, progress=lambda seq: found.put({"at": seq}))
            found.put(_audited(Path(state), reporting, journal_fd, witnesses or {}))
        except BaseException as err:  # noqa: BLE001 - it is raised in the thread that waits
            found.put(err)

    threading.Thread(target=work, daemon=True).start()
    told_s = time.monotonic()
    while True:
        item = found.get()
        if isinstance(item, BaseException):
            raise item
        if "at" not in item:
            yield item
            return
        if time.monotonic() - told_s > _PROGRESS_S:
            told_s = time.monotonic()
            yield item


def _audited(
    state: Path, terms: Terms, journal_fd: int | None, witnesses: dict[str, list[PublicKey]]
) -> dict[str, Any]:
    chain = _chain(state, terms)
    journal = None
    if journal_fd is not None:
        environment = Environment(state / "history", read_only=True)
        try:
            with os.fdopen(journal_fd, "rb") as lines:
                journal = compare(
                    environment,
                    lines,
                    uid=state.stat().st_uid,
                    since_seq=chain.first_seq if terms.since_seq or terms.since_us else 0,
                    since_us=terms.since_us,
                    keys=witnesses,
                    progress=terms.progress,
                )
        finally:
            environment.close()
        chain = _with_journal(chain, journal)
    return {"chain": asdict(chain), "journal": None if journal is None else asdict(journal)}


def _chain(state: Path, terms: Terms) -> Verification:
    history = state / "history"
    while True:
        place = history.stat().st_ino
        kept = _kept_head(state / "audit" / HEAD_FILE)  # read before the store, which only grows
        environment = Environment(history, read_only=True)
        try:
            found = _verified(environment, state, terms, kept)
        finally:
            environment.close()
        if found.ok or place == history.stat().st_ino:
            return found
        # The daemon has exchanged the file to compact it; the walk read the old one.


def _verified(
    environment: Environment, state: Path, terms: Terms, kept: KeptHead | str | None
) -> Verification:
    keys = terms.keys or _own_keys(state / "audit" / PUBLIC_FILE)
    expected, notes = dict(terms.expected or {}), []
    explained = any(owed[:2] in EXPLAINS for owed in environment.owed())
    if isinstance(kept, str):
        notes.append(kept)
    elif kept is not None and explained:
        notes.append("another history was put in place, which the daemon has yet to record when it starts")
    elif kept is not None:
        if kept.fingerprint in (keys or {}) and not _is_signed(kept, (keys or {})[kept.fingerprint]):
            notes.append(f"{HEAD_FILE}, which says what was signed last, was altered")
        else:
            expected.setdefault(kept.seq, kept.hash)
    found = verify(environment, replace(terms, keys=keys, expected=expected))
    if kept is None and found.checkpoints:
        notes.append(f"{HEAD_FILE}, which says what was signed last, is not there")
    if found.ok and terms.keys and not found.trusted:
        return replace(
            found,
            ok=False,
            first_bad_seq=found.first_seq,
            reason=f"nothing in it is signed with the key {', '.join(short(key) for key in terms.keys)}",
        )
    return replace(found, notes=(*found.notes, *notes))


def _is_signed(kept: KeptHead, public: bytes) -> bool:
    return signed_by(public, kept.seq, kept.hash, kept.signature)


def _kept_head(path: Path) -> KeptHead | str | None:
    """The newest kept signature, or the reason why it is not known."""
    try:
        return KeptHead.read(path)
    except (OSError, ValueError) as err:
        return f"what was signed last is not known: {reason(err, at=True)}"


def _own_keys(path: Path) -> dict[str, bytes] | None:
    try:
        return public_keys([path])
    except FileNotFoundError:
        return None


def _with_journal(chain: Verification, journal: JournalAudit) -> Verification:
    """The result of the chain's verification, combined with that of the journal."""
    if not journal.runs:
        if chain.ok and journal.disagrees:
            return replace(chain, ok=False, reason=_of_calls(journal))
        return chain
    run = journal.runs[0]
    if not chain.ok and chain.first_bad_seq <= run.first_seq:
        return chain
    return replace(chain, ok=False, first_bad_seq=run.first_seq, reason=_sentence(run, chain.head_seq))


def _of_calls(journal: JournalAudit) -> str:
    first, count = journal.disagrees[0], len(journal.disagrees)
    more = f"; {count - 1} more calls are like that" if count > 1 else ""
    who = "the history, the approver and the workers do not agree about the call"
    return f"{who} {first.call_id}: {first.message}{more}"


def _sentence(run: Run, head_seq: int) -> str:
    which = f"event {run.first_seq}"
    if run.last_seq > run.first_seq:
        which = f"event {run.first_seq}, as all up to {run.last_seq},"
    if run.why == "different":
        return f"{which} is another one in the journal, so the history was written anew or exchanged"
    if run.first_seq > head_seq:
        return f"{which} is in the journal, and the history ends with {head_seq}: its end was cut off"
    return f"{which} is in the journal, and missing in the history"
