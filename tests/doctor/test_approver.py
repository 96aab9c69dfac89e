"""What the doctor says of the approver, which a scripted one plays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.doctor import approver
from lightagentd.host.paths import Paths
from lightagentd.host.users import user_name
from tests.scripted_daemon import ScriptedDaemon

PUBLIC = b"\xab" * 32
STATUS: dict[str, Any] = {"panic": None, "waiting": 2, "leaves": 0, "public": PUBLIC.hex(), "problems": []}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The approver's folder, beside that of a worker that has run."""
    unit, folder, worker = tmp_path / "unit", tmp_path / "state", tmp_path / "change" / "ops"
    unit.touch()
    folder.mkdir()
    worker.mkdir(parents=True)
    for one in (folder, worker):
        (one / "public").write_bytes(PUBLIC)
    (folder / "key").touch(mode=0o600)
    for name, value in {"UNIT_FILE": unit, "STATE": folder, "WORKERS": worker.parent}.items():
        monkeypatch.setattr(approver, name, value)
    monkeypatch.setattr(approver, "USER", user_name(os.geteuid()))
    return folder


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedDaemon]:
    server = ScriptedDaemon(tmp_path / "approve.sock")
    monkeypatch.setenv("LIGHTAGENT_APPROVER_SOCKET", str(server.path))
    server.start()
    yield server
    server.stop()


async def found(tmp_path: Path) -> dict[str, tuple[str, str]]:
    paths = Paths(config=tmp_path, state=tmp_path, runtime=Path("/run/lightagentd"))
    return {one.name: (one.status, one.detail) for one in await approver.check(paths)}


async def test_it_says_that_all_is_well(scripted: ScriptedDaemon, state: Path, tmp_path: Path) -> None:
    scripted.answer("Approver.GetStatus", {"status": STATUS})
    findings = await found(tmp_path)
    assert {status for status, _ in findings.values()} == {"ok"}
    assert findings["workers' keys"][1] == "ops abababababababab…"


async def test_it_says_what_is_wrong(scripted: ScriptedDaemon, state: Path, tmp_path: Path) -> None:
    (state / "key").chmod(0o640)
    stop = {"since_us": 1, "by": 0, "reason": ""}
    scripted.answer("Approver.GetStatus", {"status": {**STATUS, "panic": stop, "problems": ["It is slow."]}})
    answers = '[notify]\n[notify.answers]\non = true\napprove = ["systemd.restart"]\n'
    (tmp_path / "lightagentd.toml").write_text(answers)
    findings = await found(tmp_path)
    assert findings["approver's problem"] == ("wrong", "It is slow.")
    assert findings["panic"][0] == "note"
    assert findings["key"][0] == "wrong"
    assert findings["answers by links"][0] == "note"
    (state / "public").write_bytes(b"another")
    assert (await found(tmp_path))["public key"][0] == "wrong"
    (state / "public").unlink()
    assert "no change can be verified" in (await found(tmp_path))["public key"][1]


async def test_it_says_when_it_does_not_answer(scripted: ScriptedDaemon, state: Path, tmp_path: Path) -> None:
    scripted.stop()
    status, detail = (await found(tmp_path))["approver"]
    assert status == "wrong"
    assert "no change can be allowed" in detail
    (tmp_path / "unit").unlink()
    assert await found(tmp_path) == {}
