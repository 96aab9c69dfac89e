"""The history beside the records of the approver and of the workers for change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.events.audit.journal_audit import JournalAudit, compare
from lightagentd.events.audit.witnesses import APPROVER
from lightagentd.events.context import within
from lightagentd.events.journal import signed_record
from lightagentd.events.model import NewEvent
from lightagentd.events.store.layout import Environment
from lightagentd.signed.public_keys import PublicKey
from tests.events.audit.test_journal_audit import OLD_US, UID, Entry, entries_of, events_in, lines_of, sent
from tests.events.stored import opened

WORKER = "lightagent-change@ops.service"
SECOND_US = 1_000_000
FORMER = "the approver's key before"
KEYS = {name: Ed25519PrivateKey.generate() for name in (APPROVER, WORKER, FORMER)}
CALL = {"tool": "file", "action": "write", "effect": "change"}


class _Kept:
    """Takes the fields of an entry in the place of journald's socket."""

    def send(self, fields: dict[str, str]) -> None:
        self.fields = fields


def record(
    unit: str, kind: str, call_id: str, at_s: int, *, key: str = "", agent: str = "ops", **more: Any
) -> Entry:
    kept = _Kept()
    said = {"kind": kind, "call_id": call_id, "agent": agent, "digest": f"of {call_id}", **CALL, **more}
    signed_record.send(kept, KEYS[key or unit], f"{kind}: {call_id}", said)  # type: ignore[arg-type]
    return sent(kept.fields, unit=unit, uid=0, at=at_s * SECOND_US)


def approved(call_id: str, number: int, at_s: int, **more: Any) -> list[Entry]:
    """What the approver and the worker write of an approved call."""
    grant = json.dumps({"series": "s", "number": number})
    return [
        record(APPROVER, "asked", call_id, at_s),
        record(APPROVER, "granted", call_id, at_s + 1, grant=grant, by=0),
        record(WORKER, "begun", call_id, at_s + 3, by={"user": 0, "series": "s", "number": number}),
        record(WORKER, "ended", call_id, at_s + 4, result="ok", **more),
    ]


async def stored(folder: Path, *calls: tuple[str, int, bool | None]) -> None:
    """With calls: id, when each was approved, and whether somebody was asked (None: and it failed)."""
    async with opened(folder) as history:
        await history.append(NewEvent(topic="daemon.state", type="ready", data={}, time_us=OLD_US))
        for call_id, at_s, asked in calls:
            kinds = [("approval.granted", "granted", 2)] if asked is not False else []
            kinds += [("agent.tool_dispatch", "intent", 3), ("tool.file", "invocation", 4)]
            for topic, event_type, later in kinds:
                data = {"call_id": call_id, **CALL, "result": "failed" if asked is None else "ok"}
                time_us = OLD_US + (at_s + later) * SECOND_US
                with within(agent="ops", session=f"ses_{call_id}"):
                    await history.append(NewEvent(topic=topic, type=event_type, data=data, time_us=time_us))


def key_of(name: str, since_us: int = 0, until_us: int | None = None) -> PublicKey:
    return PublicKey(key=KEYS[name].public_key().public_bytes_raw(), since_us=since_us, until_us=until_us)


def audit(folder: Path, entries: list[Entry], *of_approver: PublicKey) -> JournalAudit:
    of_daemon = entries_of(events_in(folder))
    environment = Environment(folder, read_only=True)
    try:
        keys = {APPROVER: of_approver or [key_of(APPROVER)], WORKER: [key_of(WORKER)]}
        return compare(environment, lines_of([*of_daemon, *entries]), uid=UID, keys=keys)
    finally:
        environment.close()


def shown(found: JournalAudit) -> list[tuple[str, str]]:
    return [(one.kind, one.call_id) for one in found.disagreements]


FIRST = ("call_1", 0, True)
BY_RULE = {"rule": "a rule"}


async def test_the_three_agree(tmp_path: Path) -> None:
    await stored(tmp_path / "history", FIRST, ("call_2", 200, True), ("call_3", 300, False))
    entries = [
        *approved("call_1", 1, 0),
        *approved("call_2", 2, 200),
        record(WORKER, "begun", "call_3", 303, by=BY_RULE),
    ]
    found = audit(tmp_path / "history", entries)
    assert (shown(found), found.records, found.unused, found.forged) == ([], 9, [], 0)
    assert (shown(audit(tmp_path / "history", [])), shown(audit(tmp_path / "history", entries[6:]))) == (
        [],
        [],
    )


@pytest.mark.parametrize(
    ("entries", "wrong", "words"),
    [
        ([record(WORKER, "begun", "call_9", 200, by=BY_RULE)], "unrecorded", "the history has no event"),
        ([record(WORKER, "begun", "call_9", 200, agent="other", by=BY_RULE)], "foreign", "is from"),
        ([record("evil.service", "granted", "call_9", 200, key=APPROVER)], "foreign", "evil.service"),
        ([record(WORKER, "granted", "call_9", 200)], "foreign", "says granted"),
        ([record(WORKER, "begun", "call_9", 200, key=APPROVER, by=BY_RULE)], "unsigned", "not signed"),
    ],
)
async def test_what_the_history_does_not_have_is_named(
    tmp_path: Path, entries: list[Entry], wrong: str, words: str
) -> None:
    await stored(tmp_path / "history", FIRST)
    found = audit(tmp_path / "history", [*approved("call_1", 1, 0), *entries])
    assert shown(found) == [(wrong, "call_9")]
    assert words in found.disagreements[0].message
    assert bool(found.disagrees) == (wrong != "foreign")


async def test_what_the_history_alone_has_is_named(tmp_path: Path) -> None:
    await stored(tmp_path / "history", FIRST, ("call_9", 200, True))
    first = approved("call_1", 1, 0)
    assert shown(audit(tmp_path / "history", first)) == [("unapproved", "call_9"), ("unrun", "call_9")]
    ran = record(WORKER, "begun", "call_9", 203, by={"user": 0, "series": "s", "number": 2})
    found = audit(tmp_path / "history", [*first, ran])
    assert shown(found) == [("unapproved", "call_9"), ("unapproved", "call_9")]
    again = record(WORKER, "begun", "call_9", 203, by={"user": 0, "series": "s", "number": 1})
    assert ("different", "call_9") in shown(audit(tmp_path / "history", [*first, again]))
    granted = approved("call_9", 2, 200)[:2]
    found = audit(tmp_path / "history", [*first, *granted])
    assert (shown(found), found.unused) == ([("unrun", "call_9")], ["call_9"])


async def test_what_takes_a_change_back_was_approved_with_it(tmp_path: Path) -> None:
    """The worker promised it when the change began, and says so; the history has an approval of its own."""
    await stored(tmp_path / "history", FIRST, ("call_9", 200, True))
    back = record(WORKER, "begun", "call_9", 203, by={"takes_back": "call_1"})
    assert shown(audit(tmp_path / "history", [*approved("call_1", 1, 0), back])) == []


async def test_what_the_worker_refused_to_take_back_did_not_run(tmp_path: Path) -> None:
    """Else a daemon could call so what it says that somebody approved."""
    await stored(tmp_path / "history", FIRST, ("call_8", 200, None), ("call_9", 300, True))
    refused = [
        record(WORKER, "refused", call_id, at_s, by={"takes_back": "call_1"})
        for call_id, at_s in (("call_8", 203), ("call_9", 303))
    ]
    found = audit(tmp_path / "history", [*approved("call_1", 1, 0), *refused])
    assert shown(found) == [("unapproved", "call_9")]


async def test_what_a_deleted_session_took_with_it_is_explained(tmp_path: Path) -> None:
    await stored(tmp_path / "history", FIRST, ("call_2", 200, True))
    async with opened(tmp_path / "history") as history:
        gone = NewEvent(topic="session.deleted", type="deleted", data={"by": 0})
        await history.erase("ses_call_2", gone)
    entries = [*approved("call_1", 1, 0), *approved("call_2", 2, 200)]
    assert shown(audit(tmp_path / "history", entries)) == []
    entries.append(record(WORKER, "begun", "call_3", 204, by=BY_RULE))
    assert [kind for kind, _ in shown(audit(tmp_path / "history", entries))] == ["unrecorded"]


async def test_a_new_key_of_the_approver_leaves_its_older_records_as_they_are(tmp_path: Path) -> None:
    """Its former key signed them. What that signs later is not the approver's, nor what another signed."""
    await stored(tmp_path / "history", FIRST, ("call_2", 200, True))
    changed_us = OLD_US + 100 * SECOND_US
    keys = [key_of(FORMER, OLD_US, changed_us), key_of(APPROVER, changed_us)]
    first = approved("call_1", 1, 0)
    by_former = [
        record(APPROVER, "asked", "call_1", 0, key=FORMER),
        record(APPROVER, "granted", "call_1", 1, key=FORMER, grant='{"series": "s", "number": 1}', by=0),
    ]
    second = approved("call_2", 2, 200)
    found = audit(tmp_path / "history", [*by_former, *first[2:], *second], *keys)
    assert (shown(found), found.records, found.older) == ([], 8, 0)
    late = record(APPROVER, "asked", "call_3", 203, key=FORMER)
    found = audit(tmp_path / "history", [*by_former, *first, *second, late], *keys)
    assert shown(found) == [("unsigned", "call_1"), ("unsigned", "call_1"), ("unsigned", "call_3")]


async def test_records_older_than_all_known_keys_are_told_and_not_judged_by_them(tmp_path: Path) -> None:
    await stored(tmp_path / "history", FIRST, ("call_2", 200, True))
    grant = '{"series": "s", "number": 1}'
    entries = [
        record(APPROVER, "granted", "call_1", 1, key=FORMER, grant=grant, by=0),
        *approved("call_1", 1, 0)[2:],
        *approved("call_2", 2, 200),
    ]
    found = audit(tmp_path / "history", entries, key_of(APPROVER, OLD_US + 100 * SECOND_US))
    assert (shown(found), found.older, found.records) == ([], 1, 7)
