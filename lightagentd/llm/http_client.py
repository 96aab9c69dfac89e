"""The client of a model behind HTTP: a dialect says what goes over the wire, an endpoint carries it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from lightagentd.llm.dialects.dialect import Dialect
from lightagentd.llm.endpoint.http import Endpoint, Head
from lightagentd.llm.protocol import ModelSettings, Part, Request

ASSUMED_WINDOW = 128_000
"""The window, in tokens, of a model of which none is known."""


class HttpClient:
    """One model behind one endpoint."""

    def __init__(self, settings: ModelSettings, dialect: Dialect) -> None:
        self.name = f"{settings.provider}/{settings.model}"
        self.context_tokens = settings.context_tokens or ASSUMED_WINDOW
        self.window_known = settings.context_tokens is not None
        self._dialect = dialect
        self._endpoint = Endpoint(settings, dialect.url(settings.base_url), dialect.headers(settings.api_key))

    async def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        """One model call. Raises ModelError."""
        decoder, head = self._dialect.decoder(request), Head()
        async with contextlib.aclosing(self._endpoint.events(self._dialect.body(request), head)) as events:
            async for data in events:
                for part in decoder.feed(data):
                    yield part
        for part in decoder.finish(head.content_type):
            yield part

    async def close(self) -> None:
        await self._endpoint.close()
