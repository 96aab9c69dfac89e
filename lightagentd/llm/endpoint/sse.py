"""Server-sent events, decoded as the HTML standard's section 9.2.6 says (event-stream interpretation)."""

from __future__ import annotations

import codecs


class SSEDecoder:
    """Takes bytes cut anywhere and gives back the `data` of each whole event. One for each response."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._rest = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that these bytes complete."""
        text = self._rest + self._decoder.decode(chunk)
        # A CR at the very end may be the first half of a CRLF: it waits for what follows.
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r")
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        *lines, self._rest = text.split("\n")
        self._rest += held
        return self._events(lines)

    def finish(self) -> list[str]:
        """The data of an event that the end of the stream cut off before its empty line."""
        lines = [self._rest.removesuffix("\r") + self._decoder.decode(b"", final=True), ""]
        self._rest = ""
        return self._events(lines)

    def _events(self, lines: list[str]) -> list[str]:
        found: list[str] = []
        for line in lines:
            if not line:
                if self._data:
                    found.append("\n".join(self._data))
                    self._data = []
            elif line.startswith("data:"):
                self._data.append(line[6:] if line.startswith("data: ") else line[5:])
            elif line == "data":
                self._data.append("")
        return found
