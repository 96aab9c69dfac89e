"""What the daemon may put into the approver, and what stays of it: on real files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lightagentd.approver import request as bounds
from lightagentd.approver import requests as kept
from lightagentd.approver.request import Request
from lightagentd.approver.requests import Requests
from lightagentd.config.terms import Terms
from lightagentd.errors import (
    ApprovalClosed,
    ApprovalNotFound,
    Conflict,
    InvalidArgument,
    LightagentError,
    LimitExceeded,
    MessageTooLarge,
    NotFound,
    Panicked,
    StorageError,
)
from lightagentd.policy.call import PERSON
from lightagentd.policy.panic import Panic
from lightagentd.signed.grant import Grant
from lightagentd.signed.statement import Statement
from lightagentd.tool import Effect
from tests.prepared import REPOSITORY

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
SAID = {"tainted": False, "preview": "it restarts"}
HOUR_US = 3_600_000_000


def call(number: int = 1, **more: Any) -> dict[str, Any]:
    made = Statement(
        agent="ops",
        tool="systemd",
        action="restart",
        effect="change",
        args={"unit": "nginx.service"},
        tool_sha256="ab" * 32,
        call_id=f"call_{number}",
        session="ses_1",
        owner=1000,
        trigger="person",
    )
    return {**made.to_dict(), **more}


def soon_us() -> int:
    return time.time_ns() // 1000 + HOUR_US


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Requests]]:
    """Opens the requests of one folder, as a start of the program does."""
    made: list[Requests] = []

    def start() -> Requests:
        made.append(Requests(tmp_path, KEY, Panic(tmp_path)))
        return made[-1]

    yield start
    for one in made:
        one.close()


def add(requests: Requests, number: int = 1, said: Any = SAID, **more: Any) -> Request:
    return requests.add(f"apr_{number}", call(number, **more), said, soon_us())


def grant_of(found: Request) -> Grant:
    return Grant.verified(found.grant, [PUBLIC])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"agent": "../../etc"}, InvalidArgument),
        ({"agent": "a" * 100}, InvalidArgument),
        ({"effect": "observe"}, InvalidArgument),
        ({"owner": -1}, InvalidArgument),
        ({"owner": 1 << 40}, InvalidArgument),
        ({"owner": True}, InvalidArgument),
        ({"tool": ""}, InvalidArgument),
        ({"tool": "x" * 5000}, InvalidArgument),
        ({"session": "x" * 5000}, InvalidArgument),
        ({"args": []}, InvalidArgument),
        ({"args": {"x": float("nan")}}, InvalidArgument),
        ({"args": {"x": "y" * (600 << 10)}}, MessageTooLarge),
        ({"confirm_within_s": -1}, InvalidArgument),
        ({"confirm_within_s": 1 << 40}, InvalidArgument),
        ({"check": "x" * 5000}, InvalidArgument),
        ({"surprise": 1}, InvalidArgument),
    ],
)
def test_a_statement_has_bounds(
    opened: Callable[[], Requests], changes: dict[str, Any], error: type[LightagentError]
) -> None:
    requests = opened()
    with pytest.raises(error):
        add(requests, **changes)
    assert requests.waiting() == []


def test_ids_times_and_what_is_said_have_bounds(opened: Callable[[], Requests]) -> None:
    requests = opened()
    with pytest.raises(InvalidArgument):
        requests.add("apr_1", call(), {"preview": float("nan")}, soon_us())
    for wrong in ("", "apr 1", "../x", "x" * 100, "apr_\u202e"):
        with pytest.raises(InvalidArgument):
            requests.add(wrong, call(), SAID, soon_us())
    wrong_said: tuple[Any, ...] = ([], "x", None)
    for said in wrong_said:
        with pytest.raises(InvalidArgument):
            requests.add("apr_1", call(), said, soon_us())
    with pytest.raises(MessageTooLarge):
        requests.add("apr_1", call(), {"preview": "x" * (200 << 10)}, soon_us())
    for past_us in (0, -(1 << 60), time.time_ns() // 1000 - 1):
        with pytest.raises(InvalidArgument, match="is over already"):
            requests.add("apr_1", call(), SAID, past_us)
    found = requests.add("apr_1", call(), SAID, 1 << 62)
    assert found.expires_us - found.created_us == bounds.LONGEST_ASK_S * 1_000_000


def test_one_id_stands_for_one_call(opened: Callable[[], Requests]) -> None:
    requests = opened()
    found = add(requests)
    assert add(requests) == found
    with pytest.raises(Conflict):
        requests.add("apr_1", call(args={"unit": "ssh.service"}), SAID, soon_us())
    requests.answer(found, grant=True, by=7, terms=Terms(within_s=60))
    assert requests.add("apr_1", call(), SAID, soon_us()).state == "granted"
    with pytest.raises(Conflict):
        requests.add("apr_1", call(args={"unit": "ssh.service"}), SAID, soon_us())


def test_an_answer_is_to_the_question_that_was_read(opened: Callable[[], Requests]) -> None:
    """The daemon can have an id forgotten while polkit asks for a password, and register it anew."""
    requests = opened()
    read = add(requests)
    requests.lapse("apr_1")
    requests._drop("apr_1")
    again = add(requests, args={"unit": "ssh.service"})
    for grant in (True, False):
        with pytest.raises(ApprovalClosed, match="another question"):
            requests.answer(read, grant=grant, by=0)
    assert requests.get("apr_1") == again


def test_a_flood_keeps_no_question_from_being_asked(
    opened: Callable[[], Requests], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "OPEN_IN_ALL", 12)
    monkeypatch.setattr(kept, "OPEN_OF_OWNER", 5)
    requests = opened()
    real = add(requests, 0, owner=1)
    for number in range(1, 9):
        add(requests, number, owner=2)
    assert [one.id for one in requests.waiting()] == ["apr_0", *(f"apr_{one}" for one in range(4, 9))]
    assert requests.get("apr_1").note == kept.PUSHED_OUT
    for number in range(10, 30):
        add(requests, number, owner=number)  # invented owners
    assert add(requests, 99, owner=3).state == "waiting"
    assert len(requests.waiting()) == 12
    assert requests.get("apr_99").state == "waiting"
    with pytest.raises(ApprovalClosed):
        requests.answer(real, grant=True, by=0)


def test_all_of_them_have_a_weight_in_memory_and_on_the_disk(
    opened: Callable[[], Requests], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept, "WEIGHT_BYTES", 100_000)
    monkeypatch.setattr(kept, "_REWRITE_BYTES", 50_000)
    requests = opened()
    for number in range(60):
        lists: Any = [[] for _ in range(100)] if number % 2 else "x" * 9000
        add(requests, number, args={"x": lists})
    assert requests._weights.keys() == requests._all.keys()
    assert sum(requests._weights.values()) <= 100_000
    assert requests.get("apr_59").state == "waiting"
    assert (tmp_path / kept.FILE).stat().st_size < 300_000
    with pytest.raises(ApprovalNotFound):
        requests.get("apr_0")
    assert {one.id for one in opened().waiting()} == {one.id for one in requests.waiting()}


def test_registrations_have_a_rate(opened: Callable[[], Requests], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "BURST", 3)
    monkeypatch.setattr(kept, "EACH_S", 0.2)
    requests = opened()
    for number in range(3):
        add(requests, number)
    with pytest.raises(LimitExceeded):
        add(requests, 4)
    time.sleep(0.25)
    add(requests, 5000)


def test_numbers_go_on_and_answers_stay(opened: Callable[[], Requests]) -> None:
    first = opened()
    granted = first.answer(add(first, 1), grant=True, by=1001, note="yes", seat={"tty": "pts/1"})
    denied = first.answer(add(first, 2), grant=False, by=1001)
    waits = add(first, 3)
    second = opened()
    assert [second.get(f"apr_{number}") for number in (1, 2, 3)] == [granted, denied, waits]
    later = second.answer(waits, grant=True, by=0)
    assert grant_of(granted).series == grant_of(later).series
    assert (grant_of(granted).number, grant_of(later).number) == (1, 2)
    assert grant_of(later).digest == waits.digest
    with pytest.raises(ApprovalClosed):
        second.answer(waits, grant=False, by=0)


def test_a_secret_is_in_memory_alone(opened: Callable[[], Requests], tmp_path: Path) -> None:
    first = opened()
    asked = add(first, 1, {"hidden": ["password"]}, args={"password": "hunter2"})
    granted = first.answer(asked, grant=True, by=0)
    add(first, 2, {"hidden": ["password"]}, args={"password": "hunter2"})
    assert b"hunter2" not in (tmp_path / kept.FILE).read_bytes()
    second = opened()
    assert second.waiting() == []
    assert grant_of(second.answer(add(second, 3), grant=True, by=0)).number == grant_of(granted).number + 1


def test_a_half_line_is_dropped_and_a_damaged_log_is_not_used(
    opened: Callable[[], Requests], tmp_path: Path
) -> None:
    first = opened()
    first.answer(add(first, 1), grant=True, by=0)
    log = tmp_path / kept.FILE
    whole = log.read_bytes()
    log.write_bytes(whole + whole.splitlines()[-1][:50])
    assert opened().get("apr_1").state == "granted"
    assert log.read_bytes() == whole
    for damaged in (whole.replace(b"nginx", b"apach"), b"\0" * 100 + b"\n" + whole):
        log.write_bytes(damaged)
        with pytest.raises(StorageError, match="damaged") as failed:
            opened()
        assert f"mv {log} {log}.damaged" in failed.value.suggestion
    log.rename(log.with_suffix(".damaged"))
    anew = opened()
    assert anew.answer(add(anew, 1), grant=True, by=0).grant != first.get("apr_1").grant


def test_what_a_full_disk_does_not_take_did_not_happen(
    opened: Callable[[], Requests], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = opened()
    found = add(requests)
    real = os.write
    for full in (lambda *_: 5, lambda fd, data: real(fd, data[:7])):
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageError):
            requests.answer(found, grant=True, by=0)
        assert requests.get(found.id).state == "waiting"
    monkeypatch.setattr(os, "write", real)

    def fail(_: int) -> None:  # all of it is in the file by then
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        with pytest.raises(StorageError):
            requests.answer(found, grant=True, by=0)
    add(requests, 2)
    assert opened().get(found.id) == found
    granted = requests.answer(found, grant=True, by=0)
    assert opened().get(found.id) == granted


def test_a_clock_that_was_set_back_lets_nothing_live_longer(
    opened: Callable[[], Requests], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = opened()
    found = add(requests)
    now_us = kept._now_us()
    for moved_us in (-HOUR_US, 2 * HOUR_US):
        monkeypatch.setattr(kept, "_now_us", lambda at_us=now_us + moved_us: at_us)
        assert requests.waiting() == []
        with pytest.raises(ApprovalClosed, match="expired"):
            requests.answer(found, grant=True, by=0)
    monkeypatch.setattr(kept, "_now_us", lambda: now_us - 1_000_000)
    assert requests.answer(found, grant=True, by=0).state == "granted"


async def test_who_waits_hears_the_answer_or_that_it_is_gone(opened: Callable[[], Requests]) -> None:
    requests = opened()
    waiting = [asyncio.create_task(requests.answered(add(requests, number).id)) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    requests.answer(requests.get("apr_1"), grant=False, by=0)
    requests.lapse("apr_2")
    requests.lapse("apr_3")
    requests._drop("apr_3")
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [one.state for one in found if isinstance(one, Request)] == ["denied", "lapsed"]
    assert isinstance(found[2], ApprovalNotFound)


# Leaves


def given(requests: Requests, *, tainted: bool = False, terms: Terms | None = None, **more: Any) -> Request:
    return requests.answer(add(requests, 1, **more), grant=True, by=1001, leave_tainted=tainted, terms=terms)


def test_a_leave_allows_the_same_call_of_its_session_alone(opened: Callable[[], Requests]) -> None:
    first = opened()
    given(first, terms=Terms(within_s=60))
    requests = opened()  # it is durable
    found = add(requests, 2)
    assert (found.state, found.by, found.leave) == ("granted", 1001, requests.leaves()[0].id)
    assert grant_of(found).digest == Statement.of(call(2, confirm_within_s=60)).digest
    others: tuple[dict[str, Any], ...] = (
        {"args": {"unit": "ssh.service"}},
        {"session": "ses_2"},
        {"agent": "web"},
        {"owner": 1001},
        {"trigger": "nightly"},
        {"tool_sha256": "ac" * 32},
        {"expected": {"state": "x"}},
        {"kit": "/etc/x"},
        {"said": {"tainted": True}},
        {"said": {}},
        {"said": {"tainted": False, "hidden": ["unit"]}},
    )
    for number, changes in enumerate(others, 10):
        assert add(requests, number, **changes).state == "waiting", changes
    assert opened().leaves()[0].left == bounds.LEAVE_USES - 1


def test_a_leave_ends(opened: Callable[[], Requests], monkeypatch: pytest.MonkeyPatch) -> None:
    requests = opened()
    leave = Requests.leaves
    given(requests, tainted=True)
    assert add(requests, 2, {"tainted": True}).state == "granted"
    requests.withdraw(leave(requests)[0].id)
    assert add(requests, 3).state == "waiting"
    assert leave(opened()) == []
    with pytest.raises(NotFound):
        requests.leave("leave_x")
    assert add(requests, 4).state == "waiting"
    requests.answer(requests.get("apr_4"), grant=True, by=0, leave_tainted=False)
    states = [add(requests, number).state for number in range(100, 100 + bounds.LEAVE_USES + 1)]
    assert states == ["granted"] * bounds.LEAVE_USES + ["waiting"]
    requests.answer(requests.get("apr_150"), grant=True, by=0, leave_tainted=False)
    later_us = kept._now_us() + 25 * HOUR_US
    monkeypatch.setattr(kept, "_now_us", lambda: later_us)
    assert leave(requests) == []


def test_not_every_call_can_have_a_leave(opened: Callable[[], Requests]) -> None:
    requests = opened()
    wrong: tuple[dict[str, Any], ...] = (
        {"session": ""},
        {"trigger": "nightly"},
        {"args": {"content": "x" * 9000}},
        {"said": {"tainted": False, "hidden": ["unit"]}},
        {"said": {"tainted": True}},
        {"said": {}},
    )
    for number, changes in enumerate(wrong):
        found = add(requests, number, **changes)
        with pytest.raises(Conflict):
            requests.answer(found, grant=True, by=0, leave_tainted=False)
        assert requests.get(found.id).state == "waiting"


def test_its_words_are_those_of_policy() -> None:
    assert (bounds.CHANGE, bounds.PERSON) == (Effect.CHANGE, PERSON)


# Panic


def test_nothing_is_signed_in_a_panic(tmp_path: Path, opened: Callable[[], Requests]) -> None:
    requests = opened()
    given(requests)
    (tmp_path / "panic").touch()
    stopped = Requests(tmp_path, KEY, panic := Panic(tmp_path))
    panic.load()
    found = add(stopped, 2)
    assert found.state == "waiting"
    with pytest.raises(Panicked):
        stopped.answer(found, grant=True, by=0)
    panic.end()
    assert stopped.answer(found, grant=True, by=0).state == "granted"
    stopped.close()


# Kills

LOOP = """
import sys, time
from pathlib import Path
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lightagentd.approver import requests as kept
from lightagentd.policy.call import PERSON
from lightagentd.policy.panic import Panic

kept.BURST, kept._REWRITE_BYTES = 1 << 30, 20_000
folder, start = Path(sys.argv[1]), int(sys.argv[2])
requests = kept.Requests(folder, Ed25519PrivateKey.from_private_bytes(b"k" * 32), Panic(folder))
statement = dict(agent="ops", tool="a", action="b", effect="change", args={}, tool_sha256="")
until_us = time.time_ns() // 1000 + 3_600_000_000
for number in range(start, start + 1_000_000):
    one = requests.add(f"apr_{number}", {**statement, "call_id": f"c{number}", "owner": number}, {}, until_us)
    print("asked", number, flush=True)
    if number % 2:
        one = requests.answer(one, grant=True, by=7)
        print("granted", number, one.grant["grant"].split('"number":')[1].split(",")[0], flush=True)
"""


def test_a_kill_forgets_nothing_and_no_number_comes_twice(tmp_path: Path) -> None:
    asked: set[int] = set()
    granted: dict[int, int] = {}
    for start in (0, 100_000):
        argv = [sys.executable, "-c", LOOP, str(tmp_path), str(start)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True) as program:
            assert program.stdout is not None
            for count, line in enumerate(program.stdout):
                if count == 90:
                    program.kill()
                word, *numbers = line.split()
                if word == "asked":
                    asked.add(int(numbers[0]))
                elif len(numbers) == 2:
                    assert int(numbers[1]) not in granted
                    granted[int(numbers[1])] = int(numbers[0])
    requests = Requests(tmp_path, KEY, Panic(tmp_path))
    assert len(asked) > 100
    for number in sorted(asked)[-kept.OPEN_IN_ALL :]:
        state = requests.get(f"apr_{number}").state
        assert state == "granted" if number in granted.values() else state in ("waiting", "granted")
    again = requests.answer(add(requests, 1 << 30), grant=True, by=0)
    assert grant_of(again).number > max(granted)
    requests.close()
