"""A disk that is full, fails, becomes read-only or stores half: nothing acknowledged is lost."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from lightagentd.errors import LightagentError
from tests.faults.acting import answered, call, problems, prompt, prompts_of, refusal, sound, until
from tests.faults.mounts import mounted
from tests.faults.shim import ALLOCATIONS, NAMES, SYNCS, WRITES, can_build
from tests.kill.stage import Stage

pytestmark = pytest.mark.skipif(not can_build(), reason="there is no cc to build the shim with")


def test_on_a_full_disk_observing_goes_on_change_is_refused_and_room_brings_it_back(base: Path) -> None:
    with (
        mounted(base / "state", "-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs") as disk,
        Stage(base, mounts_of=disk.holder) as stage,
    ):
        stage.daemon.start()
        session = answered(stage, "p1", "look")
        ballast = disk.fill()
        answered(stage, "p2", "look", session=session)
        assert "nearly full" in problems(stage)
        ends = [one for one in prompt(stage, "p3 append") if one["type"] == "tool_result"]
        assert [one["result"] for one in ends] == ["policy_denied"], ends
        assert "disk" in ends[0]["text"]
        assert not (stage.out / "p3").exists()
        answered(stage, "p4", "look", session=session)

        ballast.unlink()
        until(lambda: answered(stage, "p5", session=session) and "nearly full" not in problems(stage))
        assert prompt(stage, "p6 append")[-1]["type"] == "approval_requested"
        said = prompts_of(stage, session)
        assert said[:3] == ["p1 look", "p2 look", "p4 look"]
        assert call(stage, "History.Verify")["verification"]["ok"]
        stage.daemon.stop()
        stage.daemon.start()
        assert prompts_of(stage, session) == said


def test_a_disk_without_any_room_fails_steps_clearly_and_loses_nothing(base: Path) -> None:
    with (
        mounted(base / "state", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs") as disk,
        Stage(base, mounts_of=disk.holder) as stage,
    ):
        stage.daemon.start()
        session = answered(stage, "p0", "look")
        ballast = disk.fill()
        taken = ["p0 look"]
        for number in range(1, 200):  # each takes some of the reserve
            name = f"p{number} " + "x" * 200_000
            if prompt_ends(stage, name, session) != "done":
                break
            taken.append(name)
        else:
            pytest.fail("the disk takes everything")
        assert set(taken) <= set(prompts_of(stage, session))
        assert problems(stage)

        # It starts again, and makes room in place.
        stage.daemon.kill()
        stage.daemon.start()
        assert "No agent runs. " in problems(stage)
        assert "history prune" in problems(stage)
        assert "is full" in stage.daemon.log.read_text()
        assert prompt_ends(stage, "p500 say", session) == "storage_failed"
        before = call(stage, "History.Prune", dry_run=False)["pruned"]
        assert before["removed"] > 0
        until(lambda: "No agent runs" not in problems(stage))
        assert prompt_ends(stage, "p501 look", session) == "done"
        taken.append("p501 look")
        assert set(taken) <= set(prompts_of(stage, session))
        with pytest.raises(LightagentError, match="and the copy needs"):
            call(stage, "History.Compact")
        other = answered(stage, "p600", "look")
        call(stage, "Sessions.Delete", session=session, confirmed=True)
        compacted = call(stage, "History.Compact")["compacted"]
        assert compacted["bytes_after"] < compacted["bytes_before"]
        answered(stage, "p601", "look", session=other)
        assert call(stage, "History.Verify")["verification"]["ok"]

        ballast.unlink()
        until(lambda: prompt_ends(stage, "p999 say", other) == "done")
        assert prompts_of(stage, other) == ["p600 look", "p601 look", "p999 say"]
        assert call(stage, "History.Verify")["verification"]["ok"]


def prompt_ends(stage: Stage, text: str, session: str) -> str:
    """With what a prompt ends: done, or an error's code."""
    try:
        last = prompt(stage, text, session=session)[-1]
    except LightagentError as err:
        return err.code
    return "done" if last["type"] == "done" else str(last["code"])


@pytest.mark.parametrize(
    ("error", "operations"),
    [
        (errno.EIO, WRITES),
        (errno.EIO, SYNCS),
        (errno.EROFS, WRITES | SYNCS | ALLOCATIONS | NAMES),
        (errno.ENOSPC, WRITES | ALLOCATIONS),
    ],
    ids=["write-EIO", "sync-EIO", "read-only", "no-space"],
)
def test_a_disk_that_fails_fails_the_step_and_service_comes_back(
    stage: Stage, error: int, operations: int
) -> None:
    session = answered(stage, "p1", "look")
    stage.shim.fail(error, operations)
    for name in ("p2 say", "p3 append", "p4 look"):
        said = refusal(stage, name)
        assert "could not store" in said
        assert "disk" in said
    assert "could not be written" in problems(stage)
    assert prompts_of(stage, session) == ["p1 look"]
    stage.shim.fail(0)
    answered(stage, "p5", session=session)
    assert "could not be written" not in problems(stage)
    assert prompts_of(stage, session) == ["p1 look", "p5 say"]
    assert call(stage, "History.Verify")["verification"]["ok"]
    stage.daemon.kill()
    sound(stage)
    stage.daemon.start()
    assert prompts_of(stage, session) == ["p1 look", "p5 say"]


def test_writes_that_store_half_are_no_success(stage: Stage) -> None:
    session = answered(stage, "p1")
    stage.shim.write_halves(True)
    assert "could not store" in refusal(stage, "p2 say")
    stage.shim.write_halves(False)
    answered(stage, "p3", session=session)
    stage.daemon.kill()
    sound(stage)
    stage.daemon.start()
    assert prompts_of(stage, session) == ["p1 say", "p3 say"]


def test_a_filesystem_that_goes_read_only_stops_nothing_but_what_stores(base: Path) -> None:
    """As ext4 does after an error (`errors=remount-ro`)."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4")
    image = base / "image"
    with image.open("wb") as file:
        file.truncate(96 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with (
        mounted(base / "state", "-o", "loop", str(image)) as disk,
        Stage(base, mounts_of=disk.holder) as stage,
    ):
        stage.daemon.start()
        session = answered(stage, "p1", "look")
        disk.run("mount", "-o", "remount,abort", str(disk.folder))
        assert "could not store" in refusal(stage, "p2 say")
        assert prompts_of(stage, session) == ["p1 look"]
        assert problems(stage)
        stage.daemon.stop()
        stage.daemon.start()
        assert "No agent runs. " in problems(stage)
        assert "Read-only file system" in problems(stage)
        assert "Read-only file system" in refusal(stage, "p3 say")
        stored = call(stage, "History.Query", topic="agent.prompt", limit=10)["events"]
        assert [event["data"]["text"] for event in stored] == ["p1 look"]
        assert call(stage, "History.Verify")["verification"]["ok"]
        assert stage.daemon.stop() == 0
        assert not list(disk.inside.glob("*damaged*")), "a read-only disk is no damage"


def test_a_disk_that_fails_in_the_start_is_no_damage(stage: Stage) -> None:
    """What is stored can be read meanwhile, and the agents start as soon as it works."""
    session = answered(stage, "p1")
    stage.daemon.stop()
    stage.shim.fail(errno.EIO, WRITES | SYNCS)
    stage.daemon.start()
    assert "No agent runs. " in problems(stage)
    assert "No agent runs. " in refusal(stage, "p2 say")
    assert call(stage, "History.Query", topic="agent.prompt", limit=10)["events"]
    stage.shim.fail(0)
    until(lambda: "No agent runs" not in problems(stage))
    assert prompts_of(stage, session) == ["p1 say"]
    answered(stage, "p3", session=session)
    assert not list(stage.paths.state.glob("*damaged*"))
    stage.daemon.kill()
    sound(stage)
