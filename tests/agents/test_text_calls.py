"""An agent whose model takes no functions: found out by the first call, and then a tool loop in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lightagentd.host.paths import Paths
from tests.agents.scripted import check_conversation, scripted, types
from tests.scripted_model import Answer, Fault, Script, say

CALL = '{"tool": "file", "action": "stat", "args": {"path": "/"}}'


def without_tools(script: Sequence[Answer]) -> Script:
    """A server that refuses functions, and else plays the script."""
    left = iter(script)

    def answer(body: dict[str, Any]) -> Answer:
        if "tools" in body:
            return Fault(status=400, body=b'{"error": {"message": "x does not support tools"}}')
        return next(left)

    return answer


async def test_a_model_without_tools_runs_them_in_words(paths: Paths) -> None:
    async with scripted(paths, without_tools([say(*CALL), say("It is a folder."), say("Again.")])) as test:
        session = await test.session()
        events = await test.prompt(session)
        assert events[-1]["type"] == "done"
        assert events[-1]["text"] == "It is a folder."
        assert "tool_result" in types(events)
        assert not any("{" in event["text"] for event in events if event["type"] == "text_delta")
        first, described, result = (asked.body for asked in test.model.requests)
        assert "tools" in first
        assert "tools" not in described
        assert '"tool": "file", "action": "stat"' in described["messages"][0]["content"]
        assert [message["role"] for message in result["messages"]] == ["system", "user", "assistant", "user"]
        assert json.loads(result["messages"][2]["content"]) == json.loads(CALL)
        assert result["messages"][3]["content"].startswith("[Result of file_stat: data from the machine")
        check_conversation(test.conversation(session))
        assert (await test.prompt(session))[-1]["text"] == "Again."
        assert len(test.model.requests) == 4


NAMED = '{"name": "file_stat", "arguments": {"path": "/"}}'
LOST = '<tool_call>{"name": "read_file", "arguments": {"path": "/secret-word"}}</tool_call>'


async def test_a_call_after_a_sentence_is_run_and_not_shown(paths: Paths) -> None:
    script = [say(*f"I look.\n<tool_call>\n{NAMED}\n</tool_call>"), say("It is a folder.")]
    async with scripted(paths, without_tools(script)) as test:
        session = await test.session()
        events = await test.prompt(session)
        assert events[-1]["text"] == "It is a folder."
        assert [event["action"] for event in events if event["type"] == "tool_call"] == ["stat"]
        assert "".join(event["text"] for event in events if event["type"] == "text_delta").startswith(
            "I look.\nIt"
        )
        assert "tool_call>" not in str(test.conversation(session))


async def test_a_model_is_told_once_how_to_write_a_call(paths: Paths) -> None:
    script = [say(*LOST), say(*NAMED), say(*LOST), say("It is a folder.")]
    async with scripted(paths, without_tools([*script, say(*LOST), say(*LOST)])) as test:
        session = await test.session()
        events = await test.prompt(session)
        assert events[-1]["text"] == "It is a folder."
        assert [event["code"] for event in events if event["type"] == "notice"][-2:] == ["call_unread"] * 2
        told = test.model.requests[2].body["messages"][-1]
        assert told["role"] == "user"
        assert "there is no function 'read_file'" in told["content"]
        assert '{"tool": "TOOL", "action": "ACTION"' in told["content"]
        failed = await test.prompt(session)
        assert (failed[-1]["type"], failed[-1]["code"]) == ("error", "model_failed")
        assert "wrote a call that cannot be read" in failed[-1]["message"]
        assert "secret-word" not in str([*events, *failed, *test.conversation(session)])
        check_conversation(test.conversation(session))
