from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightagentd.signed.shown import Line, lines, visible
from lightagentd.signed.statement import Statement

PLAIN = Statement(
    agent="ops",
    tool="bash",
    action="exec",
    effect="change",
    args={"command": "rm -r /tmp/x", "effect": "change"},
    tool_sha256="ab" * 32,
    call_id="call_1",
)
OTHERS: tuple[dict[str, Any], ...] = (
    {"agent": "web"},
    {"tool": "file"},
    {"action": "write"},
    {"effect": "reach"},
    {"args": {}},
    {"args": {"command": "rm -r /tmp/x ", "effect": "change"}},
    {"args": {"command": "rm -r /tmp/x\n", "effect": "change"}},
    {"args": {"command": "rm -r /tmp/x\u200b", "effect": "change"}},
    {"args": {"command": "rm -r /tmp/x<U+200B>", "effect": "change"}},
    {"args": {"command": "rm -r /tmp/x\neffect: change"}},
    {"args": {"command": ["rm -r /tmp/x"], "effect": "change"}},
    {"args": {"command": '["rm -r /tmp/x"]', "effect": "change"}},
    {"args": {"command: rm": "-r /tmp/x", "effect": "change"}},
    {"tool_sha256": "ac" * 32},
    {"call_id": "call_2"},
    {"session": "ses_1"},
    {"owner": 1000},
    {"trigger": "nightly"},
    {"above": ["web"]},
    {"kit": "/etc/lightagentd/agents/ops"},
    {"expected": {"sha256": "cd" * 32}},
    {"confirm_within_s": 60},
    {"confirm_within_s": 60, "check": "true"},
    {"confirm_within_s": 60, "inverse": "true"},
)


def shown(
    statement: Statement, *, whole: bool = True, secret: tuple[str, ...] = (), **said: Any
) -> list[Line]:
    found = {"statement": statement.to_dict(), "said": said, "digest": "-"}
    return lines(found, whole=whole, secret=secret)


def test_everything_that_is_signed_is_on_the_screen() -> None:
    changed: list[Statement] = [replace(PLAIN, **one) for one in OTHERS]
    found = {tuple(shown(one)) for one in (PLAIN, *changed)}
    assert len(found) == len(OTHERS) + 1


def test_what_the_daemon_says_is_marked_and_cannot_pass_for_a_field() -> None:
    found = shown(PLAIN, preview="nothing\ncommand: true\ndigest: 00", rule="ask", tainted=True)
    values = [text for kind, text in found if kind in ("call", "value")]
    assert values[4] == "command: rm -r /tmp/x"
    assert [text for text in values if text.startswith(("command:", "digest:"))] == [values[4], "digest: -"]
    said = [text for kind, text in found if kind == "said"]
    assert all(text.startswith(("the daemon says: ", "| ")) for text in said)
    assert "the daemon says: tainted = true" in said
    assert "| command: true" in said


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("echo 'a'\n\tb", "echo 'a'\n\tb"),
        ("caf\u00e9 \u043f\u0440\u0438\u0432\u0435\u0442", "caf\u00e9 \u043f\u0440\u0438\u0432\u0435\u0442"),
        ("a\u202eb\u2066c", "a<U+202E>b<U+2066>c"),
        ("\x1b[2K\r\x7f\x85", "<U+001B>[2K<U+000D><U+007F><U+0085>"),
        ("a\u200b\u00ad\ufeff\u2028b", "a<U+200B><U+00AD><U+FEFF><U+2028>b"),
        ("x\U000e0041\ufe0f\u3164", "x<U+E0041><U+FE0F><U+3164>"),
        ("p\u0430ypal", "p<U+0430>ypal"),
        ("\uff52\uff4d", "<U+FF52><U+FF4D>"),
        ("/etc\u2215x\uff1b\u037e", "/etc<U+2215>x<U+FF1B><U+037E>"),
        ("\u05d0\u05d1", "<U+05D0><U+05D1>"),
        ("\ud800", "<U+D800>"),
        ("a  \nb ", "a<U+0020><U+0020>\nb<U+0020>"),
        ("<U+202E> <U <", "<U+003C>U+202E> <U <"),
    ],
)
def test_nothing_hides_in_a_text(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_what_is_cut_is_counted_and_can_be_opened() -> None:
    command = "\n".join(f"echo {number}" for number in range(100))
    for args in (
        {"command": command},
        {"command": "x" * 5000},
        {f"a{number}": "" for number in range(300)},
        {"command": "rm", "password": "abc"},
    ):
        statement = replace(PLAIN, args=args)
        cut = shown(statement, whole=False, secret=("password",))
        left_out = [text for kind, text in cut if kind == "folded"]
        assert len(left_out) == 1
        assert sum(len(text) for _, text in cut) < 6000
        assert "folded" not in {kind for kind, _ in shown(statement, secret=("password",))}
        assert not args.get("password") or "abc" in str(shown(statement, whole=False, hidden=["password"]))
    assert left_out == ["password: … 1 lines with 3 characters, a secret: not shown here …"]
    assert "84 lines" in str(shown(replace(PLAIN, args={"command": command}), whole=False))


def test_what_is_easily_overlooked_is_said_last() -> None:
    found = shown(replace(PLAIN, args={"command": "l\u0455 \u200b"}))
    assert [kind for kind, _ in found][-3:] == ["warning", "warning", "value"]
    assert "U+0455" in found[-3].text
    assert "2 characters" in found[-2].text
