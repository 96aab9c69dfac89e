"""Server-sent events, decoded by the HTML standard's section 9.2.6 (event-stream interpretation).

Older llama.cpp sends `error` in the place of `data`, which counts as that. Unlike a browser, the decoder also
delivers an event cut off by the end of the stream, since some servers leave out the last empty line.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_EVENT_BYTES = 8 << 20
"""How long one event or one line may be. The longest honest one repeats a whole answer with its request."""
_LINE_BYTES = 64
"""What a line of an event takes in memory beside its bytes."""
_BOM = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """An event or a line is longer than it may be."""


class Event(NamedTuple):
    data: str
    kind: str = "message"
    """Its type, as the field `event` says it."""


class SSEDecoder:
    """Takes bytes cut anywhere and returns each whole event that has data. One for each response, and
    for those that go on with it.

    It keeps a partial line and the data of one event; its time is linear in the bytes. Bytes that are not
    UTF-8 become replacement characters: neither CR nor LF can be a part of another character.
    """

    def __init__(self, most_bytes: int = MOST_EVENT_BYTES) -> None:
        """`most_bytes` is how long one event or one line may be."""
        self._most_bytes = most_bytes
        self.last_id = ""
        """That of the newest event, to go on behind it."""
        self.retry_s: float | None = None
        """How long to wait before that, if the stream says it."""
        self._kind = ""
        self._started = False
        """Whether the place is behind where a byte order mark may be."""
        self._after_cr = False
        self._rest = bytearray()
        """The beginning of a line whose end has not come."""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._between = False
        """Whether the place is between two events, and nothing is kept."""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that these bytes complete. Raises EventTooLong."""
        if (
            self._between
            and chunk[:6] == b"data: "
            and chunk.find(b"\n") == len(chunk) - 2
            and chunk[-1:] == b"\n"
            and b"\r" not in chunk
        ):  # one event of one line, as most servers send it
            return [Event(chunk[6:-2].decode("utf-8", "replace"))]
        found = self._lines_in(chunk)
        self._between = self._started and not (self._rest or self._data or self._kind or self._after_cr)
        return found

    def finish(self) -> list[Event]:
        """The event that the end of the stream cut off before its empty line."""
        last, self._rest = bytes(self._rest), bytearray()
        return self._events([last, b""])

    def _lines_in(self, chunk: bytes) -> list[Event]:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not self._started:
            chunk = bytes(self._rest) + chunk
            self._rest.clear()
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._rest += chunk
                return []
            self._started = True
            chunk = chunk.removeprefix(_BOM)
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        found = self._events(lines)
        if rest:
            self._rest += rest
            self._check()
        return found

    def _events(self, lines: list[bytes]) -> list[Event]:
        found: list[Event] = []
        for line in lines:
            if not line:
                if self._data:
                    data = b"\n".join(self._data).decode("utf-8", "replace")
                    found.append(Event(data, self._kind or "message"))
                    self._data = []
                    self._data_bytes = 0
                self._kind = ""
            elif line.startswith(b"data:") or line == b"data":
                value = line[6:] if line.startswith(b"data: ") else line[5:]
                self._data.append(value)
                self._data_bytes += len(value) + _LINE_BYTES
                self._check()
            elif line.startswith(b"error: {"):  # not a standard field
                self._data.append(line[7:])
                self._data_bytes += len(line) + _LINE_BYTES
                self._check()
            else:
                self._field(*line.decode("utf-8", "replace").split(":", 1))
        return found

    def _field(self, name: str, value: str = "") -> None:
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        elif name == "retry" and value.isascii() and value.isdecimal():
            self.retry_s = int(value[:9]) / 1000

    def _check(self) -> None:
        if len(self._rest) + self._data_bytes > self._most_bytes:
            raise EventTooLong(f"an event of more than {self._most_bytes >> 20} MiB")
