"""Shows something again and again on a screen of its own, until q or Ctrl-C: `lactl top`, and `--watch`.

A list with `watchable` is drawn again when an event of its topics comes, which the daemon says on a
connection of its own; after such a time too, because it has times in words. Where the daemon does not answer
it is tried again, and so it is found after a restart.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from lightagentd.cli.event_source import head
from lightagentd.cli.options import Settings
from lightagentd.cli.terminal import clean, columns, is_dumb, may_type, rows
from lightagentd.client.blocking import Client
from lightagentd.errors import DaemonUnreachable, LightagentError, ShuttingDown, TimedOut

EVERY_S = 2.0
"""How often that is looked at for which no event is known, and a daemon that does not answer."""
_AGED_S = 20.0
_LOOK_S = 0.4
"""How soon another size of the terminal is seen."""
_TOGETHER_S = 0.15
"""Events that come within this time are one change."""
_HOME, _CLEAR_BELOW, _LINE_END = "\x1b[H", "\x1b[J", "\x1b[K\n"


def can_redraw() -> bool:
    """Whether there is a person at a terminal that can move its cursor."""
    return may_type() and not is_dumb()


def watchable(topics: str = "", *, alone: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give the command of a list the option --watch; `topics` are those of the events that may change it.
    With the argument `alone` the command does something else, once.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*arguments: Any, watch: bool, **options: Any) -> Any:
            show = functools.partial(function, *arguments, **options)
            if not watch:
                return show()
            if options.get(alone):
                raise click.UsageError(f"{alone.upper()} and --watch cannot be used together.")
            settings = click.get_current_context().ensure_object(Settings)
            if settings.json or settings.hosts or not can_redraw():
                why = "--watch redraws a terminal, for one host and without --json."
                raise click.UsageError(f"{why} In a pipe: lactl events --follow")
            with contextlib.closing(_Events(settings, topics)) as events:
                return redraw(lambda: _printed(show), _AGED_S if topics else EVERY_S, events)

        return watch_option(command)

    return decorate


watch_option = click.option("--watch", "-w", is_flag=True, help="Show it anew at each change, until Ctrl-C.")


class _Events:
    """The changes that the daemon tells; the connection is made when it is needed, and again."""

    def __init__(self, settings: Settings, topics: str) -> None:
        self._settings, self._topics = replace(settings, ask_password=False), topics
        self._client: Client | None = None
        self._replies: Iterator[dict[str, Any]] = iter(())

    def open(self) -> bool:
        """Whether changes are told from now on."""
        if self._client is not None or not self._topics:
            return self._client is not None
        try:
            which = {"topic": self._topics, "from_seq": head(self._settings) + 1, "follow": True}
            client = self._settings.client()
            client.__enter__()
            self._client, self._replies = client, client.stream("Events.Subscribe", **which)
        except LightagentError:
            self.close()
        return self._client is not None

    def come(self, key: int, timeout_s: float) -> bool:
        """Wait for a change, for so long or until the descriptor `key` is readable; whether one came."""
        if self._client is None:
            select.select([key], [], [], timeout_s)
            return False
        if self._client.quiet_until(key, timeout_s):
            return False
        end_s = time.monotonic() + _TOGETHER_S
        try:
            while True:
                next(self._replies)
                if (left_s := end_s - time.monotonic()) <= 0 or not self._client.has_reply(left_s):
                    return True
        except (LightagentError, StopIteration):  # it stopped
            self.close()
            return True

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def redraw(look: Callable[[], list[str]], interval_s: float, events: _Events | None = None) -> None:
    """Show these lines, which are harmless, again and again: after each change, and after such a time."""
    with _screen(), contextlib.suppress(KeyboardInterrupt):
        while True:
            told = events is not None and events.open()
            size = columns(), rows()
            try:
                lines = look()
            except (DaemonUnreachable, ShuttingDown, TimedOut) as err:
                lines, told = textwrap.wrap(clean(f"{err.message} It is tried again."), columns()), False
            room = max(1, rows() - 1)
            if len(lines) > room:
                lines[room - 1 :] = [f"… and {len(lines) - room + 1} more lines"]
            shown = "".join(f"{line}{_LINE_END}" for line in lines)
            sys.stdout.write(f"{_HOME}{shown}{_CLEAR_BELOW}")
            sys.stdout.flush()
            wait_s = interval_s if told or events is None else min(interval_s, EVERY_S)
            if _ends_within(wait_s, events, size):
                return


def _printed(show: Callable[[], Any]) -> list[str]:
    """The lines that a command prints for the terminal."""
    text = _Captured()
    with contextlib.redirect_stdout(text):
        show()
    return text.getvalue().removesuffix("\n").split("\n")


class _Captured(io.StringIO):
    """What is written for the terminal that standard output is."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        assert sys.__stdout__ is not None
        return sys.__stdout__.fileno()


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """A screen of its own that wraps no line, and keys as they are pressed; afterwards all is as before."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[?7l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?7h\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _ends_within(interval_s: float, events: _Events | None, size: tuple[int, int]) -> bool:
    """Wait for a change or the time to look again; whether q was pressed. Any other key has it look at
    once, and so has another size of the terminal.
    """
    key, end_s = sys.stdin.fileno(), time.monotonic() + interval_s
    while (left_s := end_s - time.monotonic()) > 0 and size == (columns(), rows()):
        step_s = min(left_s, _LOOK_S)
        if events is not None:
            changed = events.come(key, step_s)
        else:
            changed = False
            select.select([key], [], [], step_s)
        if select.select([key], [], [], 0)[0]:
            return os.read(key, 64)[:1] in (b"q", b"Q", b"\x04", b"")
        if changed:
            return False
    return False
