"""The audit of a real system: history and journal agree, forgers are named, tampering is found.

The machine is the third one: what other tests leave in the journal, such as entries of a history that was
purged, is just what an audit tells. Those before it there have only asked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lightagentd.events.journal.entry import GAP
from lightagentd.events.model import message_id

from .machine import Completed, Machine
from .product import (
    UNIT,
    eventually,
    lactl,
    lactl_json,
    lactl_json_lines,
    new_uid,
    start_service,
)

pytestmark = pytest.mark.e2e

STATE = "/var/lib/lightagentd"
TAMPER = """
import hashlib, json, lmdb, sys
seq, how = int(sys.argv[1]), sys.argv[2]
environment = lmdb.open("/var/lib/lightagentd/history", max_dbs=40)
events, times = environment.open_db(b"events"), environment.open_db(b"by_time")
with environment.begin(write=True) as txn:
    rows = list(txn.cursor(events))
    if how == "cut":
        for key, _ in rows[seq - 1:]:
            txn.delete(key, db=events)
    else:
        prev = hashlib.sha256(rows[seq - 2][1].partition(b"\\n")[0]).hexdigest()
        for key, record in rows[seq - 1:]:
            line, _, data = record.partition(b"\\n")
            header = json.loads(line)
            if how == "byte" and header["seq"] > seq:
                break
            header["prev"] = prev
            header["correlation_id"] = "forged"
            line = json.dumps(header, separators=(",", ":")).encode()
            txn.put(key, line + b"\\n" + data, db=events)
            prev = hashlib.sha256(line).hexdigest()
    if how == "cut":
        txn.drop(times, delete=False)
        for key, record in txn.cursor(events):
            time_us = json.loads(record.partition(b"\\n")[0])["time"]
            txn.put(time_us.to_bytes(8, "big") + key, b"x", db=times)
"""


@pytest.fixture(scope="module")
def audited(third_machine: Machine) -> Machine:
    """The machine with the daemon running."""
    return third_machine


def audit(machine: Machine, *options: str) -> dict[str, Any]:
    """What root's `lactl audit verify` finds, once nothing is on its way to the journal any more."""
    found: dict[str, Any] = {}

    def settled() -> bool:
        done = lactl(machine, "--json", "audit", "verify", *options, check=False)
        assert done.stdout, done.explain()
        found.clear()
        found.update(json.loads(done.stdout))
        return not [run for run in found["journal"]["lacking"] if run["why"] == "waiting"]

    eventually(settled, "all events have reached the journal")
    return found


def busy(machine: Machine) -> None:
    """Several clients at once."""
    calls = [
        ("prompt", "--new", "ops", "check memory"),
        ("tools", "call", "ops", "net.list_interfaces"),
        ("prompt", "--new", "ops", "check disk"),
        ("tools", "call", "ops", "bash.exec", "command=id -u"),
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda call: lactl(machine, *call), calls))


def test_history_and_journal_of_a_busy_daemon_agree_event_for_event(audited: Machine) -> None:
    for _ in range(3):
        busy(audited)
    found = audit(audited)
    journal = found["journal"]
    assert found["ok"], found
    assert (found["by"], found["store"]) == ("lactl", STATE)
    assert (journal["runs"], journal["lacking"], journal["forged"], journal["rotated"]) == ([], [], 0, 0)
    assert journal["matched"] == journal["entries"] >= found["events"] > 50
    # And without lactl: number and hash of each entry of the unit are those of an event.
    events = {event["seq"]: event["hash"] for event in lactl_json_lines(audited, "events")}
    entries = audited.journal("_SYSTEMD_UNIT=lightagentd.service")
    hashes = {
        int(entry["LIGHTAGENT_SEQ"]): entry["LIGHTAGENT_HASH"]
        for entry in entries
        if "LIGHTAGENT_SEQ" in entry
    }
    assert {seq: hashes[seq] for seq in events} == events


def test_checkpoints_reach_the_journal_with_their_signatures(audited: Machine) -> None:
    audited.run(["systemctl", "restart", UNIT])
    signed = lactl_json(audited, "audit", "checkpoints")
    assert len(signed) >= 2
    eventually(lambda: len(in_journal(audited)) >= len(signed), "the checkpoints are in the journal")
    said = {entry["LIGHTAGENT_CHECKPOINT_SIGNATURE"] for entry in in_journal(audited)}
    assert {one["signature"] for one in signed} <= said


def in_journal(machine: Machine) -> list[dict[str, Any]]:
    return machine.journal("--unit", UNIT, f"MESSAGE_ID={message_id('daemon.checkpoint', 'signed')}")


SEND_AND_STAY = """
import socket, sys, time
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.sendto(open(sys.argv[1], "rb").read(), "/run/systemd/journal/socket")
time.sleep(600)
"""
"""Sends a file by journald's own protocol, as logger(1) does, and does not leave."""


def entry(seq: int, event_hash: str, **fields: str) -> str:
    """A forged entry for logger(1), which sends what it is given by journald's own protocol."""
    named = {
        "MESSAGE_ID": message_id("daemon.state", "ready"),
        "MESSAGE": "ready: serving on /run/lightagentd/control.sock",
        "SYSLOG_IDENTIFIER": "lightagentd",
        "_SYSTEMD_UNIT": UNIT,
        "_UID": "0",
        "LIGHTAGENT_SEQ": str(seq),
        "LIGHTAGENT_HASH": event_hash,
        "LIGHTAGENT_TOPIC": "daemon.state",
        "LIGHTAGENT_TYPE": "ready",
        **fields,
    }
    return "".join(f"{name}={value}\n" for name, value in named.items())


def test_forged_entries_are_named_and_change_nothing(audited: Machine) -> None:
    audited.run(["useradd", "--create-home", new_uid(), "mallory"])
    uid = audited.account("mallory").pw_uid
    audited.run(["logger", "--journald"], user="mallory", input=entry(3, "0" * 64))
    audited.write(
        "/root/forged", entry(100_000, "1" * 64, LIGHTAGENT_MISSING_FROM="1", LIGHTAGENT_MISSING_TO="99")
    )
    # The daemon's own user in another unit is another sender, too.
    audited.write("/var/tmp/forged", entry(100_001, "2" * 64))
    for seq, user, file in ((100_000, "root", "/root/forged"), (100_001, "lightagent", "/var/tmp/forged")):
        unit = ["systemd-run", "--quiet", "--collect", "--unit=evil", f"--uid={user}"]
        audited.run([*unit, "python3", "-I", "-c", SEND_AND_STAY, file])
        # journald finds out the unit of a sender by its process, which must still be there then.
        eventually(functools.partial(audited.journal, f"LIGHTAGENT_SEQ={seq}"), "journald has the entry")
        audited.run(["systemctl", "stop", "evil"])
    found = audit(audited)
    journal = found["journal"]
    assert found["ok"], found
    assert (journal["runs"], journal["lacking"]) == ([], [])
    named = {(one["unit"], one["uid"], one["seq"]) for one in journal["forged_entries"]}
    own = str(audited.account("lightagent").pw_uid)
    assert {("evil.service", "0", "100000"), ("evil.service", own, "100001")} <= named
    assert [one for one in journal["forged_entries"] if (one["uid"], one["seq"]) == (str(uid), "3")]
    assert journal["forged"] == len(journal["forged_entries"]) >= 3
    shown = lactl(audited, "audit", "verify")
    assert f"{journal['forged']} journal entries were not sent by the daemon" in shown.stderr
    assert "unit evil.service, uid 0" in shown.stderr


ALTER = """
import json, lmdb, sys
environment = lmdb.open("/var/lib/lightagentd/history", max_dbs=40)
with environment.begin(write=True, db=environment.open_db(b"usage")) as txn:
    txn.put(b"all/all", json.dumps({**json.loads(txn.get(b"all/all") or b"{}"), "updated_us": 1}).encode())
"""
RECORD = """
import sys, time
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lightagentd.events.journal import signed_record
from lightagentd.events.journal.journal_socket import JournalSocket
said = {"kind": "begun", "call_id": sys.argv[1], "agent": "ghost", "tool": "file", "action": "write"}
said |= {"digest": "of it", "by": {"rule": "none"}}
signed_record.send(JournalSocket(), Ed25519PrivateKey.generate(), "begun", said)
time.sleep(600)
"""
GHOST = "lightagent-change@ghost.service"


def test_who_may_not_read_the_store_asks_the_daemon(audited: Machine) -> None:
    audited.run(["useradd", "--create-home", "--groups=lightagent", new_uid(), "anna"])
    found = json.loads(lactl(audited, "--json", "audit", "verify", user="anna").stdout)
    assert (found["ok"], found["by"], found["journal"]) == (True, "daemon", None)
    refused = lactl(audited, "audit", "verify", "--journal", user="anna", check=False)
    assert (refused.status, "sudo" in refused.stderr) == (77, True)


def test_what_a_killed_daemon_had_not_sent_is_no_secret(audited: Machine) -> None:
    busy(audited)
    audited.run(["systemctl", "kill", "--signal=KILL", UNIT])
    eventually(lambda: lactl(audited, "status", check=False).status == 0, "the daemon runs again")
    found = audit(audited)
    assert (found["ok"], found["journal"]["runs"]) == (True, []), found
    assert {run["why"] for run in found["journal"]["lacking"]} <= {"gap"}
    for told in audited.journal("--unit", UNIT, f"MESSAGE_ID={message_id(*GAP)}"):
        assert int(told["LIGHTAGENT_MISSING_FROM"]) <= int(told["LIGHTAGENT_MISSING_TO"])


@pytest.fixture
def stopped(audited: Machine) -> Iterator[Machine]:
    """With the daemon stopped; history and kept head are as before at the end."""
    audited.run(["systemctl", "stop", UNIT, "lightagentd.socket"])
    audited.run(["cp", "-a", STATE, "/var/tmp/state"])
    yield audited
    audited.run(["systemctl", "stop", UNIT])
    restore = f"rm -rf {STATE}; cp -a /var/tmp/state {STATE}; rm -rf /var/tmp/state"
    audited.run(["sh", "-c", restore])


def test_root_verifies_the_store_of_a_stopped_daemon_and_leaves_nothing_there(stopped: Machine) -> None:
    before = stopped.run(["find", STATE, "-printf", "%p %u %g %m\n"]).stdout
    found = audit(stopped, "--indexes")
    assert found["ok"], found
    assert (found["trusted"], found["covered_seq"]) == (True, found["head_seq"] - 1)
    assert found["index_entries"] > found["events"]
    assert stopped.run(["find", STATE, "-printf", "%p %u %g %m\n"]).stdout == before
    assert (
        lactl(stopped, "audit", "key", "--stored").stdout
        == stopped.run(["cat", f"{STATE}/audit/public.pem"]).stdout
    )


def tamper(machine: Machine, seq: int, how: str) -> Completed:
    machine.run(["python3", "-c", TAMPER, str(seq), how])
    machine.run(["rm", f"{STATE}/audit/head.json"])
    return lactl(machine, "audit", "verify", check=False)


@pytest.mark.parametrize("how", ["byte", "anew", "cut"])
def test_the_journal_finds_what_was_altered_and_names_the_first_event(stopped: Machine, how: str) -> None:
    head = audit(stopped)["head_seq"]
    seq = {"byte": 20, "anew": 30, "cut": head - 3}[how]
    done = tamper(stopped, seq, how)
    assert done.status == 74, done.explain()
    assert f"The history was altered at event {seq}:" in done.stderr
    assert "history\taltered" in done.stdout
    if how == "cut":
        assert "its end was cut off" in done.stderr


def test_an_altered_row_is_named_and_taken_out_of_use(stopped: Machine) -> None:
    stopped.run(["python3", "-c", ALTER])
    done = lactl(stopped, "audit", "verify", check=False)
    assert (done.status, "the row 'all/all' of usage was" in done.stderr) == (74, True), done.explain()
    start_service(stopped)
    assert "the row 'all/all' of usage was" in lactl(stopped, "status", check=False).stdout.lower()
    assert audit(stopped)["ok"]


def test_a_history_that_was_exchanged_for_another_is_found(stopped: Machine) -> None:
    stopped.run(["rm", "-rf", f"{STATE}/history", f"{STATE}/audit"])
    start_service(stopped)
    lactl(stopped, "tools", "call", "ops", "net.list_interfaces")
    found = audit(stopped)
    assert (found["ok"], found["first_bad_seq"]) == (False, 1)
    assert "another one in the journal" in found["reason"]
    stopped.run(["systemctl", "stop", UNIT])
    stopped.run(["journalctl", "--quiet", "--rotate", "--vacuum-time=1us"])
    emptied = lactl(stopped, "audit", "verify")
    assert "the journal has no entry of the system's daemon" in emptied.stderr, emptied.explain()


def test_the_key_comes_from_a_credential(audited: Machine) -> None:
    old = lactl_json(audited, "audit", "key", "--stored")["fingerprint"]
    audited.run(["mkdir", "-p", "-m", "0700", "/etc/credstore"])
    audited.run(
        ["install", "-m", "0600", "/dev/stdin", "/etc/credstore/lightagentd.audit-key"],
        input=bytes(range(32)),
    )
    try:
        audited.run(["systemctl", "restart", UNIT])  # the last test left it stopped
        new = lactl_json(audited, "audit", "key")
        assert new["fingerprint"] != old
        found = json.loads(lactl(audited, "--json", "audit", "verify", "--no-journal").stdout)
        assert (found["ok"], found["trusted"], found["key"]) == (True, True, new["fingerprint"])
        assert any("another key signs" in note for note in found["notes"])
        audited.run(
            ["install", "-m", "0600", "/dev/stdin", "/etc/credstore/lightagentd.audit-key"], input=b"short"
        )
        assert audited.run(["systemctl", "restart", UNIT], check=False, timeout_s=60).status != 0
        said = audited.run(["systemctl", "show", "-P", "StatusText", UNIT]).stdout
        assert "holds no Ed25519 key" in said
    finally:
        audited.run(["rm", "/etc/credstore/lightagentd.audit-key"])
        audited.run(["systemctl", "reset-failed", UNIT], check=False)


def test_a_change_that_the_history_does_not_have_is_named_by_its_call(audited: Machine) -> None:
    """journald says which unit a record is from; one of another unit is anybody's."""
    python = audited.run(["sed", "-n", "1s/^#!//p", "/usr/bin/lactl"]).stdout.split()[0]
    audited.write("/var/tmp/record.py", RECORD)
    drop_in = f"/run/systemd/system/{GHOST}.d/record.conf"
    audited.run(["mkdir", "-p", f"/run/systemd/system/{GHOST}.d"])
    program = f"{python} /var/tmp/record.py call_00000000000000aa"
    audited.write(drop_in, f"[Service]\nType=exec\nExecStart=\nExecStart={program}\nPrivateTmp=no\n")
    evil = ["systemd-run", "--quiet", "--collect", "--unit=evil", python, "/var/tmp/record.py"]
    try:
        audited.run([*evil, "call_00000000000000bb"])
        audited.run(["systemctl", "daemon-reload"])
        audited.run(["systemctl", "start", GHOST])
        for unit in ("evil.service", GHOST):
            eventually(
                functools.partial(audited.journal, "--unit", unit, "MESSAGE=begun"), "journald has the record"
            )
        done = lactl(audited, "audit", "verify", check=False)
        assert done.status == 74, done.explain()
        assert "call_00000000000000aa" in done.stderr
        assert "the history has no event of it" in done.stderr
        assert "call_00000000000000bb of ghost" in done.stderr
        assert "is from evil.service" in done.stderr
    finally:
        audited.run(["systemctl", "stop", GHOST, "evil"], check=False)
        audited.run(["rm", "-r", f"/run/systemd/system/{GHOST}.d", "/var/tmp/record.py"])
        audited.run(["systemctl", "daemon-reload"])
        audited.run(["journalctl", "--quiet", "--rotate"])
        audited.run(["journalctl", "--quiet", "--vacuum-time=1us"])
