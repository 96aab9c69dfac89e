"""The doctor of sandboxes: it believes nothing but what it tried, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from lightagentd.api import Finding
from lightagentd.config import configuration
from lightagentd.doctor import sandbox as doctor
from lightagentd.doctor import sandbox_probe
from lightagentd.doctor.sandbox import PROMISES, SandboxDoctor
from lightagentd.policy.panic import Panic
from lightagentd.tool import Effect
from lightagentd.worker.pool import Pool
from tests.worker import running

CONFINED = (Effect.OBSERVE, Effect.REACH)


async def examined(effect: Effect, sandbox: str = "auto", **settings: list[str]) -> dict[str, Finding]:
    with running.folders() as paths:
        pool = Pool(configuration.Worker.model_validate({"sandbox": sandbox, **settings}), paths)
        await pool.start()
        own = paths.state.parent / "tmp"
        own.mkdir()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(tempfile, "tempdir", str(own))  # others at work make such folders in /tmp
            try:
                found = await SandboxDoctor(pool, paths).examine("ops", effect)
            finally:
                await pool.close()
        assert not [*own.iterdir()]
    return {finding.name: finding for finding in found}


@pytest.mark.parametrize("effect", CONFINED)
async def test_all_that_is_promised_holds_here(sandboxed: None, effect: Effect) -> None:
    found = await examined(effect)
    assert list(found) == [promise.name for promise in PROMISES]
    assert [one for one in found.values() if one.status == "not_held"] == []
    tried = {one.name for one in found.values() if one.status == "ok"}
    assert tried >= {"write outside its own folder", "read secrets", "signal or trace others", "network"}


async def test_without_a_sandbox_it_says_what_is_open() -> None:
    found = await examined(Effect.OBSERVE, "none")
    assert found["write outside its own folder"].status == "not_held"
    assert "/tmp" in found["write outside its own folder"].detail
    assert found["network"].status == "not_held"
    assert "127.0.0.1 by TCP" in found["network"].detail
    assert found["sockets of other programs"].status == "not_held"
    assert found["resolve names"].status == "not_held"


async def test_a_victim_that_can_be_touched_is_reported() -> None:
    with running.folders() as paths:
        victim = subprocess.Popen(["sleep", running.marker()])
        try:
            targets = json.dumps(
                {"probes": ["processes"], "daemon": os.getpid(), "victims": [victim.pid], "token": "x"}
            )
            argv = [sys.executable, "-I", "-S", str(sandbox_probe.__file__), targets]
            done = subprocess.run(argv, capture_output=True, check=True, cwd=paths.config)
            assert "signal another process of its user" in json.loads(done.stdout)["processes"]
            assert victim.poll() is None
        finally:
            victim.kill()
            victim.wait()


async def test_the_worker_for_change_is_described_without_a_judgement() -> None:
    found = await examined(Effect.CHANGE, change_agents=["ops"])
    assert {one.status for one in found.values()} == {"ok", "note"}
    assert "gain privileges" not in found


async def test_an_effect_without_a_worker_is_not_tried() -> None:
    (found,) = (await examined(Effect.CHANGE)).values()
    assert (found.status, "change" in found.detail) == ("not_tried", True)


async def test_a_probe_that_lies_does_not_hide_what_the_daemon_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = tmp_path / "liar.py"
    text = Path(sandbox_probe.__file__).read_text()
    honest = "found[name] = PROBES[name](targets)"
    assert honest in text
    liar.write_text(text.replace(honest, f"{honest} and []"))
    monkeypatch.setattr(sandbox_probe, "__file__", str(liar))
    found = await examined(Effect.OBSERVE, "none")
    assert found["network"].status == "not_held"
    assert found["sockets of other programs"].status == "not_held"


async def test_a_probe_that_says_nothing_is_no_good_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandboxed: None
) -> None:
    mute = tmp_path / "mute.py"
    mute.write_text("raise SystemExit('I say nothing')")
    monkeypatch.setattr(sandbox_probe, "__file__", str(mute))
    (found,) = (await examined(Effect.OBSERVE)).values()
    assert found.status == "not_tried"
    assert "I say nothing" in found.detail


async def test_a_worker_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, sandboxed: None
) -> None:
    monkeypatch.setattr(doctor, "EXAMINATION_S", 0.0)
    (found,) = (await examined(Effect.OBSERVE)).values()
    assert found.status == "not_tried"


async def test_nothing_is_tried_during_an_emergency_stop() -> None:
    with running.folders() as paths:
        panic = Panic()
        panic.begin(0, "no")
        pool = Pool(configuration.Worker(), paths, panic)
        await pool.start()
        (found,) = await SandboxDoctor(pool, paths).examine("ops", Effect.OBSERVE)
        await pool.close()
    assert (found.status, "stopped everything" in found.detail) == ("not_tried", True)


async def test_no_process_of_it_is_left(sandboxed: None) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    await examined(Effect.OBSERVE)
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child.name() for child in left] == []
