"""What a form shows of a call, besides what the tests of whole servers look at."""

from __future__ import annotations

from lightagentd.mcp_server.asking import form


def test_what_hides_in_the_check_or_the_way_back_is_told() -> None:
    event = {
        "type": "approval_requested", "may_answer": True,
        "tool": "bash", "action": "exec", "effect": "change",
        "args": {"command": "true"}, "cwd": "", "preview": "", "rule": "r", "reason": "",
        "confirm_within_s": 60, "check": "true" + " " * 60 + "; false", "inverse": "r\u043em x",
    }  # fmt: skip
    found = form(event)
    assert found is not None
    said = found["message"].split("\n")
    assert "Look closely: in check something stands behind many blanks or empty lines." in said
    assert [line for line in said if line.startswith("Look closely: in inverse a word has letters")] != []
