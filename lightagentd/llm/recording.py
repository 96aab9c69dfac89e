"""Writes each exchange with a model to a file of its own: `[models] record = DIR`.

A `Recorder` wraps a client and changes nothing. Files (see `exchange`) have mode 0600 in a folder of mode
0700, and a name that begins with the time. They are written off the event loop, whole or not at all. The
administrator deletes old ones.

A failed recording never fails the call: the journal reports it once until it works again, and `problem` as
long as it lasts. When `_MOST_WAITING` exchanges wait for a slow disk, further ones are dropped, which is
reported too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

from lightagentd.errors import LightagentError
from lightagentd.events.context import current_context, new_id
from lightagentd.events.model import dump_json
from lightagentd.host.atomic_file import write_whole
from lightagentd.llm.circuit import endpoint_of
from lightagentd.llm.exchange import Exchange
from lightagentd.llm.protocol import ModelClient, Part, Request, Usage
from lightagentd.llm.retry import settings_of
from lightagentd.redaction import Redactor
from lightagentd.text.reason import reason

_log = logging.getLogger(__name__)

_MOST_WAITING = 64


class Recorder:
    """A client that records another one, which it owns: `close` ends both."""

    def __init__(self, client: ModelClient, folder: Path, redactor: Redactor) -> None:
        self.name = client.name
        self.context_tokens = client.context_tokens
        self.window_known = client.window_known
        self.retry = settings_of(client)
        self.endpoint = endpoint_of(client)
        self.problem = ""
        """Why the last exchange was not recorded; empty when it was."""
        self._client = client
        self._folder = folder
        self._redactor = redactor
        self._writing: set[asyncio.Task[None]] = set()

    async def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        """Make one model call, as the client does. Raises ModelError."""
        request = replace(request, messages=tuple(request.messages))  # the conversation goes on meanwhile
        exchange = Exchange(model=self.name, whose=current_context(), request=request)

        def on_usage(usage: Usage) -> None:
            exchange.usage = usage
            if request.on_usage is not None:
                request.on_usage(usage)

        try:
            told = replace(request, on_usage=on_usage)
            async with contextlib.aclosing(self._client.stream(told)) as answer:
                async for part in answer:
                    exchange.take(part)
                    yield part
            exchange.outcome = "finished"
        except LightagentError as err:
            exchange.outcome, exchange.error = "failed", err
            raise
        finally:
            exchange.end()
            self._keep(exchange)

    async def settle(self) -> None:
        """Wait until everything is written."""
        await asyncio.gather(*self._writing)

    async def close(self) -> None:
        await self.settle()
        await self._client.close()

    def _keep(self, exchange: Exchange) -> None:
        if len(self._writing) >= _MOST_WAITING:
            self._trouble(f"the disk is too slow: {_MOST_WAITING} exchanges wait to be written")
            return
        task = asyncio.create_task(self._write(exchange), name=f"recording of {self.name}")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, exchange: Exchange) -> None:
        try:
            await asyncio.to_thread(_write, exchange, self._folder, self._redactor)
        except OSError as err:
            self._trouble(reason(err))
        except Exception as err:  # noqa: BLE001 - a record that cannot be made must not end in a lost task
            _log.exception("an exchange with %s could not be made a record", self.name)
            self._trouble(f"{type(err).__name__}: {err}")
        else:
            self.problem = ""

    def _trouble(self, why: str) -> None:
        problem = (
            f"Exchanges with the model {self.name} are not recorded in {self._folder}: {why}."
            " Look at the disk, and at the folder's owner and mode."
        )
        if not self.problem:
            _log.error("%s", problem)
        self.problem = problem


def _write(exchange: Exchange, folder: Path, redactor: Redactor) -> None:
    """Raises OSError."""
    content = dump_json(exchange.to_dict(redactor)) + b"\n"
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{exchange.began}-{exchange.whose.request_id or new_id('req')}.json"
    write_whole(path, content)
