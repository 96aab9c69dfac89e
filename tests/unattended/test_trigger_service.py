"""lightagent-triggers.service: from something that happens to an answer that is delivered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.client.pause import Pause
from lightagentd.config.triggers import check_trigger
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import LightagentError, StorageError
from lightagentd.host.paths import Paths
from lightagentd.unattended import sources
from lightagentd.unattended.delivery import Delivery, deliver
from lightagentd.unattended.triggers import Service
from tests.agents.asking import FRONT, add, lines, prepare
from tests.agents.scripted import until
from tests.agents.triggers.rig import at_rest, counts, happened, running, told, trigger
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.desktop.conftest import notification_server
from tests.fake_journal import write_journal
from tests.fake_systemd import private_bus
from tests.scripted_model import call, say

from .conftest import PlayedJournal, needs_root


@contextlib.asynccontextmanager
async def serving(paths: Paths, journal: PlayedJournal) -> AsyncIterator[Service]:
    service = Service(paths.config, control=paths.socket, journal_socket=journal.path)
    task = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        task.cancel()
        await asyncio.wait([task])


def tee(target: Path) -> dict[str, Any]:
    return {"answer": "command", "command": ["/usr/bin/tee", str(target)]}


async def followed(daemon: Daemon) -> None:
    await until(lambda: daemon.triggers.outbox.followed)


async def test_a_file_that_appears_has_an_agent_asked_and_its_answer_taken_to_a_command(
    paths: Paths, tmp_path: Path, journal: PlayedJournal
) -> None:
    watched, out = tmp_path / "in", tmp_path / "out"
    watched.mkdir()
    trigger(paths, on="inotify", path=str(watched), prompt="what is {path}", **tee(out))
    trigger(paths, "gone", on="inotify", path=str(tmp_path / "nothing"), prompt="x")
    async with running(paths, {"ops": [say("a \x1b[31mfile")]}) as (daemon, model), serving(paths, journal):
        await until(lambda: daemon.triggers.standing("disk").position)
        (watched / "new").write_text("x")
        await until(lambda: told(daemon, "delivered"))
        assert out.read_text() == "a \ufffd[31mfile\n"
        assert f"what is {watched}/new" in str(model.requests[0].body["messages"])
        entry = await asyncio.to_thread(journal.entry)
        assert entry["MESSAGE"] == "The answer of ops was given to /usr/bin/tee."
        assert (entry["LIGHTAGENT_TRIGGER"], entry["SYSLOG_IDENTIFIER"]) == ("disk", "lightagent-trigger")
        await until(lambda: any("There is no" in one for one in daemon.problems()))
        async with AsyncClient(paths.socket, timeout_s=30) as client:
            found = (await client.call("Triggers.Get", name="gone"))["found"]
        assert (found["state"], "nothing to watch" in found["problem"]) == ("unfollowed", True)


async def test_answers_are_in_the_journal_and_what_was_refused_too(
    paths: Paths, tmp_path: Path, journal: PlayedJournal
) -> None:
    prepare(paths)
    trigger(paths, effects=["observe", "change"])
    write(paths.config / "policy.d/10.toml", '[[rule]]\nname = "mine"\ndecision = "ask"\ntool = "probe"\n')
    script = [call("probe_add", add(tmp_path / "out")), say("not allowed")]
    toml = '[worker]\nchange_agents = ["ops"]\n'
    async with (
        running(paths, {"ops": script}, fronts={"ops": FRONT}, toml=toml) as (daemon, _),
        serving(paths, journal),
    ):
        await followed(daemon)
        await daemon.triggers.fire("disk", [happened()])
        refused = await asyncio.to_thread(journal.entry)
        assert refused["MESSAGE"].endswith("so it was refused: probe.add")
        assert (await asyncio.to_thread(journal.entry))["MESSAGE"] == "not allowed"
        assert lines(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"answer": "command", "command": ["/bin/false"]}, "/bin/false ended with status 1"),
        ({"answer": "command", "command": ["/nowhere/at/all"]}, "/nowhere/at/all cannot be started"),
        ({"answer": "file", "file": "/tmp/x/answer"}, "cannot be written to /tmp/x/answer"),
        ({"answer": "mail"}, "there is no sendmail(8) on this machine"),
        ({"answer": "desktop"}, "has no desktop session"),
    ],
)
async def test_an_answer_that_cannot_be_delivered_is_told_and_kept(
    paths: Paths, journal: PlayedJournal, keys: dict[str, Any], said: str
) -> None:
    trigger(paths, **keys)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _), serving(paths, journal):
        await followed(daemon)
        await daemon.triggers.fire("disk", [happened()])
        await until(lambda: told(daemon, "undelivered"))
        (event,) = told(daemon, "undelivered")
        assert said in (event.data or {})["message"]
        entry = await asyncio.to_thread(journal.entry)
        assert (said in entry["MESSAGE"], entry["PRIORITY"]) == (True, "3")


async def test_what_went_wrong_is_in_the_journal(paths: Paths, journal: PlayedJournal) -> None:
    trigger(paths, agent="nosuch")
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _), serving(paths, journal):
        await followed(daemon)
        await daemon.triggers.fire("disk", [happened()])
        entry = await asyncio.to_thread(journal.entry)
        assert ("nosuch" in entry["MESSAGE"], entry["PRIORITY"]) == (True, "3")
        await until(lambda: told(daemon, "delivered"))


@needs_root
async def test_each_answer_is_delivered_as_the_owner(paths: Paths, journal: PlayedJournal) -> None:
    out = paths.state.parent / "id"
    out.touch()
    out.chmod(0o666)
    for folder in [paths.config, paths.config / "triggers", *list(out.parents)[:-2]]:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    script = f"id -u > {out}; id -G >> {out}; grep -E 'CapEff|NoNewPrivs' /proc/self/status >> {out}"
    trigger(paths, owner="nobody", answer="command", command=["/bin/sh", "-c", script])
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _), serving(paths, journal):
        await followed(daemon)
        await daemon.triggers.fire("disk", [happened()])
        await until(lambda: told(daemon, "delivered") or told(daemon, "undelivered"))
        account = pwd.getpwnam("nobody")
        uid, groups, *status = out.read_text().splitlines()
        assert (uid, groups) == (str(account.pw_uid), str(account.pw_gid))
        assert [line.split()[1] for line in status] == ["0" * 16, "1"]
        (fired,) = told(daemon, "fired")
        assert fired.owner == account.pw_uid


async def test_a_restart_of_the_daemon_loses_nothing_and_delivers_once(
    paths: Paths, tmp_path: Path, journal: PlayedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pause, "wait", lambda _: asyncio.sleep(0.1))
    watched, out = tmp_path / "in", tmp_path / "out"
    watched.mkdir()
    command = ["/bin/sh", "-c", f"cat >> {out}; sleep 0.3"]
    trigger(
        paths, on="inotify", path=str(watched), catch_up=True, prompt="x", answer="command", command=command
    )
    async with serving(paths, journal):
        async with running(paths, {"ops": [say("first")]}) as (daemon, _):
            await until(lambda: daemon.triggers.standing("disk").position)
            (watched / "a").write_text("x")
            await until(out.exists)  # it is being delivered while the daemon stops
        await asyncio.sleep(0.2)
        (watched / "b").write_text("x")
        async with running(paths, {"ops": [say("second")]}) as (daemon, _):
            await until(lambda: len(told(daemon, "delivered")) == 2)
            assert out.read_text() == "first\nsecond\n"
            (missed,) = told(daemon, "missed")
            assert (missed.data or {})["count"] == 1
            assert counts(daemon.triggers) == {"fired": 2}


async def test_a_changed_file_is_followed_after_a_reload_and_one_that_is_gone_no_more(
    paths: Paths, tmp_path: Path, journal: PlayedJournal
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    trigger(paths, on="inotify", path=str(first), prompt="x")
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _), serving(paths, journal) as service:
        await until(lambda: daemon.triggers.standing("disk").position)
        trigger(paths, on="inotify", path=str(second), prompt="x")
        trigger(paths, "broken", on="inotify", path=str(second), prompt="{x")
        await daemon.reload()
        await until(lambda: service._following and service._following["disk"].file.path == second)
        await asyncio.sleep(0.3)
        (first / "a").write_text("x")
        (second / "b").write_text("x")
        await until(lambda: told(daemon, "answered"))
        assert [(one.data or {})["happened"]["path"] for one in told(daemon, "fired")] == [f"{second}/b"]
        (paths.config / "triggers/disk.toml").unlink()
        await daemon.reload()
        await until(lambda: not service._following)


async def test_a_flood_in_the_journal_is_all_accounted_for(
    paths: Paths, tmp_path: Path, journal: PlayedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "j"
    folder.mkdir()
    monkeypatch.setenv("LIGHTAGENT_JOURNAL", str(folder))
    monkeypatch.setattr(sources, "_CHUNK_S", 0.2)
    write_journal(folder / "a.journal", [(1_700_000_000_000_000, {"MESSAGE": "start"})])
    trigger(paths, on="journal", pattern="failed", prompt="{message}", rate_limit=1)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model), serving(paths, journal):
        await until(lambda: daemon.triggers.standing("disk").position)
        now = 4_000_000_000_000_000  # later than the time when the follower began
        rows: list[tuple[int, dict[str, str | bytes]]] = [
            (now + number, {"MESSAGE": f"{number} failed"}) for number in range(1000)
        ]
        write_journal(folder / "b.journal", rows)
        await until(lambda: sum(counts(daemon.triggers).values()) >= 1000)
        await at_rest(daemon.triggers)
        assert sum(counts(daemon.triggers).values()) == 1000
        assert len(model.requests) == 1


def test_the_program_follows_until_it_is_told_to_end(daemon_process: DaemonProcess) -> None:
    trigger(daemon_process.paths, on="timer", calendar="2099-01-01", prompt="x")
    daemon_process.start()
    paths = daemon_process.paths
    argv = [sys.executable, "-m", "lightagentd.unattended.triggers", "--folder", str(paths.config)]

    def state() -> str:
        listed = json.loads(daemon_process.lactl("--json", "triggers", "list").stdout)
        return str(next(one["state"] for one in listed if one["name"] == "disk"))

    assert state() == "unfollowed"
    with subprocess.Popen([*argv, "--socket", str(paths.socket)], cwd=REPOSITORY) as program:
        try:
            deadline = time.monotonic() + 60
            while state() != "active" and time.monotonic() < deadline:
                time.sleep(0.05)
            assert state() == "active"
            program.send_signal(signal.SIGTERM)
            assert program.wait(60) == 0
        finally:
            program.kill()
    assert state() == "unfollowed"


# The desktop


async def test_an_answer_is_shown_on_the_desktop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owner = pwd.getpwuid(os.geteuid()).pw_name
    text = f'on = "webhook"\nagent = "ops"\nowner = "{owner}"\nprompt = "x"\nanswer = "desktop"\n'
    file = check_trigger(write(tmp_path / "disk.toml", text))
    answer = Delivery(
        name="disk", unit="lightagent-triggers", agent="ops", text="<b>full</b>", session="ses_1"
    )
    with private_bus() as address:
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
        async with notification_server(address) as shown:
            assert await deliver(file, answer) == f"The answer of ops is on the desktop of {owner}."
            note = await shown.has(1)
            assert (note["summary"], note["body"]) == ("ops: disk", "&lt;b&gt;full&lt;/b&gt;")
        with pytest.raises(LightagentError):
            await deliver(file, answer)


async def test_what_the_daemon_could_not_store_is_told_again_and_was_not_missed(
    paths: Paths, tmp_path: Path, journal: PlayedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pause, "wait", lambda _: asyncio.sleep(0.05))
    watched = tmp_path / "in"
    watched.mkdir()
    trigger(paths, on="inotify", path=str(watched), prompt="x")
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _), serving(paths, journal):
        await until(lambda: daemon.triggers.standing("disk").position)
        fire = daemon.triggers.fire
        failed: list[Any] = []

        async def failing(name: str, happened: Any, position: str = "") -> dict[str, int]:
            if happened and len(failed) < 2:
                failed.append(happened)
                raise StorageError("The disk is full.")
            return await fire(name, happened, position)

        monkeypatch.setattr(daemon.triggers, "fire", failing)
        (watched / "a").write_text("x")
        await until(lambda: daemon.triggers.standing("disk").answered)
        assert len(failed) == 2
        assert counts(daemon.triggers) == {"fired": 1}
