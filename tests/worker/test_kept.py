"""Outputs that are kept to be read again by handle, with real workers and as a store of its own."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from lightagentd.config import configuration
from lightagentd.errors import NotFound, TimedOut
from lightagentd.tool import Effect
from lightagentd.worker.kept import KeptOutputs
from lightagentd.worker.outputs import CALL_LIMIT_BYTES, handle_of
from lightagentd.worker.pool import Call, Pool
from tests.worker import running
from tests.worker.running import a_call, events, until

LINES = "".join(f"{number}\n" for number in range(1, 300_001)).encode()
COUNT = "seq 1 300000"


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[Pool]:
    with running.folders() as paths:
        made = Pool(configuration.Worker(max_per_effect=2), paths)
        await made.start()
        try:
            yield made
        finally:
            await made.close()


async def ran(pool: Pool, command: str, **arguments: Any) -> dict[str, Any]:
    found = await events(pool, "bash", "exec", command=command, **arguments)
    assert {event["kind"] for event in found} <= {"output", "result"}
    return found[-1]


async def read(pool: Pool, handle: str, **arguments: Any) -> dict[str, Any]:
    wanted = {"handle": handle, "stream": "stdout", "offset": 0, "limit": 32768, **arguments}
    return (await events(pool, "bash", "read_output", **wanted))[-1]


async def test_what_was_cut_can_be_read_again_page_by_page(pool: Pool) -> None:
    result = await ran(pool, COUNT)
    handle = result["metadata"]["output_handle"]
    assert "left out" in result["output"]
    assert f"handle {handle})" in result["output"]
    page = await read(pool, handle, offset=1_000_000, limit=70)
    assert page["metadata"]["total_bytes"] == len(LINES)
    shown = page["output"].partition("\n(more follows: offset=1000070)")[0]
    assert shown.encode() in (LINES[1_000_000:1_000_070], LINES[1_000_000:1_000_069])
    last = await read(pool, handle, offset=len(LINES) - 20)
    assert last["output"].encode() == LINES[-20:]
    assert last["metadata"]["next_offset"] is None


async def test_both_streams_are_kept(pool: Pool) -> None:
    result = await ran(pool, "seq 1 20000; seq 1 30000 >&2")
    handle = result["metadata"]["output_handle"]
    pages = [await read(pool, handle, stream=stream, limit=16) for stream in ("stdout", "stderr")]
    sizes = [page["metadata"]["total_bytes"] for page in pages]
    assert sizes == [result["metadata"]["stdout_bytes"], result["metadata"]["stderr_bytes"]]


async def test_a_short_output_has_no_handle(pool: Pool) -> None:
    result = await ran(pool, "seq 1 1000")
    assert "output_handle" not in result["metadata"]
    assert result["output"].endswith("1000\n")


async def test_it_outlives_the_worker(pool: Pool) -> None:
    handle = (await ran(pool, COUNT))["metadata"]["output_handle"]
    for worker in pool.workers():
        psutil.Process(worker.pid).kill()
    await until(lambda: not any(worker.running for worker in pool.workers()), "a worker stays")
    assert (await read(pool, handle, limit=16))["output"].startswith("1\n2\n3\n")


async def test_a_call_that_took_too_long_leaves_its_output_too(pool: Pool) -> None:
    call = a_call(
        "bash", "exec", effect=Effect.OBSERVE, agent="ops", timeout_s=30, command=f"{COUNT}; sleep 99"
    )
    call = replace(call, args={**call.args, "timeout_s": 4.0, "effect": "observe"})
    with pytest.raises(TimedOut, match=handle_of(call.call_id)):
        async for _ in pool.call(call):
            pass
    assert (await read(pool, handle_of(call.call_id), limit=16))["output"].startswith("1\n2\n3\n")


@pytest.mark.parametrize("other", [{"agent": "other"}, {"session": "ses_other"}, {"owner": 4711}])
async def test_another_agent_session_or_owner_learns_nothing(pool: Pool, other: dict[str, Any]) -> None:
    handle = (await ran(pool, COUNT))["metadata"]["output_handle"]
    wanted = {"handle": handle, "stream": "stdout", "offset": 0, "limit": 100}
    call = a_call("bash", "read_output", effect=Effect.OBSERVE, agent="ops", timeout_s=30, **wanted)
    said = []
    for asking in (replace(call, **other), replace(call, args={**wanted, "handle": "out_0123456789abcdef"})):
        with pytest.raises(NotFound) as caught:
            [event async for event in pool.call(asking)]
        said.append(caught.value.message.replace(asking.args["handle"], ""))
    assert said[0] == said[1]


async def test_with_its_session_an_output_goes_for_good(pool: Pool) -> None:
    handle = (await ran(pool, COUNT))["metadata"]["output_handle"]
    await pool.kept.end_session("another")
    assert (await read(pool, handle))["kind"] == "result"
    await pool.kept.end_session("ses_0123456789abcdef")
    with pytest.raises(NotFound):
        await read(pool, handle)
    assert not list(pool.kept._folder.iterdir())


async def test_an_endless_output_is_kept_up_to_a_bound_and_says_so(pool: Pool) -> None:
    result = await ran(pool, f"head -c {CALL_LIMIT_BYTES * 2} /dev/zero | tr '\\0' x", timeout_s=60.0)
    assert "The first 16 MiB of it can be read again" in result["output"]
    handle = result["metadata"]["output_handle"]
    page = await read(pool, handle, offset=CALL_LIMIT_BYTES - 16, limit=100)
    assert page["metadata"]["kept_bytes"] == CALL_LIMIT_BYTES
    assert page["output"] == "x" * 16 + f"\n({CALL_LIMIT_BYTES} bytes that followed were not kept)\n"


async def test_the_files_are_the_daemons_alone_and_go_with_it(pool: Pool) -> None:
    await ran(pool, COUNT)
    folder = pool._paths.runtime / "kept"
    [file] = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    if pool.backend.enforced:
        assert "out_" not in (await ran(pool, f"ls -R {pool._paths.runtime}; true"))["output"]
    await pool.close()
    assert not folder.exists()


class TestStore:
    """The store by itself, with a worker that may send anything."""

    @staticmethod
    def call(number: int, agent: str = "ops", session: str = "ses_1") -> Call:
        call = a_call("bash", "exec", effect=Effect.OBSERVE, agent=agent, timeout_s=30)
        return replace(call, call_id=f"call_{number:016x}", session=session)

    @staticmethod
    def piece(data: bytes, total_bytes: Any = 0) -> dict[str, Any]:
        return {"stream": "stdout", "data": base64.b64encode(data).decode(), "total_bytes": total_bytes}

    @staticmethod
    async def size(store: KeptOutputs, call: Call) -> int:
        """How much is kept; -1 if nothing is."""
        args = {"handle": handle_of(call.call_id), "stream": "stdout", "offset": 0, "limit": 16}
        with contextlib.suppress(NotFound):
            return int((await store.answer(replace(call, args=args)))["metadata"]["kept_bytes"])
        return -1

    async def test_the_oldest_of_an_agent_make_room_and_others_stay(self, tmp_path: Path) -> None:
        store = KeptOutputs(tmp_path / "kept", agent_limit_bytes=250)
        await store.start()
        other, *calls = self.call(9, "other"), *(self.call(number) for number in range(4))
        for call in (other, *calls):
            await store.add(call, self.piece(b"x" * 100))
            await store.whole(call)
        assert [await self.size(store, call) for call in (other, *calls)] == [100, -1, -1, 100, 100]
        assert len(list((tmp_path / "kept").iterdir())) == 3

    async def test_all_agents_together_have_a_bound(self, tmp_path: Path) -> None:
        store = KeptOutputs(tmp_path / "kept", total_limit_bytes=250)
        await store.start()
        calls = [self.call(number, f"a{number}") for number in range(4)]
        for call in calls:
            await store.add(call, self.piece(b"x" * 100))
            await store.whole(call)
        assert [await self.size(store, call) for call in calls] == [-1, -1, 100, 100]

    async def test_a_worker_that_never_ends_fills_no_disk(self, tmp_path: Path) -> None:
        store = KeptOutputs(tmp_path / "kept")
        await store.start()
        call = self.call(1)
        for _ in range(20):
            await store.add(call, self.piece(bytes(1 << 20)))
        await store.whole(call)
        assert await self.size(store, call) == CALL_LIMIT_BYTES

    @pytest.mark.parametrize(
        "wrong",
        [{"stream": "../x"}, {"stream": None}, {"data": "?"}, {"data": None}, {"total_bytes": "many"}],
    )
    async def test_a_piece_that_makes_no_sense_is_dropped(
        self, tmp_path: Path, wrong: dict[str, Any]
    ) -> None:
        store = KeptOutputs(tmp_path / "kept")
        await store.start()
        await store.add(self.call(1), {**self.piece(b"x"), **wrong})
        assert list((tmp_path / "kept").iterdir()) == []

    async def test_a_start_removes_what_an_earlier_daemon_left(self, tmp_path: Path) -> None:
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept/out_0.stdout").write_bytes(os.urandom(10))
        await KeptOutputs(tmp_path / "kept").start()
        assert list((tmp_path / "kept").iterdir()) == []

    async def test_a_secret_is_not_kept_and_cannot_be_read_in_halves(self, tmp_path: Path) -> None:
        store = KeptOutputs(tmp_path / "kept")
        await store.start()
        call, secret = self.call(1), "correct-horse-1"
        data = f"before\npassword={secret}\nafter \udcff\n".encode("utf-8", "surrogateescape")
        for start in range(0, len(data), 7):
            await store.add(call, self.piece(data[start : start + 7], len(data)))
        await store.whole(call)
        [file] = (tmp_path / "kept").iterdir()
        cleaned = data.replace(secret.encode(), b"[removed: password]")
        assert file.read_bytes() == cleaned
        args = {"handle": handle_of(call.call_id), "stream": "stdout", "offset": 0, "limit": 1000}
        page = await store.answer(replace(call, args=args))
        assert page["metadata"]["total_bytes"] == page["metadata"]["kept_bytes"] == len(cleaned)

    async def test_a_character_is_not_cut_in_two(self, tmp_path: Path) -> None:
        store = KeptOutputs(tmp_path / "kept")
        await store.start()
        call, text, shown = self.call(1), "aäß€𝄞" * 20, ""
        offset: int | None = 0
        await store.add(call, self.piece(text.encode()))
        await store.whole(call)
        while offset is not None:
            args = {"handle": handle_of(call.call_id), "stream": "stdout", "offset": offset, "limit": 17}
            page = await store.answer(replace(call, args=args))
            shown += page["output"].partition("\n(more")[0]
            offset = page["metadata"]["next_offset"]
        assert shown == text
