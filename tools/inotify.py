"""Watches on files and folders, which stay between calls and whose events go to the event bus by themselves.

The engine is `lightagentd.toolkit.watching`; its modules describe which changes are reported. All actions run
in the place WATCHER, a worker that the agent keeps as long as it holds a watch. A watch belongs to the owner
and the session that made it; others cannot see it. When the worker is lost, the daemon makes its watches
again with the same action `watch` and its own data in `ctx.expected` (never a model's); see
`lightagentd.agents.watches`.
"""

import os
import secrets
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lightagentd.errors import LimitExceeded, NotFound, Refused
from lightagentd.text.reason import reason
from lightagentd.tool import Args, Context, InvalidArgument, Place, Result, Tool, ToolError, action
from lightagentd.toolkit.files.search import shown
from lightagentd.toolkit.watching.changes import Page
from lightagentd.toolkit.watching.folders import join
from lightagentd.toolkit.watching.selection import OwnFolders, Selection
from lightagentd.toolkit.watching.watch import TOPIC, Order, Watch

WATCHES_LIMIT = 16
"""Watches of one worker, which are those of one agent; each takes one of fs.inotify.max_user_instances."""
SESSION_LIMIT = 8
WAIT_LIMIT_S = 60.0
OVERTIME_S = 15.0

Kind = Literal[
    "create", "delete", "modify", "close_write", "attrib", "move", "open", "access", "close_nowrite"
]


class WatchArgs(Args):
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="An absolute path. A file is watched by its name: also one that is replaced.",
    )
    recursive: bool = Field(default=False, description="With all folders below, also those made later.")
    events: list[Kind] = Field(
        default=["create", "delete", "modify", "close_write", "attrib", "move"],
        min_length=1,
        max_length=9,
        description="Kinds of events. move covers renames, and what is moved in or out.",
    )
    include: list[str] = Field(
        default=[],
        max_length=20,
        description="Only files that match one of these globs: by name, or with a / by path below.",
    )
    exclude: list[str] = Field(
        default=[],
        max_length=20,
        description="Not what matches one of these globs, nor what is in such a folder.",
    )
    other_filesystems: bool = Field(default=False, description="Go into folders where others are mounted.")
    buffer: int = Field(
        default=5000, ge=100, le=20_000, description="How many records wait for a poll at most."
    )


class PollArgs(Args):
    watch: str = Field(min_length=1, max_length=64, description="The id that watch gave.")
    since: str = Field(
        default="",
        max_length=64,
        description="The cursor of an earlier poll; empty goes on after the last poll.",
    )
    limit: int = Field(default=100, ge=1, le=500, description="How many records are shown.")
    wait_s: float = Field(
        default=0, ge=0, le=WAIT_LIMIT_S, description="Wait so many seconds for the first record."
    )


class StopArgs(Args):
    watch: str = Field(min_length=1, max_length=64, description="The id that watch gave.")


class NoArgs(Args):
    pass


class Inotify(Tool):
    """Watch files and folders: what is created, written, moved and deleted, also between calls."""

    name = "inotify"

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._beginning = 0
        """Watches on their way, which count already."""

    @action(place=Place.WATCHER, timeout_s=60.0, clean="numbers, and what the call names")
    async def watch(self, ctx: Context, args: WatchArgs) -> Result:
        """Begin to watch a file or folder; the watch stays until it is stopped. Read it with poll."""
        again = ctx.expected.get("watch_again")
        if again is not None and again["watch"] in self._watches:
            return Result(output="The watch stands.", metadata={"watch": again["watch"], "fresh": False})
        self._check_room(ctx)
        own = OwnFolders.from_environment()
        order = _order(ctx, args, own)
        self._beginning += 1
        try:
            watch = Watch.of(order, own, self._publish)
            found = await watch.start(since_us=None if again is None else again["since_us"])
        finally:
            self._beginning -= 1
        self._watches[order.id] = watch
        facts = watch.facts() | {"call_id": ctx.call_id, "args": order.args, "root": order.root}
        self._publish(
            TOPIC, "watch_started", facts | {"only": order.selection.only, "again": again is not None}
        )
        state = watch.state()
        folders = state["folders"]
        lines = [
            f"Watching {shown(order.path)} ({folders} folder{'s' if folders != 1 else ''}"
            f"{', and those made later' if order.selection.recursive else ''}) as {order.id}."
        ]
        if state["not_watched_count"]:
            lines.append(
                f"The watch is PARTIAL: {state['not_watched_count']} folders below are not watched;"
                " inotify list says which and why."
            )
        if state["left_out"]:
            lines.append(
                f"{state['left_out']} folders are left out: other file systems, or the daemon's own."
            )
        if order.path.startswith(("/proc/", "/sys/")) or order.path in ("/proc", "/sys"):
            lines.append("The kernel makes no events for what it changes itself in /proc and /sys.")
        del state["not_watched"]  # names from outside; this answer does not taint
        return Result(output="\n".join(lines), metadata=state | {"fresh": True, "found_in_gap": found})

    @action(place=Place.WATCHER, taints=True, timeout_s=WAIT_LIMIT_S + OVERTIME_S)
    async def poll(self, ctx: Context, args: PollArgs) -> Result:
        """Show what a watch saw, oldest first; with wait_s wait for it. Nothing is lost without a word."""
        watch = self._own(ctx, args.watch)
        try:
            page = await watch.poll(args.since, args.limit, min(args.wait_s, max(0.0, ctx.timeout_s - 1)))
        except ValueError as err:
            raise InvalidArgument(
                f"{err}.", field="since", suggestion="Use the cursor that a poll gave, or leave it empty."
            ) from err
        state = watch.state()
        lines = [record.line() for record in page.records]
        lines += _remarks(page, state)
        metadata = watch.facts() | {
            "changes": [record.to_dict() for record in page.records],
            "cursor": page.cursor,
            "lost": page.lost,
            "more": page.more,
            "made_again": page.other_run,
            "running": watch.running,
        }
        return Result(output="\n".join(lines), metadata=metadata)

    @action(place=Place.WATCHER, clean="numbers, and what an earlier call named")
    async def stop(self, ctx: Context, args: StopArgs) -> Result:
        """End a watch."""
        watch = self._own(ctx, args.watch)
        del self._watches[watch.order.id]
        was_running = watch.running
        await watch.stop()
        facts = watch.facts() | {"reason": "stopped"}
        if was_running:
            self._publish(TOPIC, "watch_stopped", facts)
        unread = watch.buffer.newest - watch.buffer.asked
        more = f" {unread} records had not been polled." if unread else ""
        return Result(output=f"Stopped {watch.order.id}.{more}", metadata=facts | {"unread": unread})

    @action(place=Place.WATCHER, taints=True)
    async def list(self, ctx: Context, args: NoArgs) -> Result:
        """List the watches of this session: where, how many folders, what is missing, what is unread."""
        states = [watch.state() for watch in self._watches.values() if _belongs(ctx, watch)]
        lines: list[str] = []
        for state in states:
            lines.append(
                f"{state['watch']}  {state['path']}{'  (recursive)' if state['recursive'] else ''}"
                f"  {state['folders']} folders, {state['unread']} unread, {state['dropped']} dropped,"
                f" {state['overflows']} overflows{'' if state['whole'] else '  PARTIAL'}"
            )
            if state["problem"]:
                lines.append(f"    ended: {state['problem']}")
            elif state["waiting_for_root"]:
                lines.append("    it is gone, and watched again when it is back")
            lines += [f"    not watched: {one['path']}: {one['why']}" for one in state["not_watched"]]
            if (hidden := state["not_watched_count"] - len(state["not_watched"])) > 0:
                lines.append(f"    not watched: {hidden} more")
        lines.append(f"{len(states)} watch{'' if len(states) == 1 else 'es'}.")
        return Result(output="\n".join(lines), metadata={"watches": states})

    async def close(self) -> None:
        while self._watches:
            _, watch = self._watches.popitem()
            await watch.stop()

    def _publish(self, topic: str, event_type: str, data: dict[str, Any]) -> None:
        if self.publish is not None:
            self.publish(topic, event_type, data)

    def _check_room(self, ctx: Context) -> None:
        own = sum(_belongs(ctx, watch) for watch in self._watches.values())
        for what, count, limit in (
            ("session", own + self._beginning, SESSION_LIMIT),
            ("agent", len(self._watches) + self._beginning, WATCHES_LIMIT),
        ):
            if count >= limit:
                raise LimitExceeded(
                    f"This {what} has {count} watches already, of at most {limit}.",
                    suggestion="Stop one; inotify list shows them.",
                )

    def _own(self, ctx: Context, watch_id: str) -> Watch:
        """Raises NotFound, also for a watch of another owner or session."""
        watch = self._watches.get(watch_id)
        if watch is None or not _belongs(ctx, watch):
            raise NotFound(
                f"There is no watch {shown(watch_id)}.",
                suggestion="inotify list shows the watches; make it again if it is not among them.",
                field="watch",
            )
        return watch


def _belongs(ctx: Context, watch: Watch) -> bool:
    order = watch.order
    return (order.agent, order.owner, order.session) == (ctx.agent, ctx.owner, ctx.session)


def _order(ctx: Context, args: WatchArgs, own: OwnFolders) -> Order:
    """What is to be watched. Raises InvalidArgument, NotFound, ToolError."""
    again = ctx.expected.get("watch_again")
    if again is not None:
        root, only = str(again["root"]), str(again["only"])
    else:
        root, only = _root_of(args.path)
    path = join(root, only) if only else root
    if own.is_below(path):
        raise Refused(
            f"{shown(path)} belongs to the daemon, whose own writes are never watched.",
            suggestion="lactl events --follow shows what the daemon does.",
        )
    return Order(
        id=again["watch"] if again is not None else f"watch_{secrets.token_hex(8)}",
        agent=ctx.agent,
        session=ctx.session,
        owner=ctx.owner,
        call_id=ctx.call_id,
        path=path,
        root=root,
        selection=Selection(
            kinds=frozenset(args.events),
            include=tuple(args.include),
            exclude=tuple(args.exclude),
            recursive=args.recursive and not only,
            other_filesystems=args.other_filesystems,
            only=only,
        ),
        buffer=args.buffer,
        args=args.model_dump(mode="json"),
    )


def _root_of(path: str) -> tuple[str, str]:
    """The folder to watch, and the one name in it when that is not the whole folder."""
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"{shown(path)} is not an absolute path.", field="path")
    try:
        if Path(path).is_dir():
            found = os.path.realpath(path, strict=True), ""
        else:
            os.lstat(path)
            above, name = os.path.split(os.path.normpath(path))
            found = os.path.realpath(above, strict=True), name
    except FileNotFoundError as err:
        raise NotFound(
            f"There is no {shown(path)}.",
            suggestion="Watch the folder that it will be made in.",
            field="path",
        ) from err
    except OSError as err:
        raise ToolError(f"{shown(path)} cannot be watched: {reason(err).lower()}.") from err
    try:
        found[0].encode()
    except UnicodeEncodeError as err:
        raise InvalidArgument(
            f"{shown(found[0])} cannot be watched: its name is not UTF-8.",
            field="path",
            suggestion="Watch the folder above it, with recursive.",
        ) from err
    return found


def _remarks(page: Page, state: dict[str, Any]) -> list[str]:
    """What a reader of the records must know."""
    lines = []
    if page.other_run:
        lines.append(
            "The watch was made again after that cursor; what happened in between is only known by time."
        )
    if page.lost:
        lines.append(f"LOST: {page.lost} records fell out of the buffer before they were read.")
    if not page.records:
        lines.append("Nothing happened.")
    if page.more:
        lines.append(f"{page.more} more wait: poll again.")
    if state["problem"]:
        lines.append(f"The watch has ended: {state['problem']}.")
    elif state["waiting_for_root"]:
        lines.append(f"{state['path']} is gone; it is watched again when it is back.")
    elif state["not_watched_count"]:
        lines.append(f"The watch is PARTIAL: {state['not_watched_count']} folders are not watched.")
    lines.append(f"cursor: {page.cursor}")
    return lines
