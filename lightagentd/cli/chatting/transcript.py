"""Shows the events of a session: each once, in order.

Events come from the watch of the session (`show`) and, for the time without a watch, from the history
(`stored`). For a person, texts are rendered Markdown and each call has a line at its beginning and another at
its end; unfinished text is in the live region. A program gets the answers alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from lightagentd.cli.chatting.folded import Folded
from lightagentd.cli.chatting.passages import Passage
from lightagentd.cli.chatting.progress import THOUGHT, UNKNOWN, Progress
from lightagentd.cli.chatting.questions import Question, Questions
from lightagentd.cli.chatting.screen import TurnScreen
from lightagentd.cli.chatting.shown import Shown
from lightagentd.cli.output import cell
from lightagentd.cli.question import HOW, how_to_answer, question_id, question_lines
from lightagentd.cli.terminal import BOLD, DIM, MAGENTA, RED, clean, in_words, style
from lightagentd.cli.turn_lines import (
    answer_line,
    call_line,
    call_name,
    compacted_line,
    is_granted,
    plan_event_line,
    plan_lines,
    result_line,
    thought_line,
)
from lightagentd.cli.when import duration
from lightagentd.errors import AgentNotRunning, Cancelled, LightagentError, from_dict

_PROMPT_LINES = 20
_IN_CHAT, _IN_SHELL = "/plan retry, /plan skip or /plan abort", "lactl plan apply --retry, --skip or --abort"
_AT_BOUNDARY = (
    "tool_call", "tool_result", "approval_requested", "input_requested", "done", "error",
)  # fmt: skip
"""Events before which the text that came before them is stored."""
_AFTER_THOUGHTS = (*_AT_BOUNDARY, "text_delta", "notice")
"""Events that end what the model thought."""
_BEYOND_TURNS = ("session", "plan")
"""Events that are shown even if their turn is over."""
_GOES_ON = AgentNotRunning.code
"""The code with which a turn ends that the daemon goes on with after its next start."""


class Transcript:
    """One session on the screen. `ended` is called at each turn's end, with its trace id and the error."""

    def __init__(
        self,
        screen: TurnScreen,
        questions: Questions,
        ended: Callable[[str, LightagentError | None], None],
        *,
        in_chat: bool = True,
        is_markdown: bool = True,
    ) -> None:
        self.screen = screen
        self.questions = questions
        self._ended = ended
        self._is_markdown = is_markdown
        self.in_chat = in_chat
        self.program = "/" if in_chat else "lactl "
        self.may_answer: Callable[[dict[str, Any]], bool] = _may_answer
        """Whether the question about a call can be asked here."""
        self._events = _Events(self)
        self.shown = Shown()
        self.progress = Progress()
        self.own: set[str] = set()
        """The turns that were prompted here."""
        self.session: dict[str, Any] = {}
        """The session as the daemon described it last."""
        self.plan_shown = ""
        """The digest of the plan that was on the screen last."""
        self.plan_told: tuple[str, ...] = ()
        """How the plan stood that was on the screen last."""
        self.thinking: io.StringIO | None = None
        """What the model thinks just now."""
        self.shows_thoughts = False
        """Show all of its thoughts, and not the beginning."""
        self.folded = Folded()
        self.model = ""
        """The model that answers, or did last."""
        self.tokens = 0
        """How many tokens the newest request and its answer had; 0 when that is not known."""
        self.passage: Passage | None = None
        self.passage_trace = ""
        self.joined = False
        """Whether the text that streams began before the watch, so that it is shown once it is stored."""
        self.took_s = 0.0
        """How long the last turn took."""
        self._before = ""
        """What was printed last: block, prompt, line or nothing."""

    @property
    def running(self) -> bool:
        """Whether a turn runs or waits, as far as is known."""
        return bool(self.progress.trace or self.progress.queued)

    def opened(self, session: dict[str, Any]) -> None:
        """The watch begins, or begins again."""
        self.session = session
        if session["state"] == "idle":
            self.progress.idle()
        elif not self.progress.trace:
            self.progress.begin(UNKNOWN)

    def joins(self) -> None:
        """A turn runs that was not watched from its beginning."""
        self.joined = True

    def interrupted(self, what: str) -> None:
        """Show, once, the known facts about a turn that the daemon interrupted."""
        if self.shown.first(what, self.shown.notes):
            self.note(cell(what), MAGENTA)

    def lost(self) -> None:
        """The watch is broken: the text streamed so far stays on the screen."""
        self.end_passage()
        self.progress.idle()
        self.questions.close_turn()
        self.screen.refresh()

    def needs_history(self, event: dict[str, Any]) -> bool:
        """Whether stored events have to be shown before this event."""
        return self.joined and event["type"] in _AT_BOUNDARY

    def caught_up(self) -> None:
        """All stored events are shown."""
        self.joined = False

    def show(self, event: dict[str, Any]) -> None:
        """One event of the watch."""
        self._events.show(event)

    def stored(self, event: dict[str, Any]) -> None:
        """One event of the history, unless it was shown already."""
        trace_id, data, topic = event["trace_id"], event["data"], event["topic"]
        if data is None or trace_id in self.shown.turns:
            return
        if topic == "agent.message":
            if data["role"] == "user":
                self.echo(trace_id, data["content"])
            elif data["role"] == "assistant":
                from lightagentd.llm.protocol import Message  # not before there is a message

                self.end_passage()
                self.fold_thoughts(trace_id, Message.from_dict(data).thoughts)
                self.block(self.shown.rest_of(trace_id, data["content"]))
        elif topic == "agent.tool_dispatch" and event["type"] == "intent":
            self.call(data)
        elif topic == "agent.tool_dispatch" and event["type"] == "refused":
            tool = data.get("tool") or data.get("function")
            self.result({**data, "tool": tool, "text": data.get("message")})
        elif topic.startswith("tool.") and event["type"] == "invocation":
            self.result(data)
        elif topic == "session.turn" and event["type"] == "done":
            if not self.screen.is_terminal:
                self.screen.print(self.shown.last_text.get(trace_id, "").rstrip("\n"))
            self.end(trace_id, None, data)
        elif topic == "agent.error" and event["type"] != "fallback":
            self.failed(trace_id, data)

    def tick(self) -> None:
        """Time went by: show what runs."""
        if self.screen.can_redraw:
            self.screen.refresh()
        elif line := self.progress.sign():
            self.note(line)

    def note(self, text: str, code: str = DIM) -> None:
        """A line of our own, where a person reads along."""
        if self.screen.is_terminal:
            self.end_passage()
            self.lines([style(in_words(text), code)])

    def lines(self, lines: list[str]) -> None:
        """Lines that are safe already."""
        for line in lines:
            self.screen.print(line)
        self._before = "line"

    def live(self, columns: int, rows: int) -> list[str]:
        """The unfinished output, at most so many lines of at most so many columns."""
        rest = self.passage.rest if self.passage else ""
        self.progress.shows_thoughts = self.shows_thoughts
        return self.progress.lines(rest, columns, rows, colours=self.screen.colours)

    def echo(self, trace_id: str, text: str) -> None:
        """Show a prompt, where it is not to be seen already."""
        self.progress.queued.pop(trace_id, None)
        if not text or not self.shown.first(trace_id, self.shown.prompts) or not self.screen.is_terminal:
            return
        if trace_id in self.own and self.screen.echoes:
            self._before = "prompt"
            return
        self.end_passage()
        if self._before:
            self.screen.print()
        lines = clean(text).strip("\n").split("\n")
        for number, line in enumerate(lines[:_PROMPT_LINES]):
            self.screen.print(style(f"{'  ' if number else in_words('> ')}{line}", BOLD))
        if len(lines) > _PROMPT_LINES:
            self.screen.print(style(f"  … more lines: {len(lines) - _PROMPT_LINES}", DIM))
        self._before = "prompt"

    def end_passage(self) -> None:
        passage, self.passage = self.passage, None
        if passage is not None:
            self.block(passage.end())
            self.shown.text(self.passage_trace, passage.text)

    def fold_thoughts(self, trace_id: str, thoughts: str) -> None:
        """Show the beginning of what the model thought, and keep the rest."""
        self.thinking = None
        self.progress.result(THOUGHT)
        self.folded.thoughts = clean(thoughts).strip() or self.folded.thoughts
        if thoughts.strip() and self.shown.first(trace_id + thoughts.strip(), self.shown.notes):
            text = clean(thoughts).strip() if self.shows_thoughts else thought_line(thoughts)
            for line in text.split("\n"):
                self.note(line)

    def block(self, source: str) -> None:
        if not source.strip() or not self.screen.is_terminal:
            return
        if self._before in ("block", "prompt"):
            self.screen.print()
        for line in self._laid_out(source):
            self.screen.print(line)
        self._before = "block"

    def _laid_out(self, source: str) -> list[str]:
        if self._is_markdown:
            from lightagentd.cli.markdown import render  # not before there is something to show

            return render(source, self.screen.columns - 1, colours=self.screen.colours)
        return clean(source).strip("\n").split("\n")

    def call(self, event: dict[str, Any]) -> None:
        if self.shown.first(event["call_id"], self.shown.calls):
            self.end_passage()
            self.note(call_line(event))

    def result(self, event: dict[str, Any]) -> None:
        self.progress.result(event["call_id"])
        if self.shown.first(event["call_id"], self.shown.results):
            self.end_passage()
            good = event.get("result") in ("ok", None)
            text = event.get("text") or ""
            self.folded.keep(event["call_id"], call_name(event), text)
            size = len(text.splitlines()) if good else 0
            told = f"  {size} {'line' if size == 1 else 'lines'}" if size else ""
            self.note(result_line(event) + told, DIM if good else RED)

    def told_of_plan(self, plan: dict[str, Any]) -> bool:
        """Whether this exact plan has been shown; from now on it has."""
        told = tuple(str(plan.get(name) or "") for name in ("phase", "digest", "note"))
        before, self.plan_told = self.plan_told, told
        return before == told

    def failed(self, trace_id: str, data: dict[str, Any]) -> None:
        error = from_dict(data)
        if data.get("code") == _GOES_ON and self.screen.can_ask:
            self.end_passage()
            self.note(error.message)
            self.progress.idle()
            return
        self.end(trace_id, error, data)

    def end(self, trace_id: str, error: LightagentError | None, figures: dict[str, Any]) -> None:
        self.end_passage()
        self.echo(trace_id, self.progress.queued.get(trace_id, ""))
        took = duration(figures.get("duration_ms") or 0)
        self.took_s, steps = (figures.get("duration_ms") or 0) / 1000, figures.get("steps") or 0
        if isinstance(error, Cancelled):
            self.note(f"· cancelled after {took}", RED)
        elif error is not None:
            self.end_passage()
            self.screen.warn(error.message, error.suggestion)
            self._before = "line"
        elif steps:
            self.note(f"· {steps} {'step' if steps == 1 else 'steps'}, {took}")
        self.questions.close_turn(trace_id)
        self.progress.end(trace_id)
        self.shown.end(trace_id)
        self.own.discard(trace_id)
        self._ended(trace_id, error)


def _may_answer(event: dict[str, Any]) -> bool:
    """In a chat /approve authenticates."""
    return bool(event.get("may_answer"))


class _Events:
    """Shows the events of the watch; the transcript owns it."""

    def __init__(self, transcript: Transcript) -> None:
        self._on = transcript

    def show(self, event: dict[str, Any]) -> None:
        """One event, by the method `_on_` and its type, if there is one."""
        handler = getattr(self, f"_on_{event['type']}", None)
        is_over = event.get("trace_id") in self._on.shown.turns and event["type"] not in _BEYOND_TURNS
        if self._on.thinking is not None and event["type"] in _AFTER_THOUGHTS:
            self._on.fold_thoughts(event["trace_id"], self._on.thinking.getvalue())
        if handler is not None and not is_over:
            handler(event)
        self._on.screen.refresh()

    def _on_prompt(self, event: dict[str, Any]) -> None:
        if event["trace_id"] not in self._on.shown.prompts:
            self._on.progress.queued[event["trace_id"]] = event["text"]

    def _on_queued(self, event: dict[str, Any]) -> None:
        ahead = event.get("position") or 0
        shown = self._on.screen.can_redraw and event["trace_id"] in self._on.progress.queued
        if ahead and not shown:
            self._on.note(f"Waiting for {ahead} earlier {'prompt' if ahead == 1 else 'prompts'}.")

    def _on_started(self, event: dict[str, Any]) -> None:
        trace_id = event["trace_id"]
        self._on.joined, self._on.model = False, event.get("model") or ""
        self._on.echo(trace_id, self._on.progress.queued.get(trace_id, ""))
        self._on.progress.begin(trace_id)

    def _on_text_delta(self, event: dict[str, Any]) -> None:
        if self._on.joined:
            return
        if self._on.passage is None:
            self._on.passage, self._on.passage_trace = Passage(), event["trace_id"]
            self._on.progress.begin(event["trace_id"])
        self._on.block(self._on.passage.feed(event.get("text") or ""))

    def _on_reasoning_delta(self, event: dict[str, Any]) -> None:
        if not self._on.joined:
            self._on.thinking = self._on.thinking or io.StringIO()
            self._on.thinking.write(event.get("text") or "")
            self._on.progress.think(event["trace_id"], event.get("text") or "")

    def _on_tool_call(self, event: dict[str, Any]) -> None:
        self._on.call(event)
        if event["call_id"] not in self._on.shown.results:
            self._on.progress.call(event)

    def _on_tool_output(self, event: dict[str, Any]) -> None:
        self._on.progress.output(event["call_id"], event.get("text") or "")

    def _on_tool_result(self, event: dict[str, Any]) -> None:
        self._on.result(event)

    def _on_approval_requested(self, event: dict[str, Any]) -> None:
        self._ask(event, Question.of_call(event), may_answer=self._on.may_answer(event))

    def _on_input_requested(self, event: dict[str, Any]) -> None:
        self._ask(event, Question.of_agent(event), may_answer=True)

    def _ask(self, event: dict[str, Any], question: Question, *, may_answer: bool) -> None:
        self._on.end_passage()
        self._on.progress.waiting = True
        asks = may_answer and self._on.screen.can_ask
        if self._on.shown.first(question.id, self._on.shown.questions):
            if self._on.screen.is_terminal:
                self._on.lines([*question_lines(event, folded=True)])
                if asks and self._on.in_chat and question.kind == "approval":
                    self._on.note(HOW)
            if not asks:
                self._on.screen.warn(
                    "The turn waits until somebody answers this.", how_to_answer(event, self._on.program)
                )
        elif asks and not self._on.questions.is_open(question.id):
            self._on.note(f"Still asked: {question.summary}")
        if asks:
            self._on.questions.open(question)

    def _on_approval_answered(self, event: dict[str, Any]) -> None:
        self._on.progress.waiting = False
        question = question_id(event)
        self._on.questions.close(question)
        if self._on.shown.first(question, self._on.shown.answers):
            self._on.note(answer_line(event), DIM if is_granted(event) else RED)

    _on_input_answered = _on_approval_answered

    def _on_usage(self, event: dict[str, Any]) -> None:
        self._on.tokens = event.get("total_tokens") or 0

    def _on_notice(self, event: dict[str, Any]) -> None:
        if self._on.screen.is_terminal:
            self._on.note(cell(event.get("message")))
        else:
            self._on.screen.warn(str(event.get("message") or ""))

    def _on_compacted(self, event: dict[str, Any]) -> None:
        self._on.tokens = event.get("tokens_after") or 0
        self._on.note(compacted_line(event))

    def _on_plan(self, event: dict[str, Any]) -> None:
        plan = event.get("plan") or {}
        phase = plan.get("phase")
        self._on.session = self._on.session | {
            "mode": "normal" if phase in (None, "off", "completed") else phase
        }
        if not event.get("task") and self._on.told_of_plan(plan):
            return
        if phase == "ready" and not event.get("task"):  # what can be applied now has been on the screen
            self._on.plan_shown = str(plan.get("digest") or "")
            for line in plan_lines(plan):
                self._on.note(line)
        else:
            self._on.note(plan_event_line(event))
        if stopped_at := plan.get("stopped_at"):
            choices = _IN_CHAT if self._on.in_chat else _IN_SHELL
            self._on.note(f"It stopped at the task {cell(stopped_at)}: {choices}.", MAGENTA)

    def _on_session(self, event: dict[str, Any]) -> None:
        self._on.session = event.get("session_info") or self._on.session

    def _on_done(self, event: dict[str, Any]) -> None:
        trace_id, answer = event["trace_id"], clean(event.get("text") or "")
        self._on.end_passage()
        if self._on.screen.is_terminal:
            if answer.strip() != self._on.shown.last_text.get(trace_id, "").strip():
                self._on.block(answer)
        else:
            self._on.screen.print(answer.rstrip("\n"))
        self._on.end(trace_id, None, event)

    def _on_error(self, event: dict[str, Any]) -> None:
        self._on.failed(event["trace_id"], event)
