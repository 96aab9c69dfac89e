"""`lactl kits`: with a daemon, and `check` without one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.agents.kits.made import dba, everything, folder, tarred
from tests.cli.conftest import Lactl
from tests.conftest import DaemonProcess


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a daemon that does not run."""
    monkeypatch.setenv("LIGHTAGENT_CONFIG_DIR", str(tmp_path / "etc"))
    monkeypatch.setenv("LIGHTAGENT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LIGHTAGENT_SOCKET", str(tmp_path / "no.sock"))
    (tmp_path / "etc").mkdir()
    return tmp_path / "etc"


def test_a_kit_is_checked_without_a_daemon(lactl: Lactl, etc: Path, tmp_path: Path) -> None:
    top = folder(tmp_path, dba())
    done = lactl("kits", "check", str(top))
    assert (done.status, done.out, done.err) == (0, "dba\tok\t1\t1\t1\t1\n", "")
    (top / "tools" / "odd.py").write_text("import nosuch\n")
    (top / "tool").mkdir()
    (top / "tool" / "x").touch()
    done = lactl("kits", "check", str(top), "--name", "db")
    assert (done.status, done.out) == (78, "db\tbroken\t1\t2\t1\t1\n")
    first, second, *rest = done.err.splitlines()
    assert first == f"lactl: {top}/tools/odd.py, line 1: ModuleNotFoundError: No module named 'nosuch'."
    assert second.startswith(f"lactl: {top}/tool: nothing looks into this folder")
    assert rest == ["lactl: Not to be used: db.", "Mend the files that are named."]
    (found,) = json.loads(lactl("kits", "check", str(top), "--json").out)
    assert found["problems"] == [first.removeprefix("lactl: ")]


def test_archives_and_the_kits_that_are_there_are_checked(lactl: Lactl, etc: Path, tmp_path: Path) -> None:
    archive = tmp_path / "dba.tar.gz"
    archive.write_bytes(tarred(dba()))
    assert lactl("kits", "check", str(archive)).out == "dba\tok\t1\t1\t1\t1\n"
    archive.write_bytes(tarred({**dba(), "../../x": ""}))
    done = lactl("kits", "check", str(archive))
    assert (done.status, done.out) == (78, "dba.tar.gz\tbroken\t0\t0\t0\t0\n")
    assert "'dba/../../x' is not a path inside of it" in done.err
    assert not (tmp_path.parent / "x").exists()
    for name in ("good", "loose"):
        folder(etc / "agent", dba(), name)
    (etc / "agent" / "loose" / "tools" / "dbstat.py").chmod(0o666)
    done = lactl("kits", "check")
    shown = ["good\tok\t1\t1\t1\t1", "loose\tbroken\t0\t0\t0\t0", "ops\tok\t0\t0\t0\t4"]
    assert (done.status, done.out.splitlines()) == (78, shown)
    assert f"{etc}/agent/loose/tools/dbstat.py can be written by others" in done.err
    assert lactl("kits", "check", "good").out == "good\tok\t1\t1\t1\t1\n"
    assert lactl("kits", "check", "nosuch").status == 66


def test_what_is_no_kit_is_refused_before_it_is_sent(lactl: Lactl, etc: Path, tmp_path: Path) -> None:
    top = folder(tmp_path, dba())
    (top / "references" / "link").symlink_to("/etc/passwd")
    done = lactl("kits", "add", str(top))
    assert (done.status, done.err) == (65, f"lactl: {top}/references/link is a link, and a kit has none.\n")
    (top / "references" / "link").unlink()
    os.mkfifo(top / "references" / "fifo")
    assert "fifo is not a file or folder" in lactl("kits", "add", str(top)).err
    (top / "references" / "fifo").unlink()
    with (top / "references" / "large").open("wb") as file:
        file.write(os.urandom(13 << 20))
    done = lactl("kits", "add", str(top))
    assert (done.status, done.err.splitlines()[0]) == (
        65,
        f"lactl: {top} is more than the 11 MiB that can be sent packed.",
    )
    assert lactl("kits", "add", str(tmp_path / "nosuch")).status == 66
    (top / "references" / "large").unlink()
    assert lactl("kits", "add", str(top)).status == 69


def test_a_kit_lives_from_add_to_remove(daemon_process: DaemonProcess, tmp_path: Path) -> None:
    daemon = daemon_process
    daemon.start()

    def lactl(*arguments: str) -> str:
        done = daemon.lactl(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    top = folder(tmp_path, dba())
    kit = daemon.paths.kits / "dba"
    assert lactl("kits", "add", str(top)) == f"dba\t{kit}\n"
    assert lactl("kits", "list").startswith(f"dba\t1\t1\t1\t1\t{kit}\tLooks after databases.")
    assert "references\ttables.md\n" in lactl("kits", "show", "dba")
    names = [line.partition("\t")[0] for line in lactl("agents", "list").splitlines()]
    assert names == ["dba", "dba.reader", "ops"]
    assert lactl("tools", "call", "dba", "dbstat.show", "what=locks").startswith("locks for dba")
    assert daemon.lactl("tools", "call", "ops", "dbstat.show").returncode == 66
    assert "own_tools\tdbstat\n" in lactl("agents", "show", "dba")
    assert "dbstat\t" in lactl("tools", "list", "--agent", "dba")
    assert "Says what the database does" in lactl("tools", "show", "dbstat", "--agent", "dba")
    assert "db-check\t" in lactl("skills", "list", "--agent", "dba")
    assert lactl("prompt", "dba", "how is the database").startswith("**The database is fine.**")
    assert daemon.lactl("kits", "add", str(top)).returncode == 73
    lactl("kits", "add", str(top), "--replace")
    daemon.kill()
    daemon.start()
    assert lactl("tools", "call", "dba", "dbstat.show").startswith("all for dba")
    lactl("kits", "remove", "dba")
    assert lactl("kits", "list").startswith("ops\t0\t0\t0\t4\t")
    assert len(lactl("kits", "list").splitlines()) == 1
    assert everything(daemon.paths.kits) == [".new"]
    lactl("agents", "create", "db", "--from", str(top))
    assert lactl("tools", "call", "db", "dbstat.show").startswith("all for db")
    lactl("agents", "delete", "db")
    assert top.is_dir()
