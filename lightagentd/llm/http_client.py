"""The client of a model behind HTTP: a dialect encodes and decodes, an endpoint transports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from lightagentd.errors import ModelError, ModelOverloaded, ModelRejected
from lightagentd.llm.answer_bound import PIECE_CHARS, AnswerBound
from lightagentd.llm.circuit import endpoint_of_url
from lightagentd.llm.dialects.dialect import Dialect
from lightagentd.llm.endpoint.http import Endpoint, Head
from lightagentd.llm.held_text import HeldText
from lightagentd.llm.protocol import ASSUMED_WINDOW, ModelSettings, Part, Request
from lightagentd.llm.retry import RetrySettings
from lightagentd.llm.text_calls import has_no_tools, in_words

_KEY_CHARS = 8
"""What is shorter is no secret but a word, as servers on the own machine have for a key."""


class Adapted(ModelRejected):
    """The endpoint refused something that the next request drops or changes."""

    transient = True


class HttpClient:
    """One model behind one endpoint."""

    def __init__(self, settings: ModelSettings, dialect: Dialect) -> None:
        self.name = f"{settings.provider}/{settings.model}"
        self.context_tokens = settings.context_tokens or ASSUMED_WINDOW
        self.window_known = settings.context_tokens is not None
        self.retry = RetrySettings(max_retries=settings.max_retries, max_retry_s=settings.max_retry_s)
        self.endpoint = endpoint_of_url(dialect.url(settings.base_url))
        self._native_tools = settings.native_tools
        self._key = settings.api_key
        self._dialect = dialect
        self._endpoint = Endpoint(settings, dialect.url(settings.base_url), dialect.headers(settings.api_key))

    async def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        """One model call. Raises ModelError."""
        written = None
        if not self._native_tools:
            if offered := {function.name for function in request.functions}:
                written = HeldText(offered, strict=request.schema is not None)
            request = in_words(request)
        try:
            decoder, head = self._dialect.decoder(request), Head()
            bound = AnswerBound(self.name)
            async with contextlib.aclosing(
                self._endpoint.events(self._dialect.body(request), head)
            ) as events:
                async for data in events:
                    for part in bound.parts(decoder.feed(data)):
                        if written is None:
                            yield part
                        else:
                            for found in written.feed(part):
                                yield found
                        if len(data) > PIECE_CHARS:
                            await asyncio.sleep(0)
                    head.over = decoder.over
            for part in bound.parts(decoder.finish(head.content_type)):
                for found in (part,) if written is None else written.feed(part):
                    yield found
        except ModelError as err:
            self._without_key(err)
            if (adapted := self._adapted(err, request)) is not None:
                raise adapted from err
            raise

    async def close(self) -> None:
        await self._endpoint.close()

    def _without_key(self, err: ModelError) -> None:
        """Remove the key: endpoints may repeat it in their errors, and errors are shown to everybody who
        asks.
        """
        if len(self._key) < _KEY_CHARS or self._key[:_KEY_CHARS] not in err.message:
            return
        for length in range(len(self._key), _KEY_CHARS - 1, -1):  # the text may be cut within a key
            err.message = err.message.replace(self._key[:length], "[the key]")
        err.args = (err.message,)

    def _adapted(self, err: ModelError, request: Request) -> Adapted | None:
        """The error to raise instead if the next request avoids the cause of this refusal."""
        if not isinstance(err, ModelRejected | ModelOverloaded) or not err.reached:
            return None
        if request.functions and self._native_tools and has_no_tools(err.message):
            self._native_tools = False
            what = "The next one describes the functions in words."
        elif isinstance(err, ModelRejected) and self._dialect.concedes(err.message):
            what = "The next one is made otherwise."
        else:
            return None
        return Adapted(f"{err.message} {what}", suggestion=err.suggestion, retry_after_s=0.0, reached=True)
