"""How tool calls ended, and what tools say by themselves.

The daemon makes the end of a call. All else that has the source `tool` is what a tool says: its own topics
are `tool.<name>` and those below it, and of its data only what this module declares was looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field

from lightagentd.events.model import FROM_TOOL, EventContext, NewEvent, current_context
from lightagentd.events.types.event_type import ANY, Kind, Object, Objects, Text

INVOCATION = "invocation"
"""The type of the event with which a call ended; recovery and undo go by it."""
WATCHES, CHANGES = "tool.inotify", "tool.inotify.event"
EMITTED_TOPIC = re.compile(r"tool\.(?!inotify(?:\.|$))[a-z0-9_]+(\.[a-z0-9_]+)*")
"""The topics that tools are free to use; those of watches are declared."""


class CallEnded(Kind, topic=f"tool.{ANY}", type=INVOCATION, source="worker"):
    """A tool call ended; the topic is `tool.<name>`."""

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

    @property
    def event_topic(self) -> str:
        return f"tool.{self.tool}"


class Emitted(Kind, topic=f"tool.{ANY}", type=ANY, source=FROM_TOOL):
    """What a tool emitted, with data as it likes, in a call or (a watcher) outside of one."""

    model_config = ConfigDict(extra="allow")

    call_id: Text = ""
    """The call that emitted it; the daemon puts it in."""


def emitted(
    topic: str, event_type: str, data: Mapping[str, Any], *, context: EventContext | None = None
) -> NewEvent:
    """An event of a tool's own. Raises ValueError for what is no topic."""
    return NewEvent(
        topic=topic, type=event_type, data=data, source=FROM_TOOL, context=context or current_context()
    )


class WatchStarted(Kind, topic=WATCHES, type="watch_started", source=FROM_TOOL):
    """A watch stands. Watch, session and owner are as the daemon knows them, all else as the watcher says."""

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


class WatchStopped(Kind, topic=WATCHES, type="watch_stopped", source=FROM_TOOL):
    """A watch is no more."""

    path: Text
    reason: Text
    watch: Text
    session: Text
    owner: int


class WatchGap(Kind, topic=WATCHES, type="gap", source=FROM_TOOL):
    """For some time nobody looked; the files that changed meanwhile are told of as far as they were found."""

    path: Text
    why: Text
    from_us: int
    to_us: int
    found: int
    not_known: Text
    watch: Text
    session: Text
    owner: int


class FilesChanged(Kind, topic=CHANGES, type="fs_event", source=FROM_TOOL):
    """What a watch saw."""

    model_config = ConfigDict(extra="allow")

    watch: Text
    session: Text
    owner: int
    path: Text
    whole: bool
    changes: Objects
    summary: Object = Field(default_factory=dict)
    """Counts by kind and by folder of what is not in `changes`, because it was too much."""


class ChangesLost(Kind, topic=CHANGES, type="overflow", source=FROM_TOOL):
    """Changes, or events about them, were lost; where that concerns one watch it is named."""

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
