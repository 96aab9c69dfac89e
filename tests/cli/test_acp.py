"""`lactl acp`, as an editor starts it, against the real daemon: the other end is the package's own client.

The package is imported by what needs it: that takes most of a second, and each process that runs tests reads
this file.
"""

from __future__ import annotations

import asyncio
import grp
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest
import pytest_asyncio

from lightagentd.client.aio import AsyncClient
from lightagentd.toolkit.files.text import unified_diff
from tests.cli.chatting import Chatty, chatty
from tests.conftest import REPOSITORY
from tests.other_user import OUTSIDERS_GID

if TYPE_CHECKING:
    from acp import Client, RequestError, schema
    from acp.client import ClientSideConnection

in_module_loop = pytest.mark.asyncio(loop_scope="module")
ARGUMENTS = ("-m", "lightagentd.cli.main", "acp", "test")
OTHER_UID = 4242
AS_ANOTHER = f"""
import os, sys
import lightagentd.cli.acp, lightagentd.cli.editor.agent
from lightagentd.cli.main import main
os.setgroups([])
os.setresgid(*[{OUTSIDERS_GID}] * 3)
os.setresuid(*[{OTHER_UID}] * 3)
sys.argv = ["lactl", "acp", "test"]
main()
"""


@pytest.fixture(scope="module")
def chats() -> Iterator[Chatty]:
    group = grp.getgrgid(OUTSIDERS_GID).gr_name
    with chatty(f'[daemon]\nsocket_group = "{group}"\n') as found:
        yield found


class Person:
    """The editor's side: keeps what it is told, and answers what it is asked with the options in `answers`,
    and then with none.
    """

    def __init__(self) -> None:
        self.updates: dict[str, list[dict[str, Any]]] = {}
        self.asked: list[tuple[dict[str, Any], list[str]]] = []
        self.answers: list[str | None] = []
        self.heard, self.later = asyncio.Event(), asyncio.Event()
        self.connection: ClientSideConnection

    def on_connect(self, conn: Any) -> None: ...

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        found = update.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.updates.setdefault(session_id, []).append(found)
        self.heard.set()

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        from acp import schema

        found = tool_call.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.asked.append((found, [f"{one.kind} {one.name}" for one in options]))
        answer = self.answers.pop(0) if self.answers else None
        self.heard.set()
        if answer == "later":
            await self.later.wait()
        if answer is None:
            denied = schema.DeniedOutcome(outcome="cancelled")
            return schema.RequestPermissionResponse(outcome=denied)
        chosen = schema.AllowedOutcome(outcome="selected", option_id=answer)
        return schema.RequestPermissionResponse(outcome=chosen)

    async def begin(self, **more: Any) -> str:
        """A new session."""
        return (await self.connection.new_session(cwd="/srv/site", **more)).session_id

    async def prompt(self, session: str, *content: str | Any) -> schema.PromptResponse:
        from acp import text_block

        blocks = [text_block(each) if isinstance(each, str) else each for each in content]
        return await self.connection.prompt(session_id=session, prompt=blocks)

    def text(self, session: str, kind: str = "agent_message_chunk") -> str:
        told = [each for each in self.updates.get(session, ()) if each["sessionUpdate"] == kind]
        return "".join(each["content"]["text"] for each in told)

    def calls(self, session: str) -> list[dict[str, Any]]:
        """The calls as the updates left them, without their ids, and with all states that they had."""
        found: dict[str, dict[str, Any]] = {}
        for each in self.updates[session]:
            if "toolCallId" in each:
                call = found.setdefault(each["toolCallId"], {"states": []})
                call["states"] += [each["status"]] if "status" in each else []
                call |= {key: each[key] for key in each.keys() - {"sessionUpdate", "toolCallId", "status"}}
        return [*found.values()]

    async def until_told(self, session: str, text: str) -> None:
        while text not in self.text(session):
            self.heard.clear()
            await self.heard.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def person(chats: Chatty) -> AsyncIterator[Person]:
    from acp import spawn_agent_process

    found = Person()
    async with spawn_agent_process(
        cast("Client", found),
        sys.executable,
        *ARGUMENTS,
        env=chats.env,
        cwd=REPOSITORY,
        transport_kwargs={"stderr": None},
    ) as (connection, _):
        found.connection = connection
        yield found


def our_code(err: RequestError) -> str:
    assert isinstance(err.data, dict)
    return str(err.data["code"])


async def state(chats: Chatty, session: str) -> dict[str, Any]:
    async with AsyncClient(chats.daemon.paths.socket) as client:
        return dict((await client.call("Sessions.Get", session=session))["session"])


@in_module_loop
async def test_it_says_what_it_can(person: Person) -> None:
    found = await person.connection.initialize(protocol_version=77)
    assert found.protocol_version == 1
    assert found.agent_capabilities is not None
    said = found.agent_capabilities.model_dump(exclude_none=True)
    assert said["load_session"] is True
    assert said["prompt_capabilities"] == {"image": False, "audio": False, "embedded_context": True}
    assert said["mcp_capabilities"] == {"http": False, "sse": False, "acp": False}
    assert said["session_capabilities"] == {"list": {}}


@in_module_loop
async def test_an_answer_is_streamed_and_the_conversation_is_loaded_again(person: Person) -> None:
    from acp import RequestError, schema

    server = schema.McpServerStdio(name="db", command="/bin/db", args=[], env=[])
    session = await person.begin(mcp_servers=[server])
    assert (await person.prompt(session, "the report")).stop_reason == "end_turn"
    text = person.text(session)
    assert "tool servers of the editor are refused: db." in text
    assert text.endswith("# Report" + text.partition("# Report")[2])
    assert text.count("The end.") == 1
    assert person.updates[session][-1]["title"] == "the report"
    listed = await person.connection.list_sessions(cwd="/srv/site")
    (one,) = [each for each in listed.sessions if each.session_id == session]
    assert (one.cwd, one.title) == ("/srv/site", "test: the report")

    answer = text.partition("# Report")[2]
    person.updates[session].clear()
    loaded = await person.connection.load_session(cwd="/srv/site", session_id=session)
    assert loaded.modes is not None
    assert loaded.modes.current_mode_id == "test"
    asked = 'the report\n\n(My editor has the folder "/srv/site" open.)'
    assert person.text(session, "user_message_chunk") == asked
    assert person.text(session) == f"# Report{answer}"
    with pytest.raises(RequestError, match="no session") as failed:
        await person.connection.load_session(cwd="/srv/site", session_id="ses_0")
    assert (failed.value.code, our_code(failed.value)) == (-32002, "session_not_found")


@in_module_loop
async def test_a_change_is_shown_and_allowed_or_refused_in_the_editor(chats: Chatty, person: Person) -> None:
    session, file = await person.begin(), chats.folder / "motd"
    file.write_text("hello\n")
    person.answers, person.asked = ["reject", "allow"], []
    await person.prompt(session, "write it")
    assert file.read_text() == "hello\n"
    await person.prompt(session, "write it")
    assert file.read_text() == "welcome\n"
    refused, done = person.calls(session)
    assert refused["states"][0] == "pending"
    assert refused["states"][-1] == "failed"
    assert refused["rawOutput"]["result"] == "approval_denied"
    assert done["states"] == ["pending", "in_progress", "completed"]
    diff = {"type": "diff", "path": str(file), "oldText": "hello\n", "newText": "welcome\n"}
    assert done["content"] == [diff]
    assert (done["kind"], done["locations"]) == ("edit", [{"path": str(file)}])
    for call, options in person.asked:
        assert options == ["allow_once Allow once", "reject_once Reject once"]
        assert call["content"][1] == diff
        assert "Asked by the rule default-change" in call["content"][0]["content"]["text"]
        assert call["rawInput"]["content"] == "welcome\n"

    person.updates[session].clear()
    await person.connection.load_session(cwd="/srv/site", session_id=session)
    loaded = person.calls(session)
    assert [call["states"] for call in loaded] == [["in_progress", "completed"]] * 2
    assert [call["kind"] for call in loaded] == ["edit", "edit"]
    assert "+welcome" in loaded[1]["content"][0]["content"]["text"]


@in_module_loop
@pytest.mark.parametrize("answer", [None, "later"])
async def test_a_question_without_an_answer_is_answered_elsewhere(
    chats: Chatty, person: Person, answer: str | None
) -> None:
    session = await person.begin()
    person.answers, person.asked = [answer], []
    turn = asyncio.create_task(person.prompt(session, "write it"))
    if answer is None:
        await person.until_told(session, "lactl approve apr_")
    while not person.asked:
        person.heard.clear()
        await person.heard.wait()
    found = await state(chats, session)
    assert found["state"] == "waiting"
    async with AsyncClient(chats.daemon.paths.socket) as client:
        await client.call("Approvals.Deny", approval=found["waits_for"])
    assert (await turn).stop_reason == "end_turn"
    person.later.set()


@in_module_loop
async def test_a_question_with_choices_is_answered_in_the_editor(person: Person) -> None:
    session = await person.begin()
    person.answers, person.asked = ["1"], []
    await person.prompt(session, "colour")
    assert person.asked[0][0]["title"] == "Which colour?"
    assert person.asked[0][1] == ["allow_once red", "allow_once green"]
    assert "green" in person.text(session)


@in_module_loop
async def test_a_turn_is_cancelled_while_another_session_goes_on(chats: Chatty, person: Person) -> None:
    first, second = await person.begin(), await person.begin()
    turn = asyncio.create_task(person.prompt(first, "hang"))
    await person.until_told(first, "Half a")
    assert (await person.prompt(second, "the report")).stop_reason == "end_turn"
    assert not turn.done()
    await person.connection.cancel(session_id=first)
    assert (await turn).stop_reason == "cancelled"
    assert (await state(chats, first))["state"] == "idle"


@in_module_loop
@pytest.mark.parametrize(("reason", "stop"), [("length", "max_tokens"), ("content_filter", "refusal")])
async def test_why_a_turn_ended_is_told(person: Person, reason: str, stop: str) -> None:
    session = await person.begin()
    assert (await person.prompt(session, f"cut at {reason} …")).stop_reason == stop


@in_module_loop
async def test_context_is_outside_text_and_pictures_are_refused(chats: Chatty, person: Person) -> None:
    from acp import RequestError, embedded_text_resource, image_block, resource_block, resource_link_block

    session, log = await person.begin(), chats.folder / "a b.log"
    log.write_text("disk full\n")
    context = [
        resource_block(embedded_text_resource("file:///srv/site/main.py", "print()")),
        resource_link_block("log", log.as_uri()),
        resource_link_block("page", "https://example.org/x"),
    ]
    await person.prompt(session, "why is ", *context)
    shown = "why is @main.py @a b.log @page"
    blocks = "```main.py\nprint()\n```\n\n```a b.log\ndisk full\n```\n\n```page\nhttps://example.org/x\n```"
    assert f"You said: {shown}" in person.text(session)
    assert person.text(session).endswith(blocks)
    assert (await state(chats, session))["tainted"]
    with pytest.raises(RequestError, match="image") as failed:
        await person.prompt(session, "look", image_block("aGk=", "image/png"))
    assert (failed.value.code, our_code(failed.value)) == (-32602, "invalid_argument")


@in_module_loop
async def test_the_agents_of_the_team_are_modes(chats: Chatty, person: Person) -> None:
    from acp import RequestError

    opened = await person.connection.new_session(cwd="/srv/site")
    assert opened.modes is not None
    assert {"test", "other"} <= {mode.id for mode in opened.modes.available_modes}
    await person.connection.set_session_mode(session_id=opened.session_id, mode_id="other")
    assert (await state(chats, opened.session_id))["holder"] == "other"
    with pytest.raises(RequestError) as failed:
        await person.connection.set_session_mode(session_id=opened.session_id, mode_id="nobody")
    assert our_code(failed.value) == "agent_not_found"


# Without the package


class Editor:
    """A process of `lactl acp`, line by line."""

    def __init__(self, chats: Chatty, arguments: Sequence[str] = ARGUMENTS) -> None:
        pipe = subprocess.PIPE
        how: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": pipe}
        self.process = subprocess.Popen(
            [sys.executable, *arguments], env=chats.env, cwd=REPOSITORY, bufsize=0, **how
        )

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(line + b"\n")
        while view:
            view = view[self.process.stdin.write(view) or 0 :]

    def request(self, number: int, method: str, **parameters: Any) -> None:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}
        self.send(json.dumps(message).encode())

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline())
        assert isinstance(found, dict)
        return found

    def answer(self, number: int) -> dict[str, Any]:
        """The answer to a request; what comes before it is passed over."""
        while (found := self.line()).get("id") != number or "method" in found:
            pass
        return found

    def finish(self) -> bytes:
        """Let it end; what it says on standard error."""
        err: bytes = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0
        return err


REFUSED = [
    (b'{"jsonrpc": "2.0", "id": 1, "meth', -32700),
    (b"\xff\xfe", -32700),
    (b"[" * 100_000, -32700),
    (b"x" * (10 << 20), -32700),
    (b"x" * (17 << 20), -32600),
    (b'[{"jsonrpc": "2.0", "id": 1, "method": "session/list"}]', -32600),
    (b'{"id": {}, "method": "session/list"}', -32600),
    (b'{"id": 1, "method": {}}', -32600),
    (b"{}", -32600),
]
"""Lines that are no message, and the code of what is answered."""
IGNORED = [
    b"",
    b'{"id": 99, "result": {}}',
    b'{"id": 98, "error": 1}',
    b'{"method": "nothing/of_that"}',
    b'{"method": "session/cancel", "params": {"sessionId": 5}}',
    b'{"method": "session/cancel", "params": ' + b"[" * 900 + b"]" * 900 + b"}",
]
ANSWERED: list[tuple[str, Any, int]] = [
    ("nothing/of_that", {}, -32601),
    ("session/close", {}, -32601),
    ("session/new", [], -32602),
    ("session/new", {"cwd": "here", "mcpServers": []}, -32602),
    (
        "session/prompt",
        {"sessionId": "ses_0", "prompt": [{"type": "smell"}], "_meta": {"session_id": 5}},
        -32602,
    ),
    ("session/prompt", {"sessionId": "ses_0", "prompt": [{"type": "text", "text": "x"}]}, -32002),
]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_and_lines_that_are_no_message(chats: Chatty) -> None:
    editor = Editor(chats, ("-c", AS_ANOTHER))
    theirs = json.loads(chats.lactl("sessions", "new", "test", "--json").stdout)["id"]
    for method in ("session/load", "session/prompt", "session/set_mode"):
        more = {"cwd": "/", "mcpServers": [], "modeId": "other", "prompt": [{"type": "text", "text": "x"}]}
        editor.request(1, method, sessionId=theirs, **more)
        assert editor.answer(1)["error"]["data"]["code"] == "session_not_found"
    for line, code in REFUSED:
        editor.send(line)
        assert (found := editor.line())["error"]["code"] == code, line[:40]
        assert found["id"] is None
    for line in IGNORED:
        editor.send(line)
    for method, parameters, code in ANSWERED:
        editor.send(json.dumps({"id": "a", "method": method, "params": parameters}).encode())
        assert editor.line()["error"]["code"] == code, method
    editor.request(2, "session/new", cwd="/", mcpServers=[])
    own = editor.answer(2)["result"]["sessionId"]
    editor.request(3, "session/prompt", sessionId=own, prompt=[{"type": "text", "text": "write it"}])
    while (asked := editor.line()).get("method") != "session/request_permission":
        pass
    assert [one["kind"] for one in asked["params"]["options"]] == ["reject_once"]  # they may not allow it
    answer = {"outcome": {"outcome": "selected", "optionId": "reject"}}
    editor.send(json.dumps({"id": asked["id"], "result": answer}).encode())
    assert editor.answer(3)["result"] == {"stopReason": "end_turn"}
    assert b"Traceback" not in editor.finish()


def test_what_runs_is_cancelled_when_the_editor_leaves(chats: Chatty) -> None:
    left, ended = editors = Editor(chats), Editor(chats)
    sessions = []
    for editor in editors:
        editor.request(1, "session/new", cwd="/", mcpServers=[])
        sessions.append(editor.answer(1)["result"]["sessionId"])
        editor.request(2, "session/prompt", sessionId=sessions[-1], prompt=[{"type": "text", "text": "hang"}])
        while "Half a" not in str(editor.line()):
            pass
    ended.process.terminate()
    assert b"Traceback" not in left.finish() + ended.finish()
    for session in sessions:
        found = json.loads(chats.lactl("sessions", "show", session, "--json").stdout)
        assert found["state"] == "idle"
        assert found["messages"][-1]["cut_off"].startswith("Error (cancelled)")


def test_a_diff_has_its_lines_before_and_after() -> None:
    from lightagentd.cli.editor.calls import diffs

    def found(text: str) -> list[tuple[str, str | None, str]]:
        return [(one.path, one.old_text, one.new_text) for one in diffs(text)]

    many = "".join(f"{number}\n" for number in range(40))
    assert found(unified_diff("/a", b"1\n2\n", b"1\n3")) == [("/a", "1\n2\n", "1\n3")]
    assert found(unified_diff("/a", None, b"-- x\n++ y\n")) == [("/a", None, "-- x\n++ y\n")]
    assert found(unified_diff("/a", b"x", None)) == [("/a", "x", "")]
    changed = many.replace("\n3\n", "\n!\n").replace("\n33\n", "\n?\n")
    hunks = found(
        "Makes /b.\n" + unified_diff("/a", many.encode(), changed.encode()) + "Its mode becomes 0600.\n"
    )
    assert [new for _, _, new in hunks] == ["0\n1\n2\n!\n4\n5\n6\n", "30\n31\n32\n?\n34\n35\n36\n"]
    for broken in ("", "--- /a\n", "--- /a\n+++ /a\n@@ -1,2 +1,2 @@\n 1\n-2\n", "(no difference)\n"):
        assert found(broken) == []
