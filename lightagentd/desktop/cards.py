"""The words of a notification, from the daemon's data.

All of the data may have been written by a model, or by the author of a text that a model read. So nothing is
markup, lengths are limited, and a character that a screen would hide or move is written as an escape. The
summary consists of our own words and of names that the daemon has checked.

A notification has a button to allow a call only when it shows everything that would run, and nothing in it
could be overlooked. Otherwise it names the command that shows everything.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Sequence
from typing import Any

from lightagentd.cli.output import dump
from lightagentd.cli.question import visible, warnings
from lightagentd.cli.terminal import clean
from lightagentd.config.terms import words as confirm_words
from lightagentd.desktop.board import APPROVE, DENY, Card

ARGUMENTS_CHARS, ARGUMENTS_LINES = 400, 8
"""Longer arguments cannot be judged in a notification."""
PREVIEW_CHARS, PREVIEW_LINES = 240, 4
ANSWER_CHARS, ANSWER_LINES = 300, 4
TITLE_CHARS = 100
NAME_CHARS = 60
BUTTONS, BUTTON_CHARS = 3, 40
"""More choices, or longer ones, have no buttons."""


def question(approval: dict[str, Any], *, uid: int) -> Card:
    """The card of a waiting `api.Approval` (of `AsyncClient.asked`); `uid` is the person who sees it."""
    key = str(approval["id"])
    shown, whole = _what_would_run(approval)
    whole = whole and not approval.get("problem")
    may_deny = approval["may_answer"] or approval["owner"] == uid
    answers = [*([DENY] if may_deny else []), *([APPROVE] if approval["may_answer"] and whole else [])]
    reason = shorten(approval["reason"], TITLE_CHARS, 1)
    word = "The daemon says what it would do" if "request" in approval else "What it would do"
    lines = [
        *([shorten(approval["problem"], ANSWER_CHARS, ANSWER_LINES)] if approval.get("problem") else []),
        shown,
        *([f"{word}: {_barred(preview)}"] if (preview := _preview(approval)) else []),
        *([_barred(takes_back)] if (takes_back := confirm_words(approval)) else []),
        *([f"Asked because: {reason}"] if reason else []),
        _time_left(int(approval["expires_us"])),
        *([] if whole else [f"Look at all of it before you decide: lactl approvals show {key}"]),
    ]
    return Card(
        key=key,
        summary=f"Agent {_name(approval['agent'])} asks to run "
        f"{_name(approval['tool'])}.{_name(approval['action'])}",
        body="\n".join(line for line in lines if line),
        icon="dialog-question",
        urgent=True,
        answers=tuple(answers),
        how=f"Answer with: lactl approve {key}, or: lactl deny {key}" if approval["may_answer"] else "",
        expires_us=int(approval["expires_us"]),
        digest=approval["digest"],
        approver=approval.get("approver", ""),
    )


def asked(found: dict[str, Any]) -> Card:
    """The card of a waiting `api.Input`. It has buttons if it shows the whole question, and the choices are
    few and short.
    """
    key, choices = str(found["id"]), [str(choice) for choice in found["choices"]]
    text = visible(found["question"])
    whole = text == found["question"] and _fits(text)
    listed = [f"{number}) {visible(choice)}" for number, choice in enumerate(choices, 1)]
    on_buttons = whole and len(choices) <= BUTTONS and all(map(_fits_on_a_button, choices))
    lines = [
        _barred(text if whole else shorten(text, ARGUMENTS_CHARS, ARGUMENTS_LINES)),
        *([] if on_buttons or not _fits("\n".join(listed)) else listed),
        _time_left(int(found["expires_us"])),
        *([] if whole else [f"All of it: lactl inputs show {key}"]),
    ]
    return Card(
        key=key,
        summary=f"Agent {_name(found['agent'])} asks you",
        body="\n".join(line for line in lines if line),
        icon="dialog-question",
        urgent=True,
        answers=tuple(f"choice-{number}" for number in range(1, len(choices) + 1)) if on_buttons else (),
        choices=tuple(choices) if on_buttons else (),
        how=f"Answer with: lactl answer {key} TEXT",
        expires_us=int(found["expires_us"]),
    )


def _fits(text: str) -> bool:
    return len(text) <= ARGUMENTS_CHARS and text.count("\n") < ARGUMENTS_LINES


def _fits_on_a_button(choice: str) -> bool:
    return len(choice) <= BUTTON_CHARS and visible(choice) == choice


def finished(event: dict[str, Any], messages: Sequence[dict[str, Any]]) -> Card:
    """The card of an ended turn, from its last event and the newest messages of its session."""
    data = event["data"] or {}
    before = [message for message in messages if message["seq"] < event["seq"]]
    prompt = next((each["content"] for each in reversed(before) if each["role"] == "user"), "")
    failed = event["topic"] == "agent.error"
    answer = data.get("message", "") if failed else _answer(before)
    took = f"It took {_duration(data['duration_ms'] / 1000)}." if data.get("duration_ms") else ""
    lines = [
        shorten(prompt, TITLE_CHARS, 1),
        shorten(str(answer), ANSWER_CHARS, ANSWER_LINES),
        f"{took} All of it: lactl sessions show {_name(event['session'])}".strip(),
    ]
    return Card(
        key=f"end:{event['seq']}",
        summary=f"Agent {_name(event['agent'])} {'failed' if failed else 'has answered'}",
        body="\n".join(line for line in lines if line),
        icon="dialog-error" if failed else "dialog-information",
        urgent=failed,
    )


def not_answered(card: Card, why: str, suggestion: str) -> Card:
    """The card for a click that had no effect."""
    return Card(
        key=f"failed:{card.key}",
        summary="The answer was not taken",
        body=shorten(f"{card.key}: {why} {suggestion}", ANSWER_CHARS, ANSWER_LINES),
        icon="dialog-error",
        urgent=True,
    )


def shorten(text: str, chars: int, lines: int) -> str:
    """The beginning of a text, made safe, with an ellipsis for an omitted rest."""
    beginning = text[: chars * 4]
    kept = [" ".join(line.split()) for line in visible(clean(beginning)).split("\n")]
    kept = [line for line in kept if line]
    short = "\n".join(kept[:lines])[:chars].rstrip()
    is_cut = len(kept) > lines or len("\n".join(kept)) > chars or len(text) > len(beginning)
    return f"{short}…" if is_cut else short


def _what_would_run(approval: dict[str, Any]) -> tuple[str, bool]:
    """The arguments, and whether they are complete and nothing in them could be overlooked."""
    if _is_secret(approval):
        return "Its arguments hold a secret, so they are not shown here.", False
    args = approval["args"] if isinstance(approval["args"], dict) else {"arguments": approval["args"]}
    if approval["cwd"]:
        args = {**args, "cwd": approval["cwd"]}
    if kit := _request(approval)["statement"].get("kit"):
        args = {**args, "kit": kit}
    text = "\n".join(f"{visible(name)}: {_value(value)}" for name, value in args.items())
    if len(text) > ARGUMENTS_CHARS or text.count("\n") >= ARGUMENTS_LINES:
        cut = "\n".join(text[:ARGUMENTS_CHARS].split("\n")[:ARGUMENTS_LINES])
        return f"{cut}…", False
    named = {name: one for name in ("check", "inverse") if (one := approval.get(name))}
    seen = "".join([text, *named.values()])
    whole = len(seen) <= ARGUMENTS_CHARS and not warnings(args | named)
    return text, whole and all(char.isascii() or _is_latin(char) for char in seen)


def _request(approval: dict[str, Any]) -> dict[str, Any]:
    """What the approver has of a call; empty where it is not asked."""
    return approval.get("request") or {"statement": {}, "said": {}}


def _is_secret(approval: dict[str, Any]) -> bool:
    return bool(approval["volatile"] or _request(approval)["said"].get("hidden"))


def _value(value: Any) -> str:
    """An argument's value. Nothing is removed; a line break in it cannot be taken for the end of the
    argument.
    """
    return _barred(visible(value if isinstance(value, str) else dump(value)))


def _preview(approval: dict[str, Any]) -> str:
    return "" if _is_secret(approval) else shorten(approval["preview"], PREVIEW_CHARS, PREVIEW_LINES)


def _barred(text: str) -> str:
    """Text with a bar before each line, so that no line can look like one of ours."""
    return text.replace("\n", "\n| ")


def _is_latin(char: str) -> bool:
    """Whether it is a letter, and not only a lookalike of an ASCII one."""
    return unicodedata.name(char, "").startswith("LATIN ")


def _answer(messages: Sequence[dict[str, Any]]) -> str:
    found = (each["content"] for each in reversed(messages) if each["role"] == "assistant")
    return next((text for text in found if text), "")


def _time_left(expires_us: int) -> str:
    left_s = max(0.0, expires_us / 1e6 - time.time())
    until = time.strftime("%H:%M", time.localtime(expires_us / 1e6))
    return f"It can be answered until {until}, for {_duration(left_s)} from when this was shown."


def _duration(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _name(text: str) -> str:
    return visible(str(text)).replace("\n", " ")[:NAME_CHARS]
