"""What the daemon finds wrong with itself, its files and its history when it is asked."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightagentd import api, errors
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.store.layout import EVENTS, seq_key
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME
from tests.conftest import write
from tests.other_user import OUTSIDERS_GID

STRANGER = Caller(uid=12345, gid=OUTSIDERS_GID, pid=1)


def named(diagnosis: api.Diagnosis, name: str) -> api.Finding:
    return next(finding for finding in diagnosis.checks if finding.name == name)


async def test_a_sound_daemon_is_called_sound(daemon: Daemon, sandboxed: None) -> None:
    found = await daemon.service.doctor.diagnose(ME, "")
    assert [(one.agent, one.effect, one.enforced) for one in found.workers] == [
        ("ops", "observe", True),
        ("ops", "reach", True),
        ("ops", "change", False),
    ]
    assert [finding.status for finding in found.workers[2].findings] == ["note"]  # it has no such worker
    assert [one for one in found.checks if one.status == "wrong"] == []
    assert found.ok
    assert named(found, "history").status == "ok"
    assert "runbook" in named(found, "agent ops").detail
    everything = [*found.checks, *(finding for worker in found.workers for finding in worker.findings)]
    assert [one for one in everything if one.status not in ("ok", "note") and not one.remedy] == []
    assert [one for one in everything if not one.group] == []


async def test_what_was_tried_is_in_the_history(daemon: Daemon, sandboxed: None) -> None:
    await daemon.service.doctor.diagnose(ME, "ops")
    events = [event for event in daemon.history.queries.range(limit=10_000) if event.topic == "daemon.doctor"]
    assert sorted(event.type for event in events) == ["begun", "begun", "examined", "examined"]
    assert {event.agent for event in events} == {"ops"}
    assert all(event.data and event.data["by"] == os.getuid() for event in events)


async def test_a_daemon_without_a_sandbox_is_not_called_sound(paths: Paths) -> None:
    write(paths.config / "lightagentd.toml", '[worker]\nsandbox = "none"\n')
    async with Daemon(paths) as daemon:
        found = await daemon.service.doctor.diagnose(ME, "ops")
    assert not found.ok
    assert {one.enforced for one in found.workers} == {False}
    assert "not_held" in {finding.status for finding in found.workers[0].findings}


@pytest.mark.parametrize("which", ["the newest", "one before it"])
async def test_an_altered_event_at_the_end_of_the_history_is_named(daemon: Daemon, which: str) -> None:
    history = daemon.history
    seq = history.head_seq - (which != "the newest")
    with history.environment.env.begin(write=True, db=history.environment.db[EVENTS]) as txn:
        record = txn.get(seq_key(seq))
        txn.put(seq_key(seq), record[:-2] + b"!" + record[-1:])
    await daemon.service.agents.stop(ME, "ops")
    finding = named(await daemon.service.doctor.diagnose(ME, "ops"), "history")
    assert finding.status == "wrong"
    assert f"event {seq}" in finding.detail


@pytest.mark.parametrize(
    ("what", "mode", "name"),
    [
        ("state", 0o755, "state folder"),
        ("state/history/data.mdb", 0o644, "history's file"),
        ("run", 0o777, "runtime folder"),
        ("run/control.sock", 0o666, "control socket"),
        ("run/workers", 0o755, "workers' sockets"),
        ("etc/agent/ops/AGENT.md", 0o666, "configuration's modes"),
        ("etc/policy.d", 0o777, "configuration's modes"),
    ],
)
async def test_a_mode_that_is_too_open_is_named_with_what_to_do(
    paths: Paths, what: str, mode: int, name: str
) -> None:
    write(paths.config / "agent" / "ops" / "AGENT.md", "---\ndescription: x\n---\nBe.\n").chmod(0o644)
    (paths.config / "policy.d").mkdir(mode=0o755)
    async with Daemon(paths) as daemon:
        await daemon.service.agents.stop(ME, "ops")
        path = paths.state.parent / what
        before = path.stat().st_mode & 0o7777
        path.chmod(mode)
        found = await daemon.service.doctor.diagnose(ME, "ops")
        path.chmod(before)
    assert (named(found, name).status, found.ok) == ("wrong", False)
    assert f"{path}" in named(found, name).detail
    assert "chmod 0" in named(found, name).remedy
    assert f" {path}" in named(found, name).remedy


async def test_a_key_file_that_others_can_read_is_named(paths: Paths, tmp_path: Path) -> None:
    key = write(tmp_path / "key", "not-a-real-key")
    key.chmod(0o644)
    toml = f'[models.providers.x]\nbase_url = "http://127.0.0.1:9/v1"\napi_key_file = "{key}"\n'
    write(paths.config / "lightagentd.toml", toml)
    async with Daemon(paths) as daemon:
        await daemon.service.agents.stop(ME, "ops")
        found = await daemon.service.doctor.diagnose(ME, "ops")
    assert (named(found, f"key file {key}").status, found.ok) == ("wrong", False)
    assert f"chmod 600 {key}" in named(found, f"key file {key}").remedy
    assert "not-a-real-key" not in repr(found)


async def test_an_agent_that_does_not_run_is_said_and_not_tried(daemon: Daemon) -> None:
    await daemon.service.agents.stop(ME, "ops")
    found = await daemon.service.doctor.diagnose(ME, "ops")
    assert {finding.status for one in found.workers for finding in one.findings} == {"not_tried"}
    assert "lactl agents start ops" in found.workers[0].findings[0].remedy
    assert named(found, "agent ops").status == "wrong"
    assert daemon.pool.workers() == []


async def test_during_an_emergency_stop_it_looks_and_tries_nothing(daemon: Daemon) -> None:
    await daemon.service.safety.panic(ME, "")
    found = await daemon.service.doctor.diagnose(ME, "")
    assert named(found, "emergency stop").status == "note"
    assert "lactl panic --off" in named(found, "emergency stop").remedy
    assert {finding.status for one in found.workers for finding in one.findings} == {"not_tried"}
    assert daemon.pool.workers() == []


async def test_only_an_administrator_may_ask_and_only_for_agents_that_exist(daemon: Daemon) -> None:
    with pytest.raises(errors.PermissionDenied):
        await daemon.service.doctor.diagnose(STRANGER, "")
    with pytest.raises(errors.AgentNotFound):
        await daemon.service.doctor.diagnose(ME, "nobody")


async def test_a_worker_that_no_daemon_holds_is_found(daemon: Daemon) -> None:
    await daemon.service.agents.stop(ME, "ops")
    program = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    argv = f"[sys.executable, '-c', {program!r}, 'lightagentd.worker.program']"
    orphan = f"import subprocess, sys; subprocess.Popen({argv})"
    pid = await _orphan(orphan)
    try:
        finding = named(await daemon.service.doctor.diagnose(ME, "ops"), "workers left over")
        assert finding.status == "wrong"
        assert str(pid) in finding.detail
    finally:
        os.kill(pid, 9)


async def _orphan(code: str) -> int:
    """Start a process whose parent ends at once; gives its pid."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait()
    return pid


async def test_an_endpoint_is_reached_only_when_asked_and_its_key_is_looked_for(paths: Paths) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    toml = f"""
[models.providers.there]
base_url = "http://127.0.0.1:{port}/v1"
api_key_env = "LIGHTAGENT_TEST_NO_SUCH_KEY"
[models.providers.away]
base_url = "http://127.0.0.1:1/v1"
"""
    write(paths.config / "lightagentd.toml", toml)
    own = "---\ndescription: x\nmodel: own/m\nbase_url: http://127.0.0.1:2/v1\neffects: []\n---\nBe.\n"
    write(paths.config / "agent/own/AGENT.md", own)
    async with server, Daemon(paths) as daemon:
        assert "endpoint" in {
            one.name.rpartition(", ")[2]
            for one in (await daemon.service.doctor.diagnose(ME, "own", models=True)).checks
            if one.name.startswith("agent own") and "127.0.0.1 port 2 cannot be reached" in one.detail
        }
        listed = {one.name: one for one in await daemon.service.models.providers(ME)}
        assert (listed["own"].state, listed["own"].base_url) == ("ready", "http://127.0.0.1:2/v1")
        await daemon.service.agents.stop(ME, "ops")
        quiet = await daemon.service.doctor.diagnose(ME, "ops")
        asked = await daemon.service.doctor.diagnose(ME, "ops", models=True)
    assert named(quiet, "there, key").status == "wrong"
    assert "LIGHTAGENT_TEST_NO_SUCH_KEY" in named(quiet, "there, key").detail
    assert named(quiet, "away, key").status == "ok"
    assert [one for one in quiet.checks if "endpoint" in one.name] == []
    assert named(asked, "there, endpoint").status == "ok"
    assert named(asked, "away, endpoint").status == "wrong"
    assert "127.0.0.1 port 1" in named(asked, "away, endpoint").detail
