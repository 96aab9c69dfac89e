"""Posts OTLP to a receiver, and reads what it says to it.

What it takes is done, with what it refuses of it; what it refuses as a whole will be no better the next time,
so that is given up, and told. After anything else the same is sent again: a limit on requests, a failure
inside the receiver, an answer that is none, no answer, or a key that is not accepted.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass
from typing import Any

from lightagentd.config.telemetry import Telemetry, headers
from lightagentd.errors import ConfigError
from lightagentd.telemetry.otlp import Signal
from lightagentd.unattended.posting import NotTaken, Poster, line, quoted


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What became of something that is not sent again."""

    refused: int | None = 0
    """How much of it the receiver refused; None for all of it."""
    problem: str = ""


class Receiver:
    """Sends to the receiver of the configuration; `close` it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry, self._url = telemetry, telemetry.endpoint.rstrip("/")
        self._poster = Poster(telemetry.timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._poster.close()

    async def send(self, signal: Signal, request: dict[str, Any]) -> Taken:
        """Send one request. Raises NotTaken, ConfigError."""
        body = await asyncio.to_thread(_packed, request)
        url = f"{self._url}/v1/{signal}"
        fixed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        answer = await self._poster.send(url, body, {**fixed, **headers(self._telemetry)})
        return _partly(url, answer.said) if answer.taken else Taken(refused=None, problem=answer.words)


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


def _partly(url: str, said: bytes) -> Taken:
    """What a receiver that took something says of the rest. Raises NotTaken for what is no such answer."""
    try:
        answer = json.loads(said) if said.strip() else {}
        partial = answer.get("partialSuccess") or {}
        refused = int(partial.get("rejectedSpans") or partial.get("rejectedDataPoints") or 0)
        message = str(partial.get("errorMessage") or "")
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        raise NotTaken(
            f"{url} is no receiver of OTLP: its answer is not the JSON of one{quoted(said)}."
        ) from err
    if not (refused or message):
        return Taken()
    return Taken(refused=refused, problem=f"{url} refused {refused} of what was sent: {line(message)}")
