"""`lactl prompt --attach`: what lactl reads, and what it refuses to read."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lightagentd.cli import attaching
from lightagentd.errors import AttachmentInvalid, AttachmentTooLarge, InvalidArgument, PermissionDenied
from tests.cli.conftest import Finished, Lactl
from tests.other_user import OUTSIDERS_GID
from tests.scripted_daemon import ScriptedDaemon


def sent(scripted: ScriptedDaemon) -> dict[str, Any]:
    return scripted.parameters("Sessions.Prompt")


@pytest.fixture(autouse=True)
def script(scripted: ScriptedDaemon) -> None:
    scripted.turn({"type": "done", "text": "ok"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    return path


class TestOrder:
    def test_question_then_standard_input_then_the_files_in_their_order(
        self, scripted: ScriptedDaemon, lactl: Lactl, log: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "0.conf").write_text("two")
        done = lactl("prompt", "-a", str(log), "ops", "why?", "-a", str(tmp_path / "0.conf"), stdin=b"err\n")
        assert done == Finished(status=0, out="ok\n", err="")
        assert sent(scripted) == {
            "agent": "ops",
            "text": "why?\n\n```standard input\nerr\n```",
            "outside": True,
            "attachments": [{"name": "a.log", "text": "one\n"}, {"name": "0.conf", "text": "two"}],
        }

    def test_standard_input_can_be_the_question(
        self, scripted: ScriptedDaemon, lactl: Lactl, log: Path
    ) -> None:
        lactl("prompt", "ops", "-a", str(log), stdin=b"what is this?\n")
        assert sent(scripted)["text"] == "what is this?"

    def test_standard_input_can_be_an_attachment(
        self, scripted: ScriptedDaemon, lactl: Lactl, log: Path
    ) -> None:
        lactl("prompt", "ops", "why?", "-a", str(log), "--attach", "-", stdin=b"err\n")
        assert sent(scripted)["text"] == "why?"
        assert [each["name"] for each in sent(scripted)["attachments"]] == ["a.log", "standard input"]
        assert sent(scripted)["attachments"][1]["text"] == "err\n"

    def test_a_name_that_cannot_be_shown_is_made_one(
        self, scripted: ScriptedDaemon, lactl: Lactl, tmp_path: Path
    ) -> None:
        path = os.fsencode(tmp_path) + b"/a\n\xff\x1b.log"
        Path(os.fsdecode(path)).write_text("x")
        lactl("prompt", "ops", "why?", "-a", os.fsdecode(path))
        assert sent(scripted)["attachments"] == [{"name": "a\ufffd\ufffd\ufffd.log", "text": "x"}]


class TestRefused:
    @pytest.fixture(autouse=True)
    def nothing_is_sent(self, scripted: ScriptedDaemon) -> Any:
        yield
        assert scripted.calls == []

    def test_attachments_without_a_question(self, lactl: Lactl, log: Path) -> None:
        done = lactl("prompt", "ops", "-a", str(log))
        assert done.status == 65
        assert done.err.startswith("lactl: The prompt has attachments and no text.\nSay what to do with them")

    @pytest.mark.parametrize(
        ("name", "status", "words"),
        [("nothing", 66, "There is no file"), ("", 65, "is a folder"), ("a.log/x", 66, "There is no file")],
    )
    def test_what_is_no_file(
        self, lactl: Lactl, log: Path, tmp_path: Path, name: str, status: int, words: str
    ) -> None:
        done = lactl("prompt", "ops", "why?", "-a", str(tmp_path / name))
        assert (done.status, done.out) == (status, "")
        assert words in done.err
        assert len(done.err.splitlines()) == 2, "with what to do about it"

    @pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
    def test_a_device(self, lactl: Lactl, device: str) -> None:
        done = lactl("prompt", "ops", "why?", "-a", device)
        assert done.status == 65
        assert device in done.err

    def test_a_socket(self, lactl: Lactl, scripted: ScriptedDaemon) -> None:
        done = lactl("prompt", "ops", "why?", "-a", str(scripted.path))
        assert done.status == 65
        assert "it is a socket" in done.err

    def test_five_megabytes(self, lactl: Lactl, tmp_path: Path) -> None:
        (tmp_path / "big.log").write_bytes(b"x" * 5_000_000)
        done = lactl("prompt", "ops", "why?", "-a", str(tmp_path / "big.log"))
        assert done.status == AttachmentTooLarge.exit_status
        assert "big.log has 5000000 bytes; an attachment may have 1 MiB" in done.err

    def test_what_looks_endless_is_not_read(self, lactl: Lactl, tmp_path: Path) -> None:
        with (tmp_path / "sparse").open("wb") as file:
            file.truncate(1 << 40)
        assert lactl("prompt", "ops", "why?", "-a", str(tmp_path / "sparse")).status == 65

    def test_binary(self, lactl: Lactl, tmp_path: Path) -> None:
        (tmp_path / "a.out").write_bytes(b"\x7fELF\xff\xfe")
        done = lactl("prompt", "ops", "--json", "why?", "-a", str(tmp_path / "a.out"))
        assert done.status == AttachmentInvalid.exit_status
        assert '"code": "attachment_invalid"' in done.err
        assert "not UTF-8 at byte 5" in done.err

    def test_too_many(self, lactl: Lactl, log: Path) -> None:
        done = lactl("prompt", "ops", "why?", *["-a", str(log)] * 33)
        assert done.status == AttachmentTooLarge.exit_status

    def test_standard_input_twice(self, lactl: Lactl) -> None:
        assert "attached twice" in lactl("prompt", "ops", "why?", "-a", "-", "-a", "-", stdin=b"x").err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_the_caller_may_not_read_is_refused(log: Path) -> None:
    log.chmod(0o600)
    os.seteuid(OUTSIDERS_GID)
    try:
        with pytest.raises(PermissionDenied, match="You may not read"):
            attaching.attachment(str(log))
    finally:
        os.seteuid(0)


class TestPipes:
    @pytest.fixture
    def pipe(self, tmp_path: Path) -> Path:
        os.mkfifo(tmp_path / "pipe")
        return tmp_path / "pipe"

    def write(self, pipe: Path, *, times: int = 1) -> threading.Thread:
        def work() -> None:
            with pipe.open("wb") as file:
                try:
                    for _ in range(times):
                        file.write(b"0123456789abcdef" * 4096)
                except BrokenPipeError:
                    pass

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def test_a_pipe_is_read_to_its_end(self, pipe: Path) -> None:
        writer = self.write(pipe, times=3)
        assert len(attaching.attachment(str(pipe))["text"]) == 3 * 65536
        writer.join()

    def test_one_that_never_ends_is_refused(self, pipe: Path) -> None:
        writer = self.write(pipe, times=1000)
        with pytest.raises(AttachmentTooLarge, match="has more than"):
            attaching.attachment(str(pipe))
        writer.join()

    def test_one_that_nobody_writes_to_is_refused(self, pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attaching, "SILENCE_S", 0.05)
        with pytest.raises(InvalidArgument, match="gave nothing"):
            attaching.attachment(str(pipe))

    def test_the_pipe_of_a_shell_is_read(self, scripted: ScriptedDaemon, lactl: Lactl) -> None:
        reading, writing = os.pipe()
        os.write(writing, b"from a process\n")
        os.close(writing)
        lactl("prompt", "ops", "why?", "-a", f"/dev/fd/{reading}")
        os.close(reading)
        assert sent(scripted)["attachments"] == [{"name": str(reading), "text": "from a process\n"}]
