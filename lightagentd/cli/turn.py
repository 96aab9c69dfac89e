"""Watches a turn: shows its events as they come, and lets Ctrl-C cancel it.

The events are those of `api.TurnEvent`. On a terminal `chatting.one_turn` shows them as a chat does; in a
pipe, and with --quiet, only the final answer is printed; with --json every event is a line.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self

import click

from lightagentd import errors
from lightagentd.cli.deadline import within
from lightagentd.cli.help import NOTHING_FOUND
from lightagentd.cli.options import Settings
from lightagentd.cli.output import cell, print_json_line, say, say_markdown, warn
from lightagentd.cli.question import REQUESTS, ask, how_to_answer, may_answer, visible
from lightagentd.cli.terminal import clean, is_terminal
from lightagentd.client.approver import Question
from lightagentd.errors import ApprovalClosed, DaemonUnreachable, LightagentError, PermissionDenied

if TYPE_CHECKING:
    from lightagentd.cli.typed_call import TypedCall

_CANCEL_TIMEOUT_S = 5.0


class View(Protocol):
    """Shows one turn."""

    def show(self, event: dict[str, Any]) -> None: ...

    def tick(self) -> None:
        """Time went by without an event."""

    def leave(self) -> None:
        """Nothing more comes."""


class _Lines:
    """What a view does that has nothing to draw."""

    def tick(self) -> None: ...

    def leave(self) -> None: ...


class JsonView(_Lines):
    """Every event as one line of JSON."""

    def show(self, event: dict[str, Any]) -> None:
        print_json_line({key: value for key, value in event.items() if value is not None})


class AnswerView(_Lines):
    """The final answer alone; other necessary information goes to standard error."""

    def __init__(self, *, quiet: bool, thoughts: bool, is_markdown: bool) -> None:
        self._quiet, self._shows_thoughts, self._is_markdown = quiet, thoughts, is_markdown
        self._thoughts = ""

    def show(self, event: dict[str, Any]) -> None:
        if self._thoughts and event["type"] != "reasoning_delta":
            sys.stderr.write(clean(self._thoughts).rstrip("\n") + "\n\n")
            self._thoughts = ""
        if event["type"] == "done":
            (say_markdown if self._is_markdown else say)((event.get("text") or "").rstrip("\n"))
        elif event["type"] == "notice" and not self._quiet:
            warn(str(event.get("message") or ""))
        elif event["type"] == "reasoning_delta" and self._shows_thoughts:
            self._thoughts += event.get("text") or ""
        elif event["type"] == "approval_requested":  # with --quiet, too: else it would hang without a word
            call, approval = visible(f"{event['tool']}.{event['action']}"), event["approval"]
            what = f"{call}{_asked_for(event)} ({visible(approval)})."
            what += f" {visible(event['problem'])}" if event.get("problem") else ""
            warn(
                f"The turn waits until somebody allows {what}",
                f"Look: lactl approvals show {visible(approval)}. {how_to_answer(event)}",
            )
        elif event["type"] == "input_requested":
            question = cell(visible(event["question"]))
            warn(f"The turn waits for an answer: {question}", how_to_answer(event))


def _asked_for(event: dict[str, Any]) -> str:
    """Where another agent asks, the agents that asked each other: ` for ops → dba`."""
    chain, arrow, _ = str(event.get("reason") or "").partition(": ")
    return f" for {visible(chain)}" if arrow and " → " in chain else ""


class Interrupt:
    """Ctrl-C while a turn runs: the first cancels it, and its last event still arrives; the second leaves.

    The handler does not raise, so the stream loses nothing. The turn is cancelled once its first event has
    named the session. With `hang_up` the first Ctrl-C leaves too, which cancels a call that has no session.
    """

    def __init__(self, settings: Settings, *, hang_up: bool) -> None:
        self._settings = settings
        self._hang_up = hang_up
        self._session = ""
        self._problem: LightagentError | None = None
        self._before = signal.getsignal(signal.SIGINT)
        self.asked = False

    def __enter__(self) -> Self:
        if self._before is not signal.SIG_IGN:  # as for a command in the background of a script
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._problem is not None:
            warn(f"The turn could not be cancelled: {self._problem.message}", self._problem.suggestion)

    def saw(self, event: dict[str, Any]) -> None:
        if not self._session:
            self._session = event.get("session") or ""
            if self._session and self.asked:
                self._cancel()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signal's call
        if self.asked or self._hang_up:
            raise KeyboardInterrupt
        self.asked = True
        if self._session:
            self._cancel()

    def _cancel(self) -> None:
        try:
            self._settings.call("Sessions.Cancel", timeout_s=_CANCEL_TIMEOUT_S, session=self._session)
        except LightagentError as err:
            self._problem = err  # told later: this may run in the middle of a write to standard output
            raise KeyboardInterrupt from err


def watch(
    settings: Settings,
    method: str,
    parameters: dict[str, Any],
    *,
    quiet: bool = False,
    thoughts: bool = False,
    hang_up: bool = False,
    raw: bool = False,
    timeout_s: float | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    typed: TypedCall | None = None,
) -> dict[str, Any]:
    """Call a method that streams a turn, show it, and raise its error, if it ends with one. Returns the
    metadata of its last call; `found` and `result` are among these where the answer is the report of a skill.

    With `raw` the answer is shown as it is: a program wants it. With `hang_up`, Ctrl-C only closes the
    connection, because that cancels the call. After `timeout_s` it raises TimedOut, and the turn goes on.
    `on_event` gets each event after it is shown. The call that was `typed`, and no other one, is allowed
    without a question.
    """
    asks = is_terminal() and not settings.json and not quiet
    view = _view(settings, draws=asks and not raw, is_call=hang_up, thoughts=thoughts, quiet=quiet, raw=raw)
    session = ""
    failure: LightagentError | None = None
    metadata: dict[str, Any] = {}
    report = ""
    try:
        with settings.client() as client, Interrupt(settings, hang_up=hang_up) as interrupt:
            stream = client.stream(method, **parameters)
            for reply in within(client, stream, timeout_s, view.tick if asks and not raw else None):
                event = settings.asked(reply["event"])
                session = event.get("session") or session
                interrupt.saw(event)
                if _is_answered(settings, event, typed) and not settings.json:
                    continue
                view.show(event)
                if on_event is not None:
                    on_event(event)
                if event["type"] in REQUESTS and asks and may_answer(settings, event):
                    ask(settings, client, event)
                if event["type"] == "tool_result":
                    metadata, report = dict(event.get("metadata") or {}), event.get("text") or ""
                    metadata["result"] = event.get("result")
                if event["type"] == "done" and (event.get("text") or "").strip() != report.strip():
                    for name in ("found", "result"):  # a model has read the report, and says something else
                        metadata.pop(name, None)
                if event["type"] == "error":
                    failure = errors.from_dict(event)
            if interrupt.asked and failure is None:
                raise KeyboardInterrupt
    except DaemonUnreachable as err:
        if session:
            err.suggestion = f"What became of the turn says: lactl sessions show {session}"
        raise
    finally:
        view.leave()
    if failure is not None:
        raise failure
    return metadata


def _is_answered(settings: Settings, event: dict[str, Any], typed: TypedCall | None) -> bool:
    """Whether the question of an event is about the call that was typed, and is answered by that. Raises
    ApprovalMismatch.
    """
    if typed is None or not isinstance(event, Question):
        return False
    if not typed.is_stated(event["request"]["statement"], settings.uid()):
        return False
    try:
        settings.answer("Approvals.Approve", event)
    except PermissionDenied:
        return False  # somebody else has to
    except ApprovalClosed:
        pass  # by somebody else, meanwhile
    return True


def _view(settings: Settings, *, draws: bool, is_call: bool, thoughts: bool, quiet: bool, raw: bool) -> View:
    if settings.json:
        return JsonView()
    if draws:
        from lightagentd.cli.chatting.one_turn import TurnView  # only here: it imports what draws

        return TurnView(settings, is_call=is_call, thoughts=thoughts)
    return AnswerView(quiet=quiet, thoughts=thoughts, is_markdown=not (is_call or raw))


def end_with(metadata: dict[str, Any]) -> int:
    """End the command with NOTHING_FOUND if the report is that what was asked about is not there, with the
    status of its error if there is no report.
    """
    if failed := [row.exit_status for row in errors.table() if row.code == metadata.get("result")]:
        click.get_current_context().exit(failed[0])
    if metadata.get("found") is False:
        click.get_current_context().exit(NOTHING_FOUND)
    return 0
