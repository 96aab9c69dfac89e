"""The changes of the tool file, with real files: atomic writes, links, races and undo."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lightagentd.errors import Conflict, NotFound, Refused, StorageError
from lightagentd.tool import InvalidArgument, ToolError
from lightagentd.toolkit.files import change
from lightagentd.toolkit.files.undo import Record, UndoStore, digest
from tests.conftest import write

from .conftest import AskPreview, Call, CallContext, is_root

pytestmark = pytest.mark.usefixtures("nothing_left")
needs_root = pytest.mark.skipif(not is_root(), reason="only root can give files away")
not_as_root = pytest.mark.skipif(is_root(), reason="root passes the checks of modes")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for previous content."""
    folder = tmp_path / "undo"
    monkeypatch.setenv("LIGHTAGENT_UNDO", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _no_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTAGENT_UNDO", raising=False)


class TestWrite:
    async def test_a_new_file_gets_its_content_and_the_diff_comes_back(
        self, call: Call, tmp_path: Path
    ) -> None:
        result = await call("file", "write", path=f"{tmp_path}/f", content="one\ntwo\n")
        assert (tmp_path / "f").read_text() == "one\ntwo\n"
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644
        assert result.output == f"--- /dev/null\n+++ {tmp_path}/f\n@@ -0,0 +1,2 @@\n+one\n+two\n"
        assert (result.metadata["created"], result.metadata["previous_kept"]) == (True, False)
        assert "No folder" in result.metadata["previous_note"]

    async def test_mode_and_attributes_of_an_existing_file_stay(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("old\n")
        (tmp_path / "f").chmod(0o4751)
        try:
            os.setxattr(tmp_path / "f", "user.note", b"mine")
        except OSError:
            pytest.skip("the file system has no extended attributes")
        await call("file", "write", path=f"{tmp_path}/f", content="new\n")
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o4751
        assert os.getxattr(tmp_path / "f", "user.note") == b"mine"

    @needs_root
    async def test_the_owner_stays(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("old\n")
        os.chown(tmp_path / "f", 1234, 4321)
        (tmp_path / "f").chmod(0o2750)
        await call("file", "write", path=f"{tmp_path}/f", content="new\n")
        info = (tmp_path / "f").stat()
        assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (1234, 4321, 0o2750)

    async def test_a_mode_can_be_given_and_is_checked(self, call: Call, tmp_path: Path) -> None:
        await call("file", "write", path=f"{tmp_path}/f", content="x", mode="0600")
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600
        for mode in ("u+x", "999", "07777777"):
            with pytest.raises(ValidationError):
                await call("file", "write", path=f"{tmp_path}/f", content="x", mode=mode)

    async def test_a_reader_sees_the_old_content_or_the_new_and_nothing_else(
        self, call: Call, tmp_path: Path
    ) -> None:
        contents = {"a" * 100_000, "b" * 100_000}
        path = tmp_path / "f"
        path.write_text("a" * 100_000)
        seen: set[str] = set()
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                seen.add(path.read_text())

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(10):
                for content in sorted(contents, reverse=True):
                    await call("file", "write", path=str(path), content=content)
        finally:
            stop.set()
            reader.join()
        assert seen <= contents
        assert [entry.name for entry in tmp_path.iterdir()] == ["f"]

    async def test_a_link_is_never_written_through(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "target").write_text("secret\n")
        (tmp_path / "link").symlink_to("target")
        with pytest.raises(Refused, match="symbolic link") as caught:
            await call("file", "write", path=f"{tmp_path}/link", content="x")
        assert caught.value.suggestion == f"Name the file itself, which is now {tmp_path}/target."
        assert (tmp_path / "target").read_text() == "secret\n"

    async def test_a_path_through_a_linked_folder_is_refused(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "alias").symlink_to("real")
        with pytest.raises(Refused, match=f"{tmp_path}/alias is a symbolic link") as caught:
            await call("file", "write", path=f"{tmp_path}/alias/f", content="x")
        assert f"{tmp_path}/real/f" in caught.value.suggestion
        assert list((tmp_path / "real").iterdir()) == []

    @pytest.mark.parametrize("end", ["/../f", "/", "/absent/f", "/plain/f"])
    async def test_a_path_that_names_no_file_is_refused(self, call: Call, tmp_path: Path, end: str) -> None:
        (tmp_path / "plain").touch()
        with pytest.raises((InvalidArgument, NotFound)):
            await call("file", "write", path=f"{tmp_path}{end}", content="x")
        assert [entry.name for entry in tmp_path.iterdir()] == ["plain"]

    async def test_special_files_folders_and_the_kernel_are_refused(self, call: Call, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for path in (f"{tmp_path}/fifo", str(tmp_path), "/dev/null", "/proc/sys/kernel/hostname"):
            with pytest.raises(InvalidArgument):
                await call("file", "write", path=path, content="x")

    async def test_the_same_content_changes_nothing(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("same\n")
        before = (tmp_path / "f").stat()
        result = await call("file", "write", path=f"{tmp_path}/f", content="same\n")
        assert result.metadata["changed"] is False
        assert (tmp_path / "f").stat() == before

    async def test_an_unexpected_content_is_a_conflict(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("theirs\n")
        expected = hashlib.sha256(b"mine\n").hexdigest()
        with pytest.raises(Conflict, match="content that was expected"):
            await call("file", "write", path=f"{tmp_path}/f", content="x", expect_sha256=expected)
        assert (tmp_path / "f").read_text() == "theirs\n"

    async def test_text_that_the_encoding_lacks_is_refused(self, call: Call, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="'€' cannot be written"):
            await call("file", "write", path=f"{tmp_path}/f", content="€", encoding="iso-8859-1")
        assert not (tmp_path / "f").exists()

    async def test_a_large_change_gives_a_bounded_diff_soon(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("".join(f"{number}\n" for number in range(100_000)))
        content = "".join(f"{number} new\n" for number in range(100_000))
        result = await call("file", "write", path=f"{tmp_path}/f", content=content)
        assert result.output == "(diff left out: lines 1 to 100000 became 100000 lines)\n"
        result = await call(
            "file", "write", path=f"{tmp_path}/f", content=content.replace("\n700 n", "\n7 n")
        )
        assert "@@ -698,7 +698,7 @@" in result.output
        assert "-700 new\n+7 new\n" in result.output

    @not_as_root
    async def test_a_folder_that_may_not_be_written_is_explained(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir(mode=0o500)
        with pytest.raises(ToolError, match="Permission denied") as caught:
            await call("file", "write", path=f"{tmp_path}/d/f", content="x")
        assert "effect" in caught.value.suggestion


class TestEdit:
    async def test_a_unique_text_is_replaced_and_the_diff_shows_it(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("".join(f"line {number}\n" for number in range(1, 21)))
        result = await call("file", "edit", path=f"{tmp_path}/f", old="line 10\n", new="ten\n")
        assert (tmp_path / "f").read_text().splitlines()[9] == "ten"
        assert result.output == (
            f"--- {tmp_path}/f\n+++ {tmp_path}/f\n@@ -7,7 +7,7 @@\n"
            " line 7\n line 8\n line 9\n-line 10\n+ten\n line 11\n line 12\n line 13\n"
        )

    async def test_an_ambiguous_text_names_the_lines(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("a\nb\na\n")
        with pytest.raises(InvalidArgument, match="2 times, in the lines 1, 3") as caught:
            await call("file", "edit", path=f"{tmp_path}/f", old="a", new="c")
        assert caught.value.field == "old"
        result = await call("file", "edit", path=f"{tmp_path}/f", old="a", new="c", all=True)
        assert (tmp_path / "f").read_text() == "c\nb\nc\n"
        assert result.metadata["replaced"] == 2

    @pytest.mark.parametrize(("old", "new"), [("absent", "x"), ("text", "text")])
    async def test_an_edit_that_does_nothing_is_an_error(
        self, call: Call, tmp_path: Path, old: str, new: str
    ) -> None:
        (tmp_path / "f").write_text("text\n")
        with pytest.raises(InvalidArgument):
            await call("file", "edit", path=f"{tmp_path}/f", old=old, new=new)

    async def test_line_ends_of_the_file_stay(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"one\r\ntwo\r\nthree\r\n")
        await call("file", "edit", path=f"{tmp_path}/f", old="one\ntwo", new="1\n2")
        assert (tmp_path / "f").read_bytes() == b"1\r\n2\r\nthree\r\n"

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "iso-8859-1"])
    async def test_the_encoding_of_the_file_stays(self, call: Call, tmp_path: Path, encoding: str) -> None:
        (tmp_path / "f").write_bytes("größe = 1\n".encode(encoding))
        await call("file", "edit", path=f"{tmp_path}/f", old="größe = 1", new="größe = 2")
        assert (tmp_path / "f").read_bytes() == "größe = 2\n".encode(encoding)

    async def test_binary_and_missing_files_are_refused(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"a\0b")
        with pytest.raises(InvalidArgument, match="binary"):
            await call("file", "edit", path=f"{tmp_path}/f", old="a", new="b")
        with pytest.raises(NotFound):
            await call("file", "edit", path=f"{tmp_path}/absent", old="a", new="b")

    async def test_a_change_by_somebody_else_in_between_is_a_conflict(self, tmp_path: Path) -> None:
        path = tmp_path / "f"
        path.write_text("old")
        with change.folder_of(str(path)) as (folder, name):
            was = change.look(folder, name, str(path))
            path.write_text("theirs")
            with pytest.raises(Conflict, match="changed meanwhile"):
                change.put(folder, name, str(path), b"mine", was=was)
            path.unlink()
            with pytest.raises(Conflict, match="removed meanwhile"):
                change.put(folder, name, str(path), b"mine", was=was)
            path.symlink_to("/etc/hostname")
            with pytest.raises(Conflict):
                change.put(folder, name, str(path), b"mine", was=None)
        assert [entry.name for entry in tmp_path.iterdir()] == ["f"]

    async def test_a_folder_swapped_for_a_link_in_between_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "victim").mkdir()
        with change.folder_of(f"{tmp_path}/d/f") as (folder, name):
            (tmp_path / "d").rename(tmp_path / "moved")
            (tmp_path / "d").symlink_to("victim")
            change.put(folder, name, f"{tmp_path}/d/f", b"x", was=None)
        assert list((tmp_path / "victim").iterdir()) == []
        assert (tmp_path / "moved" / "f").read_text() == "x"


class TestDelete:
    async def test_a_file_is_removed_and_the_diff_shows_it(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("gone\n")
        result = await call("file", "delete", path=f"{tmp_path}/f")
        assert not (tmp_path / "f").exists()
        assert result.output == f"--- {tmp_path}/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"

    async def test_a_link_itself_is_removed(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("stays\n")
        (tmp_path / "link").symlink_to("f")
        await call("file", "delete", path=f"{tmp_path}/link")
        assert [entry.name for entry in tmp_path.iterdir()] == ["f"]

    async def test_folders_and_missing_files_are_refused(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        with pytest.raises(InvalidArgument, match="is a folder"):
            await call("file", "delete", path=f"{tmp_path}/d")
        with pytest.raises(NotFound):
            await call("file", "delete", path=f"{tmp_path}/absent")


class TestUndo:
    async def test_the_record_says_what_was_there(self, call: Call, store: Path, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("old\n")
        (tmp_path / "f").chmod(0o640)
        result = await call("file", "write", path=f"{tmp_path}/f", content="new\n")
        assert result.metadata["previous_kept"] is True
        record = json.loads((store / "call_0123456789abcdef.json").read_text())
        assert record == {
            "path": f"{tmp_path}/f",
            "existed": True,
            "kind": "file",
            "mode": 0o640,
            "uid": os.getuid(),
            "gid": (tmp_path / "f").stat().st_gid,
            "sha256_before": hashlib.sha256(b"old\n").hexdigest(),
            "sha256_after": hashlib.sha256(b"new\n").hexdigest(),
            "owner": 1000,
            "session": "ses_0123456789abcdef",
            "action": "write",
            "folders": [],
        }
        assert UndoStore(store).find("call_0123456789abcdef", 1000)[1] == b"old\n"
        assert stat.S_IMODE(store.stat().st_mode) == 0o700
        assert {stat.S_IMODE(entry.stat().st_mode) for entry in store.iterdir()} == {0o600}

    @pytest.mark.parametrize("action", ["write", "edit", "delete", "create", "delete link"])
    async def test_each_change_can_be_taken_back(
        self, call: Call, context: CallContext, store: Path, tmp_path: Path, action: str
    ) -> None:
        path = tmp_path / "f"
        if action == "delete link":
            path.symlink_to("somewhere")
        elif action != "create":
            path.write_bytes(b"old \xff\n")
            path.chmod(0o4711)
        arguments = {"content": "new\n"} if action in ("write", "create") else {}
        if action == "edit":
            arguments = {"old": "old", "new": "new"}
        name = {"create": "write", "delete link": "delete"}.get(action, action)
        await call("file", name, path=str(path), **arguments)
        context.call_id = "call_second"
        await call("file", "undo", call_id="call_0123456789abcdef")
        if action == "create":
            assert not path.exists()
        elif action == "delete link":
            assert str(path.readlink()) == "somewhere"
        else:
            assert path.read_bytes() == b"old \xff\n"
            assert stat.S_IMODE(path.stat().st_mode) == 0o4711
        context.call_id = "call_third"
        await call("file", "undo", call_id="call_second")
        assert path.exists() == (action in ("write", "edit", "create"))

    async def test_a_file_that_was_changed_since_is_left_alone(
        self, call: Call, store: Path, tmp_path: Path
    ) -> None:
        await call("file", "write", path=f"{tmp_path}/f", content="mine\n")
        (tmp_path / "f").write_text("theirs\n")
        with pytest.raises(Conflict, match="changed since"):
            await call("file", "undo", call_id="call_0123456789abcdef")
        assert (tmp_path / "f").read_text() == "theirs\n"

    @pytest.mark.parametrize("approved", [False, True])
    async def test_folders_that_were_made_go_and_come_with_their_file(
        self,
        call: Call,
        preview: AskPreview,
        context: CallContext,
        store: Path,
        tmp_path: Path,
        approved: bool,
    ) -> None:
        async def run(call_id: str, /, action: str, **arguments: str | bool) -> str:
            if approved:
                seen = await preview("file", action, **arguments)
                assert seen is not None
                assert f"{tmp_path}/a" in seen.text
                context.expected = seen.expected
            context.call_id = call_id
            return (await call("file", action, **arguments)).output

        path = tmp_path / "a" / "b" / "f"
        wanted: dict[str, Any] = {"path": str(path), "content": "mine\n", "parents": True}
        await run("call_1", "write", **wanted)
        assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path)] == [0o755, 0o644]
        await run("call_2", "undo", call_id="call_1")
        assert not (tmp_path / "a").exists()
        await run("call_3", "undo", call_id="call_2")
        assert path.read_text() == "mine\n"
        write(tmp_path / "a" / "theirs", "")
        assert f"{tmp_path}/a stays: something else" in await run("call_4", "undo", call_id="call_3")
        assert [each.name for each in (tmp_path / "a").iterdir()] == ["theirs"]

    async def test_folders_are_made_only_as_approved_and_not_through_links(
        self, call: Call, preview: AskPreview, context: CallContext, tmp_path: Path
    ) -> None:
        wanted = {"path": f"{tmp_path}/a/b/f", "content": "x", "parents": True}
        seen = await preview("file", "write", **wanted)
        assert seen is not None
        context.expected = seen.expected
        (tmp_path / "a").mkdir()
        with pytest.raises(Conflict, match="since it was approved"):
            await call("file", "write", **wanted)
        assert [*(tmp_path / "a").iterdir()] == []
        context.expected = {}
        (tmp_path / "link").symlink_to(tmp_path / "a")
        for ask in (preview, call):
            with pytest.raises(Refused):
                await ask("file", "write", path=f"{tmp_path}/link/b/f", content="x", parents=True)
        with pytest.raises(NotFound) as caught:
            await call("file", "write", path=f"{tmp_path}/a/b/f", content="x")
        assert "parents" in caught.value.suggestion
        assert [*(tmp_path / "a").iterdir()] == []

    @pytest.mark.parametrize("call_id", ["../../etc/passwd", "", "a/b", "x" * 200])
    async def test_an_id_is_never_a_path(self, call: Call, store: Path, call_id: str) -> None:
        with pytest.raises(InvalidArgument, match="not the id of a call"):
            await call("file", "undo", call_id=call_id)

    async def test_an_unknown_call_is_not_found(self, call: Call, store: Path) -> None:
        with pytest.raises(NotFound):
            await call("file", "undo", call_id="call_unknown")

    async def test_another_users_call_is_as_unknown_as_one_that_nobody_made(
        self, call: Call, preview: AskPreview, context: CallContext, store: Path, tmp_path: Path
    ) -> None:
        await call("file", "write", path=f"{tmp_path}/f", content="mine\n")
        (store / "call_0123456789abcdef.sealed").write_text("damage is not told either")
        context.call_id, context.owner = "call_second", 1001
        said = []
        for call_id in ("call_0123456789abcdef", "call_unknown"):
            for asked in (call, preview):
                with pytest.raises(NotFound) as caught:
                    await asked("file", "undo", call_id=call_id)
                said.append({**caught.value.to_dict(), "id": ""} | {"message": caught.value.message[:29]})
        assert said == [said[0]] * 4
        assert (tmp_path / "f").read_text() == "mine\n"
        assert not (store / "call_second.json").exists()

    async def test_root_takes_back_anybodys_call(
        self, call: Call, context: CallContext, store: Path, tmp_path: Path
    ) -> None:
        await call("file", "write", path=f"{tmp_path}/f", content="mine\n")
        context.call_id, context.owner = "call_second", 0
        await call("file", "undo", call_id="call_0123456789abcdef")
        assert not (tmp_path / "f").exists()

    async def test_a_record_that_names_no_owner_is_for_root_alone(
        self, call: Call, context: CallContext, store: Path, tmp_path: Path
    ) -> None:
        await call("file", "write", path=f"{tmp_path}/f", content="mine\n")
        path = store / "call_0123456789abcdef.json"
        record = json.loads(path.read_text())
        for added in ("owner", "session", "action"):
            del record[added]
        path.write_text(json.dumps(record))
        context.call_id = "call_second"
        with pytest.raises(NotFound):
            await call("file", "undo", call_id="call_0123456789abcdef")
        assert (tmp_path / "f").exists()
        context.owner = 0
        await call("file", "undo", call_id="call_0123456789abcdef")
        assert not (tmp_path / "f").exists()

    async def test_a_record_that_cannot_be_read_is_told_to_root_alone(
        self, call: Call, context: CallContext, store: Path
    ) -> None:
        store.mkdir()
        (store / "call_broken.json").write_text("{}")
        with pytest.raises(NotFound):
            await call("file", "undo", call_id="call_broken")
        context.owner = 0
        with pytest.raises(StorageError, match="cannot be read"):
            await call("file", "undo", call_id="call_broken")

    async def test_nothing_is_changed_when_the_previous_content_cannot_be_kept(
        self, call: Call, store: Path, tmp_path: Path
    ) -> None:
        store.write_text("not a folder")
        (tmp_path / "f").write_text("old\n")
        with pytest.raises(StorageError, match="cannot be kept"):
            await call("file", "write", path=f"{tmp_path}/f", content="new\n")
        assert (tmp_path / "f").read_text() == "old\n"

    async def test_a_change_that_failed_leaves_the_file_and_no_record(
        self, call: Call, store: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "f").write_text("old\n")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(ToolError, match="File too large"):
                await call("file", "write", path=f"{tmp_path}/f", content="x" * 10_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (tmp_path / "f").read_text() == "old\n"
        assert [path.name for path in store.iterdir()] == ["undo.key"]
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["f", "undo"]

    def test_the_oldest_records_go_first_and_the_newest_stays(self, tmp_path: Path) -> None:
        store = UndoStore(tmp_path, limit_bytes=10_000)
        record = Record(path="/f", existed=True)
        for number in range(5):
            assert store.keep(f"call{number}", record, bytes(4000))
            for path in tmp_path.glob(f"call{number}.*"):
                os.utime(path, (number, number))
        kept = sorted(path.name for path in tmp_path.glob("*.sealed"))
        assert kept == ["call3.sealed", "call4.sealed"]
        assert not store.keep("huge", record, bytes(10_001))

    def test_what_may_have_to_be_taken_back_is_not_pushed_out(self, tmp_path: Path) -> None:
        store = UndoStore(tmp_path, limit_bytes=10_000)
        record = Record(path="/f", existed=True)
        assert store.keep("wanted", record, bytes(6000), for_s=60)
        for number in range(3):
            assert store.keep(f"call{number}", record, bytes(6000))
        assert sorted(path.name for path in tmp_path.glob("*.sealed")) == ["call2.sealed", "wanted.sealed"]
        assert not store.keep("second", record, bytes(6000), for_s=60), "then its change is refused"
        os.utime(tmp_path / "wanted.json", (1, 1))
        os.utime(tmp_path / "wanted.sealed", (1, 1))
        assert store.keep("second", record, bytes(6000), for_s=60)
        assert not (tmp_path / "wanted.json").exists()

    def test_no_content_can_be_found_in_the_folder(self, tmp_path: Path) -> None:
        secret = b"password=correct-horse-battery\n" * 10
        store = UndoStore(tmp_path)
        store.keep("call", Record(path="/f", existed=True, sha256_before=digest(secret)), secret)
        assert all(b"correct-horse" not in path.read_bytes() for path in tmp_path.iterdir())
        assert store.find("call", 0)[1] == secret
        (tmp_path / "call.sealed").rename(tmp_path / "other.sealed")
        store.keep("other2", Record(path="/f", existed=True), b"x")
        (tmp_path / "other.sealed").rename(tmp_path / "call.sealed")
        assert store.find("call", 0)[1] == secret
        (tmp_path / "undo.key").unlink()
        with pytest.raises(NotFound):
            store.find("call", 0)

    def test_what_an_earlier_version_kept_is_still_given_back(self, tmp_path: Path) -> None:
        store = UndoStore(tmp_path)
        store.keep("call", Record(path="/f", existed=True, sha256_before=digest(b"old")), b"old")
        (tmp_path / "call.sealed").unlink()
        (tmp_path / "call.data").write_bytes(b"old")
        assert store.find("call", 0)[1] == b"old"

    def test_damaged_content_is_not_given_back(self, tmp_path: Path) -> None:
        store = UndoStore(tmp_path)
        store.keep("call", Record(path="/f", existed=True, sha256_before="0" * 64), b"x")
        with pytest.raises(StorageError, match="damaged"):
            store.find("call", 0)
