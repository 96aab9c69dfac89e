"""The tool inotify: what a call answers, whose watch it is, and what it publishes by itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lightagentd.errors import InvalidArgument, LightagentError, LimitExceeded, NotFound, Refused
from lightagentd.tool import Place, Result
from lightagentd.toolkit.watching import engine as engine_module
from lightagentd.toolkit.watching.selection import OWN_FOLDERS
from lightagentd.worker.loader import LoadedTool
from tests.tools.conftest import CallContext, Load


@dataclass
class Watcher:
    """The tool, and what it published."""

    loaded: LoadedTool
    context: CallContext
    published: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, topic: str, event_type: str, data: dict[str, Any]) -> None:
        self.published.append((topic, event_type, data))
        self.news.set()

    async def call(self, action: str, /, context: CallContext | None = None, **args: Any) -> Result:
        found = self.loaded.actions[action]
        return await found.method(context or self.context, found.args_model.model_validate(args))

    async def watch(self, path: Path, context: CallContext | None = None, **args: Any) -> str:
        done = await self.call("watch", context, path=str(path), **args)
        return str(done.metadata["watch"])

    async def changes(self, watch: str, wanted: int, **args: Any) -> list[dict[str, Any]]:
        """Polls until there are so many records."""
        found: list[dict[str, Any]] = []
        while len(found) < wanted:
            async with asyncio.timeout(20):
                page = await self.call("poll", watch=watch, wait_s=20, **args)
            found += page.metadata["changes"]
        return found

    async def heard(self, event_type: str) -> dict[str, Any]:
        """The data of the first event of a type, once it was published."""
        async with asyncio.timeout(20):
            while True:
                self.news.clear()
                for _, kind, data in self.published:
                    if kind == event_type:
                        return data
                await self.news.wait()


@pytest.fixture
async def tool(load: Load, context: CallContext) -> AsyncIterator[Watcher]:
    watcher = Watcher(load("inotify"), context)
    assert watcher.loaded.tool is not None
    watcher.loaded.tool.publish = watcher.publish
    yield watcher
    await watcher.loaded.tool.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "watched"
    made.mkdir()
    return made


class TestWatching:
    async def test_what_happens_is_polled(self, tool: Watcher, folder: Path) -> None:
        done = await tool.call("watch", path=str(folder))
        assert done.metadata["whole"]
        watch = done.metadata["watch"]
        assert watch in done.output
        (folder / "file").write_text("x")
        page = await tool.call("poll", watch=watch, wait_s=20)
        assert page.metadata["changes"][0]["events"] == ["create", "modify", "close_write"]
        assert page.metadata["changes"][0]["path"] == str(folder / "file")
        assert f"create,modify,close_write {folder / 'file'}" in page.output
        assert page.metadata["cursor"] in page.output

    async def test_a_poll_without_news_answers_at_once(self, tool: Watcher, folder: Path) -> None:
        page = await tool.call("poll", watch=await tool.watch(folder))
        assert page.metadata["changes"] == []
        assert "Nothing happened." in page.output

    async def test_a_poll_waits_no_longer_than_asked(self, tool: Watcher, folder: Path) -> None:
        page = await tool.call("poll", watch=await tool.watch(folder), wait_s=0.05)
        assert page.metadata["changes"] == []

    async def test_a_poll_that_is_cancelled_takes_nothing(self, tool: Watcher, folder: Path) -> None:
        watch = await tool.watch(folder)
        polling = asyncio.create_task(tool.call("poll", watch=watch, wait_s=60))
        await asyncio.sleep(0)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        (folder / "file").touch()
        assert len(await tool.changes(watch, 1)) == 1

    async def test_stop_wakes_a_poll_that_waits(self, tool: Watcher, folder: Path) -> None:
        watch = await tool.watch(folder)
        polling = asyncio.create_task(tool.call("poll", watch=watch, wait_s=60))
        await asyncio.sleep(0)
        await tool.call("stop", watch=watch)
        page = await asyncio.wait_for(polling, 20)
        assert not page.metadata["running"]

    async def test_pages_and_cursors(self, tool: Watcher, folder: Path) -> None:
        watch = await tool.watch(folder, events=["create"])
        for number in range(5):
            (folder / f"{number}").touch()
        await tool.changes(watch, 5)
        first = await tool.call("poll", watch=watch, since=await _start(tool, watch), limit=2)
        assert [Path(one["path"]).name for one in first.metadata["changes"]] == ["0", "1"]
        assert first.metadata["more"] == 3
        assert "3 more wait" in first.output
        second = await tool.call("poll", watch=watch, since=first.metadata["cursor"])
        assert [Path(one["path"]).name for one in second.metadata["changes"]] == ["2", "3", "4"]

    async def test_a_bad_cursor_is_refused(self, tool: Watcher, folder: Path) -> None:
        watch = await tool.watch(folder)
        with pytest.raises(InvalidArgument) as caught:
            await tool.call("poll", watch=watch, since="yesterday")
        assert caught.value.field == "since"

    async def test_the_buffer_is_bounded_and_says_what_it_lost(self, tool: Watcher, folder: Path) -> None:
        watch = await tool.watch(folder, buffer=100, events=["create"])
        for number in range(250):
            (folder / f"{number}").touch()
        event = await tool.heard("overflow")
        assert event["where"] == "buffer"
        assert event["lost"] > 0
        while True:
            state = (await tool.call("list")).metadata["watches"][0]
            if state["unread"] == 250:
                break
            await asyncio.sleep(0.01)
        page = await tool.call("poll", watch=watch, limit=500)
        assert page.metadata["lost"] == 150
        assert len(page.metadata["changes"]) == 100
        assert "LOST: 150" in page.output

    async def test_one_file(self, tool: Watcher, folder: Path) -> None:
        (folder / "conf").write_text("1")
        watch = await tool.watch(folder / "conf", events=["move", "delete"])
        (folder / "other").touch()
        (folder / "other").replace(folder / "conf")
        [change] = await tool.changes(watch, 1)
        assert change["path"] == str(folder / "conf")
        assert change["from"] == str(folder / "other")

    async def test_a_link_to_a_folder_is_resolved_once(self, tool: Watcher, folder: Path) -> None:
        (folder.parent / "link").symlink_to(folder)
        done = await tool.call("watch", path=str(folder.parent / "link"))
        assert done.metadata["path"] == str(folder)

    async def test_a_root_that_goes_is_told_and_waited_for(
        self, tool: Watcher, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine_module, "ROOT_CHECK_S", 0.02)
        watch = await tool.watch(folder, events=["create"])
        folder.rmdir()
        [change] = await tool.changes(watch, 1)
        assert change["events"] == ["root_gone"]
        listed = await tool.call("list")
        assert not listed.metadata["watches"][0]["whole"]
        assert "watched again when it is back" in listed.output
        folder.mkdir()
        (folder / "file").touch()
        kinds = [one["events"] for one in await tool.changes(watch, 2)]
        assert kinds == [["root_back"], ["create"]]

    @pytest.mark.parametrize("path", ["relative", "/nothing/there", "/etc/passwd/x", "/a\0b"])
    async def test_paths_that_cannot_be_watched(self, tool: Watcher, path: str) -> None:
        with pytest.raises(LightagentError):
            await tool.call("watch", path=path)

    @pytest.mark.parametrize("args", [{"events": ["burn"]}, {"events": []}, {"buffer": 10**9}, {"colour": 1}])
    async def test_arguments_that_are_refused(
        self, tool: Watcher, folder: Path, args: dict[str, Any]
    ) -> None:
        with pytest.raises(ValidationError):
            await tool.call("watch", path=str(folder), **args)

    async def test_a_watch_that_reaches_its_limit_says_so(
        self, tool: Watcher, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in "abc":
            (folder / name).mkdir()
        monkeypatch.setattr(
            engine_module.Engine.__init__, "__kwdefaults__", {"folders_limit": 2, "entries_limit": 9}
        )
        done = await tool.call("watch", path=str(folder), recursive=True)
        assert not done.metadata["whole"]
        assert "PARTIAL: 2 folders" in done.output
        assert "not_watched" not in done.metadata
        listed = await tool.call("list")
        assert len(listed.metadata["watches"][0]["not_watched"]) == 2
        assert "at most 2 folders" in listed.output
        page = await tool.call("poll", watch=done.metadata["watch"], wait_s=20)
        assert [one["events"] for one in page.metadata["changes"]] == [["not_watched"]] * 2
        assert "PARTIAL" in page.output


async def _start(tool: Watcher, watch: str) -> str:
    """The cursor of the beginning."""
    page = await tool.call("poll", watch=watch)
    return str(page.metadata["cursor"]).rpartition("-")[0] + "-0"


class TestOwnership:
    @pytest.mark.parametrize(
        "other", [{"owner": 1001}, {"session": "ses_fedcba9876543210"}, {"agent": "other"}]
    )
    async def test_nobody_else_sees_or_stops_a_watch(
        self, tool: Watcher, folder: Path, context: CallContext, other: dict[str, Any]
    ) -> None:
        watch = await tool.watch(folder)
        stranger = replace(context, **other)
        for action in ("poll", "stop"):
            with pytest.raises(NotFound):
                await tool.call(action, stranger, watch=watch)
        assert (await tool.call("list", stranger)).metadata["watches"] == []
        assert (await tool.call("list")).metadata["watches"][0]["watch"] == watch

    async def test_the_number_of_watches_is_bounded(
        self, tool: Watcher, folder: Path, context: CallContext
    ) -> None:
        for _ in range(8):
            watch = await tool.watch(folder)
        with pytest.raises(LimitExceeded, match="session"):
            await tool.watch(folder)
        await tool.call("stop", watch=watch)
        await tool.watch(folder)
        others = [replace(context, session=f"ses_{number}") for number in range(2)]
        for _ in range(4):
            for other in others:
                await tool.watch(folder, other)
        with pytest.raises(LimitExceeded, match="agent"):
            await tool.watch(folder, replace(context, session="ses_3"))

    async def test_stop_ends_it(self, tool: Watcher, folder: Path) -> None:
        watch = await tool.watch(folder)
        assert "Stopped" in (await tool.call("stop", watch=watch)).output
        with pytest.raises(NotFound):
            await tool.call("poll", watch=watch)
        assert (await tool.call("list")).output == "0 watches."

    async def test_a_watch_that_fails_to_begin_leaves_nothing(self, tool: Watcher, folder: Path) -> None:
        with pytest.raises(LightagentError):
            await tool.call("watch", path=str(folder / "nothing"))
        assert tool.published == []
        for _ in range(8):
            await tool.watch(folder)


class TestEvents:
    async def test_a_watch_speaks_by_itself(self, tool: Watcher, folder: Path, context: CallContext) -> None:
        watch = await tool.watch(folder)
        topic, kind, data = tool.published[0]
        assert (topic, kind) == ("tool.inotify", "watch_started")
        assert data["watch"] == watch
        assert data["call_id"] == context.call_id
        assert data["args"]["path"] == str(folder)
        (folder / "file").write_text("x")
        event = await tool.heard("fs_event")
        assert event["watch"] == watch
        assert event["session"] == context.session
        assert event["changes"][0]["path"] == str(folder / "file")
        await tool.call("stop", watch=watch)
        assert (await tool.heard("watch_stopped"))["reason"] == "stopped"

    async def test_what_was_seen_last_is_published_before_the_end(self, tool: Watcher, folder: Path) -> None:
        watch = await tool.watch(folder, events=["create"])
        (folder / "first").touch()
        await tool.heard("fs_event")
        (folder / "second").touch()
        await tool.changes(watch, 2)
        await tool.call("stop", watch=watch)
        told = [
            one["path"] for _, kind, data in tool.published if kind == "fs_event" for one in data["changes"]
        ]
        assert told == [str(folder / "first"), str(folder / "second")]

    async def test_a_storm_is_a_few_events_and_complete(self, tool: Watcher, folder: Path) -> None:
        watch = await tool.watch(folder, events=["create"], buffer=20_000)
        for number in range(5000):
            os.close(os.open(folder / f"{number}", os.O_CREAT | os.O_WRONLY))
        await tool.changes(watch, 5000, limit=500)
        await tool.call("stop", watch=watch)
        events = [data for _, kind, data in tool.published if kind == "fs_event"]
        told = sum(len(one["changes"]) + one.get("summary", {}).get("changes", 0) for one in events)
        assert told == 5000
        assert all(len(one["changes"]) <= 500 for one in events)

    async def test_the_daemons_own_folders_are_silent(
        self, tool: Watcher, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = folder / "state"
        own.mkdir()
        monkeypatch.setenv(OWN_FOLDERS, f"{own}:{folder / 'run'}")
        watch = await tool.watch(folder, recursive=True)
        (own / "data").write_text("x")
        (folder / "run").mkdir()
        (folder / "run" / "socket").touch()
        (folder / "mine").touch()
        assert {one["path"] for one in await tool.changes(watch, 1)} == {str(folder / "mine")}
        for path in (own, own / "data"):
            with pytest.raises(Refused):
                await tool.call("watch", path=str(path))


class TestAgain:
    async def test_a_watch_is_made_again_under_its_id(
        self, tool: Watcher, folder: Path, context: CallContext
    ) -> None:
        again = {"watch": "watch_x", "since_us": 0, "root": str(folder), "only": ""}
        (folder / "file").touch()
        context.expected = {"watch_again": again}
        done = await tool.call("watch", path="/ignored")
        assert done.metadata["watch"] == "watch_x"
        assert done.metadata["fresh"]
        assert done.metadata["found_in_gap"] == 1
        assert tool.published[0][2]["again"]
        done = await tool.call("watch", path="/ignored")
        assert not done.metadata["fresh"]
        page = await tool.call("poll", watch="watch_x", since="123-7", wait_s=20)
        assert page.metadata["made_again"]
        assert [one["events"] for one in page.metadata["changes"]] == [["gap"], ["modify"]]


def test_the_actions_run_in_the_watcher_and_names_from_outside_taint(load: Load) -> None:
    actions = load("inotify").actions
    assert {action.place for action in actions.values()} == {Place.WATCHER}
    assert {name for name, action in actions.items() if action.taints} == {"poll", "list"}
