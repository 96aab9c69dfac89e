"""Hooks: an administrator's functions around a turn, through real workers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import HookBlocked, LightagentError, PermissionDenied, StorageError
from lightagentd.events.history import Event, History, NewEvent
from lightagentd.host.paths import Paths
from tests.agents.asking import Watched, asked, asking, lines, prepare, waiting
from tests.agents.flows import rig
from tests.agents.scripted import ME, Scripted, scripted
from tests.conftest import write
from tests.control.test_undo import STRANGER
from tests.scripted_model import Script, call, say

HEAD = "from lightagentd.toolkit.hook import block, replace\n"
ALLOW = '[[rule]]\nname = "probe"\ntool = "probe"\ndecision = "allow"\neven_if_tainted = true\n'
DENY = '[[rule]]\nname = "no"\ntool = "probe"\nargs = { line = "denied" }\ndecision = "deny"\n'


def hook(paths: Paths, name: str, text: str) -> Path:
    return write(paths.config / "hooks" / f"{name}.py", HEAD + text)


def decided(test: Scripted) -> list[tuple[str, str, str]]:
    events = test.stored(topic="hook.decided")
    return [(one.type, (one.data or {})["phase"], (one.data or {})["message"]) for one in events]


def adds(line: str) -> Script:
    """Add a line, then say what came of it."""

    def answer(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return say("model says: ", last["content"])
        return call("probe_add", {"path": answer.path, "line": line})  # type: ignore[attr-defined]

    return answer


CHANGES = """
def before_turn(payload):
    assert (payload["agent"], payload["prompt"], payload["owner"]) == ("test", "go", OWNER), payload
    return replace(payload | {"prompt": "went"})

def before_model_request(payload):
    messages = [one | {"content": one["content"] + "!"} for one in payload["messages"]]
    return replace({"system": payload["system"] + " Hooked.", "messages": messages})

def after_model_response(payload):
    return replace({"text": payload["text"].upper()})

def before_tool_call(payload):
    return replace(payload | {"args": payload["args"] | {"line": payload["args"]["line"] + "+hook"}})

def after_tool_result(payload):
    assert payload["result"] == "ok" and payload["args"]["line"] == "x+hook", payload
    return replace({"text": "result of a hook"})

def after_turn(payload):
    return block(f"{payload['error']}{payload['answer']}")
"""


async def test_each_phase_of_a_turn_replaces_what_comes_next(paths: Paths) -> None:
    out = prepare(paths)
    write(paths.config / "policy.d" / "probe.toml", ALLOW)
    script: Any = adds("x")
    script.path = str(out)
    hook(paths, "10-all", CHANGES.replace("OWNER", str(ME.uid)))
    async with asking(paths, script) as test:
        session = await test.session()
        events = await test.prompt(session)
        assert lines(out) == ["x+hook"]
        first, second = (one.body["messages"] for one in test.model.requests)
        assert first[0]["content"].endswith(" Hooked.")
        assert first[-1]["content"] == "went!"
        assert second[-1]["content"].endswith("result of a hook!")
        told = "".join(one["text"] for one in events if one["type"] == "text_delta")
        assert told.startswith("MODEL SAYS: ")
        assert told.endswith("RESULT OF A HOOK!")  # nothing of the answer as it was is shown before
        stored = test.conversation(session)
        assert [one.content for one in stored] == ["went", "", stored[2].content, told]
        assert stored[2].content.endswith("result of a hook")
        assert [one[:2] for one in decided(test)] == [
            ("replaced", "before_turn"),
            ("replaced", "before_model_request"),
            ("replaced", "before_tool_call"),
            ("replaced", "after_tool_result"),
            ("replaced", "before_model_request"),
            ("replaced", "after_model_response"),
            ("told", "after_turn"),
        ]
        assert decided(test)[-1][2] == f"The hook 10-all.py remarks: {told}."
        event = test.stored(topic="hook.decided")[2]
        assert event.data is not None
        assert event.data["keys"] == ["args"]
        assert len(event.data["before"]) == len(event.data["after"]) == 64
        assert event.data["before"] != event.data["after"]


async def test_a_replaced_call_is_decided_again_and_a_denied_one_stays_denied(paths: Paths) -> None:
    out = prepare(paths)
    write(paths.config / "policy.d" / "probe.toml", ALLOW + DENY)
    script: Any = adds("x")
    script.path = str(out)
    hook(paths, "a", 'def before_tool_call(payload):\n    return replace({"args": payload["args"] | LINE})\n')
    file = paths.config / "hooks" / "a.py"
    text = file.read_text()
    file.write_text(text.replace("LINE", '{"line": "denied"}'))
    async with asking(paths, script) as test:
        session = await test.session()
        await test.prompt(session)
        assert lines(out) == []
        assert "policy_denied" in test.conversation(session)[2].content
        file.write_text(text.replace("LINE", '{"line": 5}'))  # as a model might: checked again
        await test.daemon.reload()
        await test.prompt(session)
        assert "invalid_argument" in test.conversation(session)[6].content
        assert lines(out) == []


async def test_the_approval_is_for_the_replaced_call_and_a_hook_may_spare_the_person(paths: Paths) -> None:
    out = prepare(paths)
    script: Any = adds("x")
    script.path = str(out)
    hook(
        paths,
        "a",
        'def before_tool_call(payload):\n    return replace({"args": payload["args"] | {"line": "y"}})\n'
        "def on_approval_required(payload):\n"
        '    assert payload["args"]["line"] == "y" and payload["preview"] == "+y", payload\n'
        '    return block("not at night")\n',
    )
    async with asking(paths, script) as test:
        session = await test.session()
        await test.prompt(session)
        assert waiting(test) == []
        assert "not at night" in test.conversation(session)[2].content
        assert lines(out) == []


async def test_a_replaced_call_has_the_effect_of_its_new_arguments(paths: Paths) -> None:
    hook(
        paths,
        "a",
        "def before_tool_call(payload):\n"
        '    return replace({"args": payload["args"] | {"effect": "change"}})\n',
    )
    script = [call("bash_exec", {"command": "true", "effect": "observe"}), say("done")]
    async with asking(paths, script) as test, Watched(test, await test.session()):
        question = await asked(test)
        assert (question.tool, question.effect, question.args["effect"]) == ("bash", "change", "change")


BAD = {
    "while True: pass": "did not answer within 0.3 seconds",
    "bytearray(2 << 30)": "MemoryError",
    "import os; os._exit(3)": "end the worker that runs them",
    'return replace({"prompt": "x" * (20 << 20)})': "20.0 MiB of 8 at most",
    'return replace({"prompt": 5})': "prompt is int, not str",
    'return replace({"owner": 5})': "it replaces 'owner'; this phase can replace: prompt",
    "return True": "it gave bool",
    'raise ValueError("no")': "before_turn: ValueError: no",
    'raise SystemExit("no")': "SystemExit: no",
    # What is not the sandbox's to give.
    'open("/var/tmp/lightagent-hook", "w")': "Read-only file system",
    'open("/run/lightagent-scratch/hook", "w")': "Permission denied",
    'import socket; socket.create_connection(("127.0.0.1", 9))': "OSError",
    'import subprocess; subprocess.run(["id"])': "PermissionError",
}


async def test_a_hook_that_fails_blocks_and_its_sandbox_holds(paths: Paths) -> None:
    hook(paths, "a", "")
    async with scripted(paths, [say("fine")]) as test:
        session = await test.session()
        for number, (code, said) in enumerate(BAD.items()):
            hook(paths, "a", f"timeout_s = 0.3\ndef before_turn(payload):\n    {code}\n")
            await test.daemon.reload()
            last = (await test.prompt(session, str(number)))[-1]
            assert last.get("code") == "hook_blocked", (code, last)
            assert said in last["message"], (code, last)
        assert [one[0] for one in decided(test)] == ["failed"] * len(BAD)
        assert test.model.requests == []
        hook(paths, "a", 'on_error = "go on"\ndef before_turn(payload):\n    raise ValueError("no")\n')
        await test.daemon.reload()
        assert (await test.prompt(session))[-1]["type"] == "done"
        assert decided(test)[-1][0] == "failed"


async def test_a_file_that_cannot_be_used_blocks_its_agents_and_is_a_problem(paths: Paths) -> None:
    bad = {
        "1 / 0": "line 2: ZeroDivisionError",
        "def before_dinner(payload): pass": "before_dinner is not a phase",
        "x = 1": "no function for a phase",
        'on_error = "ignore"\ndef before_turn(payload): pass': "on_error is 'ignore'",
        "timeout_s = 300\ndef before_turn(payload): pass": "timeout_s is 300",
    }
    async with scripted(paths, [say("fine")]) as test:
        session = await test.session()
        assert (await test.prompt(session))[-1]["type"] == "done"
        for code, said in bad.items():
            file = hook(paths, "a", code)
            found = await test.daemon.reload()
            assert any(said in one and str(file) in one for one in found.problems), found.problems
            last = (await test.prompt(session))[-1]
            assert last["code"] == "hook_blocked", last
            assert said in last["message"]
        file.chmod(0o666)
        assert any(
            "everybody can write" in one.problem for one in await test.daemon.registry.shared.hooks.look()
        )
        file.unlink()
        assert (await test.daemon.reload()).problems == []
        assert (await test.prompt(session))[-1]["type"] == "done"


async def test_a_turn_that_is_stored_is_done_whatever_becomes_of_a_remark(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook(paths, "a", 'def after_turn(payload):\n    return block("noted")\n')
    append = History.append

    def full(self: History, *events: NewEvent, **more: Any) -> asyncio.Future[list[Event]]:
        if not any(event.topic == "hook.decided" for event in events):
            return append(self, *events, **more)
        failed: asyncio.Future[list[Event]] = asyncio.get_running_loop().create_future()
        failed.set_exception(StorageError("The disk is full."))
        return failed

    async with scripted(paths, [say("fine")]) as test:
        session = await test.session()
        monkeypatch.setattr(History, "append", full)
        assert (await test.prompt(session))[-1]["type"] == "done"
        assert decided(test) == []
        monkeypatch.undo()


async def test_hooks_come_in_the_order_of_their_names_and_a_kit_has_its_own(paths: Paths) -> None:
    add = 'def before_turn(payload):\n    return replace({"prompt": payload["prompt"] + " MARK"})\n'
    hook(paths, "20-b", add.replace("MARK", "b"))
    hook(paths, "10-a", add.replace("MARK", "a"))
    hook(paths, "30-c", 'agents = ["other"]\n' + add.replace("MARK", "c"))
    kit = paths.config / "agent" / "test" / "hooks"
    write(kit / "k.py", HEAD + add.replace("MARK", "kit"))
    other = paths.config / "agent" / "other"
    async with scripted(paths, [say("fine")]) as test:
        write(other / "AGENT.md", (paths.config / "agent" / "test" / "AGENT.md").read_text())
        await test.daemon.reload()
        session = await test.session()
        await test.prompt(session)
        assert test.model.requests[-1].body["messages"][-1]["content"] == "go a b kit"
        made = await test.daemon.service.sessions.create(ME, "other", "")
        agent = test.daemon.registry.get("other")
        turn = await agent.prompt(agent.sessions[made.id], "go")
        await turn.over.wait()
        assert test.model.requests[-1].body["messages"][-1]["content"] == "go a b c"
        workers = {one.agent for one in test.daemon.pool.workers()}
        assert {"hooks@", "hooks@test"} <= workers


async def test_what_a_hook_does_to_its_payload_is_nothing_to_the_next_one(paths: Paths) -> None:
    hook(paths, "a", 'def before_turn(payload):\n    payload["prompt"] = payload["more"] = payload.clear()\n')
    hook(paths, "b", 'def before_turn(payload):\n    return replace({"prompt": payload["prompt"] + " b"})\n')
    hook(paths, "c", 'def before_turn(payload):\n    payload["prompt"] = "lost"\n')
    hook(
        paths,
        "d",
        'def before_turn(payload):\n    return replace(payload | {"prompt": "d " + payload["prompt"]})\n',
    )
    async with scripted(paths, [say("fine")]) as test:
        prompt = "go" * 400_000  # which does not come in one piece
        await test.prompt(await test.session(), prompt)
        assert test.model.requests[-1].body["messages"][-1]["content"] == f"d {prompt} b"
        assert [one[0] for one in decided(test)] == ["replaced", "replaced"]


async def test_hooks_see_what_is_remembered(paths: Paths) -> None:
    hook(
        paths,
        "a",
        "def before_memory_write(payload):\n"
        '    if "secret" in payload["text"]:\n        return block("not that")\n'
        '    return replace({"text": payload["text"].upper(), "tags": ["hooked"]})\n'
        'def after_memory_write(payload):\n    return block(payload["state"] + " " + payload["text"])\n',
    )
    async with scripted(paths, [say("fine")]) as test:
        memory = test.daemon.service.memory
        kept = await memory.remember(ME, text="the disk is new", agent="test")
        assert (kept.text, kept.tags) == ("THE DISK IS NEW", ["hooked"])
        with pytest.raises(HookBlocked, match="not that"):
            await memory.remember(ME, text="the secret place", agent="test")
        assert [one[:2] for one in decided(test)] == [
            ("replaced", "before_memory_write"),
            ("told", "after_memory_write"),
            ("blocked", "before_memory_write"),
        ]


async def test_hooks_see_the_steps_of_a_flow_and_that_it_goes_on(paths: Paths) -> None:
    rig.allow(paths)
    hook(
        paths,
        "a",
        "def before_flow_step(payload):\n"
        '    if payload["step"] == "two":\n        return block("not now")\n'
        'def after_flow_step(payload):\n    return replace({"output": payload["output"] + "+"})\n'
        'def on_resume(payload):\n    return block("on_resume " + payload["flow"])\n'
        'def on_rerun(payload):\n    return block("on_rerun " + payload["step"])\n',
    )
    rig.flow(paths, "flow", {"name": "one"} | rig.echo("1"), {"name": "two"} | rig.echo("{one.output}"))
    async with rig.running(paths) as daemon:
        run = await rig.ended(daemon)
        assert rig.states(run) == {"one": "success", "two": "failed"}
        assert run.steps["one"].output == "1+"
        assert run.steps["two"].code == "hook_blocked"
        assert "not now" in run.steps["two"].message
        with pytest.raises(HookBlocked, match="on_resume flow"):
            await daemon.flows.resume(run.record.id)
        with pytest.raises(HookBlocked, match="on_rerun one"):
            await daemon.flows.rerun(run.record.id, "one")
        assert rig.stored(daemon, run)["one"].state == "success"


async def test_an_administrator_tries_a_hook_and_looks_at_files_before_a_reload(paths: Paths) -> None:
    hook(paths, "a", 'def before_tool_call(payload):\n    return block("no") if payload["x"] else None\n')
    async with scripted(paths, [say("fine")]) as test:
        hooks = test.daemon.service.hooks
        (one,) = await hooks.listed(ME)
        assert (one.name, one.phases, one.on_error, one.problem) == (
            "a.py",
            ["before_tool_call"],
            "block",
            "",
        )
        tried = await hooks.test(ME, "before_tool_call", {"x": 1})
        assert (tried.blocked, tried.decided[0]["reason"], tried.asked) == (True, "no", ["a.py"])
        assert not (await hooks.test(ME, "before_tool_call", {"x": 0}, agent="test")).blocked
        for phase, payload in (("before_dinner", {}), ("before_turn", [])):
            with pytest.raises(LightagentError):
                await hooks.test(ME, phase, payload)
        assert test.stored(topic="hook.decided") == []
        hook(paths, "b", "1 / 0")
        assert [bool(one.problem) for one in await hooks.listed(ME, anew=True)] == [False, True]
        assert len(await hooks.listed(ME)) == 1
        with pytest.raises(PermissionDenied):
            await hooks.test(STRANGER, "before_tool_call", json.loads("{}"))
