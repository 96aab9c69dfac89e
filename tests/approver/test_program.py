"""Who is answered, at the sockets and on the bus, and by what."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightagentd.approver.dbus import NAME, PATH
from lightagentd.errors import (
    ApprovalMismatch,
    InvalidArgument,
    LightagentError,
    Panicked,
    PermissionDenied,
)
from lightagentd.signed.grant import Grant
from lightagentd.signed.statement import Statement
from tests.approver.stage import CALL, NOBODY, Stage, staged
from tests.dbus_client import BusClient
from tests.scripted_polkit import CHALLENGE, YES

OWN_UNITS = (
    "lightagent-change@ops.service",
    "lightagentd.service",
    "lightagent-observe@00.service",
    "lightagent-x.scope",
)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        yield made


async def test_a_persons_yes_is_signed_and_comes_to_the_daemon(stage: Stage) -> None:
    digest = await stage.asked()
    [listed] = await stage.person("List")
    found = await stage.person("Get", approval="apr_1")
    assert listed == found
    assert Statement.of(found["statement"]).digest == digest == found["digest"]
    with pytest.raises(ApprovalMismatch):
        await stage.person("Approve", approval="apr_1", digest=digest[:-1] + "x")
    await stage.person("Approve", approval="apr_1", digest=digest, confirm_within="1m", note="go")
    answer = await stage.daemon("Wait", approval="apr_1")
    public = (stage.folder / "public").read_bytes()
    grant = Grant.verified(answer["grant"], [public])
    assert (answer["state"], answer["note"], answer["terms"]["confirm_within_s"]) == ("granted", "go", 60)
    assert grant.digest == answer["digest"] == replace(CALL, confirm_within_s=60).digest != digest
    assert (grant.agent, grant.owner, grant.by, answer["seat"]["unit"]) == ("ops", 1000, 0, "session-1.scope")


@pytest.mark.parametrize("unit", OWN_UNITS)
async def test_what_runs_in_a_unit_of_ours_is_refused_even_as_root(stage: Stage, unit: str) -> None:
    digest = await stage.asked()
    stage.unit = unit
    calls: dict[str, dict[str, Any]] = {
        "List": {},
        "Get": {"approval": "apr_1"},
        "Approve": {"approval": "apr_1", "digest": digest},
        "Deny": {"approval": "apr_1"},
        "Leaves": {},
        "Withdraw": {"leave": "leave_1"},
        "Panic": {},
        "EndPanic": {},
    }
    for method, parameters in calls.items():
        with pytest.raises(PermissionDenied):
            await stage.person(method, **parameters)
    stage.unit = "session-1.scope"
    assert [one["state"] for one in await stage.person("List")] == ["waiting"]


async def test_no_user_of_ours_is_a_person(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {0: "lightagent-w00", 995: "lightagent"}
    monkeypatch.setattr("lightagentd.approver.answering.user_name", lambda uid: names.get(uid, f"{uid}"))
    with pytest.raises(PermissionDenied, match="lightagent-w00 is no person"):
        await stage.person("List")
    names[0], stage.unit = "root", "user@995.service"  # a manager of the daemon's user
    with pytest.raises(PermissionDenied, match="no place for a person"):
        await stage.person("List")


async def test_the_sockets_serve_nothing_of_each_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = await stage.asked()
    with pytest.raises(LightagentError):
        await stage.call("daemon", "org.lightagent1.Approver.Approve", approval="apr_1", digest=digest)
    with pytest.raises(LightagentError):
        await stage.call("approve", "org.lightagent1.ApproverRequests.Lapse", approval="apr_1")
    await stage.daemon("Lapse", approval="apr_1")
    monkeypatch.setattr("lightagentd.approver.program.daemons", lambda: frozenset({12345}))
    await stage.restart()
    with pytest.raises(LightagentError):
        await stage.daemon("Lapse", approval="apr_1")


async def test_a_panic_ends_by_a_person_alone_and_outlives_a_restart(stage: Stage) -> None:
    digest = await stage.asked()
    found = await stage.daemon("Panic", reason="fire")
    assert (found["reason"], found["by"], found["stored"]) == ("fire", None, True)
    assert (stage.folder / "panic").stat().st_mode & 0o777 == 0o644
    with pytest.raises(LightagentError):
        await stage.daemon("EndPanic")
    await stage.restart()
    assert (await stage.person("GetStatus"))["panic"]["reason"] == "fire"
    with pytest.raises(Panicked):
        await stage.person("Approve", approval="apr_1", digest=digest)
    await stage.person("EndPanic")
    assert not (stage.folder / "panic").exists()
    await stage.person("Approve", approval="apr_1", digest=digest)
    status = await stage.person("GetStatus")
    assert (status["panic"], status["waiting"], status["problems"]) == (None, 0, [])


async def test_a_leave_is_listed_and_withdrawn(stage: Stage) -> None:
    digest = await stage.asked()
    with pytest.raises(InvalidArgument):
        await stage.person("Approve", approval="apr_1", digest=digest, tainted=True)
    await stage.person("Approve", approval="apr_1", digest=digest, for_session=True)
    [leave] = await stage.person("Leaves")
    await stage.asked(replace(CALL, call_id="call_2"), "apr_2")
    answer = await stage.daemon("Wait", approval="apr_2")
    assert (answer["state"], answer["leave"]) == ("granted", leave["id"])
    await stage.person("Withdraw", leave=leave["id"])
    await stage.asked(replace(CALL, call_id="call_3"), "apr_3")
    assert [one["id"] for one in await stage.person("List")] == ["apr_3"]


# On the bus


async def test_on_the_bus_polkit_is_asked_about_the_caller(stage: Stage) -> None:
    digest = await stage.asked()
    async with BusClient(stage.address, NOBODY) as other:
        await other.do("match", f"type='signal',interface='{NAME}'")
        assert await other.call(PATH, f"{NAME}.List") == [[]]
        refused = await other.call(PATH, f"{NAME}.Get", "s", "apr_1")
        assert refused["error"][0] == "org.lightagent1.Error.PermissionDenied"
        stage.verdicts["approve"] = CHALLENGE
        refused = await other.call(PATH, f"{NAME}.Approve", "ssa{sv}", "apr_1", digest, {})
        assert refused["error"][0] == "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
        stage.verdicts["approve"] = YES
        [[listed]] = await other.call(PATH, f"{NAME}.List")
        [found] = await other.call(PATH, f"{NAME}.Get", "s", "apr_1")
        statement = Statement.of(json.loads(found["statement"]))
        assert statement == CALL
        assert listed["digest"] == found["digest"] == statement.digest == digest
        wrong = await other.call(PATH, f"{NAME}.Approve", "ssa{sv}", "apr_1", digest, {"x": ["s", "y"]})
        assert wrong["error"][0] == "org.lightagent1.Error.InvalidArgument"
        options = {"note": ["s", "fine"], "for_session": ["b", True]}
        [allowed] = await other.call(PATH, f"{NAME}.Approve", "ssa{sv}", "apr_1", digest, options)
        assert (allowed["state"], allowed["by"], allowed["note"]) == ("granted", NOBODY, "fine")
        told = await other.do("wait", "Changed", "granted", 1)
        assert [PATH, NAME, "Changed", ["apr_1", "granted"]] in told
        [[leave]] = await other.call(PATH, f"{NAME}.Leaves")
        assert await other.call(PATH, f"{NAME}.Withdraw", "s", leave["id"]) == []
        again = await other.call(PATH, f"{NAME}.Deny", "sa{sv}", "apr_1", {})
        assert again["error"][0] == "org.lightagent1.Error.ApprovalClosed"
        assert await other.get(PATH, NAME, "Panic") == {}
        await stage.daemon("Panic", reason="fire")
        assert (await other.get(PATH, NAME, "Panic"))["reason"] == "fire"
        for unit in OWN_UNITS[:2]:
            stage.unit = unit
            refused = await other.call(PATH, f"{NAME}.List")
            assert refused["error"][0] == "org.lightagent1.Error.PermissionDenied"
    checks = [one for one in stage.polkit.checks if one.action == "org.lightagent1.approve"]
    assert {(one.kind, one.details.get("agent")) for one in checks} == {("system-bus-name", "ops")}


async def test_on_the_bus_it_says_what_it_offers(stage: Stage) -> None:
    async with BusClient(stage.address, 0) as root:
        [xml] = await root.call(PATH, "org.freedesktop.DBus.Introspectable.Introspect")
        for member in ("List", "Get", "Approve", "Deny", "Leaves", "Withdraw", "Panic", "Changed"):
            assert f'name="{member}"' in xml
        for wrong, signature, args in (("Sign", "", []), ("Get", "ss", ["apr_1", ""]), ("List", "s", [""])):
            refused = await root.call(PATH, f"{NAME}.{wrong}", signature, *args)
            assert refused["error"][0].startswith("org.lightagent1.Error.")
        large = await root.call(PATH, f"{NAME}.Get", "s", "x" * (128 << 10))
        assert large["error"][0] == "org.lightagent1.Error.LimitExceeded"
