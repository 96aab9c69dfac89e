"""Tokens: what each lets a connection do, of all that the daemon can do, and what nobody can forge."""

from __future__ import annotations

import json
import os
import pwd
import socket
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.control import authz
from lightagentd.control.authz import Authority, Caller, GroupRule
from lightagentd.control.dbus.methods import methods
from lightagentd.control.grants import Grant
from lightagentd.control.tokens import TOLD_MOST, _checksum
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import PermissionDenied
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from lightagentd.policy.operation import Operation
from lightagentd.redaction.redactor import Redactor
from tests.agents.scripted import Scripted
from tests.conftest import write
from tests.control.caring import caring
from tests.control.test_authz import NOBODY, SOMEBODY, OtherUser, needs_root
from tests.control.test_authz import open_paths as open_paths
from tests.control.test_authz import shared as shared
from tests.control.test_interfaces import STREAMS, parameters_by_method
from tests.other_user import OUTSIDERS_GID
from tests.raw_varlink import Raw, code, message

MARK = "marmot-4711"
ALL = ["inspect", "prompt", "approve"]
OWNERS = sorted(one.pw_uid for one in pwd.getpwall() if one.pw_gid == OUTSIDERS_GID and one.pw_uid)[:2]
"""Two users whom the tests' daemons let inspect and prompt."""
needs_owners = pytest.mark.skipif(
    len(OWNERS) < 2 or os.geteuid() != 0, reason="only root makes others' tokens"
)
PLAIN = {"string": "none-such", "int": 1, "float": 1.0, "bool": False, "object": {}, "[]string": []}


@pytest.fixture
async def test(paths: Paths) -> AsyncIterator[Scripted]:
    async with caring(paths) as running:
        yield running


async def made(daemon: Daemon, name: str, *, scopes: list[str] = ALL, **more: Any) -> str:
    """The text of a new token."""
    async with Raw(daemon.paths.socket) as raw:
        reply = await raw.call("Tokens.Create", name=name, scopes=scopes, **more)
        assert code(reply) == "ok", reply
        return str(reply["parameters"]["created"]["secret"])


def speaking(daemon: Daemon) -> Raw:
    return Raw(daemon.paths.socket)


async def authenticate(raw: Raw, token: str) -> dict[str, Any]:
    return await raw.call("Manager.Authenticate", token=token)


async def answer(raw: Raw, method: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """All replies."""
    if method not in STREAMS:
        return [await raw.call(method, **given)]
    return [reply async for reply in raw.stream(method, **given)]


def plain(method: str, known: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """Parameters for a call: what is known by the name of a parameter, and else what names nothing."""
    kinds = parameters_by_method()[method]
    given = {
        name: known.get(name, PLAIN.get(kind.removeprefix("?")))
        for name, kind in kinds.items()
        if not kind.startswith("?") or (whole and name in known)
    }
    return given | ({"follow": False} if method == "Events.Subscribe" else {})


NEEDS = {
    "inspect": """
        Agents.Get Agents.List Agents.Skills Agents.Tools Agents.UsableTools Approvals.Approve
        Approvals.Deny Approvals.Get Approvals.List Approvals.ProposeRule
        Confirmations.Confirm Confirmations.List Evals.End Evals.Get Evals.List Evals.Ratings
        Evals.Record Evals.Trials Events.Subscribe Flows.Check Flows.Draw Flows.Follow Flows.Get Flows.List
        Flows.Output Flows.Plan Flows.Runs Flows.Show History.Page History.Query History.Verify Hooks.List
        Inputs.Answer Inputs.Get Inputs.List Kits.Get Kits.List Manager.GetStatus Mcp.List Memory.Export
        Memory.Get Memory.GetProfile Memory.List Memory.Search Models.List Models.Providers Models.Show
        Plans.Get Policy.Explain Policy.ExplainText Policy.List Policy.ListGuards Sessions.Context
        Sessions.Export Sessions.Get Sessions.List Sessions.Mail Sessions.Messages Sessions.Replay
        Sessions.Wait Sessions.Watch Skills.Get Skills.List Tools.Drafts Tools.Get Tools.GetDraft Tools.List
        Tools.Select Triggers.Get Triggers.List Triggers.Preview Undo.List Usage.Budgets""",
    "prompt": """
        Evals.Begin Flows.Cancel Flows.Rerun Flows.Resume Manager.Ask Memory.Forget Memory.Promote
        Memory.PromoteBecause Memory.Reject Memory.Remember Memory.SetProfile Models.Test Plans.Apply
        Plans.Begin Plans.End Plans.Set Sessions.Cancel Sessions.Compact Sessions.Create Sessions.Delete
        Sessions.Fork
        Sessions.Import Sessions.Pause Sessions.Prompt Sessions.Rename Sessions.Resume Sessions.SendEvent
        Sessions.SetModel Sessions.Switch Sessions.Transfer Sessions.Withdraw Tools.Call Tools.Discard
        Tools.Draft Undo.Run""",
    "approve": "",
}
"""Which scope lets a connection ask for something that is not there. No token helps with the others."""
FIRST_LOOKED_AT = {"Evals.Rate", "Flows.Run", "Usage.Get"}
"""Of these the parameters are looked at before anything else."""


async def test_each_scope_lets_a_connection_do_its_operations_and_no_other(test: Scripted) -> None:
    """With root's tokens: without one, root may do all of it."""
    found: dict[str, set[str]] = {}
    for scope in ALL:
        async with speaking(test.daemon) as raw:
            assert code(await authenticate(raw, await made(test.daemon, scope, scopes=[scope]))) == "ok"
            found[scope] = {
                method
                for method in parameters_by_method()
                if code((await answer(raw, method, plain(method, {}, whole=False)))[-1])
                not in ("permission_denied", "conflict")
            }
    assert {scope: methods - FIRST_LOOKED_AT for scope, methods in found.items()} == {
        scope: set(names.split()) for scope, names in NEEDS.items()
    }


async def having(test: Scripted, token: str) -> dict[str, Any]:
    """What a user has, with the mark in it: a session with a question that waits, and a memory."""
    async with speaking(test.daemon) as raw:
        assert code(await authenticate(raw, token)) == "ok"
        created = await raw.call("Sessions.Create", agent="test", title=MARK)
        session = created["parameters"]["session"]["id"]
        asked = await raw.call("Manager.Ask", agent="test", session=session, text=f"know {MARK}")
        kept = await raw.call(
            "Memory.Remember", agent="test", text=f"The cellar has a {MARK}.", scope="agent"
        )
        assert code(await raw.call("Memory.SetProfile", text=f"Likes the {MARK}.")) == "ok"
        assert code(kept) == "ok", kept
        draft = await raw.call("Tools.Draft", agent="test", name="marmots", source=f"# {MARK}")
        assert code(draft) == "ok", draft
        await raw.send(message("Sessions.Prompt", more=True, session=session, text=f"ask {MARK}"))
        while (event := (await raw.reply())["parameters"]["event"])["type"] != "approval_requested":
            continue
        return {
            "session": session,
            "agent": "test",
            "trace_id": asked["parameters"]["answer"]["trace_id"],
            "approval": event["approval"],
            "memory": kept["parameters"]["memory"]["id"],
            "query": "cellar",
            "text": "hello",
            "what": session,
            "of": session,
            "limit": 1000,
        }


async def seen_with(test: Scripted, token: str, known: dict[str, Any], *without: str) -> str:
    """All answers of all operations to a token, about the known things of somebody else."""
    replies = []
    async with speaking(test.daemon) as raw:
        assert code(await authenticate(raw, token)) == "ok"
        for method in parameters_by_method().keys() - without:
            for whole in (False, True):
                replies += [
                    (method, one) for one in await answer(raw, method, plain(method, known, whole=whole))
                ]
    return "\n".join(json.dumps(one) for one in replies)


@needs_owners
async def test_two_users_tokens_see_nothing_of_each_other_through_any_operation(test: Scripted) -> None:
    one, other = [await made(test.daemon, f"web-{uid}", user=str(uid)) for uid in OWNERS]
    known = await having(test, one)
    seen = await seen_with(test, other, known)
    assert [line for line in seen.splitlines() if MARK in line] == []
    for token, count in ((one, 1), (other, 0)):
        async with speaking(test.daemon) as raw:
            await authenticate(raw, token)
            status = (await raw.call("Manager.GetStatus"))["parameters"]["status"]
            assert status["turns_waiting"] == count

    narrow = await made(test.daemon, "narrow", user=str(OWNERS[0]), agents=["ops"])
    seen = await seen_with(test, narrow, known)
    assert [line for line in seen.splitlines() if MARK in line] == [], "nor of another agent of the same user"

    async with speaking(test.daemon) as raw:
        await authenticate(raw, await made(test.daemon, "again", user=str(OWNERS[0])))
        before = test.daemon.history.head_seq
        own = await made(test.daemon, "whole", user=str(OWNERS[0]), scopes=["inspect"])
        seen = await seen_with(test, own, known, "Sessions.Wait", "Sessions.Watch")
        assert seen.count(MARK) > 10, "else this test sees nothing"
        stored = test.daemon.history.queries.range(before + 1)
        assert {event.topic.partition(".")[0] for event in stored} == {"token"}, (
            "who may look changes nothing"
        )
        found = await raw.call("Approvals.Get", approval=known["approval"])
        assert found["parameters"]["approval"]["state"] == "waiting"


def changed(token: str, at: int) -> str:
    """A token with another character, and a checksum that fits."""
    body = token[:at] + ("a" if token[at] != "a" else "b") + token[at + 1 : -6]
    return body + _checksum(body)


def uses(daemon: Daemon, kind: str) -> list[dict[str, Any]]:
    found = daemon.history.queries.newest(Filter(topic="token.use", type=kind), 1000)
    return [event.data or {} for event in found]


async def test_nothing_else_is_a_token_and_guesses_are_counted(test: Scripted) -> None:
    daemon, token = test.daemon, await made(test.daemon, "chat", scopes=["inspect"])
    ended = await made(daemon, "ended")
    wrong = {
        "malformed": [
            "x",
            token[:-1],
            token.swapcase(),
            f" {token}",
            f"{token}\0",
            token[:-6] + "000000",
            "la_" * 20,
        ],
        "unknown": [changed(token, 5)],
        "wrong": [changed(token, 40)],
        "revoked": [ended],
    }
    async with speaking(daemon) as raw:
        assert code(await raw.call("Tokens.Revoke", name="ended")) == "ok"
        said = set()
        for text in (text for texts in wrong.values() for text in texts):
            reply = await authenticate(raw, text)
            assert code(reply) == "permission_denied", text
            said.add(reply["parameters"]["message"])
        assert said == {"This is not a valid token.", "The token ended is revoked."}
        for _ in range(500):
            await authenticate(raw, changed(token, 20))
        assert code(await authenticate(raw, token)) == "ok", "and one that is valid still works"
    daemon.tokens.close()
    await daemon.history.append()
    counts: Counter[str] = Counter()
    for data in uses(daemon, "refused"):
        counts[data["reason"]] += data["count"]
    assert counts == {reason: len(texts) for reason, texts in wrong.items()} | {"wrong": 501}
    assert len(uses(daemon, "refused")) <= len(wrong) * (TOLD_MOST + 1)

    stored = daemon.history.environment.data_file.read_bytes()
    for secret in (token, ended):
        assert secret[11:50].encode() not in stored
        assert secret not in Redactor().text(f"it is {secret}\n")


async def test_a_token_is_as_its_owner_says_and_each_event_names_it(paths: Paths, test: Scripted) -> None:
    daemon = test.daemon
    limits = {"requests_per_minute": 60, "streams": 2, "request_bytes": 0, "tokens_per_day": 0}
    token = await made(daemon, "chat", agents=["test"], expires_s=60, limits=limits)
    async with speaking(daemon) as raw:
        identity = (await authenticate(raw, token))["parameters"]["identity"]
        assert identity.pop("expires_us") > 0
        assert identity == {
            "uid": os.geteuid(),
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "name": "chat",
            "scopes": sorted(ALL),
            "agents": ["test"],
            "limits": limits,
        }
        assert code(await authenticate(raw, token)) == "conflict", "once and for all"
        turn = (await raw.call("Manager.Ask", agent="test", text="hello"))["parameters"]["answer"]
        assert code(await raw.call("Manager.Ask", agent="ops", text="hello")) == "permission_denied"
        told = {"session": turn["session"], "text": "ask", "correlation_id": "token:another"}
        await raw.send(message("Sessions.Prompt", more=True, **told))
        while (event := (await raw.reply())["parameters"]["event"])["type"] != "approval_requested":
            continue
        async with speaking(daemon) as second:
            await authenticate(second, token)
            granted = await second.call("Approvals.Approve", approval=event["approval"])
            assert code(granted) == "ok"
        while (event := (await raw.reply())["parameters"]["event"])["type"] != "done":
            continue
    events = daemon.history.queries.newest(Filter(session=turn["session"]), 100)
    assert {event.correlation_id for event in events} == {"token:chat", "token:chat token:another"}
    [approved] = [event.data or {} for event in events if event.type == "granted"]
    assert approved["unit"] == "token:chat", "where it was granted from"

    async with speaking(daemon) as raw:
        for wrong in (
            {"name": "chat"},
            {"name": "Bad Name"},
            {"name": "x", "scopes": ["administer"]},
            {"name": "x", "scopes": []},
            {"name": "x", "expires_s": -1},
            {"name": "x", "agents": ["../x"]},
            {"name": "x", "user": "no-such-user"},
            {"name": "x", "limits": limits | {"streams": -1}},
        ):
            reply = await raw.call("Tokens.Create", **{"scopes": ["inspect"], **wrong})
            assert code(reply) in ("conflict", "invalid_argument"), wrong
        [listed] = (await raw.call("Tokens.List"))["parameters"]["tokens"]
        assert listed["used_us"] > listed["created_us"]


async def test_a_stream_ends_with_its_token(test: Scripted) -> None:
    tokens = [await made(test.daemon, "revoked"), await made(test.daemon, "expires", expires_s=1)]
    async with speaking(test.daemon) as one, speaking(test.daemon) as other, speaking(test.daemon) as owner:
        for raw, token in zip((one, other), tokens, strict=True):
            await authenticate(raw, token)
            await raw.send(message("Events.Subscribe", more=True, follow=True))
        assert code(await owner.call("Tokens.Revoke", name="revoked")) == "ok"
        for raw, why in ((one, "was revoked"), (other, "has expired")):
            while (reply := await raw.reply()).get("continues"):
                continue
            assert code(reply) == "permission_denied"
            assert why in reply["parameters"]["message"]
            assert code(await raw.call("Manager.GetStatus")) == "permission_denied"
        assert "expired" in (await authenticate(owner, tokens[1]))["parameters"]["message"]


async def test_tokens_are_there_after_a_start(paths: Paths) -> None:
    async with Daemon(paths) as daemon:
        kept, _ = await made(daemon, "kept"), await made(daemon, "ended")
        async with speaking(daemon) as raw:
            await raw.call("Tokens.Revoke", name="ended")
    async with Daemon(paths) as daemon, speaking(daemon) as raw:
        found = (await raw.call("Tokens.List"))["parameters"]["tokens"]
        assert [one["name"] for one in found] == ["kept"]
        assert code(await authenticate(raw, kept)) == "ok"


@needs_root
async def test_the_gateway_may_do_nothing_but_authenticate(
    shared: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authz, "GATEWAY_USER", pwd.getpwuid(NOBODY).pw_name)
    token = await made(shared, "chat", scopes=["inspect"])
    async with (
        OtherUser(shared.paths.socket, NOBODY) as gateway,
        OtherUser(shared.paths.socket, SOMEBODY) as no,
    ):
        assert code(await gateway.call("Manager.Authenticate", token=token[:-1])) == "permission_denied"
        for method in parameters_by_method():
            if method in ("Manager.Authenticate", "Triggers.Deliver", "Approvals.AnswerFromAway"):
                continue  # whose requests are signed, or have a token of their own
            given = plain(method, {}, whole=False)
            said = (await gateway.replies(method, more=method in STREAMS, **given))[-1]
            assert code(said) == "permission_denied" or method in FIRST_LOOKED_AT, method
        assert code(await gateway.call("Manager.Authenticate", token=token)) == "ok"
        assert code(await gateway.call("Manager.GetStatus")) == "ok"
        assert code(await no.call("Manager.Authenticate", token=token)) == "permission_denied", "nobody else"


async def test_a_client_of_the_gateway_counts_as_its_user(paths: Paths) -> None:
    folder = paths.runtime.parent / "gateway"
    folder.mkdir()
    setting = f'[daemon]\ngateway_socket = "{folder}/http.sock"\n'
    write(paths.config / "lightagentd.toml.d" / "50-gateway.toml", setting)
    async with Daemon(paths) as daemon:
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(f"{folder}/http.sock")
            server.listen()
            client.connect(f"{folder}/http.sock")
            accepted, _ = server.accept()
            with accepted:
                async with speaking(daemon) as raw:
                    assert code(await passing(raw)) == "invalid_argument"
                    assert code(await passing(raw, client)) == "permission_denied"
                    said = (await passing(raw, client, accepted))["parameters"]["identity"]
                    assert (said["uid"], said["name"]) == (os.geteuid(), "")
                    assert code(await raw.call("Sessions.Create", agent="ops")) == "ok"
                    assert code(await raw.call("Manager.Reload")) == "permission_denied"
                    assert code(await passing(raw, accepted)) == "conflict"
        [refused] = uses(daemon, "refused")
        assert refused["reason"] == "client"


async def passing(raw: Raw, *passed: socket.socket) -> dict[str, Any]:
    """Authenticate without a token, and with some connections, the last of which counts."""
    call = message("Manager.Authenticate") + b"\0"
    with raw.writer.get_extra_info("socket").dup() as sock:
        for number, one in enumerate(passed, 1):
            part = call if number == len(passed) else b" "
            socket.send_fds(sock, [part], [one.fileno()])
        if not passed:
            sock.send(call)
    return await raw.reply()


class Deciding:
    """Says yes to all, and keeps whom it was asked about and whether a person could be."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        self.asked.append((caller.uid, ask))
        return True


async def test_a_grant_narrows_what_polkit_says_and_asks_nobody() -> None:
    decider, uid = Deciding(), os.geteuid() + 1
    narrowed = Caller(uid=uid, gid=uid, pid=1, grant=Grant(name="chat", scopes=frozenset({Operation.PROMPT})))
    authority = Authority(decider)
    await authority.admit(narrowed, Operation.PROMPT, agent="ops")
    assert decider.asked == [(uid, False)]
    for operation in set(Operation) - {Operation.PROMPT}:
        with pytest.raises(PermissionDenied, match="needs"):
            await authority.admit(narrowed, operation)
    assert len(decider.asked) == 1
    assert (await authority.viewing(narrowed)).viewer == uid
    with pytest.raises(PermissionDenied):
        await Authority(GroupRule("no-such-group")).admit(narrowed, Operation.PROMPT)


def test_only_varlink_has_the_call_by_which_a_connection_speaks_for_others() -> None:
    names = {f"{interface.rpartition('.')[2]}.{name}" for interface, name in methods()}
    assert "Manager.Authenticate" not in names
    assert {name for name in parameters_by_method() if name.startswith("Tokens.")} <= names
