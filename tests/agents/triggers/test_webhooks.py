"""Requests that fire triggers: whose are taken, once, and what an agent is asked about them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from lightagentd.agents.triggers.webhooks.bodies import data_of
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import (
    Conflict,
    EventNotFound,
    InvalidArgument,
    LightagentError,
    MessageTooLarge,
    NotFound,
    PermissionDenied,
)
from lightagentd.events.filter import Filter
from lightagentd.host.paths import Paths
from tests.agents.triggers.rig import at_rest, counts, running, told, trigger
from tests.conftest import write
from tests.scripted_model import say

ME = Caller(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())
SECRET, OLD = "a-secret-of-this-webhook", "whsec_" + base64.b64encode(b"the secret before").decode()
BODY = json.dumps({"what": "the build 12", "count": 3})
Headers = dict[str, str]
Signs = Callable[[str, str], Headers]


def github(secret: str, body: str) -> Headers:
    return {"x-hub-signature-256": f"sha256={hmac.new(secret.encode(), body.encode(), 'sha256').hexdigest()}"}


def stripe(secret: str, body: str, at: int | str = 0) -> Headers:
    at = at or int(time.time())
    signed = hmac.new(secret.encode(), f"{at}.{body}".encode(), hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={at},v1={'0' * 64},v1={signed},v0=x"}


def standard(secret: str, body: str, number: str = "msg_1", at: int = 0) -> Headers:
    at = at or int(time.time())
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    signed = base64.b64encode(hmac.digest(key, f"{number}.{at}.{body}".encode(), "sha256")).decode()
    return {"webhook-id": number, "webhook-timestamp": f"{at}", "webhook-signature": f"v1a,x v1,{signed}"}


def bearer(secret: str, body: str) -> Headers:
    return {"authorization": f"Bearer {secret}"}


SIGNED: dict[str, Signs] = {"github": github, "stripe": stripe, "standard": standard, "token": bearer}


def hook(paths: Paths, signed: str = "github", **keys: Any) -> None:
    secret = write(paths.config / "hook.secret", f"{SECRET}\n{OLD}\n")
    trigger(paths, "build", signed=signed, secret_file=str(secret), **keys)


async def send(daemon: Daemon, headers: Headers, body: str = BODY, name: str = "build") -> str:
    return await daemon.service.triggers.deliver(ME, name, headers=headers, body=body)


@pytest.mark.parametrize("signed", SIGNED)
async def test_what_is_signed_is_asked_about_and_what_is_not_is_refused(paths: Paths, signed: str) -> None:
    hook(paths, signed)
    sign = SIGNED[signed]
    async with running(paths, {"ops": [say("seen")]}) as (daemon, model):
        number = await send(daemon, sign(SECRET, BODY))
        again = {
            "standard": lambda: standard(OLD, BODY, "msg_2"),
            "stripe": lambda: stripe(OLD, BODY, int(time.time()) + 1),
        }
        await send(daemon, again.get(signed, lambda: sign(OLD, BODY))())
        wrong = [
            {},
            sign("another secret, as long", BODY),
            sign(SECRET, BODY + "x") if signed != "token" else sign(SECRET + "x", BODY),
            dict.fromkeys(sign(SECRET, BODY), ""),
            {key: f"é{one}" for key, one in sign(SECRET, BODY).items()},
            *(SIGNED[other](SECRET, BODY) for other in SIGNED if other != signed),
        ]
        for headers in wrong:
            with pytest.raises(PermissionDenied):
                await send(daemon, headers)
        await at_rest(daemon.triggers)
        [first, *_] = daemon.history.queries.select(Filter(topic="trigger.webhook", type="taken"))
        refused = [one.data["count"] for one in told(daemon, "refused") if one.data]
    assert (first.request_id, first.data and first.data["body"]) == (number, BODY)
    assert SECRET not in str(first)
    assert len(model.requests) == 2
    assert "look at the build 12" in str(model.requests[0])
    assert refused == [1]  # the others are counted, and told of later


async def test_the_same_request_is_taken_once_also_after_a_restart(paths: Paths) -> None:
    hook(paths, "standard")
    async with running(paths, {"ops": [say("seen")]}) as (daemon, _):
        headers = standard(SECRET, BODY)
        number = await send(daemon, headers)
        with pytest.raises(Conflict, match=number):
            await send(daemon, headers)
        with pytest.raises(Conflict, match=number):  # its sender gives the number to one request alone
            await send(daemon, standard(SECRET, BODY + " "), BODY + " ")
        for at in (time.time() - 400, time.time() + 400):
            with pytest.raises(PermissionDenied, match="within 300 s"):
                await send(daemon, standard(SECRET, BODY, "msg_2", int(at)))
        await at_rest(daemon.triggers)
        assert counts(daemon.triggers, "build") == {"fired": 1}
    async with Daemon(paths) as daemon:
        with pytest.raises(Conflict):
            await send(daemon, headers)


async def test_a_request_is_the_same_with_one_of_its_signatures_alone(paths: Paths) -> None:
    hook(paths, "stripe")
    async with running(paths, {"ops": [say("seen")]}) as (daemon, _):
        at = int(time.time())
        one, other = (stripe(secret, BODY, at)["stripe-signature"] for secret in (SECRET, OLD))
        await send(daemon, {"stripe-signature": f"{one},{other}"})
        for headers in (one, other, f"{other},{one}"):
            with pytest.raises(Conflict):
                await send(daemon, {"stripe-signature": headers})


async def test_a_stored_request_is_replayed_by_a_person(paths: Paths) -> None:
    hook(paths)
    async with running(paths, {"ops": [say("seen")]}) as (daemon, model):
        number = await send(daemon, github(SECRET, BODY))
        again = await daemon.service.triggers.replay(ME, number)
        await at_rest(daemon.triggers)
        with pytest.raises(EventNotFound):
            await daemon.service.triggers.replay(ME, "hook_nothing")
        other = Caller(uid=65534, gid=65534, pid=os.getpid())
        for refused in (
            daemon.service.triggers.replay(other, number),
            daemon.service.triggers.deliver(other, "build", headers={}, body=""),
        ):
            with pytest.raises(PermissionDenied):
                await refused
    assert again != number
    assert len(model.requests) == 2


BAD: dict[str, tuple[str, type[LightagentError]]] = {
    "no JSON": ("{", InvalidArgument),
    "two keys": ('{"a": 1, "a": 2}', InvalidArgument),
    "deep": ("[" * 1000 + "]" * 1000, InvalidArgument),
    "too long": ('"' + "x" * (1 << 20) + '"', MessageTooLarge),
}


async def test_bad_bodies_are_errors_and_fire_nothing(paths: Paths) -> None:
    hook(paths, match={"what": "the*"})
    trigger(paths, "test-only")
    async with running(paths, {"ops": [say("seen")]}) as (daemon, _):
        for body, error in BAD.values():
            with pytest.raises(error):
                await send(daemon, github(SECRET, body), body)
        for name in ("test-only", "nothing", "triage"):
            with pytest.raises(NotFound):
                await send(daemon, {}, name=name)
        await send(
            daemon, github(SECRET, '{"what": "other"}'), '{"what": "other"}'
        )  # which it does not wait for
        await send(daemon, github(SECRET, "[1]"), "[1]")
        assert counts(daemon.triggers, "build") == {}
        write(paths.config / "hook.secret", "short\n")
        with pytest.raises(LightagentError, match="16 characters") as err:
            await send(daemon, github("short", BODY))
        assert "short" not in str(err.value)


def test_templates_name_what_prompts_need() -> None:
    alert = {"labels": {"alertname": "DiskFull", "instance": "web1"}, "annotations": {"summary": "/ is full"}}
    told = {
        "status": "firing",
        "alerts": [alert, alert],
        "commonLabels": {"alertname": "DiskFull"},
        "title": "T",
    }
    found = data_of("alertmanager", json.dumps(told), {})
    assert (found["alertname"], found["summary"], found["instance"]) == ("DiskFull", "/ is full", "web1")
    assert found["count"] == 2
    assert data_of("grafana", json.dumps(told), {})["title"] == "T"
    push = {"ref": "refs/heads/main", "repository": {"full_name": "a/b"}, "commits": [{"message": "x\ny"}]}
    found = data_of("github", json.dumps(push), {"x-github-event": "push"})
    assert found == {"event": "push", "ref": "refs/heads/main", "repository": "a/b", "commits": ["x"]}
    for template in ("alertmanager", "grafana", "github"):
        for odd in (
            "[]",
            "null",
            '{"alerts": 1}',
            '{"alerts": [1], "commits": {}, "repository": [], "issue": 2}',
        ):
            data_of(template, odd, {})
