"""The worker program, behind its socket and in its sandbox: what comes back of calls that misbehave."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from lightagentd.config import configuration
from lightagentd.errors import (
    InvalidArgument,
    SystemdUnavailable,
    TimedOut,
    ToolError,
    ToolNotFound,
    Unavailable,
)
from lightagentd.worker.calls import METADATA_LIMIT_CHARS, OUTPUT_LIMIT_CHARS
from lightagentd.worker.pool import Pool
from tests.worker import running
from tests.worker.running import events, marked, marker

in_module_loop = pytest.mark.asyncio(loop_scope="module")
PROBE = Path(__file__).with_name("probe.py")
REPOSITORY = Path(__file__).resolve().parents[2]
NO_SCHEMA = """
from lightagentd.tool import Args, Context, Result, Tool, action

class OddArgs(Args):
    model_config = {"arbitrary_types_allowed": True}
    what: object = None
    why: type(print) = print

class NoSchema(Tool):
    "Has an argument that JSON Schema cannot say."
    name = "no_schema"

    @action()
    async def go(self, ctx: Context, args: OddArgs) -> Result:
        "Go."
        return Result(output="")
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def probes() -> AsyncIterator[Pool]:
    """A pool with one worker, which has the tool `probe` and runs already."""
    with running.folders() as paths:
        shutil.copy(PROBE, paths.config / "tools/probe.py")
        (paths.config / "tools/broken.py").write_text("import sys; sys.exit(1)")
        (paths.config / "tools/no_schema.py").write_text(NO_SCHEMA)
        pool = Pool(configuration.Worker(max_per_effect=1), paths)
        await pool.start()
        try:
            await events(pool, "probe", "noop")
            yield pool
        finally:
            await pool.close()


@in_module_loop
async def test_a_call_gives_its_result(probes: Pool) -> None:
    (result,) = await events(probes, "probe", "noop")
    assert (result["kind"], result["output"]) == ("result", "done")


@in_module_loop
async def test_a_tool_keeps_its_instance_between_calls(probes: Pool) -> None:
    (first,) = await events(probes, "probe", "noop")
    (second,) = await events(probes, "probe", "noop")
    assert second["metadata"]["pid"] == first["metadata"]["pid"]
    assert second["metadata"]["calls"] == first["metadata"]["calls"] + 1


@pytest.mark.parametrize(
    ("action", "error", "says"),
    [
        ("fail", ToolError, "ValueError: nobody expected this"),
        ("refuse", ToolError, "The disk is full."),
        ("no_bus", Unavailable, "No bus answers."),
        ("no_systemd", SystemdUnavailable, "systemd is not running here."),
        ("exit", ToolError, "SystemExit: 3"),
        ("cancel", ToolError, "cancelled itself"),
        ("text", ToolError, "must give a Result"),
        ("odd_metadata", ToolError, "TypeError"),
        ("odd_event", ToolError, "TypeError"),
    ],
)
@in_module_loop
async def test_a_call_that_fails_is_one_error_and_the_worker_goes_on(
    probes: Pool, action: str, error: type[ToolError], says: str
) -> None:
    (before,) = await events(probes, "probe", "noop")
    with pytest.raises(error) as caught:
        await events(probes, "probe", action)
    assert type(caught.value) is error
    assert says in caught.value.message
    (after,) = await events(probes, "probe", "noop")
    assert after["metadata"]["pid"] == before["metadata"]["pid"]


@in_module_loop
async def test_what_is_not_there_is_named(probes: Pool) -> None:
    with pytest.raises(ToolNotFound, match="no tool 'nothing'"):
        await events(probes, "nothing", "noop")
    with pytest.raises(ToolNotFound, match="no action 'nothing'"):
        await events(probes, "probe", "nothing")
    with pytest.raises(ToolNotFound, match=r"broken is disabled: SystemExit"):
        await events(probes, "broken", "noop")


@in_module_loop
async def test_a_wrong_argument_is_named_with_those_there_are(probes: Pool) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await events(probes, "probe", "much", count="many")
    assert caught.value.field == "count"
    assert "count" in caught.value.suggestion
    with pytest.raises(InvalidArgument) as caught:
        await events(probes, "probe", "much", size=1)
    assert caught.value.field == "size"


@in_module_loop
async def test_bytes_that_are_not_utf8_come_through(probes: Pool) -> None:
    (result,) = await events(probes, "probe", "bytes")
    assert result["output"].startswith("a")
    assert result["output"].endswith("\0b")
    result["output"].encode()


@in_module_loop
async def test_a_long_result_keeps_its_head_and_its_tail(probes: Pool) -> None:
    (result,) = await events(probes, "probe", "much", count=3 * OUTPUT_LIMIT_CHARS)
    assert len(result["output"]) < OUTPUT_LIMIT_CHARS + 100
    assert result["output"].startswith("xxx")
    assert result["output"].endswith("xend")
    assert result["metadata"]["left_out_chars"] == 2 * OUTPUT_LIMIT_CHARS + 3
    assert METADATA_LIMIT_CHARS <= OUTPUT_LIMIT_CHARS


@in_module_loop
async def test_live_output_and_events_come_in_order_before_the_result(probes: Pool) -> None:
    found = await events(probes, "probe", "live", count=3)
    assert [event.get("text", event["kind"]) for event in found] == [
        "line 0\n",
        "line 1\n",
        "line 2\n",
        "event",
        "result",
    ]
    assert found[3]["topic"] == "tool.probe"
    assert found[3]["data"] == {"lines": 3}


@in_module_loop
async def test_live_output_beyond_the_bound_is_left_out_and_counted(probes: Pool) -> None:
    found = await events(probes, "probe", "live", count=2000)
    shown = sum(event["kind"] == "output" for event in found)
    assert shown < 2000
    assert found[-1]["metadata"]["live_output_left_out"] >= 2000 - shown


@in_module_loop
async def test_a_call_ends_with_its_time(probes: Pool) -> None:
    with pytest.raises(TimedOut, match=r"bash.exec|did not end within"):
        await events(probes, "bash", "exec", command="sleep 60", timeout_s=0.3)


@in_module_loop
async def test_what_a_tool_left_running_is_gone_before_its_result_comes(probes: Pool) -> None:
    mark = marker()
    await events(probes, "probe", "leave", seconds=float(mark))
    assert marked(str(float(mark))) == []


@in_module_loop
async def test_one_broken_schema_disables_that_tool_alone(probes: Pool) -> None:
    tools = {tool["name"]: tool for tool in await probes.describe()}
    assert "JsonSchema" in tools["no_schema"]["problem"]
    assert tools["no_schema"]["actions"] == []
    assert tools["broken"]["problem"] == "SystemExit: 1"
    assert tools["bash"]["problem"] == ""
    (action,) = [one for one in tools["bash"]["actions"] if one["name"] == "exec"]
    assert action["effect"] == ""
    assert action["schema"]["additionalProperties"] is False


def test_without_a_socket_the_program_says_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightagentd.worker.program", "--listen-fd", "77"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "the worker needs a listening socket: it is started by systemd or by lightagentd\n"


def test_a_worker_that_nobody_talks_to_exits_after_its_idle_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "lightagentd.worker.program"),
                *("--listen-fd", str(listener.fileno()), "--idle-timeout", "0.2"),
            ],
            cwd=REPOSITORY,
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            timeout=running.PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0
