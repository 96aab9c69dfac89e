"""What a change of a file would do, and that an approved one refuses when the file is another by then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import Conflict, InvalidArgument, NotFound, Refused
from lightagentd.tool import Preview
from lightagentd.toolkit.files import preview as previews

from .conftest import AskPreview, Call, CallContext, is_root

pytestmark = pytest.mark.usefixtures("nothing_left")
CHANGES: dict[str, dict[str, Any]] = {
    "write": {"content": "new\n"},
    "edit": {"old": "one", "new": "two"},
    "delete": {},
}
each_change = pytest.mark.parametrize("action", CHANGES)


async def asked(preview: AskPreview, action: str, path: Path, **arguments: Any) -> Preview:
    found = await preview("file", action, path=str(path), **{**CHANGES[action], **arguments})
    assert found is not None
    return found


async def test_a_write_shows_the_diff_that_the_call_then_gives(
    preview: AskPreview, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("old\nsame\n")
    shown = await asked(preview, "write", tmp_path / "f", content="new\nsame\n")
    assert "-old\n+new\n same\n" in shown.text
    result = await call("file", "write", path=f"{tmp_path}/f", content="new\nsame\n")
    assert shown.text == result.output


async def test_a_preview_changes_nothing(preview: AskPreview, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n")
    before = (tmp_path / "f").stat()
    for action in CHANGES:
        await asked(preview, action, tmp_path / "f")
    after = (tmp_path / "f").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


async def test_a_new_file_and_a_new_mode_are_said(preview: AskPreview, tmp_path: Path) -> None:
    shown = await asked(preview, "write", tmp_path / "f", mode="0600")
    assert shown.text.startswith("--- /dev/null\n")
    assert "Its mode becomes 0600." in shown.text
    assert shown.expected == {"kind": "nothing"}


async def test_an_edit_that_cannot_work_fails_before_anybody_is_asked(
    preview: AskPreview, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("one one\n")
    with pytest.raises(InvalidArgument, match="2 times"):
        await asked(preview, "edit", tmp_path / "f")
    with pytest.raises(NotFound):
        await asked(preview, "edit", tmp_path / "absent")


async def test_a_link_is_refused_before_anybody_is_asked(preview: AskPreview, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("one\n")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(Refused, match="symbolic link"):
        await asked(preview, "write", tmp_path / "link")


async def test_a_link_can_be_deleted_and_is_named_as_one(preview: AskPreview, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    shown = await asked(preview, "delete", tmp_path / "link")
    assert "a link of" in shown.text
    assert shown.expected["kind"] == "link"


@each_change
async def test_an_approved_change_runs_while_the_file_is_the_same(
    preview: AskPreview, call: Call, context: CallContext, tmp_path: Path, action: str
) -> None:
    (tmp_path / "f").write_text("one\n")
    context.expected = (await asked(preview, action, tmp_path / "f")).expected
    assert context.expected
    await call("file", action, path=f"{tmp_path}/f", **CHANGES[action])
    assert not (tmp_path / "f").exists() or (tmp_path / "f").read_text() in ("new\n", "two\n")


@each_change
@pytest.mark.parametrize("meanwhile", ["content", "mode", "gone", "link"])
async def test_a_change_is_refused_when_the_file_is_another_by_then(
    preview: AskPreview, call: Call, context: CallContext, tmp_path: Path, action: str, meanwhile: str
) -> None:
    path = tmp_path / "f"
    path.write_text("one\n")
    context.expected = (await asked(preview, action, path)).expected
    if meanwhile == "content":
        path.write_text("one more\n")
    elif meanwhile == "mode":
        path.chmod(0o4755)
    else:
        path.unlink()
    if meanwhile == "link":
        (tmp_path / "other").write_text("one\n")
        path.symlink_to("other")
    before = {entry.name: entry.lstat().st_mtime_ns for entry in tmp_path.iterdir()}
    with pytest.raises((Conflict, Refused)) as caught:
        await call("file", action, path=str(path), **CHANGES[action])
    if meanwhile != "link":
        assert "changed since it was approved" in caught.value.message
    assert {entry.name: entry.lstat().st_mtime_ns for entry in tmp_path.iterdir()} == before


async def test_a_write_of_a_new_file_is_refused_when_there_is_one_by_then(
    preview: AskPreview, call: Call, context: CallContext, tmp_path: Path
) -> None:
    context.expected = (await asked(preview, "write", tmp_path / "f")).expected
    (tmp_path / "f").write_text("somebody's\n")
    with pytest.raises(Conflict, match="changed since it was approved"):
        await call("file", "write", path=f"{tmp_path}/f", content="new\n")
    assert (tmp_path / "f").read_text() == "somebody's\n"


async def test_a_large_file_is_known_by_its_inode(
    preview: AskPreview, call: Call, context: CallContext, tmp_path: Path
) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(20 << 20)
    shown = await asked(preview, "delete", tmp_path / "f")
    assert set(shown.expected) == {"kind", "inode", "size_bytes", "mtime_ns"}
    context.expected = shown.expected
    os.utime(tmp_path / "f", (1, 1))
    with pytest.raises(Conflict):
        await call("file", "delete", path=f"{tmp_path}/f")
    context.expected = (await asked(preview, "delete", tmp_path / "f")).expected
    await call("file", "delete", path=f"{tmp_path}/f")


@pytest.mark.skipif(is_root(), reason="root reads every file")
@each_change
async def test_a_file_that_cannot_be_read_is_said_to_be_unseen(
    preview: AskPreview, tmp_path: Path, action: str
) -> None:
    (tmp_path / "f").write_text("one\n")
    (tmp_path / "f").chmod(0)
    shown = await asked(preview, action, tmp_path / "f")
    assert "may not be read with the effect observe" in shown.text
    assert set(shown.expected) == {"inode", "size_bytes", "mtime_ns"}


async def test_what_a_sandbox_lets_through_only_in_part_is_said_to_be_unseen(preview: AskPreview) -> None:
    shown = await asked(preview, "write", Path("/run/there-is-no-such-folder/f"))
    assert "is hidden from the effect observe" in shown.text
    assert "+new\n" in shown.text
    assert shown.expected == {}


async def test_an_empty_cover_is_recognized(
    preview: AskPreview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = os.statvfs(tmp_path)
    monkeypatch.setattr(previews, "COVER_BYTES", sizes.f_blocks * sizes.f_frsize)
    shown = await asked(preview, "write", tmp_path / "f")
    assert "is hidden" in shown.text
    assert shown.expected == {}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for previous content."""
    monkeypatch.setenv("LIGHTAGENT_UNDO", str(tmp_path / "undo"))
    return tmp_path / "undo"


async def of_undo(preview: AskPreview, context: CallContext) -> Preview:
    """The preview of taking back the call that was made with this context, which gets another id."""
    made, context.call_id = context.call_id, "call_second"
    found = await preview("file", "undo", call_id=made)
    assert found is not None
    return found


@each_change
@pytest.mark.usefixtures("store")
async def test_an_undo_names_path_and_action_and_shows_the_diff_that_it_then_gives(
    preview: AskPreview, call: Call, context: CallContext, tmp_path: Path, action: str
) -> None:
    (tmp_path / "f").write_text("one\n")
    await call("file", action, path=f"{tmp_path}/f", **CHANGES[action])
    shown = await of_undo(preview, context)
    assert f"the {action} of {tmp_path}/f by the call call_0123456789abcdef" in shown.text
    assert "+one\n" in shown.text
    context.expected = shown.expected
    result = await call("file", "undo", call_id="call_0123456789abcdef")
    assert result.output in shown.text
    assert (tmp_path / "f").read_text() == "one\n"


@pytest.mark.usefixtures("store")
async def test_an_undo_says_which_mode_and_which_link_come_back(
    preview: AskPreview, call: Call, context: CallContext, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("one\n")
    (tmp_path / "f").chmod(0o4755)
    await call("file", "write", path=f"{tmp_path}/f", content="two\n", mode="0600")
    assert "Its mode becomes 4755" in (await of_undo(preview, context)).text
    (tmp_path / "link").symlink_to("target")
    await call("file", "delete", path=f"{tmp_path}/link")
    assert "a symbolic link to 'target' again" in (await of_undo(preview, context)).text


@pytest.mark.usefixtures("store")
async def test_an_undo_of_what_changed_since_fails_before_anybody_is_asked(
    preview: AskPreview, call: Call, context: CallContext, tmp_path: Path
) -> None:
    await call("file", "write", path=f"{tmp_path}/f", content="mine\n")
    (tmp_path / "f").write_text("theirs\n")
    with pytest.raises(Conflict, match="changed since that call"):
        await of_undo(preview, context)


@pytest.mark.usefixtures("store")
async def test_an_approved_undo_is_refused_when_the_file_is_another_by_then(
    preview: AskPreview, call: Call, context: CallContext, tmp_path: Path
) -> None:
    await call("file", "write", path=f"{tmp_path}/f", content="mine\n")
    context.expected = (await of_undo(preview, context)).expected
    (tmp_path / "f").chmod(0o4755)
    with pytest.raises(Conflict, match="changed since it was approved"):
        await call("file", "undo", call_id="call_0123456789abcdef")
    assert (tmp_path / "f").read_text() == "mine\n"


async def test_reading_has_no_preview_and_undo_names_its_call(preview: AskPreview) -> None:
    assert await preview("file", "read", path="/etc/hostname") is None
    shown = await preview("file", "undo", call_id="call_0123456789abcdef")
    assert shown is not None
    assert "call_0123456789abcdef" in shown.text


async def test_settings_of_the_kernel_are_refused_at_once(preview: AskPreview) -> None:
    with pytest.raises(InvalidArgument, match="setting of the kernel"):
        await asked(preview, "write", Path("/proc/sys/kernel/hostname"))
