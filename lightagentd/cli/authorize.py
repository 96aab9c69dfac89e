"""Lets polkit ask for a password on the terminal: repeats a refused call with a text agent beside it.

polkit asks through an authentication agent. A desktop has one; on a terminal this module starts pkttyagent(1)
while the call waits for its answer. The owner of a client also owns the agent.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lightagentd.client.blocking import Client
from lightagentd.errors import AuthorizationRequired

_T = TypeVar("_T")

ASK_TIMEOUT_S = 330.0
"""How long a call may take in which a person is asked: longer than the daemon waits for them."""
REGISTER_TIMEOUT_S = 10.0
_END_S = 5.0
_REFUSED_S = 0.1
"""An agent that polkit refuses lets go of its descriptor just before it ends."""
AGENT = "pkttyagent"


class AskingClient(Client):
    """A client that lets the person at the terminal authenticate, and then repeats the call."""

    def call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        def attempt() -> dict[str, Any]:
            return super(AskingClient, self).call(method, **parameters)

        try:
            return attempt()
        except AuthorizationRequired as err:
            return self._asking(err, attempt)

    def stream(self, method: str, /, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Like `Client.stream`. Nobody is asked after the first reply, because the call is allowed."""
        replies: Iterator[dict[str, Any]] = iter(())

        def attempt() -> list[dict[str, Any]]:
            nonlocal replies
            replies = super(AskingClient, self).stream(method, **parameters)
            return [next(replies)]

        try:
            first = attempt()
        except AuthorizationRequired as err:
            first = self._asking(err, attempt)
        return _joined(first, replies)

    def _asking(self, refused: AuthorizationRequired, attempt: Callable[[], _T]) -> _T:
        """The result of a refused call, repeated so that polkit can ask. Raises the errors of the call."""
        if not has_terminal():
            raise refused
        timeout_s, self.timeout_s, self.interactive = self.timeout_s, ASK_TIMEOUT_S, True
        try:
            with _terminal_as_it_was():
                try:
                    with _text_agent(refused, "--fallback"):
                        return attempt()
                except AuthorizationRequired:
                    # polkit found nobody to ask: without a login session it ignores an agent that is only a
                    # fallback, and no desktop's agent can be meant.
                    with _text_agent(refused):
                        return attempt()
        finally:
            self.interactive, self.timeout_s = False, timeout_s


def _joined(first: list[dict[str, Any]], rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    try:
        yield from first
        yield from rest
    finally:
        rest.close()  # type: ignore[attr-defined]


def has_terminal() -> bool:
    """Whether a person at the terminal can read the question and answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


@contextlib.contextmanager
def _text_agent(refused: AuthorizationRequired, *options: str) -> Iterator[None]:
    """An agent that polkit asks for this process; it is registered when the block begins. Raises
    AuthorizationRequired when none can be started.
    """
    import shutil
    import subprocess

    program = shutil.which(AGENT)
    if program is None:
        raise AuthorizationRequired(
            f"{refused.message} It cannot ask here: {AGENT} is not installed.",
            suggestion="Install it (in Debian the package polkitd), or use sudo.",
        )
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as notified:
        try:
            # It asks on the terminal itself, so it stays in our session and process group.
            agent = subprocess.Popen(
                [program, f"--process={os.getpid()}", f"--notify-fd={writing}", *options],
                stdin=subprocess.DEVNULL,
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        try:
            if not _registered(notified.fileno(), agent):
                raise AuthorizationRequired(
                    f"{refused.message} It cannot ask here: {program} could not register with polkit.",
                    suggestion="See what it says with 'pkttyagent --process $$', or use sudo.",
                )
            yield
        finally:
            agent.terminate()
            try:
                agent.wait(_END_S)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


def _registered(notified: int, agent: Any) -> bool:
    """Wait until the agent has closed its descriptor, which says that it is ready, or has ended."""
    import select
    import subprocess

    if not select.select([notified], [], [], REGISTER_TIMEOUT_S)[0]:
        return False
    try:
        agent.wait(_REFUSED_S)
    except subprocess.TimeoutExpired:
        return True
    return False


@contextlib.contextmanager
def _terminal_as_it_was() -> Iterator[None]:
    """Restore the echo, which an agent that ends during a question leaves off."""
    import termios

    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
