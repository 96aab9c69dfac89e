"""Taking back what a call changed in a file, by the real worker for change; what is said of other calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lightagentd import errors
from lightagentd.control.authz import Caller
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, Scripted, scripted
from tests.conftest import write
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import say

STRANGER = Caller(uid=12345, gid=OUTSIDERS_GID, pid=1)
FRONT = "effects: [observe, reach, change]"
RULE = '[[rule]]\nname = "files"\ndecision = "allow"\ntool = "file"\n'
TOML = '[worker]\nchange_agents = ["test"]\n'


@dataclass(frozen=True, kw_only=True)
class DaemonUser(Caller):
    """The daemon's own user where that is not root, which it is when root runs the tests."""

    @property
    def is_administrator(self) -> bool:
        return True


ADMINISTRATOR = DaemonUser(uid=990, gid=990, pid=1)


@pytest.fixture
async def rig(paths: Paths) -> AsyncIterator[Scripted]:
    async with scripted(paths, [say("hello")], front=FRONT, toml=TOML) as running:
        yield running


@pytest.fixture
async def open_rig(paths: Paths) -> AsyncIterator[Scripted]:
    """A rule lets everybody change files, so that nobody is asked."""
    write(paths.config / "policy.d" / "10-files.toml", RULE)
    async with scripted(paths, [say("hello")], front=FRONT, toml=TOML) as running:
        yield running


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one\n")
    path.chmod(0o640)
    return path


async def last(events: Any) -> Any:
    return [event async for event in events][-1]


async def change(rig: Scripted, action: str, *, caller: Caller = ME, **args: Any) -> str:
    """Make a call of the tool file, and give its id."""
    called = rig.daemon.service.tools.call(caller, agent="test", tool="file", action=action, args=args)
    events = [event async for event in called]
    assert events[-1]["type"] == "done", events[-1]
    return str(next(event["call_id"] for event in events if event["type"] == "tool_call"))


async def undo(rig: Scripted, call_id: str = "", agent: str = "", caller: Caller = ME) -> Any:
    return await last(rig.daemon.service.undo.run(caller, call_id, agent))


async def listed(rig: Scripted) -> list[tuple[str, bool]]:
    """What can be taken back, newest first, and whether it still stands."""
    found = await rig.daemon.service.undo.listed(ME, "")
    return [(one.action, not one.undone_by) for one in found]


async def test_a_write_is_taken_back_with_content_and_mode(rig: Scripted, file: Path) -> None:
    await change(rig, "write", path=str(file), content="two\n", mode="0600")
    done = await undo(rig)
    assert done["type"] == "done"
    assert "+one" in done["text"]
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("one\n", 0o640)


async def test_a_new_file_goes_and_a_deleted_one_comes_back(rig: Scripted, file: Path) -> None:
    made = file.with_name("made")
    await change(rig, "write", path=str(made), content="x")
    await change(rig, "delete", path=str(file))
    assert made.exists()
    assert not file.exists()
    assert (await undo(rig))["type"] == "done"
    assert (await undo(rig))["type"] == "done"
    assert (made.exists(), file.read_text()) == (False, "one\n")


async def test_again_and_again_it_goes_further_back(rig: Scripted, file: Path) -> None:
    for text in ("two\n", "three\n", "four\n"):
        await change(rig, "write", path=str(file), content=text)
    for text in ("three\n", "two\n", "one\n"):
        assert (await undo(rig))["type"] == "done"
        assert file.read_text() == text
    with pytest.raises(errors.NotFound, match="no file"):
        await undo(rig)


async def test_an_undo_is_taken_back_by_its_own_id(rig: Scripted, file: Path) -> None:
    call_id = await change(rig, "edit", path=str(file), old="one", new="two")
    await undo(rig, call_id)
    taken_back = (await rig.daemon.service.undo.listed(ME, ""))[0]
    assert await listed(rig) == [("undo", True), ("edit", False)]
    assert (await undo(rig, taken_back.call_id))["type"] == "done"
    assert file.read_text() == "two\n"
    assert await listed(rig) == [("undo", True), ("undo", False), ("edit", True)]
    assert (await undo(rig, call_id))["type"] == "done"
    assert file.read_text() == "one\n"


async def test_what_was_taken_back_is_not_taken_back_twice(rig: Scripted, file: Path) -> None:
    call_id = await change(rig, "write", path=str(file), content="two\n")
    await undo(rig, call_id)
    with pytest.raises(errors.Conflict, match="already") as caught:
        await undo(rig, call_id)
    assert "lactl undo call_" in caught.value.suggestion


async def refused(rig: Scripted, call_id: str) -> str:
    """What is said when an undo is refused by the tool."""
    ended = await undo(rig, call_id)
    assert ended["type"] == "error", ended
    return f"{ended['code']}: {ended['message']}"


async def test_a_file_that_changed_since_is_left(rig: Scripted, file: Path) -> None:
    call_id = await change(rig, "write", path=str(file), content="two\n")
    file.write_text("by hand\n")
    assert "file of 8 bytes" in await refused(rig, call_id)
    assert file.read_text() == "by hand\n"


async def test_a_file_that_is_gone_stays_gone(rig: Scripted, file: Path) -> None:
    call_id = await change(rig, "write", path=str(file), content="two\n")
    file.unlink()
    assert "nothing is there now" in await refused(rig, call_id)
    assert not file.exists()


async def test_a_link_in_its_place_is_not_followed(rig: Scripted, file: Path) -> None:
    call_id = await change(rig, "write", path=str(file), content="two\n")
    target = file.with_name("target")
    target.write_text("two\n")
    file.unlink()
    file.symlink_to(target)
    assert "symbolic link" in await refused(rig, call_id)
    assert (file.is_symlink(), target.read_text()) == (True, "two\n")


async def test_a_folder_that_is_gone_or_a_link_refuses(rig: Scripted, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    call_id = await change(rig, "write", path=str(folder / "file"), content="two\n")
    moved = folder.rename(tmp_path / "moved")
    assert "does not exist" in await refused(rig, call_id)
    folder.symlink_to(moved)
    assert "symbolic link" in await refused(rig, call_id)
    assert (moved / "file").read_text() == "two\n"


async def test_a_shell_command_is_named_and_cannot_be_taken_back(rig: Scripted, file: Path) -> None:
    args = {"command": f"rm {file}", "effect": "change"}
    called = rig.daemon.service.tools.call(ME, agent="test", tool="bash", action="exec", args=args)
    events = [event async for event in called]
    call_id = next(event["call_id"] for event in events if event["type"] == "tool_call")
    with pytest.raises(errors.Conflict, match=f"bash.exec .*rm {file}"):
        await undo(rig, call_id)


async def test_a_call_that_only_looked_changed_nothing(rig: Scripted, file: Path) -> None:
    called = rig.daemon.service.tools.call(
        ME, agent="test", tool="file", action="stat", args={"path": str(file)}
    )
    events = [event async for event in called]
    call_id = next(event["call_id"] for event in events if event["type"] == "tool_call")
    with pytest.raises(errors.Conflict, match="observe"):
        await undo(rig, call_id)


async def test_a_started_unit_has_an_opposite(rig: Scripted) -> None:
    called = rig.daemon.service.tools.call(
        ME, agent="test", tool="systemd", action="stop", args={"unit": "lightagent-none.service"}
    )
    events = [event async for event in called]
    call_id = next(event["call_id"] for event in events if event["type"] == "tool_call")
    with pytest.raises(errors.Conflict) as caught:
        await undo(rig, call_id)
    assert "systemd.start unit=lightagent-none.service" in caught.value.suggestion


async def test_a_call_that_nobody_made_is_not_found(rig: Scripted) -> None:
    for call_id in ("call_0", "../../etc", "x" * 10_000, "\0"):
        with pytest.raises(errors.NotFound):
            await undo(rig, call_id)


async def test_a_write_of_the_same_content_has_nothing_to_take_back(rig: Scripted, file: Path) -> None:
    call_id = await change(rig, "write", path=str(file), content="one\n")
    with pytest.raises(errors.Conflict, match="Nothing is kept"):
        await undo(rig, call_id)
    assert await listed(rig) == []


async def test_another_user_sees_and_takes_back_nothing(rig: Scripted, file: Path) -> None:
    call_id = await change(rig, "write", path=str(file), content="two\n")
    assert await rig.daemon.service.undo.listed(STRANGER, "") == []
    for wanted in (call_id, ""):
        with pytest.raises(errors.NotFound):
            await undo(rig, wanted, caller=STRANGER)
    assert file.read_text() == "two\n"


async def test_another_users_call_of_the_action_itself_finds_nothing(open_rig: Scripted, file: Path) -> None:
    call_id = await change(open_rig, "write", path=str(file), content="two\n")
    args = {"call_id": call_id}
    ended = await last(
        open_rig.daemon.service.tools.call(STRANGER, agent="test", tool="file", action="undo", args=args)
    )
    assert (ended["type"], ended["code"]) == ("error", "not_found")
    assert file.read_text() == "two\n"


async def test_a_user_takes_back_his_own(open_rig: Scripted, file: Path) -> None:
    await change(open_rig, "write", caller=STRANGER, path=str(file), content="two\n")
    assert (await undo(open_rig, caller=STRANGER))["type"] == "done"
    assert file.read_text() == "one\n"


async def test_an_administrator_who_is_not_root_takes_back_anybodys_in_his_own_name(
    open_rig: Scripted, file: Path
) -> None:
    call_id = await change(open_rig, "write", caller=STRANGER, path=str(file), content="two\n")
    assert (await undo(open_rig, call_id, caller=ADMINISTRATOR))["type"] == "done"
    assert file.read_text() == "one\n"
    taken_back = (await open_rig.daemon.service.undo.listed(ADMINISTRATOR, ""))[0]
    assert (taken_back.action, taken_back.owner) == ("undo", ADMINISTRATOR.uid)
    assert (await undo(open_rig, taken_back.call_id, caller=ADMINISTRATOR))["type"] == "done"
    assert file.read_text() == "two\n"


async def test_one_agents_changes_can_be_named(rig: Scripted, file: Path) -> None:
    await change(rig, "write", path=str(file), content="two\n")
    with pytest.raises(errors.NotFound, match="ops"):
        await undo(rig, agent="ops")
    assert (await undo(rig, agent="test"))["type"] == "done"


async def test_an_undo_is_a_call_with_intent_and_result_and_nothing_during_a_stop(
    rig: Scripted, file: Path
) -> None:
    call_id = await change(rig, "write", path=str(file), content="two\n")
    await rig.daemon.service.safety.panic(ME, "")
    with pytest.raises(errors.Panicked):
        await undo(rig, call_id)
    await rig.daemon.service.safety.end_panic(ME)
    await undo(rig, call_id)
    intents = [event.data for event in rig.stored(topic="agent.tool_dispatch") if event.type == "intent"]
    assert intents[-1] is not None
    assert (intents[-1]["action"], intents[-1]["effect"]) == ("undo", "change")
