"""Who may call what, and that one user's sessions do not exist for another: real uids, a real daemon."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest

from lightagentd.control.authz import Authority, Caller, GroupRule
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import PermissionDenied
from lightagentd.host.paths import Paths
from lightagentd.host.users import called
from lightagentd.policy.operation import Operation
from tests.conftest import REPOSITORY
from tests.other_user import OUTSIDERS_GID
from tests.raw_varlink import Raw, code
from tests.scripted_model import ScriptedModel, say
from tests.talker import talker

NOBODY, SOMEBODY = 65534, 65533
SECRET = "marmot-4711"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


def caller(uid: int) -> Caller:
    return Caller(uid=uid, gid=uid, pid=1)


NOGROUP = GroupRule(grp.getgrgid(OUTSIDERS_GID).gr_name)


@pytest.mark.parametrize("operation", list(Operation))
async def test_root_and_the_daemons_own_user_may_do_everything(operation: Operation) -> None:
    for uid in (0, os.geteuid()):
        admitted = await Authority().admit(caller(uid), operation)
        assert admitted.viewer is None


@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize("supplementary", [True, False])
async def test_the_group_may_inspect_and_prompt(operation: Operation, supplementary: bool) -> None:
    uid = os.geteuid() + 1
    member = Caller(uid=uid, gid=OUTSIDERS_GID, pid=1)
    if supplementary:
        member = Caller(uid=uid, gid=uid, pid=1, groups=frozenset({OUTSIDERS_GID}))
    authority = Authority(NOGROUP)
    if operation in (Operation.INSPECT, Operation.PROMPT):
        assert (await authority.admit(member, operation)).viewer == uid
        return
    with pytest.raises(PermissionDenied) as caught:
        await authority.admit(member, operation)
    assert f"org.lightagent1.{operation}" in caught.value.message
    assert "sudo" in caught.value.suggestion
    assert not await authority.may(member, operation)


@pytest.mark.parametrize("operation", list(Operation))
async def test_others_may_do_nothing_and_so_may_all_without_the_group(operation: Operation) -> None:
    uid = os.geteuid() + 1
    member = Caller(uid=uid, gid=OUTSIDERS_GID, pid=1)
    for one, rule in ((caller(uid), NOGROUP), (member, GroupRule("no-such-group"))):
        with pytest.raises(PermissionDenied):
            await Authority(rule).admit(one, operation)


class Says:
    """A decider that says the same of everything."""

    def __init__(self, verdict: bool | None, *, only: Operation | None = None) -> None:
        self._verdict, self._only = verdict, only

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool | None:
        return self._verdict if self._only in (None, operation) else False


async def test_the_first_decider_that_is_there_decides() -> None:
    one = caller(os.geteuid() + 1)
    await Authority(Says(None), Says(True)).admit(one, Operation.ADMINISTER)
    with pytest.raises(PermissionDenied):
        await Authority(Says(False), Says(True)).admit(one, Operation.INSPECT)


async def test_who_may_administer_sees_all_sessions() -> None:
    one = caller(os.geteuid() + 1)
    assert (await Authority(Says(True)).viewing(one)).viewer is None
    assert (await Authority(Says(True, only=Operation.INSPECT)).viewing(one)).viewer == one.uid
    assert one.viewer == one.uid, "as long as nobody has asked"


class OtherUser:
    """A client process with another uid."""

    def __init__(self, path: Path, uid: int) -> None:
        self._path, self._uid = path, uid
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.other_user",
            str(self._path),
            str(self._uid),
            cwd=REPOSITORY,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=32 << 20,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await asyncio.sleep(0)

    async def replies(self, method: str, *, more: bool = False, **parameters: Any) -> list[dict[str, Any]]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([method, parameters, more]).encode() + b"\n")
        found: list[dict[str, Any]] = json.loads(await stdout.readline())
        return found

    def kill(self) -> None:
        """End it at once, whatever it waits for."""
        self._process.kill()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return (await self.replies(method, **parameters))[-1]


@pytest.fixture
def open_paths(paths: Paths) -> Any:
    """Folders of a daemon whose socket other users can reach."""
    runtime = Path(tempfile.mkdtemp(prefix="la-"))
    runtime.chmod(0o755)
    yield Paths(config=paths.config, state=paths.state, runtime=runtime)
    shutil.rmtree(runtime)


@pytest.fixture
async def shared(open_paths: Paths) -> AsyncIterator[Daemon]:
    """A daemon that any user may connect to, with the agent talker."""
    async with ScriptedModel([say("the answer")]) as model:
        talker(open_paths, model)
        async with Daemon(open_paths) as running:
            open_paths.socket.chmod(0o666)
            yield running


async def prompt_as_root(daemon: Daemon) -> str:
    """Make a session of root's with the secret in it; gives its id."""
    async with Raw(daemon.paths.socket) as raw:
        reply = await raw.call("Manager.Ask", agent="talker", text=f"know {SECRET}", new=True)
        return str(reply["parameters"]["answer"]["session"])


@needs_root
async def test_another_users_session_does_not_exist(shared: Daemon) -> None:
    session = await prompt_as_root(shared)
    made_up = "ses_0123456789abcdef"
    async with OtherUser(shared.paths.socket, NOBODY) as nobody:
        for method, parameters in (
            ("Sessions.Get", {}),
            ("Sessions.Messages", {}),
            ("Sessions.Cancel", {}),
            ("Manager.Ask", {"agent": "talker", "text": "hello"}),
        ):
            taken = await nobody.call(method, session=session, **parameters)
            free = await nobody.call(method, session=made_up, **parameters)
            assert code(taken) == "session_not_found", method
            assert json.dumps(taken).replace(session, made_up) == json.dumps(free)
        streamed = await nobody.replies("Sessions.Prompt", more=True, session=session, text="hello")
        assert [code(reply) for reply in streamed] == ["session_not_found"]
        assert (await nobody.call("Sessions.List"))["parameters"]["sessions"] == []
        assert (await nobody.call("Manager.GetStatus"))["parameters"]["status"]["sessions"] == 0
        assert (await nobody.call("Agents.Get", name="talker"))["parameters"]["agent"]["sessions"] == 0
    async with Raw(shared.paths.socket) as raw:
        shown = (await raw.call("Sessions.Messages", session=session))["parameters"]["messages"]
        assert [message["role"] for message in shown] == ["user", "assistant"]


@needs_root
async def test_another_users_events_are_in_no_answer(shared: Daemon) -> None:
    session = await prompt_as_root(shared)
    trace = next(
        event.trace_id
        for event in shared.history.queries.range(1, 10_000)
        if event.session == session and event.trace_id
    )
    async with OtherUser(shared.paths.socket, NOBODY) as nobody:
        answers = [
            await nobody.call("History.Query", session=session),
            await nobody.call("History.Query", trace=trace),
            await nobody.call("History.Query", agent="talker", limit=1000),
            await nobody.call("History.Query", topic="agent", limit=1000),
            *await nobody.replies("Events.Subscribe", more=True, from_seq=1, follow=False),
            *await nobody.replies("Events.Subscribe", more=True, from_seq=1, follow=False, session=session),
            *[await nobody.call(method) for method in ("Agents.List", "Manager.GetStatus", "Sessions.List")],
        ]
        assert all(code(answer) == "ok" for answer in answers)
        assert SECRET not in json.dumps(answers)
        assert session not in json.dumps(answers)
        assert trace not in json.dumps(answers)


@needs_root
async def test_a_live_subscriber_sees_its_own_events_and_no_others(shared: Daemon) -> None:
    async with OtherUser(shared.paths.socket, NOBODY) as nobody:
        following = asyncio.create_task(
            nobody.replies("Events.Subscribe", more=True, from_seq=1, topic="agent")
        )
        session = await prompt_as_root(shared)
        async with OtherUser(shared.paths.socket, NOBODY) as again:
            own = (await again.call("Manager.Ask", agent="talker", text="hello"))["parameters"]["answer"]
        assert own["session"] != session
        shared.feed.close()
        events = [reply["parameters"]["event"] for reply in await following][:-1]
        assert {event["session"] for event in events} == {own["session"]}
        assert {event["owner"] for event in events} == {NOBODY}
        assert {"agent.prompt", "agent.message"} <= {event["topic"] for event in events}


@needs_root
async def test_two_users_have_sessions_of_their_own_and_root_sees_both(shared: Daemon) -> None:
    path = shared.paths.socket
    async with OtherUser(path, NOBODY) as nobody, OtherUser(path, SOMEBODY) as somebody:
        sessions = {}
        for uid, user in ((NOBODY, nobody), (SOMEBODY, somebody)):
            answer = (await user.call("Manager.Ask", agent="talker", text="hello"))["parameters"]["answer"]
            listed = (await user.call("Sessions.List"))["parameters"]["sessions"]
            assert [(one["id"], one["owner"]) for one in listed] == [(answer["session"], uid)]
            sessions[uid] = answer["session"]
        again = await nobody.call("Manager.Ask", agent="talker", text="once more")
        assert again["parameters"]["answer"]["session"] == sessions[NOBODY]
        assert code(await somebody.call("Sessions.Get", session=sessions[NOBODY])) == "session_not_found"
        async with Raw(path) as raw:
            listed = (await raw.call("Sessions.List"))["parameters"]["sessions"]
            assert {one["id"] for one in listed} == set(sessions.values())
            assert code(await raw.call("Sessions.Messages", session=sessions[NOBODY])) == "ok"


@needs_root
async def test_another_user_cannot_change_the_daemon(shared: Daemon) -> None:
    async with OtherUser(shared.paths.socket, NOBODY) as nobody:
        for method, parameters in (
            ("Agents.Create", {"name": "mine"}),
            ("Agents.Delete", {"name": "talker"}),
            ("Agents.Set", {"name": "talker", "model": "runbook"}),
            ("Agents.Start", {"name": "talker"}),
            ("Agents.Stop", {"name": "talker"}),
            ("Agents.Restart", {"name": "talker"}),
            ("Agents.Stop", {"name": "no-such-agent"}),
            ("Manager.Reload", {}),
            ("Manager.TakeSnapshot", {"agent": "talker"}),
        ):
            reply = await nobody.call(method, **parameters)
            assert code(reply) == "permission_denied", method
            assert called(NOBODY) in reply["parameters"]["message"]
            assert reply["parameters"]["suggestion"]
        agents = (await nobody.call("Agents.List"))["parameters"]["agents"]
        assert {(agent["name"], agent["state"]) for agent in agents} >= {("talker", "running")}
        assert "mine" not in {agent["name"] for agent in agents}


@needs_root
async def test_a_persons_tool_call_is_not_shown_to_others(shared: Daemon) -> None:
    async with Raw(shared.paths.socket) as raw:
        call = {"agent": "talker", "tool": "file", "action": "stat", "args": {"path": f"/{SECRET}"}}
        assert [reply async for reply in raw.stream("Tools.Call", **call)]
    async with OtherUser(shared.paths.socket, NOBODY) as nobody:
        replies = await nobody.replies("Events.Subscribe", more=True, from_seq=1, follow=False)
        assert SECRET not in json.dumps(replies)


@needs_root
async def test_the_socket_is_for_its_owner_and_group_alone(open_paths: Paths) -> None:
    elsewhere = open_paths.config / "lightagentd.toml.d" / "10-group.toml"
    elsewhere.write_text('[daemon]\nsocket_group = "root"\n')
    async with Daemon(open_paths):
        assert open_paths.socket.stat().st_mode & 0o007 == 0
        async with OtherUser(open_paths.socket, NOBODY) as nobody:
            assert await nobody.call("Manager.GetStatus") == {"error": "PermissionError"}
