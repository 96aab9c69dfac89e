"""Calls written as text: exactly one JSON object, and nothing that only looks like it."""

from __future__ import annotations

import json

import pytest

from lightagentd.llm.json_calls import call_in_text

CALL = '{"tool": "proc", "action": "info", "args": {"pid": 1}}'


@pytest.mark.parametrize(
    "text",
    [CALL, f"\n  {CALL}\n", f"```json\n{CALL}\n```", f"```\n{CALL}\n```", f"  ```json \n{CALL}```\n"],
)
def test_one_object_is_a_call(text: str) -> None:
    found = call_in_text(text)
    assert found is not None
    assert found.name == "proc_info"
    assert json.loads(found.arguments) == {"pid": 1}
    assert found.id.startswith("call_")


def test_a_call_without_arguments_has_none() -> None:
    found = call_in_text('{"tool": "proc", "action": "list"}')
    assert found is not None
    assert found.arguments == "{}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        f"I would call {CALL}",
        f"{CALL} now",
        f"{CALL}\n{CALL}",
        f"```json\n{CALL}\n```\n```json\n{CALL}\n```",
        f"Here:\n```json\n{CALL}\n```",
        f"```python\n{CALL}\n```",
        f"[{CALL}]",
        '{"tool": "proc"}',
        '{"tool": "proc", "action": "info", "args": [1]}',
        '{"tool": "proc", "action": "info", "args": null}',
        '{"tool": "proc", "action": "info", "args": {}, "note": "x"}',
        '{"tool": 1, "action": "info", "args": {}}',
        '{"tool": "proc", "action": "info", "args": {}',
        "{" * 50_000 + "}" * 50_000,
        '{"a":' * 50_000 + "1" + "}" * 50_000,
    ],
)
def test_anything_else_is_text(text: str) -> None:
    assert call_in_text(text) is None
