"""Checks that the checkpoints of a walk are the daemon's, and fit the events that they cover.

Each start of the daemon first stores its key and a checkpoint of the history that it found (`checkpoints`).
So a chain that was rewritten without the key is detected: old checkpoints do not fit it, and a start without
a checkpoint is not the daemon's.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from itertools import islice

from lightagentd.events.audit.record_check import BadRecord, hash_at, text_in
from lightagentd.events.audit.signing import fingerprint, short, signed_by
from lightagentd.events.model import Event, decode
from lightagentd.events.store.layout import EVENTS, Environment, descending, index_prefix, seq_key

TOPIC = "daemon.checkpoint"
_LOOKED_AT = 64
"""So many checkpoints before an event are tried for one with a good signature."""


class CheckpointCheck:
    """Receives each checkpoint and start. `keys` are trusted public keys by fingerprint; None trusts the keys
    that the history names.
    """

    def __init__(self, environment: Environment, keys: Mapping[str, bytes] | None) -> None:
        self._environment = environment
        self._trusted = keys
        self._known: dict[str, bytes] = dict(keys or {})
        self.good = 0
        """How many have a good signature."""
        self.newest_key = ""
        self.trusted = False
        """Whether the newest key is one that is trusted."""
        self.covered_seq = 0
        """The last event that a checkpoint covers with a trusted key; with any key where none is trusted."""
        self.keys_seen: list[tuple[int, str]] = []
        """From which event on which key signs."""
        self._foreign = (0, "")
        """The first event after the newest trusted checkpoint with another key, and that key."""
        self._owed = 0
        """What a checkpoint after the newest `key` has to cover."""
        self._key_seq = 0
        self._key_of_start = False

    def learn(self, first: int) -> None:
        """Learn the keys named before the first event; retention keeps the event of the newest key."""
        for event in self._checkpoints_before(first):
            if (public := _public_in(event)) is not None:
                self._known.setdefault(fingerprint(public), public)

    def hear(self, event: Event, prev: str) -> None:
        """Take a checkpoint, whose `prev` is the hash of the event before it. Raises BadRecord."""
        if event.type == "key":
            self._key(event)
        elif event.type == "signed":
            self._signed(event, prev)
        elif event.type == "broken":
            found = text_in(event.data or {}, "message")[:400]
            raise BadRecord(event.seq, f"the daemon found when it started (event {event.seq}): {found}")

    def start(self, event: Event) -> None:
        """The daemon started. Raises BadRecord when it did not sign what it found."""
        self._check_owed()
        if self._key_seq and not self._key_of_start:
            raise BadRecord(
                event.seq,
                f"the start at event {event.seq} signed nothing, so the daemon did not write it; the last "
                f"event that was signed is {self.covered_seq}",
            )
        self._key_of_start = False

    def finish(self) -> None:
        """End the walk. Raises BadRecord."""
        self._check_owed()
        if self._trusted is not None and self._foreign[0]:
            seq, key = self._foreign
            raise BadRecord(
                seq, f"from event {seq} on it is signed with a key that is not trusted: {short(key)}"
            )

    def _key(self, event: Event) -> None:
        self._check_owed()
        key, public = text_in(event.data or {}, "fingerprint"), _public_in(event)
        if public is None or fingerprint(public) != key:
            raise BadRecord(event.seq, f"event {event.seq} was forged: it names an invalid key")
        if not self.keys_seen or self.keys_seen[-1][1] != key:
            self.keys_seen.append((event.seq, key))
        self._known[key] = public
        self._note_foreign(event.seq, key)
        self._key_seq, self._key_of_start = event.seq, True
        self._owed = event.seq - 1 if event.seq - 1 > self._environment.anchor()[0] else 0

    def _signed(self, event: Event, prev: str) -> None:
        data, at = event.data or {}, f"the checkpoint at event {event.seq}"
        covered, key, wanted = data.get("seq"), text_in(data, "fingerprint"), text_in(data, "hash")
        if type(covered) is not int or not 0 < covered < event.seq:
            raise BadRecord(event.seq, f"{at} was forged: it covers no event")
        found = prev if covered == event.seq - 1 else hash_at(self._environment, covered)
        if found and found != wanted:
            raise BadRecord(
                covered,
                f"event {covered} is not the one that {at} covers: the history was written anew from some "
                f"event after {self.covered_seq} on",
            )
        if key not in self._known:
            self._note_foreign(event.seq, key)
            if not self._key_seq:
                return  # retention removed its key's event; a later checkpoint covers this one
            raise BadRecord(event.seq, f"{at} was forged: no event names its key {short(key)}")
        if not signed_by(self._known[key], covered, wanted, text_in(data, "signature")):
            raise BadRecord(event.seq, f"{at} was forged: its signature is wrong")
        self._note_foreign(event.seq, key)
        self.good += 1
        self.newest_key = key
        self.trusted = self._trusted is not None and key in self._trusted
        if self._trusted is None or self.trusted:
            self.covered_seq = max(self.covered_seq, covered)
            self._foreign = (0, "")
        if covered >= self._owed:
            self._owed = 0

    def _note_foreign(self, seq: int, key: str) -> None:
        if self._trusted is not None and key not in self._trusted and not self._foreign[0]:
            self._foreign = (seq, key)

    def _check_owed(self) -> None:
        if self._owed:
            seq = self._key_seq
            raise BadRecord(
                seq,
                f"the start at event {seq} signed nothing of what it found, so the daemon did not write it",
            )

    def signed_before(self, seq: int) -> tuple[int, str] | None:
        """Number and hash covered by the newest good checkpoint before an event, if the stored record has the
        same hash; None when there is none nearby. Learns the keys that it needs.
        """
        events = self._checkpoints_before(seq)
        named = {fingerprint(public): public for event in events if (public := _public_in(event)) is not None}
        trusted = named if self._trusted is None else self._trusted
        for event in events:
            data = event.data or {}
            key, covered, wanted = text_in(data, "fingerprint"), data.get("seq"), text_in(data, "hash")
            if event.type != "signed" or type(covered) is not int or key not in trusted:
                continue
            good = signed_by(trusted[key], covered, wanted, text_in(data, "signature"))
            if good and hash_at(self._environment, covered) == wanted:
                self._known |= named
                self.newest_key, self.trusted, self.covered_seq = key, True, covered
                return covered, wanted
        return None

    def _checkpoints_before(self, seq: int) -> list[Event]:
        """The closest checkpoints before an event, newest first."""
        db = self._environment.db
        with self._environment.reading() as txn:
            keys = islice(descending(txn, db["by_topic"], index_prefix(TOPIC), seq_key(seq)), _LOOKED_AT)
            records = [txn.get(key[-8:], db=db[EVENTS]) for key, _ in keys]
        try:
            return [decode(record) for record in records if record is not None]
        except ValueError:
            return []


def _public_in(event: Event) -> bytes | None:
    """The 32 bytes of the key that an event names."""
    try:
        raw = base64.b64decode(text_in(event.data or {}, "public_key"), validate=True)
    except ValueError:
        return None
    return raw if len(raw) == 32 else None
