"""What happens to the history itself."""

from __future__ import annotations

from lightagentd.events.model import Event
from lightagentd.events.types.event_type import ERROR, NOTICE, WARNING, Reported


class CheckpointSigned(Reported, topic="daemon.checkpoint", type="signed"):
    """Everything up to an event is as the daemon stored it, signed (see `signing`)."""

    catalog = """lightagentd signed its history
    Everything in the history up to one event is as the daemon stored it: number and hash of that event are in
    this entry, with the signature and the key that made it. Who changes or replaces the history later cannot
    make it fit to this.
    > To compare the two: lactl audit verify"""
    seq: int
    """The number of the last event that it covers."""
    hash: str
    """The hash of that event."""
    fingerprint: str
    """SHA-256 of the public key, in hexadecimal."""
    signature: str
    """Ed25519, Base64."""
    rows_sha256: str = ""
    """That of the newest event `rows`."""

    @classmethod
    def sentence(cls, event: Event) -> str:
        data = event.data or {}
        key = str(data.get("fingerprint", "?"))[:16]
        return f"signed: the history up to event {data.get('seq', '?')}, with the key {key}"


class CheckpointKey(Reported, topic="daemon.checkpoint", type="key"):
    """The key that signs from now on; an event of each start, before all others of that start."""

    catalog = """The key that signs the history of lightagentd
    From this start on the history is signed with this key. Its public part is in this entry and is no secret:
    kept elsewhere, it lets an auditor find out whether somebody signed a forged history with a key of their
    own.
    > With that file: lactl audit verify --public-key FILE"""
    fingerprint: str
    """SHA-256 of the public key, in hexadecimal."""
    public_key: str
    """The 32 bytes of the Ed25519 public key, Base64."""
    made: bool
    """It was made at this start."""

    @classmethod
    def sentence(cls, event: Event) -> str:
        key = str((event.data or {}).get("fingerprint", "?"))[:16]
        return f"key: {key} signs the history from now on"


class CheckpointRows(Reported, topic="daemon.checkpoint", type="rows"):
    """The rows of state that changed since the checkpoint before; the next `signed` covers it."""

    catalog = """lightagentd listed the rows of its stored state that changed
    Beside the events the store of the history has the present state: sessions, usage, approvals and the like.
    The history has an event with the digest of each row that changed since the checkpoint before, and a sum
    over all rows. So a row that somebody altered is found and named.
    > To look: lactl audit verify"""
    rows: list[tuple[str, str, str]]
    """State, key and digest of each; the digest is empty for a row that was removed."""
    total: str
    """The sum over all rows, 2048 bits in hexadecimal."""
    count: int
    """How many rows there are."""
    rows_sha256: str
    """SHA-256 of the text of the sum, which the journal has, too."""
    whole: bool = False
    """With this event the list begins anew: it and the ones behind it list every row."""

    @classmethod
    def sentence(cls, event: Event) -> str:
        data = event.data or {}
        return f"rows: {len(data.get('rows', ()))} of {data.get('count', '?')} rows of state changed"


class CheckpointBroken(Reported, topic="daemon.checkpoint", type="broken"):
    """A start found that the history is not the one that the daemon signed last."""

    priority = ERROR
    catalog = """The history of lightagentd is not the one that was signed
    The start found that the newest signed event is not there any more, or is another one: the history was cut
    off, altered, or replaced by an older copy while the daemon was stopped. The daemon goes on all the same,
    and its status says so.
    > What is wrong in detail: lactl audit verify. Who could write the file: root, and the user of the
    daemon; the journal has the events that the history lacks."""
    message: str
    """What is wrong with it."""
    signed_seq: int
    """The number of the event that was signed last."""
    signed_hash: str


class HistoryPruned(Reported, topic="daemon.history", type="pruned"):
    """Retention removed events: of those from `first_seq` to `last_seq` only `kept` are there.

    The chain begins behind `last_seq` then (`Environment.anchor`). A pass below the beginning of the chain
    removes what earlier ones kept and what nobody needs any more; its `last_hash` is empty, and the anchor
    stays. Of several that are about one number the newest counts.
    """

    catalog = """lightagentd removed old events from its history
    Retention applied max_age_days or max_bytes of the section history in the configuration. The oldest events
    are gone for good, but for the messages of sessions that still exist. The event says which they were and
    what the hash of the last of them was, so that the rest of the history still verifies.
    > What is left: lactl audit verify"""
    first_seq: int
    last_seq: int
    last_hash: str
    """The hash of the event `last_seq`, which the one after it names; empty when the chain begins later."""
    removed: int
    kept: list[tuple[int, str]]
    """Number and hash of each event in between that stays, such as a message of a session that exists."""
    reason: str
    """`age`, `size` or `sessions`: they were kept for a session that is deleted, or a turn that ended."""
    by: int | None = None
    """The uid of who asked for it with `lactl history prune`; absent where the daemon did it by itself."""


class HistoryCompacted(Reported, topic="daemon.history", type="compacted"):
    """The file was written anew without its free pages."""

    catalog = """lightagentd wrote the file of its history anew
    The file had many free pages, such as those of removed events. It was copied without them; the event
    says how large it was before and is now. No event was changed."""
    bytes_before: int
    bytes_after: int


class HistoryMigrated(Reported, topic="daemon.history", type="migrated"):
    """The store has a newer schema now."""

    catalog = """The history of lightagentd has a newer layout
    A newer version of the daemon opened the history and brought it to its own layout. No event was changed.
    An older version cannot open it any more.
    > To go back to one: lactl history restore with a backup from before"""
    from_version: int
    to_version: int


class HistorySetAside(Reported, topic="daemon.history", type="set_aside"):
    """The store was damaged and was moved away; this history goes on after the last event known of it."""

    priority = ERROR
    catalog = """The history of lightagentd was damaged and moved away
    The file of the history could not be read. It was moved to another name, which the event has, and was not
    changed; a new history begins there, with the next number. What the daemon knew of sessions and approvals
    is in the damaged file.
    > Look at the disk first: journalctl -k. A backup can take its place while the daemon is stopped: lactl
    history restore"""
    message: str
    """What was wrong."""
    path: str
    """Where the damaged store lies."""
    last_seq: int
    last_hash: str


class HistorySalvaged(Reported, topic="daemon.history", type="salvaged"):
    """What could be read of a store that was set aside was written to a file."""

    priority = NOTICE
    catalog = """What could be read of a damaged history is in a file
    The history had been damaged and moved away. Every event that could still be read of it was written to a
    file of JSON lines beside it; the event says how many they are and how many are missing.
    > Where the files are: lactl status"""
    message: str
    path: str
    """Where the damaged store lies."""
    export: str
    """The file."""
    events: int
    """How many events are in that file."""
    missing: int
    """How many up to the last known one are not."""
    ranges: list[tuple[int, int]]
    """The first and the last number of each gap; no more than 100 of them."""
    without_data: int
    """Of how many the header alone could be read, or was there."""
    states: int
    """How many entries of stored state are in it."""


class HistoryExamined(Reported, topic="daemon.history", type="examined"):
    """Every page of the store was looked at."""

    priority = NOTICE
    catalog = """lightagentd examined its history
    Every page of the file was looked at: at a start after a run that did not stop in order, and once a week.
    A damaged file is moved away by the next start.
    > If it was damaged, restart the daemon: systemctl restart lightagentd. Look at the disk: journalctl -k"""
    message: str
    seq: int
    """The newest event that was seen; 0 in a damaged file."""
    problem: str
    """What is damaged; empty for a sound file."""
    duration_ms: int


class StateTakenOut(Reported, topic="daemon.history", type="state_taken_out"):
    """A row of the stored state was invalid or altered and was removed, or one is missing."""

    priority = ERROR
    catalog = """lightagentd removed a row of its stored state
    Beside the events the store of the history has the present state: sessions, watches, approvals and the
    like. A row of it was invalid, or not the one that the daemon had stored, because the disk failed or
    somebody wrote the file. The daemon removed it and serves without it. The event has the row.
    > Look at the disk: journalctl -k. Who could write the file: root, and the user of the daemon."""
    message: str
    state: str
    """The kind of state, such as `watches`."""
    key: str
    value: str
    """The row as text: 2,000 bytes of an invalid one, 64 KiB of an altered one, nothing of a missing one."""


class HistoryInstalled(Reported, topic="daemon.history", type="installed"):
    """An administrator put another store in place while the daemon was stopped."""

    catalog = """An administrator put another history in place
    The user whom the event names restored a backup or imported an export while the daemon was stopped. What
    was there before was kept under another name, which the event has, too; the numbers of the events may be
    lower than before.
    > Events that only the history before had are in the journal still."""
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


class HistoryInstallInterrupted(Reported, topic="daemon.history", type="install_interrupted"):
    """A restore or an import was killed; this start finished it, or cleared up what it had begun."""

    catalog = """A restore of the history had been interrupted
    A restore or an import ended in the middle, such as by a power failure. This start found that, and
    finished it or cleared up what it had begun: the history is the old one or the new one, and whole.
    > Which of them it is: lactl history, lactl audit verify"""
    message: str


class HistoryRecovered(Reported, topic="daemon.history", type="recovered"):
    """The last run of the daemon ended without a stop; this is what the start found."""

    priority = WARNING
    catalog = """lightagentd was not stopped in order, and recovered
    The last run of the daemon ended by a crash, by SIGKILL or by a power failure. The newest events were
    verified. Turns that had been running are ended, calls whose outcome nobody knows are marked as such and
    were not run again, and what waited for an answer still waits; the event has the figures.
    > Calls of unknown outcome: lactl events --type interrupted"""
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
