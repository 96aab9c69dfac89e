"""Sends HTTP requests to receivers of other people, and judges what comes back, for services that send
again what was not taken.
"""

from __future__ import annotations

import email.utils
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from lightagentd import __version__
from lightagentd.errors import LightagentError
from lightagentd.text.reason import reason

_ANSWER_BYTES = 64 << 10
LONGEST_WAIT_S = 3600.0
"""The longest time that a receiver may ask to be left alone."""
_ABOUT_US = frozenset({401, 403, 407, 408, 429})
"""Statuses that say nothing against what was sent."""
_SAID = 200


class NotTaken(LightagentError):
    """The receiver did not take what was sent; it is sent again."""

    def __init__(self, message: str, *, wait_s: float = 0.0, said: bytes = b"") -> None:
        super().__init__(message)
        self.wait_s = wait_s
        """How long the receiver wants to be left alone."""
        self.said = said
        """Its answer, where there was one."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """An answer that ends a request: with 2xx it is taken, with another status it would never be."""

    status: int
    said: bytes
    words: str
    """A sentence about it."""

    @property
    def taken(self) -> bool:
        return 200 <= self.status < 300


class Poster:
    """Sends, with one session; `close` it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(
        self, url: str, body: bytes, headers: Mapping[str, str], *, method: str = "POST", shown: str = ""
    ) -> Answered:
        """Send one request; errors have `shown` for a URL that is a secret. Raises NotTaken."""
        named = shown or url
        sent = {"User-Agent": f"lightagentd/{__version__}", **headers}
        try:
            async with self._opened().request(
                method, url, data=body, headers=sent, allow_redirects=False
            ) as answer:
                return _judged(named, answer.status, answer.headers, await _start_of(answer))
        except TimeoutError as err:
            raise NotTaken(f"{named} did not answer within {self._timeout_s:g} s.") from err
        except ssl.SSLError as err:
            raise NotTaken(f"{named} has no certificate that can be trusted: {reason(err)}.") from err
        except (aiohttp.ClientError, OSError, ValueError) as err:
            why = _why(err).replace(url, named)
            raise NotTaken(f"{named} cannot be reached: {why}.") from err

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=True)
        return self._session


async def _start_of(answer: aiohttp.ClientResponse) -> bytes:
    """As much of an answer as may be of use."""
    said = b""
    async for chunk in answer.content.iter_chunked(1 << 14):
        said += chunk
        if len(said) > _ANSWER_BYTES:
            break
    return said


def _judged(url: str, status: int, received: Mapping[str, str], said: bytes) -> Answered:
    words = f"{url} answered with the status {status}{quoted(said)}."
    if 200 <= status < 300 or (400 <= status < 500 and status not in _ABOUT_US):
        return Answered(status=status, said=said, words=words)
    raise NotTaken(words, wait_s=_wait_s(received.get("Retry-After", "")), said=said)


def _wait_s(said: str) -> float:
    """The seconds of a Retry-After header, RFC 9110 section 10.2.3; 0 for none."""
    said = said.strip()
    if said.isascii() and said.isdigit():
        return min(float(said[:9]), LONGEST_WAIT_S)
    try:
        until = email.utils.parsedate_to_datetime(said).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, until - time.time()), LONGEST_WAIT_S)


def _why(err: Exception) -> str:
    return reason(err) if isinstance(err, OSError) else line(str(err)) or type(err).__name__


def quoted(said: bytes) -> str:
    """The beginning of an answer in parentheses, where there is one."""
    text = line(said.decode("utf-8", "replace"))
    return f" ({text})" if text else ""


def line(text: str) -> str:
    """The beginning of a text of others, on one line."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:_SAID]
