"""Triggers over Varlink, over D-Bus and with lactl: the same answers, and who may do what."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from dbus_next.signature import Variant

from lightagentd.bus.connection import connect
from lightagentd.client.aio import AsyncClient
from lightagentd.control.authz import Caller
from lightagentd.errors import InvalidArgument, NotFound, PermissionDenied
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME
from tests.agents.triggers.rig import at_rest, counts, running, trigger
from tests.cli.conftest import Finished, environment, finish
from tests.control.dbus.on_the_bus import ROOT, serving
from tests.scripted_model import Answer, say

TRIGGERS = "org.lightagent1.Triggers"


def script(_: dict[str, Any]) -> Answer:
    return say("all well")


async def lactl(paths: Paths, *words: str, stdin: bytes = b"") -> Finished:
    env = environment(LIGHTAGENT_SOCKET=str(paths.socket), LIGHTAGENT_CONFIG_DIR=str(paths.config))
    return await asyncio.to_thread(finish, words, stdin, env)


async def test_triggers_are_the_same_everywhere(paths: Paths, tmp_path: Path) -> None:
    trigger(paths, agent="talker")
    trigger(paths, "broken", agent="talker", prompt="{x")
    async with (
        serving(paths, script) as (daemon, address),
        AsyncClient(paths.socket, timeout_s=60) as client,
        connect(address) as bus,
    ):
        happened = [{"data": {"what": "one"}, "at_us": 5, "missed": False}, {"data": {}}]
        counted = (await client.call("Triggers.Fire", name="disk", happened=happened))["counts"]
        assert (counted["fired"], counted["coalesced"]) == (1, 1)
        await at_rest(daemon.triggers)
        data = Variant("a{sv}", {"what": Variant("s", "two")})
        told = Variant("aa{sv}", [{"data": data}])
        (over_dbus,) = await bus.call(
            "org.lightagent1", ROOT, TRIGGERS, "Fire", "sva{sv}", ("disk", told, {}), 60.0
        )
        assert over_dbus == counted | {"coalesced": 0}
        await at_rest(daemon.triggers)
        listed = (await client.call("Triggers.List"))["triggers"]
        (same,) = await bus.call("org.lightagent1", ROOT, TRIGGERS, "List", "", (), 60.0)
        assert same == listed == json.loads((await lactl(paths, "triggers", "list", "--json")).out)
        states = {one["name"]: (one["state"], one["fired"]) for one in listed}
        assert states["disk"] == ("unfollowed", 2)
        assert states["broken"] == ("broken", 0)
        shown = await lactl(paths, "triggers", "show", "disk")
        assert "fired\t2\n" in shown.out
        (tmp_path / "data.json").write_text('{"what": "three"}')
        asked = await lactl(paths, "triggers", "test", "disk", "--data", str(tmp_path / "data.json"))
        assert (asked.out.strip(), asked.status) == ("all well", 0)
        preview = await lactl(
            paths, "triggers", "test", "disk", "--preview", "--data=-", stdin=b'{"what": 4}'
        )
        assert preview.out.startswith("look at 4\n\n```what happened\n")
        sample = await lactl(paths, "triggers", "test", "disk", "--preview")
        assert "build 12 failed" in sample.out
        assert (await lactl(paths, "triggers", "pause", "disk")).status == 0
        assert (await client.call("Triggers.Get", name="disk"))["found"]["state"] == "paused"
        assert (await lactl(paths, "triggers", "resume", "disk")).status == 0
        log = (await lactl(paths, "triggers", "log", "disk")).out
        assert [one in log for one in ("trigger.fired", "test=yes", "trigger.paused")] == [True] * 3
        for words, status, said in (
            (("test", "broken"), 78, "the template is broken"),
            (("test", "nosuch"), 66, "no trigger 'nosuch'"),
            (("show", "nosuch"), 66, "no trigger 'nosuch'"),
            (("pause", "nosuch"), 66, "no trigger 'nosuch'"),
            (("test", "disk", "--data", "/nowhere"), 66, "/nowhere"),
            (("check", "nosuch"), 66, "no trigger 'nosuch'"),
            (("check",), 78, "Not to be used: broken"),
        ):
            found = await lactl(paths, "triggers", *words)
            assert (found.status, said in found.err) == (status, True), (words, found)
        assert (await lactl(paths, "triggers", "check", "disk")).out == "disk\tok\n"
        (tmp_path / "bad.json").write_text("[1]")
        found = await lactl(paths, "triggers", "test", "disk", "--data", str(tmp_path / "bad.json"))
        assert "is no JSON object" in found.err


async def test_work_is_followed_and_reported_over_varlink(paths: Paths) -> None:
    trigger(paths)
    trigger(paths, "daily", on="timer", calendar="daily", prompt="x")
    async with (
        running(paths, {"ops": [say("all well")]}) as (daemon, _),
        AsyncClient(paths.socket, timeout_s=60) as client,
        AsyncClient(paths.socket, timeout_s=60) as other,
    ):
        stream = client.stream("Triggers.Follow")
        first = (await anext(stream))["work"]
        assert (first["follow"], first["answer"]) == ([{"name": "daily", "position": ""}], None)
        await other.call("Triggers.Fire", name="daily", happened=[], position="17")
        await other.call("Triggers.Fire", name="disk", happened=[{"data": {"what": "x"}}])
        work = (await anext(stream))["work"]
        while work["answer"] is None:
            assert work["follow"] == [{"name": "daily", "position": "17"}]
            work = (await anext(stream))["work"]
        assert (work["answer"]["text"], work["answer"]["trigger"]) == ("all well", "disk")
        await other.call("Triggers.Delivered", firing=work["answer"]["firing"])
        with pytest.raises(NotFound):
            await other.call("Triggers.Delivered", firing=work["answer"]["firing"])
        await stream.aclose()
        assert counts(daemon.triggers) == {"fired": 1}


@pytest.mark.parametrize(
    "happened",
    [None, {}, [1], [{}], [{"data": 1}], [{"data": {}, "more": 1}], [{"data": {}}] * 1001, "x" * 99],
)
async def test_what_is_no_list_of_things_is_refused(paths: Paths, happened: Any) -> None:
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        with pytest.raises(InvalidArgument, match=r"happened|At most"):
            await daemon.service.triggers.fire(ME, "disk", happened=happened)
        assert counts(daemon.triggers) == {}


async def test_others_may_not_fire_or_follow_and_the_owner_may_test(paths: Paths) -> None:
    trigger(paths, owner="nobody")
    (paths.config / "lightagentd.toml").write_text('[daemon]\nsocket_group = "nogroup"\n')
    stranger = Caller(uid=4_000_001, gid=4_000_001, pid=os.getpid(), groups=frozenset({65534}))
    owner = Caller(uid=65534, gid=65534, pid=os.getpid(), groups=frozenset({65534}))
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        service = daemon.service.triggers
        for caller in (stranger, owner):
            with pytest.raises(PermissionDenied):
                await service.fire(caller, "disk", happened=[])
            with pytest.raises(PermissionDenied):
                await anext(service.follow(caller))
            with pytest.raises(PermissionDenied):
                await service.delivered(caller, "fir_1")
        with pytest.raises(PermissionDenied):
            await service.pause(stranger, "disk")
        with pytest.raises(PermissionDenied):
            await anext(service.run(stranger, "disk"))
        await service.pause(owner, "disk")
        await service.resume(owner, "disk")
        events = [event async for event in service.run(owner, "disk", data={"what": "x"})]
        assert events[-1]["text"] == "ok"
