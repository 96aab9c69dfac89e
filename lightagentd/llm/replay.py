"""Plays recorded exchanges: a provider of kind `replay` with `recording = DIR`, for tests and post-mortems.

A request gets the answer of the recorded request with the same messages (see `_told`). A client plays each
exchange once, in the order of time; an exchange with the same results of calls comes before others that
match. The system prompt, the functions and the results of calls may differ, because they come from this
machine today. A recorded error is raised again, and an abandoned exchange ends as a broken-off one. If
nothing matches, the error names the first message that differs.

The folder is read at each call, so that it may grow meanwhile. Only digests stay in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightagentd.errors import ModelCutOff, ModelRejected
from lightagentd.events.model import dump_json
from lightagentd.llm.exchange import Recorded
from lightagentd.llm.protocol import ASSUMED_WINDOW, Message, ModelSettings, Part, Request
from lightagentd.llm.retry import RetrySettings
from lightagentd.redaction import Redactor
from lightagentd.text.reason import reason

_DIGEST_IN_MARK = re.compile(r"(\[removed: [a-z0-9-]{1,40}) [0-9a-f]{8}\]")
"""Digests in marks are made with the key of the daemon that recorded."""
_MOST_BYTES = 256 << 20
_SHOWN_CHARS = 60


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """The index entry of a file: a digest of each message, and one of the results of calls."""

    path: Path
    told: tuple[bytes, ...]
    results: bytes


class ReplayClient:
    """Answers from the files in a folder."""

    def __init__(self, settings: ModelSettings, folder: Path, redactor: Redactor) -> None:
        self.name = f"{settings.provider}/{settings.model}"
        self.context_tokens = settings.context_tokens or ASSUMED_WINDOW
        self.window_known = settings.context_tokens is not None
        self.retry = RetrySettings(
            max_retries=settings.max_retries, max_retry_s=settings.max_retry_s, base_s=0.0
        )
        """Recorded calls that were made again are made again, without a wait of their own."""
        self._folder = folder
        self._redactor = redactor
        self._entries: dict[str, _Entry] = {}
        self._unreadable: dict[str, str] = {}
        self._played: set[str] = set()
        self._looking = asyncio.Lock()

    async def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        """Play one exchange. Raises the recorded ModelError; ModelRejected when nothing matches."""
        async with self._looking:
            recorded = await asyncio.to_thread(self._take, tuple(request.messages))
        if recorded.usage is not None and request.on_usage is not None:
            request.on_usage(recorded.usage)
        for part in recorded.parts:
            yield part
        if recorded.error is not None:
            raise recorded.error
        if recorded.outcome == "left":
            raise ModelCutOff(
                f"The recorded answer of {recorded.model} of {recorded.began} was left before its end."
            )

    async def close(self) -> None:
        """Nothing is open."""

    def _take(self, messages: Sequence[Message]) -> Recorded:
        """The next exchange that matches. Raises ModelRejected."""
        self._look()
        told, results = self._told(messages), self._results(messages)
        fitting = [entry for _, entry in sorted(self._entries.items()) if entry.told == told]
        free = [entry for entry in fitting if entry.path.name not in self._played]
        if not free:
            raise self._nothing(messages, told, len(fitting))
        entry = next((entry for entry in free if entry.results == results), free[0])
        self._played.add(entry.path.name)
        try:
            return Recorded.read(entry.path.read_bytes())
        except (OSError, ValueError) as err:
            raise ModelRejected(f"The recorded exchange {entry.path} cannot be read: {reason(err)}.") from err

    def _look(self) -> None:
        """Index the new files. Raises ModelRejected when the folder is missing."""
        try:
            found = sorted(path for path in self._folder.iterdir() if path.suffix == ".json")
        except OSError as err:
            raise ModelRejected(
                f"The recording {self._folder} of {self.name} cannot be read: {err.strerror}.",
                suggestion="Correct `recording` of the provider: a folder that `record` of [models] made.",
            ) from err
        for path in found:
            if path.name in self._entries or path.name in self._unreadable:
                continue
            try:
                if path.stat().st_size > _MOST_BYTES:
                    raise ValueError(f"it has more than {_MOST_BYTES} bytes")
                recorded = Recorded.read(path.read_bytes())
                told, results = self._told(recorded.messages), self._results(recorded.messages)
            except (OSError, ValueError) as err:
                self._unreadable[path.name] = reason(err)
                continue
            self._entries[path.name] = _Entry(path=path, told=told, results=results)

    def _told(self, messages: Sequence[Message]) -> tuple[bytes, ...]:
        """A digest of each message: of its role, and of the text of a person or the model in it."""
        return tuple(_digest(self._text(message)) for message in messages)

    def _text(self, message: Message) -> str:
        whole = {name: value for name, value in message.to_dict().items() if name != "reasoning"}
        if message.role == "tool":
            whole.pop("content")
        return _DIGEST_IN_MARK.sub(r"\1]", dump_json(self._redactor.value(whole)).decode())

    def _results(self, messages: Sequence[Message]) -> bytes:
        texts = [self._redactor.text(message.content) for message in messages if message.role == "tool"]
        return _digest(_DIGEST_IN_MARK.sub(r"\1]", dump_json(texts).decode()))

    def _nothing(self, messages: Sequence[Message], told: tuple[bytes, ...], fitting: int) -> ModelRejected:
        if fitting:
            why = f"all {fitting} recorded answers to this request were played already"
        elif not self._entries:
            why = "it has no recorded exchange"
        else:
            why = self._first_difference(messages, told)
        if self._unreadable:
            name, problem = min(self._unreadable.items())
            why += f" ({len(self._unreadable)} files cannot be read, such as {name}: {problem})"
        return ModelRejected(
            f"The recording {self._folder} has no answer for {self.name}: {why}.",
            suggestion="Prompt as it was recorded, in a new session. A restart plays from the beginning.",
        )

    def _first_difference(self, messages: Sequence[Message], told: tuple[bytes, ...]) -> str:
        """Describe the difference from the recorded request with the longest common beginning."""
        same, entry = max(
            ((_in_common(entry.told, told), entry) for _, entry in sorted(self._entries.items())),
            key=lambda found: (found[0], -abs(len(found[1].told) - len(told))),
        )
        if same in (len(told), len(entry.told)):
            return (
                f"the request has {len(told)} messages, and the nearest, {entry.path.name}, begins with the"
                f" same and has {len(entry.told)}"
            )
        theirs = self._text(Recorded.read(entry.path.read_bytes()).messages[same])
        ours = self._text(messages[same])
        place = max(0, _in_common(ours, theirs) - _SHOWN_CHARS // 2)
        return (
            f"message {same + 1} of {len(told)} (role {messages[same].role}) differs from the nearest,"
            f" {entry.path.name}: …{ours[place : place + _SHOWN_CHARS]}… instead of"
            f" …{theirs[place : place + _SHOWN_CHARS]}…"
        )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def _in_common(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the common beginning."""
    for count, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs:
            return count
    return min(len(one), len(other))
