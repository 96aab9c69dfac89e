"""Forged and damaged rows of the stored state: the daemon starts without them, works, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import lmdb

from lightagentd.daemon.daemon import Daemon
from lightagentd.events.store.layout import STATES
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, scripted
from tests.scripted_model import say

WATCH = dict.fromkeys(("agent", "session", "trace_id", "request_id", "correlation_id", "path", "root"), "x")
NOWHERE = {"owner": 0, "args": {}, "only": "", "seen_us": 0}
FORGED: dict[str, list[tuple[bytes, object]]] = {
    "watches": [
        (b"w1", {"watch": "w1"}),
        (b"w2", {**WATCH, **NOWHERE, "watch": "w2", "args": 5}),
        (b"w3", {**WATCH, **NOWHERE, "watch": "other"}),
        (b"w4", {**WATCH, **NOWHERE, "watch": "w4", "more": 1}),
    ],
    "sessions": [(b"ses_1", {"id": "ses_1", "agent": "test"}), (b"ses_2", {"id": "ses_2", "agent": 7})],
    "turns": [
        (b"trace_1", {"session": "ses_1"}),
        (b"trace_2", {"session": "S", "state": "waiting", "approval": "a"}),
        (b"trace_3", {"session": "S", "state": "running", "left_s": "x"}),
    ],
    "plans": [(b"S", {"session": "S", "phase": "none such"}), (b"ses_9", {"session": "ses_9"})],
    "usage": [(b"turn/trace_1", {"updated_us": 1, "calls": "many"}), (b"all/all", {})],
    "memories": [(b"0/x", {"owner": 1}), (b"none", {})],
    "prunings": [(b"x", {"last_seq": 1, "by": 1}), (b"00000000000000000001", {})],
    "evals": [
        (b"run/eval_1", {"id": "eval_2"}),
        (b"run/eval_2", {"id": "eval_2", "models": 7}),
        (b"cases/eval_1", {"id": "eval_2"}),
        (b"trial/eval_1/000000", {"number": 1}),
        (b"else", {}),
    ],
    "ratings": [(b"trace_1/0", {"trace_id": "trace_1", "owner": 1}), (b"x", {})],
    "current": [(b"test/0", {"session": 1})],
    "approvals": [(b"a", {"state": "waiting"})],
    "inputs": [(b"i", {"state": "none such"})],
}
"""By state; S stands for the id of a session that exists."""
UNREADABLE = [(b"\xff\xfe", b"{}"), (b"list", b"[]"), (b"torn", bytes(5000)), (b"deep", b"[" * 100_000)]
"""Put into every state."""


def _forge(folder: Path, session: str) -> int:
    """Write the rows into a store that is closed; gives their number."""
    count = 0
    with lmdb.open(str(folder), max_dbs=32, map_size=256 << 20) as environment:
        for state in STATES:
            database = environment.open_db(state.encode())
            rows = [(key, json.dumps(value).encode()) for key, value in FORGED.get(state, ())]
            with environment.begin(write=True, db=database) as txn:
                for key, value in [*rows, *UNREADABLE]:
                    key = session.encode() if key == b"S" else key
                    txn.put(key, value.replace(b'"S"', json.dumps(session).encode()))
                    count += 1
    return count


async def test_no_row_of_the_state_keeps_the_daemon_from_starting(paths: Paths) -> None:
    async with scripted(paths, [say("first")]) as test:
        session = await test.session()
        await test.prompt(session)
    count = _forge(paths.history, session.id)
    async with scripted(paths, [say("again")]) as test:
        found = test.agent.sessions[session.id]
        assert (await test.prompt(found))[-1]["text"] == "again"
        assert list(test.agent.sessions) == [session.id]
        assert test.daemon.registry.shared.watches.records == {}
        told = [event.data or {} for event in test.stored(topic="daemon.history")]
        assert [one["state"] for one in told].count("watches") == len(FORGED["watches"]) + len(UNREADABLE)
        assert len(told) == count
        assert {"w1", "\\xff\\xfe"} <= {one["key"] for one in told}
        problems = (await test.daemon.service.manager.status(ME)).problems
        assert any(f"{count - 3} more rows" in problem for problem in problems)
        assert not list(paths.state.glob("*damaged*"))
    async with Daemon(paths) as daemon:
        assert not any("removed" in problem for problem in daemon.problems())
