"""How tool calls ended, and what tools say by themselves.

The daemon makes the end of a call. All else that has the source `tool` is what a tool says: its own topics
are `tool.<name>` and those below it, and of its data only what this module declares was looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field

from lightagentd.events.model import FROM_TOOL, Event, EventContext, NewEvent, current_context
from lightagentd.events.types.event_type import ANY, WARNING, AboutCall, EventType, Object, Objects, Text

INVOCATION = "invocation"
"""The type of the event with which a call ended; recovery and undo go by it."""
WATCHES, CHANGES = "tool.inotify", "tool.inotify.event"
EMITTED_TOPIC = re.compile(r"tool\.(?!inotify(?:\.|$))[a-z0-9_]+(\.[a-z0-9_]+)*")
"""The topics that tools are free to use; those of watches are declared."""


class CallEnded(AboutCall, topic=f"tool.{ANY}", type=INVOCATION, source="worker"):
    """A tool call ended; the topic is `tool.<name>`."""

    catalog = """@TOOL@.@ACTION@ ended with: @RESULT@
    The call that the agent @AGENT@ made with the effect '@EFFECT@' took @DURATION_MS@ ms. The result is 'ok'
    or the code of an error, which 'lactl help exit-codes' explains. The output is in the history alone.
    > The whole turn: lactl trace show @TRACE_ID@. What a call changed in files can be taken back: lactl
    undo --list"""
    call_id: Text
    tool: Text
    action: Text
    effect: Text
    result: Text
    """`ok`, or the code of the error."""
    duration_ms: int
    output_chars: int
    """How much of its output the model got."""
    taints: bool
    """Whether its output counts as text from outside."""
    metadata: Object
    started_us: int = 0
    """When it began, in microseconds UTC. The event of a call that ran beside others may be stored later than
    the call ended; absent where the daemon was away when it did."""

    @property
    def event_topic(self) -> str:
        return f"tool.{self.tool}"

    @classmethod
    def sentence(cls, event: Event) -> str:
        data = event.data or {}
        if "tool" not in data or "action" not in data:
            return super().sentence(event)
        return f"{cls.subject(data)} {data.get('result', '')} in {data.get('duration_ms', '?')} ms"

    @classmethod
    def priority_of(cls, event: Event) -> str:
        return cls.priority if (event.data or {}).get("result") == "ok" else WARNING


class Emitted(EventType, topic=f"tool.{ANY}", type=ANY, source=FROM_TOOL):
    """What a tool emitted, with data as it likes, in a call or (a watcher) outside of one."""

    model_config = ConfigDict(extra="allow")

    call_id: Text = ""
    """The call that emitted it; the daemon puts it in."""


def emitted(
    topic: str, event_type: str, data: Mapping[str, Any], *, context: EventContext | None = None
) -> NewEvent:
    """An event of a tool's own. Raises ValueError for an invalid topic."""
    return NewEvent(
        topic=topic, type=event_type, data=data, source=FROM_TOOL, context=context or current_context()
    )


class WatchStarted(EventType, topic=WATCHES, type="watch_started", source=FROM_TOOL):
    """A watch stands. Watch, session and owner are as the daemon knows them, all else as the watcher says."""

    catalog = """@AGENT@ watches a file or folder
    Changes there are recorded from now on, also when nobody asks for them, as events of the topic
    tool.inotify.event. The watch outlasts restarts of the daemon and of its worker.
    > To see it: lactl events --since @SEQ@. It ends with a call of inotify.stop or with its session."""
    model_config = ConfigDict(extra="allow")

    watch: Text
    session: Text
    owner: int
    path: Text
    whole: bool
    """Whether all folders are watched."""
    call_id: Text
    args: Object
    root: Text
    """The watched folder."""
    only: Text
    """The one name in it that counts; empty for all."""
    again: bool
    """Whether it was made again after a loss."""


class WatchStopped(EventType, topic=WATCHES, type="watch_stopped", source=FROM_TOOL):
    """A watch is no more."""

    catalog = """A watch of @AGENT@ ended
    Nobody is told of changes there any more. The history says why: it was stopped, its session is gone, what
    it watched is gone, or the agent may not watch it any more.
    > To see it: lactl events --since @SEQ@"""
    path: Text
    reason: Text
    watch: Text
    session: Text
    owner: int


class WatchGap(EventType, topic=WATCHES, type="gap", source=FROM_TOOL):
    """For some time nobody looked; the files that changed meanwhile are told of as far as they were found."""

    priority = WARNING
    catalog = """A watch of @AGENT@ could not see for a while
    The worker that held the watch had ended, or the daemon did not run. The watch was made again, and what is
    different now was looked for; what came and went in between is not known.
    > From when to when: lactl events --since @SEQ@. When this happens often, look for why workers end:
    journalctl -u 'lightagent-observe@*'"""
    path: Text
    why: Text
    from_us: int
    to_us: int
    found: int
    not_known: Text
    watch: Text
    session: Text
    owner: int


class FilesChanged(EventType, topic=CHANGES, type="fs_event", source=FROM_TOOL):
    """What a watch saw."""

    catalog = """Files changed in what @AGENT@ watches
    One entry stands for many changes when they come fast. Paths are in the history alone.
    > To see them: lactl events --since @SEQ@ --topic tool.inotify.event"""
    model_config = ConfigDict(extra="allow")

    watch: Text
    session: Text
    owner: int
    path: Text
    whole: bool
    changes: Objects
    summary: Object = Field(default_factory=dict)
    """Counts by kind and by folder of what is not in `changes`, because it was too much."""


class ChangesLost(EventType, topic=CHANGES, type="overflow", source=FROM_TOOL):
    """Changes, or events about them, were lost; where that concerns one watch it is named."""

    priority = WARNING
    catalog = """A watch of @AGENT@ lost changes
    Changes came faster than the kernel's queue, the worker's buffer or the history took them. The event says
    where and, as far as that is known, how many. After an overflow of the kernel's queue the folder is
    compared with what was known, and differences follow as events.
    > Watch a smaller folder, or leave out what changes all the time (exclude=). The kernel's queue is as
    long as the sysctl fs.inotify.max_queued_events says."""
    model_config = ConfigDict(extra="allow")

    watch: Text = ""
    session: Text = ""
    owner: int = 0
    path: Text = ""
    whole: bool = False
    where: Text = ""
    """`kernel`, `buffer`, `worker` or `history`."""
    lost: int | Text = 0
    """How many; `unknown` where the kernel does not say."""
