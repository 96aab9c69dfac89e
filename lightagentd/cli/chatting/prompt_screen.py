"""The screen of a terminal that can move its cursor: prompt-toolkit edits the line below a live region.

Finished text goes into the terminal's scrollback, above the region that prompt-toolkit draws, and never
changes again. The application runs from the first line to the end, so text typed while output arrives is not
lost. The terminal is never asked for cursor positions, because on a slow line its answer would mix with the
typed text.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

from lightagentd.cli.chatting.screen import Line, View
from lightagentd.cli.output import warning_lines
from lightagentd.cli.terminal import RED, has_colours, style
from lightagentd.redaction import Redactor

_T = TypeVar("_T")
_REDRAW_S = 0.03
_KEPT_ROWS = 6
"""So many rows are for what is typed, however much there is to see."""


def history_file() -> Path:
    """The file of the typed lines, readable by its owner alone."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "lightagent" / "chat_history"


def _history() -> History:
    """The history in the file, or in memory if there can be no file."""
    path = history_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.fchmod(handle, 0o600)
        os.close(handle)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return InMemoryHistory()
    return FileHistory(str(path))


class _Completer(Completer):
    def __init__(self, screen: PromptScreen) -> None:
        self._screen = screen

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        view = self._screen.view
        if view is not None and not self._screen.asked:
            for word, text in view.completions(document.text_before_cursor):
                yield Completion(text, start_position=-len(word))


class PromptScreen:
    """Implements `screen.Screen`. Its maker reads `typed` to the end, which ends the application."""

    is_terminal = can_ask = can_redraw = True
    echoes = False

    def __init__(self) -> None:
        self.colours = has_colours()
        self.view: View | None = None
        self.asked = ""
        """The id of the question that what is typed answers."""
        self._words = ""
        self._aside = Document()
        """What was typed, and not finished, when a question came."""
        self._typed: asyncio.Queue[Line] = asyncio.Queue()
        self._given_away = False
        self._held: list[str] = []
        """What is to be printed when the terminal comes back."""
        self._output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
        self._output.enable_cpr = False
        self._session: PromptSession[str | None] = PromptSession(
            self._message,
            multiline=True,
            history=_history(),
            completer=_Completer(self),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=self._keys(),
            erase_when_done=True,
            enable_suspend=True,
            output=self._output,
        )
        self._session.app.min_redraw_interval = _REDRAW_S
        self._session.app.ttimeoutlen = 0.1

    @property
    def columns(self) -> int:
        return self._output.get_size().columns

    async def typed(self, view: View) -> AsyncGenerator[Line, None]:
        self.view = view
        app = asyncio.create_task(self._session.prompt_async(), name="chat-prompt")
        try:
            while True:
                getting = asyncio.ensure_future(self._typed.get())
                try:
                    await asyncio.wait([app, getting], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    getting.cancel()
                if not getting.done() or getting.cancelled():
                    break
                yield getting.result()
        finally:
            if self._session.app.is_running:
                self._session.app.exit(result=None)
            with suppress(EOFError):  # the terminal is gone
                await app

    def print(self, text: str = "") -> None:
        if self._given_away:
            self._held.append(text)
            return
        app = self._session.app
        if app.is_running:
            app.renderer.erase()
            app.invalidate()
        self._output.write_raw(text.replace("\n", "\r\n") + "\r\n")
        self._output.flush()

    def warn(self, text: str, suggestion: str = "") -> None:
        for line in warning_lines(text, suggestion):
            self.print(style(line, RED))

    def refresh(self) -> None:
        self._session.app.invalidate()

    def ready(self) -> None:
        self.refresh()

    def ask(self, question: str, words: str) -> None:
        buffer = self._session.default_buffer
        if question != self.asked:
            if question and not self.asked:
                self._aside = buffer.document
            if question:
                buffer.reset()
            else:
                buffer.document, self._aside = self._aside, Document()
        self.asked, self._words = question, words
        self.refresh()

    def put_back(self, text: str) -> None:
        if self.asked:
            self._aside = self._aside if self._aside.text else Document(text)
        elif not self._session.default_buffer.text:
            self._session.default_buffer.document = Document(text)
        self.refresh()

    def clear(self) -> bool:
        had = bool(self._session.default_buffer.text)
        self._session.default_buffer.reset()
        return had

    async def suspended(self, function: Callable[[], _T]) -> _T:
        if not self._session.app.is_running:
            return await asyncio.to_thread(function)
        self._given_away = True
        try:
            return await run_in_terminal(function, in_executor=True)
        finally:
            self._given_away = False
            held, self._held = self._held, []
            for text in held:
                self.print(text)

    def _message(self) -> ANSI:
        size = self._output.get_size()
        lines: list[str] = []
        words = self._words
        if self.view is not None:
            lines = self.view.live(size.columns - 1, size.rows - _KEPT_ROWS)
            words = words or self.view.prompt()
        return ANSI("\n".join([*lines, words]))

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing = has_focus(DEFAULT_BUFFER)

        @Condition
        def is_empty() -> bool:
            return not self._session.default_buffer.text

        @keys.add("enter", filter=typing)
        def finish(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if not self.asked and buffer.text.endswith("\\") and buffer.document.is_cursor_at_the_end:
                buffer.delete_before_cursor()
                buffer.newline(copy_margin=False)
                return
            # What is not UTF-8 comes as lone surrogates, which cannot be stored or sent.
            text = buffer.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            if (
                not self.asked
                and text.strip()
                and Redactor().text(text) == text  # a password has no business in the file
                and text != next(iter(self._session.history.get_strings()[-1:]), "")
            ):
                self._session.history.append_string(text)
            buffer.reset()
            self._typed.put_nowait(Line(text, self.asked))

        @keys.add("escape", "enter", filter=typing)
        def line_break(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-c")
        @keys.add(Keys.SIGINT)
        def interrupt(event: KeyPressEvent) -> None:  # noqa: ARG001 - a binding's signature
            if self.view is not None:
                self.view.interrupted()

        @keys.add("c-d", filter=typing & is_empty)
        def leave(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        return keys
