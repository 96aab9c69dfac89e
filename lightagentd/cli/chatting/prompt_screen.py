"""The screen of a terminal that can move its cursor: prompt-toolkit edits the line below a live region.

Finished text goes into the terminal's scrollback, above the region that prompt-toolkit draws, and never
changes again. The application runs from the first line to the end, so text typed while output arrives is not
lost. The terminal is never asked for cursor positions, because on a slow line its answer would mix with the
typed text.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus, is_done
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Window
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

from lightagentd.cli.chatting.again import edited_text
from lightagentd.cli.chatting.pasting import Pastes
from lightagentd.cli.chatting.screen import Line, View
from lightagentd.cli.layout import cut
from lightagentd.cli.output import warning_lines
from lightagentd.cli.terminal import DIM, RED, has_colours, rings, style
from lightagentd.errors import LightagentError
from lightagentd.redaction import Redactor

_T = TypeVar("_T")
_REDRAW_S = 0.05
_KEPT_ROWS = 7
"""So many rows are for what is typed, however much there is to see."""


_HISTORY_CHARS = 100_000
"""A longer line is not kept in the history."""
_FOCUS_ON, _FOCUS_OFF = "\x1b[?1004h", "\x1b[?1004l"
"""Has the terminal tell when the person looks at it and when not (xterm's ctlseqs, FocusIn/FocusOut)."""
_FOCUSED, _UNFOCUSED = Keys.F23, Keys.F24
"""Stand for these reports, of which prompt-toolkit knows none; no keyboard has these keys."""
ANSI_SEQUENCES.update({"\x1b[I": _FOCUSED, "\x1b[O": _UNFOCUSED})


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
        self._pastes = Pastes()
        self._focused: bool | None = None
        """Whether the person looks at this terminal, as far as it says so."""
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
        # The toolbar of prompt-toolkit needs the cursor's position.
        below = Window(FormattedTextControl(self._status), height=1)
        layout = self._session.layout.container
        assert isinstance(layout, HSplit)
        layout.children.append(ConditionalContainer(below, ~is_done))
        self._session.app.min_redraw_interval = _REDRAW_S
        self._session.app.ttimeoutlen = 0.1

    @property
    def columns(self) -> int:
        return self._output.get_size().columns

    async def typed(self, view: View) -> AsyncGenerator[Line, None]:
        self.view = view
        self._output.write_raw(_FOCUS_ON)
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
            self._output.write_raw(_FOCUS_OFF)
            self._output.flush()
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
        text = text if len(text) < _HISTORY_CHARS else self._pastes.fold(text)
        if self.asked:
            self._aside = self._aside if self._aside.text else Document(text)
        elif not self._session.default_buffer.text:
            self._session.default_buffer.document = Document(text)
        self.refresh()

    def clear(self) -> bool:
        had = bool(self._session.default_buffer.text)
        self._session.default_buffer.reset()
        self._session.app.renderer.erase()  # it keeps its height otherwise
        self.refresh()
        return had

    def wipe(self) -> None:
        self._session.app.renderer.clear()

    def alert(self, took_s: float) -> None:
        if rings(took_s, self._focused):
            self._output.write_raw("\a")
            self._output.flush()

    def copy(self, text: str) -> bool:
        content = base64.b64encode(text.encode("utf-8", "replace")).decode()
        self._output.write_raw(f"\x1b]52;c;{content}\x1b\\")  # xterm's ctlseqs, Manipulate Selection Data
        self._output.flush()
        return True

    async def suspended(self, function: Callable[[], _T]) -> _T:
        if not self._session.app.is_running:
            return await asyncio.to_thread(function)
        self._given_away = True
        self._output.write_raw(_FOCUS_OFF)
        self._output.flush()
        try:
            return await run_in_terminal(function, in_executor=True)
        finally:
            self._given_away = False
            self._output.write_raw(_FOCUS_ON)
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

    def _status(self) -> ANSI:
        """The line below what is typed. Being below the cursor, it is erased whole after any resize."""
        words = self.view.below() if self.view is not None else ""
        return ANSI(style(cut(words, self.columns - 1), DIM))

    async def _edit(self) -> None:
        """Have the person's editor change what is typed."""
        typed = self._pastes.whole(self._session.default_buffer.text)
        try:
            edited = await self.suspended(partial(edited_text, typed))
        except LightagentError as err:
            self.warn(err.message, err.suggestion)
            return
        if edited is not None:
            self._session.default_buffer.document = Document(edited.rstrip("\n"))

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
            typed = buffer.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            text = self._pastes.whole(typed)
            self._pastes.clear()
            if (
                not self.asked
                and text.strip()
                and len(text) < _HISTORY_CHARS
                and Redactor().text(text) == text  # a password has no business in the file
                and text != next(iter(self._session.history.get_strings()[-1:]), "")
            ):
                self._session.history.append_string(text)
            buffer.reset()
            self._typed.put_nowait(Line(text, self.asked, typed))

        @keys.add("escape", "enter", filter=typing)
        def line_break(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        self._more_keys(keys)

        @keys.add("c-c")
        @keys.add(Keys.SIGINT)
        def interrupt(event: KeyPressEvent) -> None:  # noqa: ARG001 - a binding's signature
            if self.view is not None:
                self.view.interrupted()

        @keys.add("c-d", filter=typing & is_empty)
        def leave(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        return keys

    def _more_keys(self, keys: KeyBindings) -> None:
        """The keys beside those that send, cancel and leave."""
        typing = has_focus(DEFAULT_BUFFER)

        @keys.add(Keys.BracketedPaste, filter=typing)
        def paste(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self._pastes.fold(event.data))

        @keys.add("c-x", "c-e", filter=typing)
        def edit(event: KeyPressEvent) -> None:
            event.app.create_background_task(self._edit())

        for key, command in (("c-o", "/output"), ("c-t", "/reasoning")):

            @keys.add(key, filter=typing)
            def run(event: KeyPressEvent, command: str = command) -> None:  # noqa: ARG001 - a binding's
                self._typed.put_nowait(Line(command, is_key=True))

        @keys.add(_FOCUSED)
        @keys.add(_UNFOCUSED)
        def note_focus(event: KeyPressEvent) -> None:
            self._focused = event.key_sequence[-1].key == _FOCUSED
