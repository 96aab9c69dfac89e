"""What happens to the history itself."""

from __future__ import annotations

from lightagentd.events.types.event_type import Kind


class CheckpointSigned(Kind, topic="daemon.checkpoint", type="signed"):
    """Everything up to an event is as the daemon stored it, signed (see `signing`)."""

    seq: int
    """The number of the last event that it covers."""
    hash: str
    """The hash of that event."""
    fingerprint: str
    """SHA-256 of the public key, in hexadecimal."""
    signature: str
    """Ed25519, Base64."""


class CheckpointKey(Kind, topic="daemon.checkpoint", type="key"):
    """The key that signs from now on; an event of each start, before all others of that start."""

    fingerprint: str
    """SHA-256 of the public key, in hexadecimal."""
    public_key: str
    """The 32 bytes of the Ed25519 public key, Base64."""
    made: bool
    """It was made at this start."""


class CheckpointBroken(Kind, topic="daemon.checkpoint", type="broken"):
    """A start found that the history is not the one that the daemon signed last."""

    message: str
    """What is wrong with it."""
    signed_seq: int
    """The number of the event that was signed last."""
    signed_hash: str


class HistoryPruned(Kind, topic="daemon.history", type="pruned"):
    """Retention removed events: of those from `first_seq` to `last_seq` only `kept` are there.

    The chain begins behind `last_seq` then (`Environment.anchor`). A pass below the beginning of the chain
    removes what earlier ones kept and what nobody needs any more; its `last_hash` is empty, and the anchor
    stays. Of several that are about one number the newest counts.
    """

    first_seq: int
    last_seq: int
    last_hash: str
    """The hash of the event `last_seq`, which the one after it names; empty when the chain begins later."""
    removed: int
    kept: list[tuple[int, str]]
    """Number and hash of each event in between that stays, such as a message of a session that exists."""
    reason: str
    """`age`, `size` or `sessions`: they were kept for a session that is deleted, or a turn that ended."""


class HistoryCompacted(Kind, topic="daemon.history", type="compacted"):
    """The file was written anew without its free pages."""

    bytes_before: int
    bytes_after: int


class HistoryMigrated(Kind, topic="daemon.history", type="migrated"):
    """The store has a newer schema now."""

    from_version: int
    to_version: int


class HistorySetAside(Kind, topic="daemon.history", type="set_aside"):
    """The store was damaged and was moved away; this history goes on after the last event known of it."""

    message: str
    """What was wrong."""
    path: str
    """Where the damaged store lies."""
    last_seq: int
    last_hash: str


class HistorySalvaged(Kind, topic="daemon.history", type="salvaged"):
    """What could be read of a store that was set aside was written to a file."""

    message: str
    path: str
    """Where the damaged store lies."""
    export: str
    """The file."""
    events: int
    """How many events are in that file."""
    missing: int
    """How many between the first and the last known one are not."""
    without_data: int
    """Of how many the header alone could be read, or was there."""
    states: int
    """How many entries of stored state are in it."""


class HistoryInstalled(Kind, topic="daemon.history", type="installed"):
    """An administrator put another store in place while the daemon was stopped."""

    how: str
    """`restore` of a backup or `import` of an export."""
    by: int
    """The uid."""
    seq: int
    hash: str
    """The head of what was put in place."""
    set_aside: str
    """Where the store that was there before lies; empty when there was none."""
    verified: bool
    """Its chain verified; another one is put in place only when that is forced."""
    message: str


class HistoryInstallInterrupted(Kind, topic="daemon.history", type="install_interrupted"):
    """A restore or an import was killed; this start finished it, or cleared up what it had begun."""

    message: str


class HistoryRecovered(Kind, topic="daemon.history", type="recovered"):
    """The last run of the daemon ended without a stop; this is what the start found."""

    message: str
    tail_events: int
    """How many of the newest events were verified."""
    interrupted_turns: int
    unknown_calls: int
    """Calls whose intent was stored and whose outcome was not: closed as outcome_unknown."""
    requeued_turns: int
    waiting_turns: int
    approvals: int
    """Approvals that still wait for an answer."""
    inputs: int
    """Questions that still wait for an answer."""
    watches: int
