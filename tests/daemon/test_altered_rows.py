"""Rows of the stored state that somebody alters behind the daemon's back: each is named and set aside."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from lightagentd.agents.planning.plan import Plan
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.audit.verification import Verification, verify
from lightagentd.events.history import Change
from lightagentd.events.store.layout import CHANGED, Environment
from lightagentd.host.paths import Paths
from lightagentd.memory.entries import Entry
from lightagentd.policy.questions.approval import Approval
from lightagentd.policy.questions.question import State
from tests.agents.scripted import scripted
from tests.conftest import DaemonProcess
from tests.scripted_model import say

TEXTS = dict.fromkeys(("tool", "action", "effect", "cwd", "digest", "preview", "rule", "reason"), "x")
WATCH = dict.fromkeys(("agent", "session", "trace_id", "request_id", "correlation_id", "path", "root"), "x")
MEMORY = "mem_0123456789abcdef"
Row = tuple[str, str]


def _rows_of(session: str) -> dict[Row, dict[str, Any]]:
    """A row of each kind that the turn of a scripted model does not make."""
    of_approval: dict[str, Any] = {
        "id": "apr_1",
        "agent": "test",
        "session": session,
        "owner": 0,
        "trace_id": "t",
        "call_id": "c",
        "created_us": 1,
        "expires_us": 2,
        "state": State.DENIED,
        "args": {},
        "expected": {},
        **TEXTS,
    }
    of_memory: dict[str, Any] = {
        "id": MEMORY,
        "agent": "",
        "owner": 0,
        "text": "the disk is sda",
        "tags": (),
        "source": "person",
        "state": "kept",
        "session": session,
        "trace_id": "",
        "confidence": 1,
        **dict.fromkeys(("created_us", "updated_us", "expires_us"), 0),
    }
    approval, memory = Approval(**of_approval), Entry(**of_memory)
    return {
        ("approvals", "apr_1"): approval.to_dict(),
        ("watches", "w1"): {**WATCH, "owner": 0, "args": {}, "only": "", "seen_us": 0, "watch": "w1"},
        ("memories", f"0/{MEMORY}"): memory.to_dict(),
        ("plans", session): Plan(session=session, phase="drafting", title="a plan").to_dict(),
    }


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The state folder of a daemon that did a turn and has stopped, and its session; no test changes it."""
    base = tmp_path_factory.mktemp("la")

    async def run() -> str:
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        async with scripted(paths, [say("first")]) as test:
            session = await test.session()
            await test.prompt(session)
            rows = _rows_of(session.id).items()
            changes = [Change(state=state, key=key, value=value) for (state, key), value in rows]
            await test.daemon.history.append(changes=changes)
            return session.id

    return base / "state", asyncio.run(run())


@pytest.fixture
def stored(original: tuple[Path, str], paths: Paths) -> str:
    """A copy of that state in `paths`; the session's id."""
    shutil.copytree(original[0], paths.state, dirs_exist_ok=True)
    return original[1]


def change(folder: Path, state: str, key: str, how: Callable[[dict[str, Any]], object]) -> None:
    """Alter a row past the daemon; it is removed where `how` gives None."""
    with lmdb.open(str(folder), max_dbs=40, map_size=256 << 20) as environment:
        database = environment.open_db(state.encode())
        with environment.begin(write=True, db=database) as txn:
            value = how(json.loads(txn.get(key.encode()) or b"{}"))
            if value is None:
                txn.delete(key.encode())
            else:
                txn.put(key.encode(), json.dumps(value).encode())


def verified(folder: Path) -> Verification:
    environment = Environment(folder, read_only=True)
    try:
        return verify(environment)
    finally:
        environment.close()


def _set(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda value: {**value, **fields}


def _alterations(session: str) -> list[tuple[str, str, Callable[[dict[str, Any]], object], str]]:
    return [
        ("sessions", session, _set(owner=4242), "was altered"),
        ("usage", "all/all", _set(prompt_tokens=0, calls=0, steps=1000), "was altered"),
        ("approvals", "apr_1", _set(state="granted", answered_by=0), "was altered"),
        ("watches", "w1", _set(path="/etc/shadow"), "was altered"),
        ("memories", f"0/{MEMORY}", _set(text="the disk is sdb"), "was altered"),
        ("plans", session, _set(title="another plan"), "was altered"),
        ("usage", "owner/0", lambda _: None, "is missing"),
        ("usage", "owner/4242", lambda _: {"updated_us": 1, "calls": 1}, "was inserted"),
    ]


async def test_each_altered_row_is_named_and_set_aside(stored: str, paths: Paths) -> None:
    before = verified(paths.history)
    assert (before.ok, before.rows > 10, before.notes) == (True, True, ())
    altered = _alterations(stored)
    for state, key, how, why in altered:
        change(paths.history, state, key, how)
        found = verified(paths.history)
        assert not found.ok
        [named] = [one for one in found.bad_rows if repr(key) in one and f"of {state} " in one]
        assert why in named
    assert len(found.bad_rows) == len(altered)
    assert found.reason in found.bad_rows
    async with scripted(paths, [say("again")]) as test:
        assert stored not in test.agent.sessions
        told = [event.data or {} for event in test.stored(topic="daemon.history")]
        assert {(one["state"], one["key"]) for one in told} == {(state, key) for state, key, *_ in altered}
        assert [json.loads(one["value"])["owner"] for one in told if one["state"] == "sessions"] == [4242]
        assert any(f"{stored!r} of sessions was altered" in problem for problem in test.daemon.problems())
        await test.prompt(await test.session())
        assert verify(test.daemon.history.environment).ok
    assert verified(paths.history).ok
    async with Daemon(paths) as daemon:
        assert not any("altered" in problem for problem in daemon.problems())


def test_a_note_of_a_change_that_was_none_hides_nothing(stored: str, paths: Paths) -> None:
    """Who alters a row and says that the daemon changed it needs the digest that is signed."""
    forged = {"old": "ab" * 32, "new": "cd" * 32}
    change(paths.history, CHANGED, f"sessions/{stored}", lambda _: forged)
    assert "of changed was forged" in verified(paths.history).reason
    change(paths.history, "sessions", stored, _set(owner=4242))
    assert any("of sessions was altered" in one for one in verified(paths.history).bad_rows)


def test_backups_exports_and_a_kill_of_a_running_daemon_keep_it_right(
    daemon_process: DaemonProcess, tmp_path: Path
) -> None:
    """Its newest rows changed after the newest checkpoint."""
    state = f"--state-dir={daemon_process.paths.state}"
    other = f"--state-dir={tmp_path}"

    def told(*words: object, status: int = 0) -> Any:
        done = daemon_process.lactl(*map(str, words))
        assert done.returncode == status, done
        return json.loads(done.stdout or "{}") if not status else done.stderr

    daemon_process.start()
    made = [told("--json", "sessions", "new", "ops")["id"] for _ in range(2)]
    assert told("history", "backup", tmp_path / "backup", state, "--json")["verified"]
    told("history", "export", tmp_path / "export", state, "--json")
    daemon_process.kill()
    found = verified(daemon_process.paths.history)
    assert found.ok
    assert "rows of state changed after the newest checkpoint" in " ".join(found.notes)

    assert told("history", "import", tmp_path / "export", other, "--json")["verified"]
    lines = (tmp_path / "export").read_bytes()
    altered = lines.replace(b'"owner": %d' % os.getuid(), b'"owner": 4242')
    (tmp_path / "export").write_bytes(b"".join(_only_state(lines, altered)))
    assert "was altered" in told("history", "import", tmp_path / "export", other, status=74)
    assert not told("history", "import", tmp_path / "export", other, "--force", "--json")["verified"]
    # Put in place all the same: its rows count as they are, and from the next start on they are covered.
    assert verified(tmp_path / "history").rows == 0

    change(daemon_process.paths.history, "sessions", made[0], _set(owner=4242))
    assert "of sessions was altered" in told("audit", "verify", state, "--no-journal", status=74)
    daemon_process.start()
    assert [one["id"] for one in told("--json", "sessions", "list")] == [made[1]]


def _only_state(lines: bytes, altered: bytes) -> Iterator[bytes]:
    """The lines of an export, with those about sessions as they were altered."""
    for line, other in zip(lines.splitlines(True), altered.splitlines(True), strict=True):
        yield other if line.startswith(b'{"state": "sessions"') else line
