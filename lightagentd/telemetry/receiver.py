"""Posts OTLP to a receiver, and reads what it says to it.

What it takes is done, with what it refuses of it; what it refuses as a whole will be no better the next time,
so that is given up, and told. After anything else the same is sent again: a limit on requests, a failure
inside the receiver, an answer that is none, no answer, or a key that is not accepted.
"""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from lightagentd import __version__
from lightagentd.config.telemetry import Telemetry, headers
from lightagentd.errors import ConfigError, LightagentError
from lightagentd.telemetry.otlp import Signal
from lightagentd.text.reason import reason

_ANSWER_BYTES = 64 << 10
_WAIT_S = 3600.0
"""The longest time that a receiver may ask to be left alone."""
_ABOUT_US = frozenset({401, 403, 407, 408, 429})
"""Statuses that say nothing against what was sent."""
_SAID = 200


class NotTaken(LightagentError):
    """The receiver did not take what was sent; it is sent again."""

    def __init__(self, message: str, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        """How long the receiver wants to be left alone."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What became of something that is not sent again."""

    refused: int | None = 0
    """How much of it the receiver refused; None for all of it."""
    problem: str = ""


class Receiver:
    """Enter it to send."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry, self._url = telemetry, telemetry.endpoint.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, signal: Signal, request: dict[str, Any]) -> Taken:
        """Send one request. Raises NotTaken, ConfigError."""
        body = await asyncio.to_thread(_packed, request)
        url = f"{self._url}/v1/{signal}"
        session = self._opened()
        sent = {**self._fixed(), **headers(self._telemetry)}
        try:
            async with session.post(url, data=body, headers=sent, allow_redirects=False) as answer:
                said = await _start_of(answer)
                return _judged(url, answer.status, answer.headers, said)
        except TimeoutError as err:
            raise NotTaken(f"{url} did not answer within {self._telemetry.timeout_s:g} s.") from err
        except ssl.SSLError as err:
            raise NotTaken(f"{url} has no certificate that can be trusted: {reason(err)}.") from err
        except (aiohttp.ClientError, OSError, ValueError) as err:
            raise NotTaken(f"{url} cannot be reached: {_why(err)}.") from err

    def _fixed(self) -> dict[str, str]:
        return {
            "Content-Type": "application/json",
            "Content-Encoding": "gzip",
            "User-Agent": f"lightagentd/{__version__}",
        }

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._telemetry.timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=True)
        return self._session


def checked(telemetry: Telemetry) -> Telemetry:
    """The section, if there is somewhere to send to. Raises ConfigError."""
    if not telemetry.endpoint:
        raise ConfigError(
            "There is no receiver for telemetry.",
            suggestion='Name one in /etc/lightagentd/lightagentd.toml: [telemetry], endpoint = "https://…"',
        )
    headers(telemetry)
    return telemetry


def _packed(request: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps(request, separators=(",", ":")).encode(), 1)


async def _start_of(answer: aiohttp.ClientResponse) -> bytes:
    """As much of an answer as may be of use."""
    said = b""
    async for chunk in answer.content.iter_chunked(1 << 14):
        said += chunk
        if len(said) > _ANSWER_BYTES:
            break
    return said


def _judged(url: str, status: int, received: Mapping[str, str], said: bytes) -> Taken:
    if 200 <= status < 300:
        return _partly(url, said)
    words = f"{url} answered with the status {status}{_quoted(said)}."
    if status in _ABOUT_US or not 400 <= status < 500:
        raise NotTaken(words, wait_s=_wait_s(received.get("Retry-After", "")))
    return Taken(refused=None, problem=words)


def _partly(url: str, said: bytes) -> Taken:
    """What a receiver that took something says of the rest. Raises NotTaken for what is no such answer."""
    try:
        answer = json.loads(said) if said.strip() else {}
        partial = answer.get("partialSuccess") or {}
        refused = int(partial.get("rejectedSpans") or partial.get("rejectedDataPoints") or 0)
        message = str(partial.get("errorMessage") or "")
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        raise NotTaken(
            f"{url} is no receiver of OTLP: its answer is not the JSON of one{_quoted(said)}."
        ) from err
    if not (refused or message):
        return Taken()
    return Taken(refused=refused, problem=f"{url} refused {refused} of what was sent: {_line(message)}")


def _wait_s(said: str) -> float:
    """The seconds of a Retry-After header, RFC 9110 section 10.2.3; 0 for none."""
    said = said.strip()
    if said.isascii() and said.isdigit():
        return min(float(said[:9]), _WAIT_S)
    try:
        until = email.utils.parsedate_to_datetime(said).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, until - time.time()), _WAIT_S)


def _why(err: Exception) -> str:
    return reason(err) if isinstance(err, OSError) else _line(str(err)) or type(err).__name__


def _quoted(said: bytes) -> str:
    text = _line(said.decode("utf-8", "replace"))
    return f" ({text})" if text else ""


def _line(text: str) -> str:
    """The beginning of a text of others, on one line."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:_SAID]
