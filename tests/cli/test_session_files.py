"""`lactl sessions export` and `import`: files of a conversation."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from lightagentd.cli.named_file import read_file
from lightagentd.errors import InvalidArgument
from tests.cli.conftest import Finished, Lactl
from tests.scripted_daemon import ScriptedDaemon, session

SESSION = "ses_0123456789abcdef"
TEXT = "# disks\n\nIt runs. é\n"


class TestExport:
    @pytest.fixture(autouse=True)
    def script(self, scripted: ScriptedDaemon) -> None:
        found = {"session": SESSION, "format": "markdown", "name": "disks.md", "text": TEXT}
        scripted.answer("Sessions.Export", {"export": found})

    def test_is_printed(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        assert lactl("sessions", "export", SESSION) == Finished(status=0, out=TEXT, err="")
        assert scripted.parameters("Sessions.Export") == {"session": SESSION, "format": "markdown"}
        assert json.loads(lactl("sessions", "export", SESSION, "--json").out)["text"] == TEXT

    def test_is_written_for_oneself_alone(self, lactl: Lactl, tmp_path: Path) -> None:
        path = tmp_path / "disks.md"
        done = lactl("sessions", "export", SESSION, "--format", "jsonl", "-o", str(path))
        assert done == Finished(status=0, out="", err="")
        assert path.read_text() == TEXT
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["disks.md"]

    def test_replaces_no_file_without_being_told(self, lactl: Lactl, tmp_path: Path) -> None:
        path = tmp_path / "mine"
        path.write_text("mine")
        path.chmod(0o644)
        done = lactl("sessions", "export", SESSION, "-o", str(path))
        assert (done.status, path.read_text()) == (73, "mine")
        assert "--force" in done.err
        assert lactl("sessions", "export", SESSION, "-o", str(path), "--force").status == 0
        assert path.read_text() == TEXT
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_follows_no_link(self, lactl: Lactl, tmp_path: Path) -> None:
        (tmp_path / "target").write_text("theirs")
        (tmp_path / "link").symlink_to(tmp_path / "target")
        assert lactl("sessions", "export", SESSION, "-o", str(tmp_path / "link")).status == 73
        assert lactl("sessions", "export", SESSION, "-o", str(tmp_path / "link"), "--force").status == 0
        assert (tmp_path / "target").read_text() == "theirs"
        assert not (tmp_path / "link").is_symlink()

    @pytest.mark.parametrize(("name", "status"), [("", 65), ("none/x", 66), ("/proc/x", 74)])
    def test_says_what_cannot_be_written(self, lactl: Lactl, tmp_path: Path, name: str, status: int) -> None:
        done = lactl("sessions", "export", SESSION, "-o", str(tmp_path / name))
        assert done.status == status
        assert len(done.err.splitlines()) == 2


class TestImport:
    @pytest.fixture(autouse=True)
    def script(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("Sessions.Import", {"session": session(SESSION)})

    def test_takes_a_file_or_standard_input(
        self, scripted: ScriptedDaemon, lactl: Lactl, tmp_path: Path
    ) -> None:
        (tmp_path / "x.jsonl").write_text(TEXT)
        done = lactl("sessions", "import", str(tmp_path / "x.jsonl"), "--agent", "ops", "--title", "t")
        assert done == Finished(status=0, out=f"{SESSION}\n", err="")
        assert scripted.parameters("Sessions.Import") == {"agent": "ops", "text": TEXT, "title": "t"}
        scripted.calls.clear()
        lactl("sessions", "import", "-", "--agent", "ops", stdin=TEXT.encode())
        assert scripted.parameters("Sessions.Import") == {"agent": "ops", "text": TEXT}

    def test_refuses_what_is_no_text(self, scripted: ScriptedDaemon, lactl: Lactl, tmp_path: Path) -> None:
        done = lactl("sessions", "import", "-", "--agent", "ops", "--json", stdin=b"\xff\xfe")
        assert done.status == 65
        assert json.loads(done.err)["error"]["code"] == "import_invalid"
        assert lactl("sessions", "import", str(tmp_path / "none"), "--agent", "ops").status == 66
        assert lactl("sessions", "import", str(tmp_path), "--agent", "ops").status == 65
        assert scripted.calls == []

    def test_standard_input_that_is_closed_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", None)
        with pytest.raises(InvalidArgument, match=r"Standard input is closed\."):
            read_file("-")

    def test_needs_an_agent(self, lactl: Lactl) -> None:
        assert lactl("sessions", "import", "-").status == 2
