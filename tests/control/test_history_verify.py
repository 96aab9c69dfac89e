"""History.Verify: what a caller may ask of the daemon, and what the daemon itself knows of its history."""

from __future__ import annotations

import hashlib

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import LightagentError
from lightagentd.events.audit.signing import public_pem, signing_key
from lightagentd.events.model import NewEvent
from lightagentd.events.store.layout import EVENTS, seq_key
from lightagentd.events.types.agent import Said


def said() -> NewEvent:
    return Said(role="user", content="hello").event()


async def test_the_daemons_own_key_is_trusted_and_every_part_can_be_asked_for(daemon: Daemon) -> None:
    await daemon.history.append(*(said() for _ in range(20)))
    assert daemon.now.checkpoints is not None
    await daemon.now.checkpoints.sign()
    await daemon.history.append(said())
    head_seq, head_hash = daemon.history.head
    async with AsyncClient(daemon.paths.socket) as client:
        whole = (await client.call("History.Verify"))["verification"]
        assert (whole["ok"], whole["trusted"], whole["checkpoints"]) == (True, True, 1)
        assert (whole["head_seq"], whole["head_hash"]) == (head_seq, head_hash)
        assert whole["covered_seq"] == head_seq - 2
        part = (await client.call("History.Verify", since_seq=head_seq, indexes=True))["verification"]
        assert (part["ok"], part["began"], part["first_seq"]) == (True, "checkpoint", head_seq - 1)
        assert part["index_entries"] > 0
        later = (await client.call("History.Verify", since_us=1 << 60))["verification"]
        assert (later["ok"], later["first_seq"] > 1) == (True, True)
        pem = public_pem(daemon.now.checkpoints.key.public)
        given = await client.call("History.Verify", public_keys=[pem], expect=[f"{head_seq}:{head_hash}"])
        assert (given["verification"]["ok"], given["verification"]["trusted"]) == (True, True)


async def test_another_key_and_another_hash_are_not_what_the_history_has(daemon: Daemon) -> None:
    other = signing_key(daemon.paths.state / "other")
    async with AsyncClient(daemon.paths.socket) as client:
        found = await client.call("History.Verify", expect=[f"2:{'0' * 64}"])
        assert (found["verification"]["ok"], found["verification"]["first_bad_seq"]) == (False, 2)
        found = await client.call("History.Verify", public_keys=[other.public_text])
        assert not found["verification"]["ok"]
        assert "not trusted" in found["verification"]["reason"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"since_seq": -1},
        {"since_us": -1},
        {"expect": ["2"]},
        {"expect": ["2:abc"]},
        {"public_keys": ["no key"]},
        {"public_keys": [""]},
        {"public_keys": ["\ud800"]},
    ],
)
async def test_what_cannot_be_is_an_error(daemon: Daemon, parameters: dict[str, object]) -> None:
    async with AsyncClient(daemon.paths.socket) as client:
        with pytest.raises(LightagentError) as caught:
            await client.call("History.Verify", **parameters)
    assert caught.value.exit_status == 65


async def test_the_daemon_knows_the_newest_event_although_nothing_signed_it_yet(daemon: Daemon) -> None:
    [event] = await daemon.history.append(said())
    environment = daemon.history.environment
    with environment.env.begin(write=True) as txn:
        key = seq_key(event.seq)
        record = txn.get(key, db=environment.db[EVENTS])
        line, _, data = record.partition(b"\n")
        line = line.replace(b'"correlation_id":""', b'"correlation_id":"forged"')
        txn.put(key, line + b"\n" + data, db=environment.db[EVENTS])
    async with AsyncClient(daemon.paths.socket) as client:
        found = (await client.call("History.Verify"))["verification"]
    assert (found["ok"], found["first_bad_seq"]) == (False, event.seq)
    assert hashlib.sha256(line).hexdigest() != event.hash
