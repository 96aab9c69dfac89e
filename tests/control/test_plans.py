"""Plans over Varlink and over D-Bus: the same operations, the same answers, the same errors."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from lightagentd.bus.connection import Bus, Variant, connect
from lightagentd.client.aio import AsyncClient
from lightagentd.errors import PlanConflict, PlanInvalid, SessionNotFound
from lightagentd.host.paths import Paths
from tests.agents.planning import TWO
from tests.agents.scripted import until
from tests.control.dbus.on_the_bus import ROOT, serving
from tests.scripted_model import Answer, Fault, say

NAME = "org.lightagent1"
A_TASK = {"id": Variant("s", "a"), "text": Variant("s", "do a"), "check": Variant("s", "")}


def states(plan: dict[str, Any]) -> list[str]:
    return [task["state"] for task in plan["tasks"]]


async def test_over_varlink_a_plan_is_set_applied_and_watched(paths: Paths) -> None:
    script: list[Answer] = [say("did a"), Fault(status=400), say("did b")]
    async with serving(paths, script) as (_, _address), AsyncClient(paths.socket, timeout_s=60) as client:

        async def plans(method: str, **parameters: Any) -> dict[str, Any]:
            return dict((await client.call(f"Plans.{method}", session=session, **parameters))["plan"])

        session = (await client.call("Sessions.Create", agent="talker"))["session"]["id"]
        assert (await plans("Get"))["phase"] == "off"
        assert (await plans("Begin"))["phase"] == "drafting"
        with pytest.raises(PlanInvalid) as wrong:
            await plans("Set", plan={"title": "x", "tasks": []})
        assert wrong.value.field == "tasks"
        assert (await plans("Set", plan=TWO))["phase"] == "ready"
        phases: list[str] = []
        async with AsyncClient(paths.socket) as watching:
            async for reply in watching.stream("Sessions.Watch", session=session):
                event = reply["event"]
                if not phases:
                    phases.append((await plans("Apply"))["phase"])
                elif event["type"] == "plan":
                    phases.append(" ".join(states(event["plan"])))
                    if event["plan"]["stopped_at"]:
                        break
        assert phases == ["applying", "running pending", "done pending", "done running", "done failed"]
        with pytest.raises(PlanConflict):
            await plans("Apply")
        await plans("Apply", choice="retry")
        await client.call("Sessions.Wait", session=session)
        found = await plans("Get")
        assert (found["phase"], states(found)) == ("completed", ["done", "done"])
        assert (await plans("End"))["phase"] == "off"


async def test_only_the_plan_that_was_read_is_applied(paths: Paths) -> None:
    async with serving(paths, [say("did a")]), AsyncClient(paths.socket, timeout_s=60) as client:
        session = (await client.call("Sessions.Create", agent="talker"))["session"]["id"]
        read = (await client.call("Plans.Set", session=session, plan=TWO))["plan"]
        assert re.fullmatch("[0-9a-f]{32}", read["digest"])
        first, second = ({"id": name, "text": f"do {name}"} for name in ("a", "b"))
        for changed in (
            {**TWO, "title": "Another"},
            {**TWO, "tasks": [{**first, "text": "do something else"}, second]},
            {**TWO, "tasks": [{**first, "check": "true"}, second]},
            {**TWO, "tasks": [first]},
        ):
            revised = (await client.call("Plans.Set", session=session, plan=changed))["plan"]
            assert revised["digest"] != read["digest"]
            with pytest.raises(PlanConflict) as refused:
                await client.call("Plans.Apply", session=session, digest=read["digest"])
            assert refused.value.field == "digest"
            assert (await client.call("Plans.Get", session=session))["plan"]["phase"] == "ready"
        await client.call("Plans.Set", session=session, plan={**TWO, "tasks": [first]})
        again = (await client.call("Plans.Get", session=session))["plan"]["digest"]
        applied = (await client.call("Plans.Apply", session=session, digest=again))["plan"]
        assert (applied["phase"], applied["digest"]) == ("applying", again)
        await client.call("Sessions.Wait", session=session)


async def test_over_dbus_a_plan_is_set_applied_and_looked_at(paths: Paths) -> None:
    async with serving(paths, [say("did a")]) as (_, address), connect(address) as client:
        session = str((await call(client, "Sessions", "Create", "sa{sv}", "talker", {}))["id"])
        assert (await call(client, "Plans", "Get", "s", session))["phase"] == "off"
        assert (await call(client, "Plans", "Begin", "s", session))["phase"] == "drafting"
        with pytest.raises(PlanInvalid, match="no tasks"):
            await call(client, "Plans", "Set", "sv", session, Variant("a{sv}", {"tasks": Variant("av", [])}))
        plan = {"title": Variant("s", "One"), "tasks": Variant("av", [Variant("a{sv}", A_TASK)])}
        found = await call(client, "Plans", "Set", "sv", session, Variant("a{sv}", plan))
        assert (found["phase"], found["title"], states(found)) == ("ready", "One", ["pending"])
        with pytest.raises(PlanConflict, match="nothing to choose"):
            await call(client, "Plans", "Apply", "sa{sv}", session, {"choice": Variant("s", "skip")})
        assert (await call(client, "Plans", "Apply", "sa{sv}", session, {}))["phase"] == "applying"
        while (found := await call(client, "Plans", "Get", "s", session))["phase"] == "applying":
            await asyncio.sleep(0.02)
        assert states(found) == ["done"]
        assert (await call(client, "Plans", "End", "s", session))["phase"] == "off"
        with pytest.raises(SessionNotFound):
            await call(client, "Plans", "Get", "s", "ses_0123456789abcdef")


async def call(client: Bus, interface: str, member: str, signature: str, *args: Any) -> dict[str, Any]:
    [found] = await client.call(NAME, ROOT, f"{NAME}.{interface}", member, signature, args, 60.0)
    return dict(found)


async def test_a_plan_shows_in_its_session(paths: Paths) -> None:
    async with serving(paths, [say("ok")]) as (daemon, _), AsyncClient(paths.socket, timeout_s=60) as client:
        session = (await client.call("Sessions.Create", agent="talker"))["session"]["id"]
        modes = []
        for method, parameters in (("Begin", {}), ("Set", {"plan": TWO}), ("Apply", {})):
            await client.call(f"Plans.{method}", session=session, **parameters)
            modes.append((await client.call("Sessions.Get", session=session))["session"]["mode"])
        assert modes[:2] == ["drafting", "ready"]
        found = daemon.registry.session(session)[1]
        await until(lambda: found.at_rest)
        assert (await client.call("Sessions.Get", session=session))["session"]["mode"] == "normal"
