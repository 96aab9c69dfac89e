"""`lactl audit verify`: checks the history against its chain, its signatures and the journal.

For users who may read the store, lactl reads it itself, in a child with the rights of the store's owner
(`events.audit.store_audit`); for others the daemon does it. journalctl(1) reads the journal; the child gets
its output.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lightagentd.cli.journal_output import JournalOutput
from lightagentd.cli.named_file import check_readable, unreadable
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import as_json, fields, warn
from lightagentd.cli.progress import Progress
from lightagentd.cli.stored import SYSTEM_STATE, state_folder, stored_option
from lightagentd.cli.when import FORMS, Start, local, since_start
from lightagentd.errors import HistoryDamaged, InvalidArgument, PermissionDenied
from lightagentd.host.users import called
from lightagentd.signed.public_keys import PublicKey, published
from lightagentd.text.reason import reason

_SHOWN_FORGED = 10
_LACKING = {
    "gap": "as the daemon said itself",
    "ended": "which the daemon had not sent when it ended",
    "waiting": "which are on their way",
    "unknown": "for no known reason: journald lost them, or somebody changed the journal's files",
}
_NOT_COVERED = "what somebody with the daemon's key writes in its name, but for what is in the journal"
_OLD_STATE = "the state beside the events, since no checkpoint of this history covers it yet"
_APPROVER_KEYS = ("lightagent-approver.service", Path("/var/lib/lightagent-approver"))
_WORKER_KEYS = Path("/var/lib/lightagent-change")
_SHOWN_CALLS, _SHOWN_REMOVALS = 20, 5
_JOURNAL_EMPTY = (
    "the journal has no entry of the system's daemon, although this is its history: the journal was emptied,"
    " or is not kept over a boot. Compare the head with one that was kept elsewhere (--expect)"
)


@click.command("verify", cls=Command)
@click.option(
    "--since",
    metavar="WHEN",
    callback=since_start,
    help=f"Begin at the newest checkpoint before this: the number of an event, or {FORMS}.",
)
@click.option(
    "--public-key",
    "key_files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Trust this key, of 'lactl audit key', and not the one beside the history; may be repeated.",
)
@click.option(
    "--expect",
    multiple=True,
    metavar="SEQ:HASH|FILE",
    help="Hash of an event that was kept elsewhere, or a file of an earlier 'lactl --json audit verify'.",
)
@click.option("--indexes", is_flag=True, help="Look at each entry of the indexes, too, by which queries go.")
@click.option("--journal/--no-journal", default=None, help="Whether the journal is compared.")
@click.option(
    "--journal-file",
    "journal_files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Compare with this journal file, such as a copy on another machine; may be repeated.",
)
@stored_option
@click.pass_obj
def verify(
    settings: Settings,
    since: Start | None,
    key_files: tuple[Path, ...],
    expect: tuple[str, ...],
    indexes: bool,
    journal: bool | None,
    journal_files: tuple[Path, ...],
) -> None:
    """Check that the history is what was stored.

    Walks the chain and names the first event that was altered, dropped, inserted, moved or cut off. Checks
    each checkpoint's signature, that data is missing only of deleted sessions, and that the newest event is
    the one that the daemon signed last. Root and the owner of the store read it themselves and compare
    it with the journal, event for event; others ask the daemon, which cannot see the journal.

    \b
    The exit status is
      0   the history is intact; warnings may say that the journal lacks
          events, or that others forged entries there
      74  it was altered, or the journal has other events than it has

    Of journal entries only those count that journald has from the unit lightagentd.service and the daemon's
    user; others with the fields of an event are listed as forged. They change nothing in the history, so they
    do not change the exit status. A daemon that is no unit has no such entries. Keep the printed head or
    the key elsewhere for --expect and --public-key: the key beside the history is as safe as the history.
    """
    from lightagentd.events.audit.signing import public_keys

    try:
        keys = public_keys(key_files)
    except OSError as err:
        raise unreadable(err.filename, err, field="public_key") from err
    expected = dict(_expected(expect))
    since = since or Start()
    if _reads_itself(settings):
        wanted = journal is not False or bool(journal_files)
        output = JournalOutput(wanted, journal_files, since)
        found = _from_store(settings, keys, expected, since, indexes, output)
    elif journal or journal_files:
        raise PermissionDenied(
            "The daemon cannot read the journal; only a store that you may read yourself is compared.",
            suggestion="Use sudo, or name the store: --state-dir DIR",
        )
    else:
        found = _from_daemon(settings, keys, expected, since, indexes)
    if found["journal"] and not found["journal"]["entries"] and found["store"] == str(SYSTEM_STATE):
        found["notes"].append(_JOURNAL_EMPTY)
    _show(settings, found)
    if not found["ok"]:
        raise _altered(found)


def _altered(found: dict[str, Any]) -> HistoryDamaged:
    reason, seq = found["reason"], found["first_bad_seq"]
    if found["bad_rows"] and reason == found["bad_rows"][0]:
        return HistoryDamaged(
            f"The stored state was altered: {reason}.",
            suggestion="A restart of the daemon takes such rows out of use: systemctl restart lightagentd. A"
            " backup has them as they were: lactl history restore",
        )
    if not seq:
        return HistoryDamaged(
            f"{reason[0].upper()}{reason[1:]}.",
            suggestion="Look at what the approver and the worker wrote: journalctl -u lightagent-approver"
            " -u 'lightagent-change@*' -o json",
        )
    return HistoryDamaged(
        f"The history was altered at event {seq}: {reason}.",
        suggestion="Compare with the journal, which has the hash of every event: "
        f"journalctl -u lightagentd LIGHTAGENT_SEQ={seq}",
    )


def _expected(values: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Numbers and hashes of events. Raises InvalidArgument."""
    from lightagentd.events.audit.verification import known_event

    for value in values:
        path = Path(value)
        if not path.is_file():
            if "/" in value:
                check_readable(value)
            yield known_event(value)
            continue
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as err:
            why = reason(err)
            raise InvalidArgument(f"{value} holds no head of a history: {why}.", field="expect") from err
        head = found if isinstance(found, dict) else {}
        seq, event_hash = head.get("head_seq", head.get("seq")), head.get("head_hash", head.get("hash"))
        if seq is None or event_hash is None:
            raise InvalidArgument(
                f"{value} holds no head of a history.",
                suggestion="Such a file is what was printed by: lactl audit verify --json",
                field="expect",
            )
        yield known_event(f"{seq}:{event_hash}")


def _reads_itself(settings: Settings) -> bool:
    """Whether lactl reads the store itself: on request, or if it may and no other daemon was named."""
    if settings.host:
        return False
    if settings.store or settings.state_dir or os.environ.get("LIGHTAGENT_STATE_DIR"):
        return True
    if settings.socket or os.environ.get("LIGHTAGENT_SOCKET"):
        return False
    try:
        state = state_folder(settings)
        return os.geteuid() in (0, state.stat().st_uid) and (state / "history").exists()
    except OSError:
        return False


def _from_store(
    settings: Settings,
    keys: dict[str, bytes],
    expected: dict[int, str],
    since: Start,
    indexes: bool,
    journal: JournalOutput,
) -> dict[str, Any]:
    from lightagentd.events.audit.store_audit import audit_store
    from lightagentd.events.audit.verification import Terms
    from lightagentd.events.backup.stored import run_as_owner

    state = state_folder(settings)
    terms = Terms(keys=keys, expected=expected, since_seq=since.seq, since_us=since.time_us, indexes=indexes)
    found: dict[str, Any] = {}
    with journal:
        fds = [] if journal.fd is None else [journal.fd]
        with contextlib.closing(Progress()) as progress:
            of_units = _witness_keys() if state == SYSTEM_STATE and not journal.has_files else {}
            given = (str(state), terms, journal.fd, of_units)
            for found in run_as_owner(state, audit_store, *given, pass_fds=fds):
                progress.tell(f"event {found.get('at', '')}")
        journal.warn()
    return {**found["chain"], "by": "lactl", "store": str(state), "journal": found["journal"]}


def _witness_keys() -> dict[str, list[PublicKey]]:
    """The public keys of the approver and of the workers for change, as far as they can be read, by unit."""
    places = [_APPROVER_KEYS]
    with contextlib.suppress(OSError):
        places += [(f"lightagent-change@{one.name}.service", one) for one in _WORKER_KEYS.iterdir()]
    return {unit: keys for unit, folder in places if (keys := published(folder))}


def _from_daemon(
    settings: Settings, keys: dict[str, bytes], expected: dict[int, str], since: Start, indexes: bool
) -> dict[str, Any]:
    import base64

    found = settings.call(
        "History.Verify",
        timeout_s=None,
        since_seq=since.seq or None,
        since_us=since.time_us or None,
        indexes=indexes or None,
        public_keys=[base64.b64encode(key).decode() for key in keys.values()] or None,
        expect=[f"{seq}:{event_hash}" for seq, event_hash in expected.items()] or None,
    )
    return {**found, "by": "daemon", "store": "", "journal": None}


def _show(settings: Settings, found: dict[str, Any]) -> None:
    if as_json(settings, found):
        return
    began = {
        "start": "from the first one on",
        "anchor": f"from {found['first_seq']} on; those before were removed by retention",
        "checkpoint": f"from {found['first_seq']} on, after a checkpoint",
        "word": f"from {found['first_seq']} on; no checkpoint says that the one before it is right",
    }[found["began"]]
    rows: list[tuple[str, object]] = [
        ("history", "intact" if found["ok"] else "altered"),
        ("verified by", f"lactl itself, in {found['store']}" if found["store"] else "the daemon"),
        ("events", found["events"]),
        ("beginning", began),
        ("head", f"{found['head_seq']}:{found['head_hash']}"),
        ("checkpoints", found["checkpoints"]),
    ]
    if found["key"]:
        rows.append(("key", found["key"] + ("" if found["trusted"] else " (named by the history alone)")))
        rows.append(("signed up to", found["covered_seq"]))
    rows += [(name, found[name]) for name in ("kept", "erased") if found[name]]
    if found["index_entries"]:
        rows.append(("index entries", found["index_entries"]))
    if found["rows"]:
        bad = len(found["bad_rows"])
        rows.append(("rows of state", f"{found['rows']}, {f'{bad} altered' if bad else 'as signed'}"))
    if found["removed"]:
        rows.append(("removals", found["removed"]))
    rows.append(("journal", _journal_row(found)))
    if found["journal"] and found["journal"]["records"]:
        rows.append(("records of changes", _records_row(found["journal"])))
    rows.append(("not covered", _NOT_COVERED if found["rows"] else _OLD_STATE))
    fields(rows)
    for row in found["bad_rows"]:
        warn(f"Altered: {row}.")
    for note in found["notes"]:
        warn(f"Note: {note}.")
    for removal in found["removals"][-_SHOWN_REMOVALS:]:
        warn(f"Note: {_removal(removal)}.")
    if found["journal"]:
        _warn_of_journal(found["journal"])


def _journal_row(found: dict[str, Any]) -> str:
    journal = found["journal"]
    if journal is None:
        return "not compared" if found["store"] else "not compared: only who may read the store can"
    if not journal["entries"]:
        return "not compared: it has no entries of lightagentd.service, as of a daemon that is no unit"
    if journal["runs"]:
        return f"differs: {journal['matched']} of {journal['entries']} entries are as in the history"
    return f"agrees, {journal['matched']} entries from event {journal['first_seq']} to {journal['last_seq']}"


def _records_row(journal: dict[str, Any]) -> str:
    bad = sum(one["kind"] != "foreign" for one in journal["disagreements"])
    how = f"differ about {bad} calls" if bad else "agree with the history"
    return f"{journal['records']} of the approver and of workers for change, {how}"


def _removal(removal: dict[str, Any]) -> str:
    who = "the daemon" if removal["by"] is None else called(removal["by"])
    when = local(removal["time_us"])
    if not removal["session"]:
        events = f"{removal['events']} events from {removal['first_seq']} to {removal['last_seq']}"
        return f"{events} were removed by {who} at {when} ({removal['reason']})"
    rows = f" and {removal['rows']} rows ({', '.join(removal['states'])})" if removal["rows"] else ""
    what = f"the data of {removal['events']} events of {removal['session']}{rows}"
    return f"{what} were removed by {who} at {when}"


def _warn_of_journal(journal: dict[str, Any]) -> None:
    for one in journal["disagreements"][:_SHOWN_CALLS]:
        who = f" of {one['agent']}" if one["agent"] else ""
        warn(f"The call {one['call_id'] or '?'}{who}, {local(one['time_us'])}: {one['message']}.")
    if journal["unused"]:
        calls = ", ".join(journal["unused"][:_SHOWN_CALLS])
        warn(f"Note: no worker began what was approved for {len(journal['unused'])} calls: {calls}.")
    if journal["older"]:
        warn(
            f"Note: {journal['older']} records are older than the keys that are known of who wrote them;"
            " journald alone says who did."
        )
    if journal["former"]:
        warn(f"Note: the journal has {journal['former']} entries of a history that was set aside.")
    for why, text in _LACKING.items():
        runs = [run for run in journal["lacking"] if run["why"] == why]
        count = sum(run["last_seq"] - run["first_seq"] + 1 for run in runs)
        if count:
            events = "1 event" if count == 1 else f"{count} events"
            warn(f"The journal lacks {events} from {runs[0]['first_seq']} to {runs[-1]['last_seq']}, {text}.")
    if journal["forged"]:
        count = journal["forged"]
        warn(
            f"{count} journal {'entry was' if count == 1 else 'entries were'} not sent by the daemon:",
            "They are no part of the history. Find out who sent them.",
        )
        for entry in journal["forged_entries"][:_SHOWN_FORGED]:
            warn(
                f"  {local(entry['time_us'])} unit {entry['unit'] or '-'}, uid {entry['uid'] or '-'}, pid "
                f"{entry['pid'] or '-'}, {entry['exe'] or '-'}: event {entry['seq'] or '-'} "
                f"{entry['topic'] or '-'} {entry['type'] or '-'}"
            )
