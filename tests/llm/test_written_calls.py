"""What models without native calls write, cut into deltas at each place: calls, attempts at one, and text."""

from __future__ import annotations

import json

import pytest

from lightagentd.llm.held_text import MOST_HELD_CHARS, HeldText
from lightagentd.llm.protocol import Finish, Part, ReasoningDelta, TextDelta, ToolCall

OFFERED = {"file_read", "file_write", "net_list_interfaces", "plain"}
ARGS = '{"path": "/a {b} \\"c\\" ```"}'
READ = '{"tool": "file", "action": "read", "args": ' + ARGS + "}"
NAMED = '{"name": "file_read", "arguments": ' + ARGS + "}"
PLAIN = '{"name": "plain", "arguments": {}}'
OTHER = '{"name": "users_read", "arguments": {"path": "/a"}}'
BROKEN = '{"tool": "file", "action": "read", "args": {"path": "/a"}'
FENCED = f"```json\n{NAMED}\n```"

ONE = ["file_read"]
TWO = ["file_read", "plain"]

CALLS = [
    (READ, "", ONE),
    (f"\n  {NAMED}\n", "", ONE),
    (f"Let me look.\n\n{READ}", "Let me look.\n\n", ONE),
    (f"I look: {NAMED}\n", "I look: ", ONE),
    (f"`ls` is not it.\n{FENCED}\n", "`ls` is not it.\n", ONE),
    (f"Run this:\n```sh\nls {{}}\n```\nor\n{FENCED}", "Run this:\n```sh\nls {}\n```\nor\n", ONE),
    (f"<tool_call>\n{NAMED}\n</tool_call>", "", ONE),
    (f"Well.<tool_call>{NAMED}</tool_call>\n<tool_call>{PLAIN}</tool_call>", "Well.", TWO),
    (f"<tool_call>{NAMED}", "", ONE),
    (f"<tool_call>{NAMED}</tool_call>\nThe file says: hello", "", ONE),
    (f"<tool_call>\n```json\n{NAMED}\n```\n</tool_call>", "", ONE),
    (f"{NAMED}\n</tool_call>", "", ONE),
    (f"<|tool_call|>[{NAMED}, {PLAIN}]", "", TWO),
    (f"<|python_tag|>{NAMED.replace('arguments', 'parameters')}<|eom_id|>", "", ONE),
    (NAMED.replace("arguments", "parameters"), "", ONE),
    (f"{NAMED}; {PLAIN}", "", TWO),
    (f"First.\n{READ}\n{PLAIN}", "First.\n", TWO),
    (f"{FENCED}\n\n```json\n{PLAIN}\n```", "", TWO),
    (f"[TOOL_CALLS][{NAMED}]</s>", "", ONE),
    (f"[TOOL_CALLS] [{NAMED}, {PLAIN}]", "", TWO),
    (f"[TOOL_CALLS]file_read[ARGS]{ARGS}[TOOL_CALLS]plain[ARGS]{{}}", "", TWO),
    (f"[TOOL_CALLS]file_read{ARGS}", "", ONE),
    (f"<function=file_read>{ARGS}</function>", "", ONE),
    (f"[{NAMED}]", "", ONE),
    (json.dumps({"type": "function", "function": {"name": "file_read", "arguments": ARGS}}), "", ONE),
    (json.dumps({"function": {"name": "file_read", "arguments": ARGS}}), "", ONE),
    (json.dumps({"tool_calls": [{"function": json.loads(NAMED)}]}), "", ONE),
    (json.dumps({"name": "file_read", "arguments": ARGS}), "", ONE),
    (json.dumps({"tool": "file_read", "args": json.loads(ARGS)}), "", ONE),
    (json.dumps({"tool": "file", "action": "file_read", "args": json.loads(ARGS)}), "", ONE),
    (json.dumps({"name": "functions.file.read", "input": json.loads(ARGS)}), "", ONE),
    (json.dumps({"action": "file_read", "action_input": json.loads(ARGS)}), "", ONE),
    ('{"tool": "net", "action": "list_interfaces"}', "", ["net_list_interfaces"]),
    (f"{NAMED}\n{OTHER}", "", ["file_read", "users_read"]),
    ('{"tool": "users", "action": "read", "args": {}}', "", ["users_read"]),
]  # fmt: skip

ATTEMPTS = [
    (f"<tool_call>{OTHER}</tool_call>", "", "no function 'users_read'"),
    (f"Let me see.\n<tool_call>{OTHER}</tool_call>", "Let me see.\n", "no function 'users_read'"),
    (OTHER, "", "no function 'users_read'"),
    (f"<tool_call>{BROKEN}</tool_call>", "", "valid JSON"),
    ("<tool_call>\n<function=file_read>\n<parameter=path>\n/a\n</parameter>\n</function>", "", "valid JSON"),
    ("<|python_tag|>file_read(path='/a')", "", "valid JSON"),
    (f"[TOOL_CALLS]{BROKEN}", "", "valid JSON"),
    (BROKEN, "", "valid JSON"),
    (f"Let me see.\n```json\n{BROKEN}", "Let me see.\n", "valid JSON"),
    (f"{NAMED}\n{BROKEN}", "", "valid JSON"),
    ('{"name": "file_read", "arguments": "no object"}', "", "valid JSON"),
    ('{"name": "file_read", "arguments": [1]}', "", "valid JSON"),
]

TEXTS = [
    "",
    "  \n",
    "hello",
    "{",
    "A {b} and [c](d) < e ``f`` `<tool_call>` ```",
    "The <tool_cal",
    '{"tool": "file"}',
    '{"name": "file_read", "age": 3}',
    '{"name": "Ada", "type": "person"}',
    f"{READ} and more",
    f"{NAMED} is how it is written, and {PLAIN} too.",
    f"```json\n{NAMED}\n``` so",
    f"It is `{NAMED}`",
    f"Write this:\n```python\ncall({NAMED})\n```\n",
    f"Write this:\n```python\n{NAMED}\n```",
    f"A call of another program:\n```json\n{OTHER}\n```",
    f"An object in one: {{\"a\": {NAMED}}}",
    f"Between `<tool_call>` and `</tool_call>` stands {OTHER}",
    '{"name": "thing", "parameters": ' + '{"a":' * 3000 + "1" + "}" * 3000 + "}",
    "{" * 50,
    '{"type": "object", "properties": {"name": {"type": "string"}}}',
]  # fmt: skip


def heard(pieces: list[str], *, strict: bool = False) -> tuple[str, list[ToolCall], Finish]:
    """The text, the calls and the end of an answer that comes in pieces."""
    held, parts = HeldText(OFFERED, strict=strict), list[Part]()
    for piece in pieces:
        parts += held.feed(TextDelta(piece))
    parts += held.feed(Finish(reason="stop"))
    text = "".join(part.text for part in parts if isinstance(part, TextDelta))
    finish = parts[-1]
    assert isinstance(finish, Finish)
    return text, [part for part in parts if isinstance(part, ToolCall)], finish


def cut(text: str) -> list[list[str]]:
    """A text in two pieces, cut at each place, and letter by letter."""
    places = range(len(text)) if len(text) < 400 else range(0, len(text), 997)
    return [*([text[:at], text[at:]] for at in places), [*text]]


@pytest.mark.parametrize(("text", "shown", "names"), CALLS)
def test_what_models_write_is_a_call_and_never_shown(text: str, shown: str, names: list[str]) -> None:
    for pieces in cut(text):
        said, calls, finish = heard(pieces)
        assert (said, [call.name for call in calls], finish.unread) == (shown, names, ""), pieces
        assert finish.reason == "tool_calls"
        for call in calls:
            if call.name == "file_read":
                assert json.loads(call.arguments) == json.loads(ARGS)


@pytest.mark.parametrize(("text", "shown", "why"), ATTEMPTS)
def test_what_was_meant_as_a_call_is_never_shown(text: str, shown: str, why: str) -> None:
    for pieces in cut(text):
        said, calls, finish = heard(pieces)
        assert (said, calls) == (shown, []), pieces
        assert why in finish.unread, pieces


@pytest.mark.parametrize("text", TEXTS)
def test_what_only_shows_a_call_is_text(text: str) -> None:
    for pieces in cut(text):
        assert heard(pieces) == (text, [], Finish(reason="stop")), pieces


@pytest.mark.parametrize("text", [OTHER, '{"tool": "users", "action": "read", "args": {}}'])
def test_an_answer_that_has_to_be_json_is_a_call_of_an_offered_function_alone(text: str) -> None:
    assert heard([*text], strict=True) == (text, [], Finish(reason="stop"))
    assert [call.name for call in heard([*NAMED], strict=True)[1]] == ONE


def test_text_is_shown_as_it_comes_and_a_call_is_held() -> None:
    held = HeldText(OFFERED)
    assert [*held.feed(TextDelta("I look {x} "))] == [TextDelta("I look {x} ")]
    assert [*held.feed(TextDelta("<tool"))] == []
    assert [*held.feed(ReasoningDelta("hm"))] == [ReasoningDelta("hm")]
    assert [*held.feed(TextDelta("s> "))] == [TextDelta("<tools> ")]
    assert [*held.feed(TextDelta(NAMED))] == []
    assert [*held.feed(TextDelta(" now"))] == [TextDelta(NAMED), TextDelta(" now")]


def test_no_more_is_held_than_a_call_has_and_nothing_is_lost() -> None:
    held, shown, fed = HeldText(OFFERED), 0, 0
    for piece in [
        '{"name": "file_read", "arguments": {"path": "',
        *[['{"name": "x"}, ' * 100, '"'][fed % 2] for fed in range(2000)],
    ]:
        fed += len(piece)
        shown += sum(len(part.text) for part in held.feed(TextDelta(piece)) if isinstance(part, TextDelta))
        assert fed - shown <= MOST_HELD_CHARS + 2000
    assert shown > MOST_HELD_CHARS
    for text in (
        "{" * 20_000,
        "<" * 20_000,
        "```" * 7_000,
        "[{" * 10_000,
        '{"name":' * 3_000,
        "` " * 10_000,
    ):
        assert heard([text])[0] == text
