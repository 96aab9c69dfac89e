"""Session files as other programs may write them: each is taken, or refused with a clear sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightagentd.agents.sessions import imports
from lightagentd.errors import ImportInvalid

MAX_BYTES = 12 << 20
HELLO = {"role": "user", "content": "Hello"}
HI = {"role": "assistant", "content": "Hi there."}


def block(value: Any, *, fence: str = "```", info: str = "json", indent: int | None = None) -> str:
    return f"{fence}{info}\n{json.dumps(value, indent=indent, ensure_ascii=False)}\n{fence}\n"


def peer(*messages: Any, **more: Any) -> dict[str, Any]:
    """What the block of a peer's session file holds."""
    return {"session_id": "abc-123", "updated_at": "2026-11-22T12:00:00Z", "history": [*messages], **more}


PLAIN = "# A talk\n\n" + block(peer(HELLO, HI), indent=2)
BOTH = [("user", "Hello"), ("assistant", "Hi there.")]

TAKEN: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "as it should be": (PLAIN, BOTH),
    "with CRLF": (PLAIN.replace("\n", "\r\n"), BOTH),
    "with a BOM": ("\ufeff" + PLAIN, BOTH),
    "with BOM and CRLF": ("\ufeff" + PLAIN.replace("\n", "\r\n"), BOTH),
    "fence of tildes": (block(peer(HELLO, HI), fence="~~~"), BOTH),
    "fence of five": (block(peer(HELLO, HI), fence="`````"), BOTH),
    "closed by a longer fence": (block(peer(HELLO, HI))[:-4] + "`````\n", BOTH),
    "never closed": (block(peer(HELLO, HI))[:-4], BOTH),
    "no newline at the end": (PLAIN.rstrip("\n"), BOTH),
    "indented fence": ("   ```json\n" + json.dumps(peer(HELLO, HI)) + "\n   ```\n", BOTH),
    "no info string": (block(peer(HELLO, HI), info=""), BOTH),
    "info string in capitals": (block(peer(HELLO, HI), info="JSON"), BOTH),
    "info string with more": (block(peer(HELLO, HI), info='json title="session"'), BOTH),
    "blank before the info string": (block(peer(HELLO, HI), info=" json"), BOTH),
    "other blocks around it": (
        f'```python\nprint(1)\n```\n{PLAIN}```json\n{{"usage": [1, 2]}}\n```\n```\n[1, 2]\n```\n',
        BOTH,
    ),
    "a block that is no JSON after it": (PLAIN + "```\nls -l\n```\n", BOTH),
    "front matter": ("---\ntitle: talk\n---\n" + PLAIN, BOTH),
    "code fences in contents": (
        block(peer(HELLO, {"role": "assistant", "content": "Run:\n```sh\nls\n```\nand\n~~~\n"})),
        [("user", "Hello"), ("assistant", "Run:\n```sh\nls\n```\nand\n~~~\n")],
    ),
    "more keys": (
        block(peer({**HELLO, "id": 7, "timestamp": 1.5, "metadata": {"a": [None]}}, HI, model="x", tags=[])),
        BOTH,
    ),
    "system messages": (
        block(peer({"role": "system", "content": "Be brief."}, HELLO, {"role": "developer"}, HI)),
        BOTH,
    ),
    "null content": (
        block(peer(HELLO, {"role": "assistant", "content": None})),
        [BOTH[0], ("assistant", "")],
    ),
    "no content": (block(peer(HELLO, {"role": "assistant"})), [BOTH[0], ("assistant", "")]),
    "content in parts": (
        block(peer({"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "image"}]})),
        [("user", "Hello\n[image left out]")],
    ),
    "content in texts": (block(peer({"role": "user", "content": ["Hel", "lo"]})), [("user", "Hel\nlo")]),
    "two messages of one role": (block(peer(HELLO, HELLO, HI)), [BOTH[0], *BOTH]),
    "the assistant first": (block(peer(HI, HELLO)), [BOTH[1], BOTH[0]]),
    "a date as a number": (block(peer(HELLO, HI, updated_at=1795347645.25)), BOTH),
    "a date without a zone": (block(peer(HELLO, HI, updated_at="22.11.2026 13:00")), BOTH),
    "no date": (block({"session_id": "x", "history": [HELLO, HI]}), BOTH),
    "a number for an id": (block(peer(HELLO, HI, session_id=17)), BOTH),
    "calls and results": (
        block(
            peer(
                HELLO,
                {"role": "assistant", "tool_calls": [{"id": "1", "name": "ls", "arguments": {"path": "/"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "bin"},
                HI,
            )
        ),
        [BOTH[0], ("assistant", ""), ("tool", "bin"), BOTH[1]],
    ),
    "characters of all kinds": (
        block(peer({"role": "user", "content": "é 漢 👩‍👩‍👧 \u2028 \u202e \x7f \x1b[31m"})),
        [("user", "é 漢 👩‍👩‍👧 \u2028 \u202e \x7f \x1b[31m")],
    ),
    "10 MB": (
        block(peer({"role": "user", "content": "x" * 10_000_000}, HI)),
        [("user", "x" * 10_000_000), BOTH[1]],
    ),
}

REFUSED: dict[str, tuple[str, str]] = {
    "an empty history": (block(peer()), "line 2: the conversation in the block that begins here has no"),
    "a history that is no list": (block(peer(history={"0": HELLO})), "neither a line of JSON nor a block"),
    "a message that is a text": (block(peer(HELLO, "Hi")), "message 2 of the block in line 2"),
    "a message without a role": (block(peer(HELLO, {"content": "Hi"})), "message 2 of the block in line 2"),
    "a role of another kind": (
        block(peer({"role": "human", "content": "Hi"})),
        "the role 'human' is not known",
    ),
    "a role that is no text": (block(peer({"role": ["user"], "content": "Hi"})), "the role"),
    "content that is a number": (block(peer({"role": "user", "content": 5})), "its content is no text"),
    "a result without its call": (block(peer(HELLO, {"role": "tool", "content": "x"})), "no call before it"),
    "two conversations": (PLAIN + PLAIN, "a second block of JSON with messages"),
    "JSON that is cut off": (
        '```json\n{"session_id": "x", "history": [{"role"\n```\n',
        "the block is not JSON",
    ),
    "a NUL": (block(peer({"role": "user", "content": "a\0b"})), "NUL"),
    "half a character": (block(peer({"role": "user", "content": "X"})).replace("X", "\\ud83d"), "not UTF-8"),
    "deep nesting": (
        block(peer(HELLO, more="X")).replace('"X"', "[" * 9000 + "]" * 9000),
        "block is not JSON",
    ),
    "too large": (block(peer({"role": "user", "content": "x" * MAX_BYTES})), "larger than"),
    "nothing": ("", "neither a line of JSON nor a block"),
    "a page of a manual": ("# lactl\n\n```sh\nlactl status\n```\n", "neither a line of JSON nor a block"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_session_file_of_a_peer_is_taken(name: str) -> None:
    text, said = TAKEN[name]
    found = imports.read(text, max_bytes=MAX_BYTES)
    assert [(one.message.role, one.message.content) for one in found.said] == said


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_session_file_is_refused_with_the_place_and_the_reason(name: str) -> None:
    text, why = REFUSED[name]
    with pytest.raises(ImportInvalid) as caught:
        imports.read(text, max_bytes=MAX_BYTES)
    assert why in caught.value.message
    assert caught.value.suggestion


def test_title_and_session_of_a_peers_file_are_kept() -> None:
    found = imports.read(PLAIN, max_bytes=MAX_BYTES)
    assert (found.title, found.source) == ("A talk", "abc-123")
