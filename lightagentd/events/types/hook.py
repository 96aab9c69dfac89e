"""What an administrator's hooks decided."""

from __future__ import annotations

from lightagentd.events.types.event_type import NOTICE, WARNING, Reported, Text


class _Decided(Reported):
    priority = NOTICE
    hook: Text
    """The name of its file, with that of the kit before it if it is one's."""
    phase: Text
    message: Text


class HookReplaced(_Decided, topic="hook.decided", type="replaced", source="agent"):
    """A hook had the daemon go on with something else."""

    catalog = """A hook replaced what @AGENT@ works with
    A hook of the administrator changed the keys that the event names. The digests are SHA-256 of their values
    before and after, as JSON with sorted keys. A replaced call is checked and decided again.
    > The hooks, and what they are asked for: lactl hooks list"""
    keys: list[str]
    before: Text
    after: Text


class HookBlockedIt(_Decided, topic="hook.decided", type="blocked", source="agent"):
    """A hook did not let the daemon go on."""

    catalog = """A hook did not let @AGENT@ go on
    A hook of the administrator blocked the phase that the event names, for the reason in its message.
    > The hooks, and what they are asked for: lactl hooks list"""


class HookTold(_Decided, topic="hook.decided", type="told", source="agent"):
    """A hook said something about what is done already."""

    catalog = """A hook remarked on what @AGENT@ did
    A hook of the administrator blocked a phase that only tells what is done, so its reason is a remark.
    > The hooks, and what they are asked for: lactl hooks list"""


class HookFailed(_Decided, topic="hook.decided", type="failed", source="agent"):
    """A hook raised an error, took too long, or answered something that it may not."""

    priority = WARNING
    catalog = """A hook of @AGENT@ failed
    The message has the file, the line and the error. A hook that fails blocks, unless its file says
    on_error = "go on".
    > Try it by hand: lactl hooks test PHASE --payload FILE"""
    goes_on: bool
    """Whether the daemon went on all the same."""
