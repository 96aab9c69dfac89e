"""Server-sent events, decoded by the HTML standard's section 9.2.6 (event-stream interpretation).

Only `data` is used: no model server puts anything else into the other fields, and nobody reconnects to
continue an answer. The exception is `error`, which older llama.cpp sends in its place. Unlike a browser, the
decoder also delivers an event cut off by the end of the stream, since some servers leave out the last empty
line.
"""

from __future__ import annotations

MOST_EVENT_BYTES = 8 << 20
"""How long one event or one line may be. The longest honest one repeats a whole answer with its request."""
_LINE_BYTES = 64
"""What a line of an event takes in memory beside its bytes."""
_BOM = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """An event or a line is longer than `MOST_EVENT_BYTES`."""


class SSEDecoder:
    """Takes bytes cut anywhere and returns the `data` of each whole event. One for each response.

    It keeps a partial line and the data of one event; its time is linear in the bytes. Bytes that are not
    UTF-8 become replacement characters: neither CR nor LF can be a part of another character.
    """

    def __init__(self) -> None:
        self._started = False
        """Whether the place is behind where a byte order mark may be."""
        self._after_cr = False
        self._rest = bytearray()
        """The beginning of a line whose end has not come."""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._between = False
        """Whether the place is between two events, and nothing is kept."""

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that these bytes complete. Raises EventTooLong."""
        if (
            self._between
            and chunk[:6] == b"data: "
            and chunk.find(b"\n") == len(chunk) - 2
            and chunk[-1:] == b"\n"
            and b"\r" not in chunk
        ):  # one event of one line, as most servers send it
            return [chunk[6:-2].decode("utf-8", "replace")]
        found = self._lines_in(chunk)
        self._between = self._started and not (self._rest or self._data or self._after_cr)
        return found

    def finish(self) -> list[str]:
        """The data of an event that the end of the stream cut off before its empty line."""
        last, self._rest = bytes(self._rest), bytearray()
        return self._events([last, b""])

    def _lines_in(self, chunk: bytes) -> list[str]:
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

    def _events(self, lines: list[bytes]) -> list[str]:
        found: list[str] = []
        for line in lines:
            if not line:
                if self._data:
                    found.append(b"\n".join(self._data).decode("utf-8", "replace"))
                    self._data = []
                    self._data_bytes = 0
            elif line.startswith(b"data:") or line == b"data":
                value = line[6:] if line.startswith(b"data: ") else line[5:]
                self._data.append(value)
                self._data_bytes += len(value) + _LINE_BYTES
                self._check()
            elif line.startswith(b"error: {"):  # not a standard field
                self._data.append(line[7:])
                self._data_bytes += len(line) + _LINE_BYTES
                self._check()
        return found

    def _check(self) -> None:
        if len(self._rest) + self._data_bytes > MOST_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MOST_EVENT_BYTES >> 20} MiB")
