"""The module that starts processes, with real processes that behave badly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lightagentd.errors import ToolError
from lightagentd.host.process import CappedOutput, clean_environment, end_group, run
from tests.clock import passing
from tests.left import children

STUBBORN = "trap '' TERM; echo $$ >{pid}; while :; do sleep 0.05; done"
"""A shell that ignores SIGTERM and says who it is."""


def _descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists the folder
            found[entry.name] = str(entry.readlink())
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves a descriptor, a child process or a zombie."""
    before, born = _descriptors(), children()
    yield
    gc.collect()
    assert {fd: what for fd, what in _descriptors().items() if before.get(fd) != what} == {}
    assert children() == born


async def _pid_in(path: Path) -> int:
    while not (path.exists() and path.read_text().strip()):
        await asyncio.sleep(0.01)
    return int(path.read_text())


async def _gone(pid: int) -> None:
    """Return when the process has ended; a zombie of an init that does not reap counts as ended."""
    async with asyncio.timeout(60):
        with contextlib.suppress(psutil.NoSuchProcess):  # it may go between two looks
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)


async def test_output_of_both_streams_and_the_exit_status_come_back() -> None:
    done = await run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=60)
    assert (done.stdout.text(), done.stderr.text(), done.status) == ("out\n", "err\n", 3)
    assert (done.signal, done.timed_out) == ("", False)


async def test_a_signal_is_named_and_counted_as_a_shell_does() -> None:
    done = await run(["/bin/sh", "-c", "kill -KILL $$"], timeout_s=60)
    assert (done.signal, done.status) == ("SIGKILL", 137)


async def test_a_real_time_signal_without_a_name_is_reported() -> None:
    number = signal.SIGRTMIN + 3
    done = await run(["/bin/sh", "-c", f"kill -{number} $$"], timeout_s=60)
    assert (done.signal, done.status) == ("SIGRTMIN+3", 128 + number)


async def test_timeout_kills_a_grandchild_that_ignores_term(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"/bin/sh -c {_quoted(STUBBORN.format(pid=pid_file))} & echo started; wait"
    said = asyncio.Event()
    running = asyncio.create_task(
        run(["/bin/sh", "-c", script], timeout_s=60, on_output=lambda stream, data: said.set())
    )
    pid = await _pid_in(pid_file)
    await said.wait()
    await passing(60, running)
    done = await running
    assert done.timed_out
    assert done.stdout.text() == "started\n"
    await _gone(pid)


async def test_cancel_kills_a_grandchild_that_ignores_term(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"/bin/sh -c {_quoted(STUBBORN.format(pid=pid_file))} & wait"
    task = asyncio.create_task(run(["/bin/sh", "-c", script], timeout_s=60))
    pid = await _pid_in(pid_file)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _gone(pid)


@pytest.mark.parametrize("rounds", range(12))
async def test_a_cancel_while_it_starts_leaves_nothing(rounds: int) -> None:
    """However far the start has come: the leader is known to the loop only after some rounds of it."""
    marker = f"cancelled-{os.getpid()}-{rounds}"
    script = f"sh -c 'sleep 300; echo {marker}' & sh -c 'sleep 300; echo {marker}'"
    task = asyncio.create_task(run(["/bin/sh", "-c", script], timeout_s=60))
    for _ in range(rounds):
        await asyncio.sleep(0)
    time.sleep(0.05 if rounds % 2 else 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = [one for one in psutil.process_iter(["cmdline"]) if marker in " ".join(one.info["cmdline"] or [])]
    for one in left:
        await _gone(one.pid)


async def test_a_leader_that_ignores_term_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    running = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", STUBBORN.format(pid=pid_file), start_new_session=True
    )
    await _pid_in(pid_file)
    await end_group(running.pid, lambda: running.returncode is not None, grace_s=0.1)
    assert running.returncode == -signal.SIGKILL


async def test_a_cancel_during_the_grace_time_skips_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    running = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", STUBBORN.format(pid=pid_file), start_new_session=True
    )
    await _pid_in(pid_file)
    ending = asyncio.create_task(end_group(running.pid, lambda: running.returncode is not None, grace_s=600))
    await asyncio.sleep(0.1)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert running.returncode == -signal.SIGKILL


async def test_a_child_in_the_background_that_holds_the_pipe_does_not_hang_the_call(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 600 & echo $! >{pid_file}; echo done"
    async with asyncio.timeout(60):
        done = await run(["/bin/sh", "-c", script], timeout_s=600)
    assert (done.status, done.stdout.text(), done.timed_out) == (0, "done\n", False)
    await _gone(int(pid_file.read_text()))


async def test_a_child_that_left_the_group_and_holds_the_pipe_does_not_hang_the_call(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo out; setsid sleep 600 & echo $! >{pid_file}"
    async with asyncio.timeout(60):
        done = await run(["/bin/sh", "-c", script], timeout_s=600)
    assert done.stdout.text() == "out\n"
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


async def test_output_of_100_mb_costs_a_bounded_amount_of_memory() -> None:
    size = 100 * 1024 * 1024
    script = f"echo first; head -c {size} /dev/zero; echo last"
    before = psutil.Process().memory_info().rss
    done = await run(["/bin/sh", "-c", script], timeout_s=60, limit_bytes=1000)
    assert done.stdout.total_bytes == size + 11
    assert done.stdout.omitted_bytes == size + 11 - 1000
    text = done.stdout.text()
    assert text.startswith("first\n")
    assert text.endswith("last\n")
    # The line that the gap begins in goes with it; that in which it ends is too long for that.
    assert f"first\n[... {size + 11 - len('first') - 500} bytes left out ...]\n\0" in text
    assert psutil.Process().memory_info().rss - before < size // 4


async def test_the_end_of_the_output_is_not_lost_when_the_process_exits_at_once() -> None:
    done = await run([sys.executable, "-c", "print('x' * 65000, end='')"], timeout_s=30, limit_bytes=200_000)
    assert done.stdout.text() == "x" * 65000


async def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    done = await run(["/usr/bin/printf", r"a\377b"], timeout_s=60)
    assert done.stdout.text() == "a\N{REPLACEMENT CHARACTER}b"


async def test_standard_input_gets_the_bytes_and_then_its_end() -> None:
    data = bytes(range(256)) * 4096
    done = await run(["/usr/bin/wc", "-c"], timeout_s=60, stdin=data)
    assert done.stdout.text().strip() == str(len(data))


async def test_a_process_that_does_not_read_its_input_ends_the_call() -> None:
    done = await run(["/bin/true"], timeout_s=60, stdin=bytes(4 * 1024 * 1024))
    assert done.status == 0


async def test_standard_input_is_empty_unless_bytes_are_given() -> None:
    done = await run(["/bin/cat"], timeout_s=60)
    assert (done.status, done.stdout.total_bytes) == (0, 0)


async def test_a_missing_command_is_a_tool_error_that_names_it() -> None:
    with pytest.raises(ToolError, match="no-such-command does not exist"):
        await run(["no-such-command", "-x"], timeout_s=60)


async def test_a_folder_that_does_not_exist_is_named_and_not_the_command(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"/absent: there is no such folder"):
        await run(["/bin/true"], timeout_s=60, cwd=tmp_path / "absent")


async def test_a_file_that_cannot_be_executed_is_a_tool_error(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    with pytest.raises(ToolError, match="cannot be started"):
        await run([str(tmp_path / "plain")], timeout_s=60)


async def test_a_nul_byte_in_an_argument_is_a_tool_error() -> None:
    with pytest.raises(ToolError, match="cannot be started"):
        await run(["/bin/echo", "a\0b"], timeout_s=60)


async def test_the_environment_is_built_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "x")
    done = await run(["/usr/bin/env"], timeout_s=60, env={"ADDED": "yes"})
    found = dict(line.split("=", 1) for line in done.stdout.text().splitlines())
    assert found == clean_environment({"ADDED": "yes"})


async def test_a_process_leads_a_session_of_its_own() -> None:
    done = await run(
        ["/bin/sh", "-c", "ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat"], timeout_s=10
    )
    assert int(done.stdout.text()) != os.getsid(0)


async def test_pieces_are_shown_as_they_arrive(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes]] = []
    shown = tmp_path / "shown"

    def show(stream: str, data: bytes) -> None:
        seen.append((stream, data))
        shown.touch()

    script = f"echo one; until test -e {shown}; do sleep 0.01; done; echo two >&2"
    await run(["/bin/sh", "-c", script], timeout_s=60, on_output=show)
    assert seen == [("stdout", b"one\n"), ("stderr", b"two\n")]


async def test_what_the_watcher_raises_ends_the_process_and_is_raised() -> None:
    def broken(stream: str, data: bytes) -> None:
        raise LookupError(stream)

    started = time.monotonic()
    with pytest.raises(LookupError, match="stdout"):
        await run(["/bin/sh", "-c", "echo x; sleep 600"], timeout_s=600, on_output=broken)
    assert time.monotonic() - started < 300


async def test_many_calls_side_by_side_leave_nothing() -> None:
    done = await asyncio.gather(*(run(["/bin/echo", str(number)], timeout_s=30) for number in range(20)))
    assert [one.stdout.text() for one in done] == [f"{number}\n" for number in range(20)]


def test_capped_output_keeps_head_and_tail_and_counts_the_rest() -> None:
    output = CappedOutput(limit_bytes=10)
    for piece in (b"01", b"234567", b"", b"89abcdef"):
        output.feed(piece)
    assert output.omitted_bytes == 6
    assert output.text() == "01234\n[... 6 bytes left out ...]\nbcdef"


def test_capped_output_below_the_limit_is_whole_even_across_a_character() -> None:
    output = CappedOutput(limit_bytes=4)
    output.feed("aé€"[:2].encode() + b"x")
    assert (output.omitted_bytes, output.text()) == (0, "aéx")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
