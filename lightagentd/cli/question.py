"""Shows a question to the person who decides, and asks it on a terminal.

The person must read what would run. So nothing is removed from it, unlike elsewhere: a character that a
terminal would act on, or not show, is written as an escape such as \\x1b or \\u202e, and each line of a
multi-line value has a bar before it, so that no value can look like one of our own lines. Letters that are
written from right to left are escapes too, because a terminal would reorder the text beside them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from lightagentd.cli.authorize import has_terminal
from lightagentd.cli.options import Settings
from lightagentd.cli.output import dump, say, warn
from lightagentd.cli.terminal import (
    BOLD,
    DIM,
    GREEN,
    MAGENTA,
    RED,
    Styled,
    clean,
    in_words,
    is_plain,
    style,
)
from lightagentd.cli.terminal import may_type as may_type  # others find it here
from lightagentd.cli.when import moment
from lightagentd.client.approver import Question
from lightagentd.client.blocking import Client
from lightagentd.config.terms import words as confirm_words
from lightagentd.errors import ApprovalClosed, Conflict, InvalidArgument, LightagentError, PermissionDenied
from lightagentd.text.readable import LONG_CHARS, LONG_LINES
from lightagentd.text.readable import visible as visible  # others find it here
from lightagentd.text.readable import warnings as warnings

ALLOW = "Allow it, once? [y/N] "
AUTHENTICATED = "Allow it, once? An administrator must authenticate then. [y/N] "
HOW = (
    "y allows it, s for this session, a always, by a rule; n refuses it, and the agent reads what you write"
    " behind the n; v shows all of it."
)
YES = ("yes", "session", "always")
"""The verdicts that allow a call."""
NO_DECISION = "Answer y to allow it, or n to refuse it."
_HEAD, _TAIL = 12, 4
"""So many lines of a folded text are shown."""

REQUESTS = ("approval_requested", "input_requested")
"""The turn events that ask a person something."""


def is_about_call(found: dict[str, Any]) -> bool:
    """Whether a question is about a call; otherwise an agent asks it."""
    return "question" not in found


def question_id(found: dict[str, Any]) -> str:
    """The id of a question, as `question_lines` takes it."""
    return str(found.get("id") or found.get("approval") or found.get("input"))


def question_lines(found: dict[str, Any], *, folded: bool = False) -> list[Styled]:
    """The lines of a question, everything in them visible: an `api.Approval`, an `api.Input`, or a turn event
    that asks for one, as `Settings.question` or `Settings.asked` gave it. `folded` is for a question that
    comes with a way to see all of it.
    """
    if not is_about_call(found):
        return _input_lines(found)
    if found.get("problem"):
        call = visible(f"{found['tool']}.{found['action']}")
        return [style(call, BOLD), style(visible(found["problem"]), RED)]
    return (_signed_lines if isinstance(found, Question) else _call_lines)(found, folded=folded)


def _signed_lines(found: dict[str, Any], *, folded: bool) -> list[Styled]:
    """Those of a question that the approver has."""
    from lightagentd.signed.shown import lines

    styles = {"call": BOLD, "said": DIM, "warning": MAGENTA, "folded": MAGENTA}
    shown = []
    for kind, text in lines(found["request"], whole=not folded):
        line = _diff_line(text) if kind == "said" else text
        shown.append(style(text, styles[kind]) if kind in styles and line is text else _joined(line))
    if takes_back := confirm_words(found):
        shown.append(style(takes_back, BOLD))
    shown.append(style(f"It can be answered until {moment(found['expires_us'])}.", DIM))
    return shown


def _call_lines(found: dict[str, Any], *, folded: bool) -> list[Styled]:
    call = visible(f"{found['tool']}.{found['action']}")
    lines = [_joined(style(call, BOLD), f"  [{visible(found['effect'])}]")]
    fold: Callable[[list[Styled]], list[Styled]] = _folded if folded else list
    if found.get("cwd"):
        lines += _value("in the folder", found["cwd"])
    arguments = found["args"] if isinstance(found["args"], dict) else {"arguments": found["args"]}
    for name, value in arguments.items():
        if name != "cwd":
            lines += fold(_value(visible(name), value))
    if found["preview"]:
        lines.append(style("what it would do:", DIM))
        # Nothing but a line feed ends a line, as splitlines() would have it: the rest are escapes by now.
        preview = visible(found["preview"]).removesuffix("\n").split("\n")
        lines += fold([_joined("  ", _diff_line(line)) for line in preview])
    if takes_back := confirm_words(found):
        lines.append(style(takes_back, BOLD))
    rule, reason = visible(found["rule"]), visible(found["reason"])
    lines.append(style(f"Asked by the rule {rule}{': ' if reason else ''}{reason}", DIM))
    lines.append(style(f"It can be answered until {moment(found['expires_us'])}.", DIM))
    named = {name: found[name] for name in ("check", "inverse") if found.get(name)}
    lines += [style(warning, MAGENTA) for warning in warnings(arguments | named)]
    if found["volatile"]:
        lines.append(style("It holds a secret, so it is stored nowhere: it ends with the daemon.", MAGENTA))
    return lines


def _input_lines(found: dict[str, Any]) -> list[Styled]:
    first, *rest = visible(found["question"]).split("\n")
    lines = [
        _joined(style(in_words("? "), BOLD), first),
        *(_joined(style(in_words("  | "), DIM), line) for line in rest),
    ]
    for number, choice in enumerate(found["choices"], 1):
        lines.append(_joined(style(f"  {number}) ", DIM), " ".join(visible(choice).split())))
    lines.append(style(f"It can be answered until {moment(found['expires_us'])}.", DIM))
    return lines


def how_to_answer(found: dict[str, Any], program: str = "lactl ") -> str:
    """The commands that answer a question, as `question_lines` takes it; those of a chat begin with `/`."""
    name = shlex.quote(visible(question_id(found)))  # another host may have made it up, and people paste
    if is_about_call(found):
        return f"Allow it with: {program}approve {name}; refuse it with: {program}deny {name}"
    return f"Answer it with: {program}answer {name} TEXT"


def _joined(*parts: str) -> Styled:
    """The parts as one line: what is not styled yet is cleaned."""
    return Styled("".join(part if isinstance(part, Styled) else clean(part) for part in parts))


def _value(name: str, value: Any) -> list[Styled]:
    text = visible(value if isinstance(value, str) else dump(value))
    first, *rest = text.split("\n")
    if not rest:
        return [_joined(style(f"  {name}: ", DIM), first)]
    return [
        style(f"  {name}:", DIM),
        *(_joined(style(in_words("    | "), DIM), line) for line in (first, *rest)),
    ]


def _folded(lines: list[Styled]) -> list[Styled]:
    """The first and the last of many lines, and of a long one its beginning and its end."""
    if len(lines) > LONG_LINES:
        left_out = style(f"    … {len(lines) - _HEAD - _TAIL} lines are folded …", MAGENTA)
        lines = [*lines[:_HEAD], left_out, *lines[-_TAIL:]]
    return [_folded_line(line) if len(line) > LONG_CHARS else line for line in lines]


def _folded_line(line: Styled) -> Styled:
    begin, end = LONG_CHARS // 2, LONG_CHARS // 4
    left_out = style(f" … {len(line) - begin - end} characters are folded … ", MAGENTA)
    return _joined(Styled(line[:begin]), left_out, Styled(line[-end:]))


def _diff_line(line: str) -> Styled | str:
    """A line of a unified diff in its colour; for a screen reader with a word for its sign."""
    if is_plain():
        word = {"+": "added: ", "-": "removed: "}.get(line[:1])
        return f"{word}{line[1:]}" if word and not line.startswith(("+++", "---")) else line
    code = {"+": GREEN, "-": RED, "@": DIM}.get(line[:1])
    return style(line, code) if code else line


def may_answer(settings: Settings, event: dict[str, Any]) -> bool:
    """Whether the question of a turn event can be asked here: on a terminal, of a person who may answer, or
    who may once an administrator has authenticated there.
    """
    authenticates = event.get("must_authenticate") and settings.ask_password and has_terminal()
    return may_type() and bool(not is_about_call(event) or event.get("may_answer") or authenticates)


def ask(settings: Settings, client: Client, event: dict[str, Any]) -> None:
    """Ask the question of a turn event, which is on the screen, and send the answer, unless the daemon sends
    something before, such as another's answer. It is asked again after an invalid choice, and after a yes
    without the authentication that it needs, or one that cannot be given.
    """
    is_call, name = is_about_call(event), question_id(event)
    if is_call:
        say(style(HOW, DIM))
    yes = AUTHENTICATED if event.get("must_authenticate") else ALLOW
    words = yes if is_call else "Number or text: " if event["choices"] else "Answer: "
    forget_what_was_typed()
    while True:
        answer = _typed(client, words, how_to_answer(event))
        if answer is None:
            return
        if not is_call and not answer.strip():
            continue
        verdict, note = decision(answer)
        if is_call and verdict in ("view", ""):
            page(question_lines(event)) if verdict else say(NO_DECISION)
            continue
        try:
            if not is_call:
                settings.call("Inputs.Answer", input=name, text=answer.removesuffix("\n"))
            elif verdict in YES:
                if verdict == "always" and not _rule_written(settings, event):
                    continue
                more = {"for_session": True} if verdict == "session" else {}
                settings.answer("Approvals.Approve", event, digest=event["digest"], **more)
            else:
                settings.answer("Approvals.Deny", event, note=note or None)
        except LightagentError as err:
            refused = (PermissionDenied, Conflict) if is_call else (InvalidArgument,)
            again = isinstance(err, refused) and not isinstance(err, ApprovalClosed)
            if again:
                forget_what_was_typed()  # before the reader knows why
            warn(err.message, err.suggestion)
            if again:
                continue
        return


def _rule_written(settings: Settings, question: dict[str, Any]) -> bool:
    """Whether the person had the proposed rule written."""
    from lightagentd.cli.rules import write_rule  # it shows questions, too

    return bool(write_rule(settings, question, tainted=False, yes=False))


def decision(line: str) -> tuple[str, str]:
    """What a typed line says about a call: yes, session, always, no, view or nothing; and the reason for a
    no.
    """
    word, _, note = line.strip().partition(" ")
    word, note = word.lower(), note.strip()
    if word.rstrip(",:;.") in ("n", "no", ""):
        return "no", note
    if note:
        return "", ""
    words = {"y": "yes", "v": "view", "s": "session", "a": "always"}
    return words.get(word, word if word in YES else ""), ""


def page(lines: Sequence[str]) -> None:
    """Show lines that are safe already in the person's pager."""
    os.environ.setdefault("LESSSECURE", "1")  # under sudo it must not become a shell
    click.echo_via_pager("\n".join(lines))
    forget_what_was_typed()


def is_allowed(found: dict[str, Any], within: str = "") -> bool:
    """Show a call, and ask whether it may run; `within` is the time after which it takes itself back."""
    for line in question_lines(found, folded=True):
        say(line)
    if within:
        say(style(confirm_words(found, within), BOLD))
    forget_what_was_typed()
    while True:
        say(ALLOW, end="")
        sys.stdout.flush()
        answer = sys.stdin.readline()
        if not answer:
            say()
        verdict, _ = decision(answer)
        if verdict != "view":
            return verdict == "yes"
        page(question_lines(found))


def _typed(client: Client, words: str, how: str) -> str | None:
    """The typed line; None when the daemon sends something before, or the input ends."""
    say(words, end="")
    sys.stdout.flush()
    if not client.quiet_until(sys.stdin.fileno()):
        say()
        return None
    answer = sys.stdin.readline()
    if not answer:
        say()
        warn("The turn goes on waiting.", how)
    return answer or None


def forget_what_was_typed() -> None:
    """Drop a line that was typed before the question was shown; it is not an answer to it."""
    import termios

    with contextlib.suppress(termios.error):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
