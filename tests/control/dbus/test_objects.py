"""The objects on D-Bus: what a client sees of them, and that it is told of every change."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from lightagentd.bus.connection import connect
from lightagentd.control import bus_link
from lightagentd.control.dbus import peers as dbus_peers
from lightagentd.control.dbus.changes import Changes
from lightagentd.control.dbus.views import LISTED_SESSIONS
from lightagentd.control.dbus.watchers import FOR_UID
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, PROBE, add
from tests.agents.scripted import ME, until
from tests.conftest import REPOSITORY, write
from tests.control.dbus.on_the_bus import (
    AGENT,
    APPROVAL,
    GET,
    GET_ALL,
    INTROSPECT,
    MANAGED,
    MANAGER,
    ROOT,
    SESSION,
    SET,
    TURN,
    UNKNOWN_OBJECT,
    objects_of,
    serving,
    session_path,
)
from tests.control.dbus.signatures import object_signatures
from tests.control.test_bus_link import on, restarted_bus
from tests.dbus_client import BusClient
from tests.scripted_model import Stream, call, say

UID = os.geteuid()
TALKER = f"{ROOT}/agents/talker"


class Mirror:
    """What a client knows that read everything once and then only listened."""

    def __init__(self, client: BusClient, objects: dict[str, Any]) -> None:
        self._client, self.objects = client, objects
        self._seen = 0

    @staticmethod
    async def of(client: BusClient) -> Mirror:
        seen = len(await client.do("signals"))
        mirror = Mirror(client, (await client.call(ROOT, MANAGED))[0])
        mirror._seen = seen
        return mirror

    async def read(self) -> None:
        """Take the signals that came."""
        signals = await self._client.do("signals")
        for path, _, member, args in signals[self._seen :]:
            if member == "InterfacesAdded":
                self.objects.setdefault(args[0], {}).update(args[1])
            elif member == "InterfacesRemoved":
                self.objects.pop(args[0], None)
            elif member == "PropertiesChanged" and path != ROOT:
                assert args[2] == []
                assert args[1].keys() <= self.objects[path][args[0]].keys()
                self.objects[path][args[0]].update(args[1])
        self._seen = len(signals)

    async def until_true(self) -> dict[str, Any]:
        """Wait until it has everything as it is; gives that."""
        async with asyncio.timeout(60):
            while True:
                await self.read()
                async with asyncio.timeout(60):
                    [found] = await self._client.call(ROOT, MANAGED)
                if found == self.objects:
                    return self.objects
                await asyncio.sleep(0.02)


async def ask(client: BusClient, text: str = "hello", **options: Any) -> Any:
    return await client.call(ROOT, f"{MANAGER}.Ask", "ssa{sv}", "talker", text, options)


async def test_who_listens_knows_what_who_asks_gets(paths: Paths) -> None:
    new = {"new": ["b", True]}
    async with serving(paths, [say("the answer")]) as (daemon, address), BusClient(address, UID) as me:
        async with BusClient(address, UID) as other:
            mirror = await Mirror.of(me)
            assert {path for path in mirror.objects if path.startswith(f"{ROOT}/agents/")} == {
                f"{ROOT}/agents/ops",
                TALKER,
            }
            assert mirror.objects[TALKER][AGENT]["Description"] == "talks"
            assert await ask(other) == ["the answer"]
            for number in range(12):
                await other.call(ROOT, f"{MANAGER}.Prompt", "ssa{sv}", "talker", f"number {number}", new)
            await other.do("wait", "Event", '"done"', 12)
            async with asyncio.timeout(60):
                while len(idle := _sessions(await mirror.until_true(), "idle")) < 13:
                    await asyncio.sleep(0.02)
            assert {(one["Turns"], one["Owner"]) for one in idle} == {(1, UID)}
            assert mirror.objects[TALKER][AGENT]["Sessions"] == 13
            ended = [one[TURN] for one in mirror.objects.values() if TURN in one]
            assert {(one["State"], one["Answer"]) for one in ended} == {("done", "the answer")}
            assert len(ended) == 13, "and fewer than are kept of one owner"
        objects = objects_of(daemon)
        await me.call(ROOT, f"{MANAGER}.Unsubscribe")
        await until(lambda: not objects.watchers.names)
        assert objects.changes is None


def _sessions(objects: dict[str, Any], state: str) -> list[dict[str, Any]]:
    return [one[SESSION] for one in objects.values() if SESSION in one and one[SESSION]["State"] == state]


async def test_the_manager_tells_its_own_state(paths: Paths) -> None:
    async with serving(paths, [say("the answer")]) as (_, address), BusClient(address, UID) as me:
        [before] = await me.call(ROOT, GET_ALL, "s", MANAGER)
        assert (before["State"], before["TurnsRunning"], before["Sessions"]) == ("running", 0, 0)
        assert before["Panic"] == {}
        await me.call(ROOT, f"{MANAGER}.Panic", "a{sv}", {"reason": ["s", "a drill"]})
        await me.do("wait", "PropertiesChanged", "panicked", 1)
        [panic] = await me.call(ROOT, GET, "ss", MANAGER, "Panic")
        assert (panic["by"], panic["reason"]) == (UID, "a drill")
        await me.call(ROOT, f"{MANAGER}.EndPanic")
        changed = await me.do("wait", "PropertiesChanged", '"State": "running"', 1)
        assert not [one for one in changed if "UptimeS" in str(one)]


async def test_what_changes_right_after_the_first_answer_is_told(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    compare = Changes._compare_all

    async def slowly(self: Changes) -> None:
        begun.set()
        await gate.wait()
        await compare(self)

    monkeypatch.setattr(Changes, "_compare_all", slowly)
    async with serving(paths, [say("x")]) as (daemon, address), BusClient(address, UID) as me:
        asked = asyncio.create_task(me.call(ROOT, GET_ALL, "s", MANAGER))
        await begun.wait()
        await daemon.service.safety.panic(ME, "a drill")
        gate.set()
        [found] = await asked
        if found["State"] != "panicked":
            await me.do("wait", "PropertiesChanged", "panicked", 1)


async def test_agents_come_change_and_go(paths: Paths) -> None:
    made = f"{ROOT}/agents/disk_2dwatch"
    async with serving(paths, [say("x")]) as (_, address), BusClient(address, UID) as me:
        mirror = await Mirror.of(me)
        await me.call(
            ROOT, "org.lightagent1.Agents.Create", "sa{sv}", "disk-watch", {"description": ["s", "d"]}
        )
        assert made in await mirror.until_true()
        assert (await me.call(made, f"{AGENT}.Stop"))[0]["state"] == "stopped"
        await me.do("wait", "PropertiesChanged", '"stopped"', 1)
        assert await me.get(made, AGENT, "State") == "stopped"
        for method in ("Start", "Restart"):
            assert (await me.call(made, f"{AGENT}.{method}"))[0]["state"] == "running"
        await mirror.until_true()
        await me.call(ROOT, "org.lightagent1.Agents.Delete", "s", "disk-watch")
        await me.do("wait", "InterfacesRemoved", made, 1)
        assert made not in await mirror.until_true()
        front = paths.config / "agent" / "talker" / "AGENT.md"
        front.write_text(front.read_text().replace("description: talks", "description: speaks"))
        await me.call(ROOT, f"{MANAGER}.Reload")
        await me.do("wait", "PropertiesChanged", '"speaks"', 1)
        await mirror.until_true()


async def test_sessions_are_prompted_read_and_cancelled_on_their_path(paths: Paths) -> None:
    async with serving(paths, [say("the answer")]) as (_, address), BusClient(address, UID) as me:
        options = {"new": ["b", True]}
        session, turn = await me.call(TALKER, f"{AGENT}.Prompt", "sa{sv}", "hello", options)
        events = [one for one in await me.do("wait", "Event", '"done"', 1) if one[2] == "Event"]
        assert {one[0] for one in events} == {turn}
        assert events[-1][3][1]["text"] == "the answer"
        again, second = await me.call(session, f"{SESSION}.Prompt", "sa{sv}", "and now?", {})
        assert (again, second != turn) == (session, True)
        await me.do("wait", "Event", '"done"', 2)
        [messages] = await me.call(session, f"{SESSION}.Messages", "a{sv}", {})
        assert [one["content"] for one in messages] == ["hello", "the answer", "and now?", "the answer"]
        [newest] = await me.call(session, f"{SESSION}.Messages", "a{sv}", {"limit": ["x", 1]})
        assert newest == messages[-1:]
        assert await me.call(session, f"{SESSION}.Cancel") == [0]
        wrong = await me.call(session, f"{SESSION}.Messages", "a{sv}", {"limit": ["s", "1"]})
        assert wrong["error"][0] == "org.lightagent1.Error.InvalidArgument"
        unknown = await me.call(session, f"{SESSION}.Prompt", "sa{sv}", "x", {"session": ["s", "y"]})
        assert unknown["error"][0] == "org.lightagent1.Error.InvalidArgument"
        signature = await me.call(session, f"{SESSION}.Cancel", "s", "now")
        assert signature["error"][0] == "org.freedesktop.DBus.Error.InvalidArgs"


async def test_properties_are_typed_and_read_only(paths: Paths) -> None:
    async with serving(paths, [say("x")]) as (_, address), BusClient(address, UID) as me:
        error = "org.freedesktop.DBus.Error"
        for command, name in (
            ((GET, "ss", AGENT, "Colour"), "UnknownProperty"),
            ((GET, "ss", "org.example.Other", "Name"), "UnknownInterface"),
            ((GET_ALL, "s", "org.example.Other"), "UnknownInterface"),
            ((GET, "s", AGENT), "InvalidArgs"),
            ((SET, "ssv", AGENT, "Name", ["s", "mine"]), "PropertyReadOnly"),
            ((SET, "ssv", AGENT, "Colour", ["s", "red"]), "UnknownProperty"),
            (("org.example.Other.Do",), "UnknownInterface"),
            ((f"{AGENT}.Do",), "UnknownMethod"),
        ):
            answer = await me.call(TALKER, *command)
            assert answer["error"][0] == f"{error}.{name}", command
        assert await me.call(ROOT, GET_ALL, "s", "org.lightagent1.Agents") == [{}]
        for path in (f"{ROOT}/agents/nobody", f"{ROOT}/agents/talker/x", f"{ROOT}/agents/tal_6ber"):
            answer = await me.call(path, GET_ALL, "s", AGENT)
            assert answer["error"] == [f"{error}.UnknownObject", f"There is no object {path}."]
        [xml] = await me.call(f"{ROOT}/agents", INTROSPECT)
        assert '<node name="talker"' in xml


async def test_an_approval_is_an_object_until_it_is_over(paths: Paths) -> None:
    write(paths.config / "tools" / "probe.py", PROBE)
    out = paths.state.parent / "lines"
    script = [call("probe_add", add(out)), say("done"), call("probe_add", add(out)), say("pity")]
    toml = '[worker]\nchange_agents = ["talker"]\n'
    async with (
        serving(paths, script, toml=toml, extra=f"{FRONT}\n") as (_, address),
        BusClient(address, UID) as me,
        BusClient(address, UID) as other,
    ):
        mirror = await Mirror.of(me)
        for method, count, text in (("Approve", 1, "done"), ("Deny", 2, "pity")):
            answering = asyncio.create_task(ask(other))
            signals = await me.do("wait", "InterfacesAdded", APPROVAL, count)
            path, added = [one[3] for one in signals if APPROVAL in str(one)][-1]
            question = added[APPROVAL]
            assert (question["State"], question["Preview"]) == ("waiting", "+ran")
            assert (question["MayAnswer"], question["AnsweredBy"]) == (True, -1)
            assert question["Args"]["path"] == str(out)
            session = session_path(question["Session"])
            async with asyncio.timeout(60):
                while await me.get(session, SESSION, "State") != "waiting":
                    await asyncio.sleep(0.02)
            turns = [one[TURN] for one in (await mirror.until_true()).values() if TURN in one]
            states = [(one["State"], one["Approval"]) for one in turns]
            assert sorted(states) == sorted([("waiting", question["Id"])] + [("done", "")] * (count - 1))
            [answered] = await me.call(path, f"{APPROVAL}.{method}", "a{sv}", {"note": ["s", "so be it"]})
            assert (answered["note"], answered["answered_by"]) == ("so be it", UID)
            assert await answering == [text]
            await me.do("wait", "InterfacesRemoved", path, 1)
            assert path not in await mirror.until_true()
            gone = await me.call(path, GET, "ss", APPROVAL, "State")
            assert gone["error"] == [UNKNOWN_OBJECT, f"There is no object {path}."]
        assert out.read_text() == "ran\n"


async def test_an_approval_that_runs_out_of_time_is_removed(paths: Paths) -> None:
    write(paths.config / "tools" / "probe.py", PROBE)
    script = [call("probe_add", add(paths.state.parent / "lines")), say("pity")]
    toml = '[worker]\nchange_agents = ["talker"]\n[limits]\napproval_timeout_s = 0.3\n'
    async with (
        serving(paths, script, toml=toml, extra=f"{FRONT}\n") as (_, address),
        BusClient(address, UID) as me,
    ):
        mirror = await Mirror.of(me)
        assert await ask(me) == ["pity"]
        await me.do("wait", "InterfacesRemoved", APPROVAL, 1)
        assert not [one for one in (await mirror.until_true()).values() if APPROVAL in one]


async def test_what_changes_without_an_event_is_told_too(paths: Paths) -> None:
    hanging = Stream(pieces=say("the ans").pieces[:2], hang=True)
    async with serving(paths, [hanging]) as (daemon, address), BusClient(address, UID) as me:
        mirror = await Mirror.of(me)
        path, turn = await me.call(TALKER, f"{AGENT}.Prompt", "sa{sv}", "hello", {})
        await me.do("wait", "InterfacesAdded", turn, 1)
        await me.do("wait", "Event", '"started"', 1)
        await mirror.until_true()  # or what else has changed until then would come with it
        [session] = daemon.registry.get("talker").sessions.values()
        session.record = replace(session.record, title="unannounced")
        told = await me.do("wait", "PropertiesChanged", "unannounced", 1)
        assert [path, [SESSION, {"Title": "unannounced"}, []]] in [[one[0], one[3]] for one in told]


async def test_a_user_has_so_many_watchers_and_no_more(paths: Paths) -> None:
    async with serving(paths, [say("x")]) as (daemon, address), BusClient(address, UID) as me:
        clients = [connect(address) for _ in range(FOR_UID)]
        buses = [await one.__aenter__() for one in clients]
        for bus in buses:
            await bus.call("org.lightagent1", ROOT, MANAGER, "Subscribe")
        refused = await me.call(ROOT, MANAGED)
        assert refused["error"][0] == "org.lightagent1.Error.LimitExceeded"
        assert await me.get(TALKER, AGENT, "State") == "running"
        for one in clients:
            await one.__aexit__(None, None, None)
        await until(lambda: not objects_of(daemon).watchers.names)
        assert len((await me.call(ROOT, MANAGED))[0]) == 2


async def test_many_sessions_cost_little(paths: Paths) -> None:
    async with serving(paths, [say("x")]) as (daemon, address), BusClient(address, UID) as me:
        first = await daemon.service.sessions.create(ME, "talker", "the oldest")
        await asyncio.gather(*(daemon.service.sessions.create(ME, "talker", "") for _ in range(4999)))
        mirror = await Mirror.of(me)
        listed = [path for path, one in mirror.objects.items() if SESSION in one]
        assert len(listed) == LISTED_SESSIONS
        oldest = session_path(first.id)
        assert oldest not in listed
        assert await me.get(oldest, SESSION, "Title") == "the oldest"
        changes = objects_of(daemon).changes
        assert changes is not None
        before = changes.looks
        assert await ask(me, "hello", session=["s", first.id]) == ["x"]
        await me.do("wait", "InterfacesAdded", oldest, 1)
        await mirror.read()
        async with asyncio.timeout(60):
            while mirror.objects[oldest][SESSION]["State"] != "idle":
                await asyncio.sleep(0.02)
                await mirror.read()
        assert changes.looks - before < 200
        assert await me.get(TALKER, AGENT, "Sessions") == 5000


async def test_a_program_that_does_not_read_holds_up_nobody(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dbus_peers, "WINDOW_BYTES", 2048)
    monkeypatch.setattr(dbus_peers, "PATIENCE_S", 600.0)  # twenty prompts may take long here
    async with (
        serving(paths, [say("x")]) as (_, address),
        BusClient(address, UID) as me,
        BusClient(address, UID) as slow,
    ):
        stuck, mirror = await Mirror.of(slow), await Mirror.of(me)
        os.kill(slow.pid, signal.SIGSTOP)
        try:
            for number in range(20):
                await ask(me, f"number {number}", new=["b", True])
            seen = await mirror.until_true()
            assert len([one for one in seen.values() if SESSION in one]) == 20
        finally:
            os.kill(slow.pid, signal.SIGCONT)
        assert await stuck.until_true() == seen


async def test_a_new_bus_knows_nobody_who_was_told_on_the_old_one(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names begin anew with a bus: the next to have one may be another user."""
    monkeypatch.setattr(bus_link, "RETRY_MAX_S", 0.5)
    with restarted_bus() as bus:
        async with on(paths, bus.address) as daemon:
            objects = objects_of(daemon)
            async with BusClient(bus.address, UID) as me:
                await me.call(ROOT, f"{MANAGER}.Subscribe")
                assert len(objects.watchers.names) == 1
                bus.kill()
                await until(lambda: not objects.watchers.names)
                assert objects.changes is None
            bus.start()
            await until(lambda: daemon.bus_link.bus is not None)
            async with BusClient(bus.address, UID) as me:
                mirror = await Mirror.of(me)
                await daemon.service.sessions.create(ME, "ops", "made later")
                await me.do("wait", "InterfacesAdded", "made later", 1)
                await mirror.until_true()


def test_the_signatures_are_frozen() -> None:
    """A change here is one of the public interface. To write the file anew: make generate."""
    assert object_signatures() == (REPOSITORY / "tests/data/dbus-objects.txt").read_text()
