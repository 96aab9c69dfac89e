"""Calls of tools and of the agent: policy, approvals by a form or by lactl, progress, cancelling."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.blocking import Client
from lightagentd.errors import PolicyDenied
from tests.conftest import DaemonProcess
from tests.mcp_server.talking import FORM, Talk, text_of

ALLOW = {"action": "accept", "content": {"allow": True}}


def approval_of(result: dict[str, Any]) -> str:
    error = result["_meta"]["org.lightagent1/error"]
    assert (result["isError"], error["code"]) == (True, "approval_required")
    assert f"lactl approve {error['id']}" in text_of(result)
    return str(error["id"])


def state_of(daemon: DaemonProcess, approval: str) -> str:
    with daemon.client() as client:
        return client.approvals_get(approval=approval)["approval"]["state"]


def waiting_for(daemon: DaemonProcess, file: Path) -> str:
    """The approval that is about a file."""
    with daemon.client() as client:
        found = client.approvals_list()["approvals"]
    return next(one["id"] for one in found if str(file) in str(one["args"]))


@pytest.fixture
def file(daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is not there, in a folder of the daemon's own."""
    return daemon.paths.state.parent / f"{tmp_path_factory.mktemp('x').name}.txt"


async def test_tools_are_annotated_with_their_effects(socket: str) -> None:
    async with Talk(socket) as talk:
        tools = {tool["name"]: tool for tool in (await talk.result("tools/list"))["tools"]}
    hints = {
        name: [tools[name]["annotations"][f"{hint}Hint"] for hint in ("readOnly", "destructive", "openWorld")]
        for name in ("proc_list", "web_get", "file_write", "bash_exec", "ask_agent")
    }
    assert hints == {
        "proc_list": [True, False, False],
        "web_get": [False, False, True],
        "file_write": [False, True, False],
        "bash_exec": [False, True, True],
        "ask_agent": [False, True, True],
    }
    assert tools["proc_info"]["inputSchema"]["required"] == ["pid"]
    assert not {"human_ask", "agent_ask", "plan_propose", "message_send"} & tools.keys()


async def test_a_call_that_observes_runs_and_is_in_the_history(daemon: DaemonProcess, socket: str) -> None:
    async with Talk(socket) as talk:
        found = await talk.call("crypto_sha256", text="abc")
        wrong = await talk.call("proc_info", pid="x")
    assert "ba7816bf" in text_of(found)
    assert "isError" not in found
    with Client(socket) as client:
        trace = found["_meta"]["org.lightagent1/call"]["trace_id"]
        events = client.history_query(trace=trace)["events"]
    assert [event["type"] for event in events] == ["intent", "invocation", "message"]
    assert (wrong["isError"], wrong["_meta"]["org.lightagent1/error"]["code"]) == (True, "invalid_argument")


async def test_a_change_waits_for_lactl_and_the_same_call_gives_its_result(
    daemon: DaemonProcess, socket: str, file: Path
) -> None:
    call = {"path": str(file), "content": "once\n"}
    async with Talk(socket) as talk:
        approval = approval_of(await talk.call("file_write", **call))
        assert approval_of(await talk.call("file_write", **call)) == approval
        assert not file.exists()
        assert daemon.lactl("approve", approval).returncode == 0
        found = await talk.call("file_write", **call)
        assert "isError" not in found
        assert file.read_text() == "once\n"
        other = approval_of(await talk.call("file_write", **call | {"content": "twice\n"}))
        assert daemon.lactl("deny", other).returncode == 0
        denied = await talk.call("file_write", **call | {"content": "twice\n"})
        left = approval_of(await talk.call("file_delete", path=str(file)))
    assert (denied["isError"], file.read_text()) == (True, "once\n")
    while state_of(daemon, left) == "waiting":  # the server's end is that of the calls that it holds
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "state", "error"),
    [
        (ALLOW, "used", ""),
        ({"action": "accept", "content": {"allow": False}}, "denied", "approval_denied"),
        ({"action": "decline"}, "denied", "approval_denied"),
        ({"action": "accept", "content": {}}, "waiting", "approval_required"),
        ({"action": "accept"}, "waiting", "approval_required"),
        ({"action": "cancel", "content": {"allow": True}}, "waiting", "approval_required"),
        (7, "waiting", "approval_required"),
        (None, "waiting", "approval_required"),
    ],
)
@pytest.mark.parametrize("modern", [False, True])
async def test_a_client_with_forms_asks_its_person(
    daemon: DaemonProcess, socket: str, file: Path, answer: Any, state: str, error: str, modern: bool
) -> None:
    call = {"name": "file_write", "arguments": {"path": str(file), "content": "\u202ex"}}
    async with Talk(socket, modern=modern, capabilities=FORM) as talk:
        await talk.begin("tools/call", **call)
        asked = await talk.read()
        if modern:
            assert asked["result"]["resultType"] == "input_required"
            ((approval, request),) = asked["result"]["inputRequests"].items()
            said = {approval: {"action": "none"} if answer is None else answer}
            more = {"inputResponses": said, "requestState": asked["result"]["requestState"]}
            await talk.begin("tools/call", **call, **more)
        else:
            request = asked
            approval = waiting_for(daemon, file)
            gone = {"error": {"code": -1, "message": "no"}} if answer is None else {"result": answer}
            await talk.give({"id": asked["id"], **gone})
        assert request["method"] == "elicitation/create"
        assert f"path: {file}" in request["params"]["message"]
        assert r"content: \u202ex" in request["params"]["message"]
        result = (await talk.read())["result"]
        found = result.get("_meta", {}).get("org.lightagent1/error", {})
        assert (found.get("code", ""), file.exists()) == (error, state == "used")
        assert state_of(daemon, approval) == state


async def test_an_answer_elsewhere_ends_the_form(daemon: DaemonProcess, socket: str, file: Path) -> None:
    async with Talk(socket, capabilities=FORM) as talk:
        number = await talk.begin(
            "tools/call", name="file_write", arguments={"path": str(file), "content": "x"}
        )
        asked = await talk.read()
        with daemon.client() as client:
            (waiting,) = [
                one for one in client.approvals_list()["approvals"] if str(file) in str(one["args"])
            ]
            client.approvals_approve(approval=waiting["id"])
        assert (await talk.read())["id"] == number
        assert talk.notices[-1]["params"] == {"requestId": asked["id"]}
    assert file.read_text() == "x"


async def test_text_from_outside_may_have_chosen_a_call(daemon: DaemonProcess, socket: str) -> None:
    """So to reach a host is asked for, and what it has remembered is a candidate."""
    async with Talk(socket) as talk:
        approval_of(await talk.call("net_resolve", name="localhost"))
        kept = await talk.call("memory_remember", text="Restart everything at noon.")
        assert "Proposed" in text_of(kept)
    with Client(socket) as client:
        called: dict[str, Any] = {
            "agent": "ops",
            "tool": "memory",
            "action": "forget",
            "args": {"id": "mem_0"},
            "outside": True,
        }
        last = [reply["event"] for reply in client.tools_call(**called)][-1]
    assert last["code"] == PolicyDenied.code


async def test_the_agent_is_asked_and_tells_its_progress(daemon: DaemonProcess, socket: str) -> None:
    with Client(socket) as client:
        current = client.sessions_create(agent="ops")["session"]["id"]
    async with Talk(socket) as talk:
        await talk.result("logging/setLevel", level="info")
        ask = {"name": "ask_agent", "arguments": {"prompt": "check memory"}, "_meta": {"progressToken": "t"}}
        found = (await talk.result("tools/call", **ask))["structuredContent"]
        on = await talk.call("ask_agent", prompt="and?", session=found["session"])
        error = on["_meta"]["org.lightagent1/error"]
        assert (error["code"], error["session"]) == ("no_runbook", found["session"])
        assert (await talk.call("ask_agent", prompt=" "))["isError"]
        assert (await talk.call("ask_agent", prompt="x", session="ses_0"))["isError"]
    progress = [one["params"] for one in talk.notices if one["method"] == "notifications/progress"]
    assert [one["progress"] for one in progress] == [*range(1, len(progress) + 1)]
    assert {one["progressToken"] for one in progress} == {"t"}
    assert "skill.run begins." in [one["message"] for one in progress]
    logged = [one["params"]["data"] for one in talk.notices if one["method"] == "notifications/message"]
    assert "skill.run ended: ok." in logged
    with Client(socket) as client:
        sessions = {one["id"]: one for one in client.sessions_list(agent="ops")["sessions"]}
    assert sessions[found["session"]]["tainted"]
    assert sessions[current]["current"]


@pytest.mark.usefixtures("sandboxed")
async def test_a_cancelled_call_ends(daemon: DaemonProcess, socket: str) -> None:
    async with Talk(socket) as talk:
        number = await talk.begin(
            "tools/call", name="bash_exec", arguments={"command": "sleep 60"}, _meta={"progressToken": 1}
        )
        while not talk.notices:
            talk.notices.append(await talk.sent.get())
        await talk.give({"method": "notifications/cancelled", "params": {"requestId": number}})
        assert await talk.result("ping") == {}
    with Client(socket) as client:
        for item in client.events_subscribe(from_seq=1, tool="bash", type="invocation"):
            assert item["event"] is not None
            assert item["event"]["data"] is not None
            assert item["event"]["data"]["result"] == "cancelled"
            break
