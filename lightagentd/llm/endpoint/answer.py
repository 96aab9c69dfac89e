"""Recognizes the content of a successful response: events, one whole answer, an error, or a web page.

The content type says little: some gateways send events as plain text, and errors as a stream. No event stream
begins with a brace, a bracket or an angle bracket, so its first character says what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lightagentd.errors import ModelCutOff, ModelError, ModelGarbled
from lightagentd.llm.dialects.dialect import from_json
from lightagentd.llm.endpoint.failures import begin
from lightagentd.llm.endpoint.refusals import NoModel, error_said, page_title, printable, refusal
from lightagentd.text.sse import MOST_EVENT_BYTES, EventTooLong, SSEDecoder

DONE = "[DONE]"
_PAGE_BYTES = 16 << 10
_BLANKS = b"\xef\xbb\xbf \t\r\n"
"""What may stand before the first character, the bytes of a byte order mark among it."""
_MOST_BLANKS = 256


class Answer:
    """Converts the body of one response, in pieces, to the data of events. `where` names model and URL."""

    def __init__(self, model: str, where: str, status: int, headers: Mapping[str, str]) -> None:
        self._model = model
        self._where = where
        self._status = status
        self._headers = headers
        self._start = b""
        self._whole = bytearray()
        self._first_bytes = 0
        self._events = SSEDecoder()
        self._any = False
        self.feed: Callable[[bytes], list[str]] = self._begin
        """The data of the events that these bytes complete. Raises ModelGarbled."""

    def _begin(self, chunk: bytes) -> list[str]:
        self._start += chunk
        first = self._start.lstrip(_BLANKS)[:1]
        if not first and len(self._start) <= _MOST_BLANKS:
            return []
        begin, self._start = self._start, b""
        self.feed = {b"{": self._json, b"[": self._json, b"<": self._page}.get(first, self._first_events)
        return self.feed(begin)

    def _first_events(self, chunk: bytes) -> list[str]:
        self._first_bytes += len(chunk)
        if self._first_bytes <= _PAGE_BYTES:
            self._whole += chunk  # shown in an error if it is not an event stream
        found = self._stream(chunk)
        if found:
            self._any = True
            self._whole.clear()
            self.feed = self._stream
        return found

    def _stream(self, chunk: bytes) -> list[str]:
        try:
            return [one.data for one in self._events.feed(chunk)]
        except EventTooLong as err:
            raise self._too_long(str(err)) from err

    def _json(self, chunk: bytes) -> list[str]:
        self._whole += chunk
        if len(self._whole) > MOST_EVENT_BYTES:
            raise self._too_long(f"more than {MOST_EVENT_BYTES >> 20} MiB in one piece")
        return []

    def _page(self, chunk: bytes) -> list[str]:
        self._whole += chunk
        if len(self._whole) > _PAGE_BYTES:
            raise self._a_page()
        return []

    def finish(self) -> list[str]:
        """The remaining events at the end of the response. Raises ModelError."""
        if self.feed == self._json:
            return [self._whole_json()]
        if self.feed == self._page:
            raise self._a_page()
        found = [one.data for one in self._events.finish()]
        if self._any or found:
            # A whole event without its empty line counts: a cut connection leaves half an event.
            return [data for data in found if data.strip() == DONE or _is_json(data)]
        raise self._nothing()

    def _whole_json(self) -> str:
        body = bytes(self._whole).removeprefix(b"\xef\xbb\xbf")
        try:
            is_error = error_said(from_json(body)) is not None
        except (ValueError, RecursionError) as err:
            raise self._nothing() from err
        if is_error:
            raise refusal(self._model, self._status, self._headers, body)
        return body.decode("utf-8", "replace")

    def _a_page(self) -> NoModel:
        title = page_title(bytes(self._whole))
        return NoModel(
            f"{begin(self._where)} answered with a web page{f' ({title!r})' if title else ''} "
            f"of type {self._content_type}, not with an answer of a model.",
            suggestion="Check base_url (most end in /v1), and whether a login page or a proxy is in the way.",
            reached=True,
        )

    def _nothing(self) -> ModelError:
        said = printable((self._start + self._whole)[:_PAGE_BYTES].decode("utf-8", "replace"))
        if not said.strip():
            return ModelCutOff(
                f"{begin(self._where)} answered with nothing at all.",
                suggestion="Try again later, or choose another model.",
                reached=True,
            )
        return ModelGarbled(
            f"{begin(self._where)} answered with something that is no answer of a model "
            f"(type {self._content_type}): {said[:200]!r}.",
            suggestion="Check base_url and the provider's kind.",
            reached=True,
        )

    def _too_long(self, what: str) -> NoModel:
        return NoModel(
            f"{begin(self._where)} answered with {what}: that is no answer of a model.",
            suggestion="Check base_url, or choose another model.",
            reached=True,
        )

    @property
    def _content_type(self) -> str:
        return printable(self._headers.get("content-type", "")[:100]) or "unknown"


def _is_json(data: str) -> bool:
    try:
        from_json(data)
    except (ValueError, RecursionError):
        return False
    return True
