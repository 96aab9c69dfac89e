"""`lightagent-telemetry.service`: follows the events, and sends what ended in them to a receiver.

It is an ordinary client of the control socket, which asks from time to time for what was stored since, as it
is stored: the daemon decodes nothing for it. What it has sent is known from one file with two numbers, which
move only once the receiver took everything up to them. While the receiver takes nothing it asks for nothing:
the events wait in the history, and the memory here is that of one page. A crash between the receiver's answer
and the file has a batch sent again, with the ids of before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from lightagentd.client.aio import AsyncClient
from lightagentd.client.pause import keep_trying
from lightagentd.config.configuration import Config
from lightagentd.config.service_problem import PROBLEM
from lightagentd.config.telemetry import Telemetry
from lightagentd.errors import LightagentError
from lightagentd.telemetry import position as positions
from lightagentd.telemetry.content import content_of
from lightagentd.telemetry.metrics import metrics
from lightagentd.telemetry.otlp import Signal, request
from lightagentd.telemetry.position import Position
from lightagentd.telemetry.receiver import Receiver, checked
from lightagentd.telemetry.spans import KINDS, Done, Event, done_of, span
from lightagentd.unattended.asking import CONNECT_TIMEOUT_S
from lightagentd.unattended.following import Telling, head_of, page_from, records_of, serve
from lightagentd.unattended.posting import NotTaken

_log = logging.getLogger("lightagentd.telemetry")

BATCH = 512
"""So many events are sent at once."""
BATCH_BYTES = 2 << 20
"""So long, about, may be what is sent at once."""

Batch = list[tuple[Event, Done, dict[str, Any]]]
"""Events, what ended with each, and its span."""


class Service:
    """`await run()` follows and sends until it is cancelled."""

    def __init__(
        self, telemetry: Telemetry, state: Path, *, control: Path | None = None, told: Path | None = None
    ) -> None:
        """`state` is the file that says how far everything was sent, and `told` the one that has the daemon
        know of a problem.
        """
        self._telemetry, self._state, self._control = telemetry, state, control
        self._telling = Telling(told)
        self._receiver = Receiver(telemetry)
        self._position: Position | None = None
        self._pending: Batch = []
        """What was read and not taken yet."""

    async def run(self) -> None:
        """Never returns."""
        self._position = positions.read(self._state)
        try:
            await keep_trying(self._connected, self._follow, "way to send telemetry", self._tell)
        finally:
            await self._receiver.close()

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncGenerator[AsyncClient]:
        """A connection to the daemon, once the receiver has taken what was read before."""
        await self._send()
        async with AsyncClient(self._control, timeout_s=CONNECT_TIMEOUT_S) as client:
            yield client

    async def _follow(self, client: AsyncClient) -> None:
        """Send batch by batch, until the daemon stops or the receiver takes nothing."""
        from_seq = (await self._begin(client)).first_seq
        self._tell()

        async def take(records: str) -> None:
            await self._take(client, records)

        async def replaced() -> int:
            return (await self._begin(client)).first_seq

        while True:
            from_seq, all_read = await page_from(client, from_seq, KINDS, take, replaced)
            if all_read:
                await self._send()
                await asyncio.sleep(self._telemetry.interval_s)

    async def _begin(self, client: AsyncClient) -> Position:
        """Where to go on: behind the newest event at the first start, and where the history was replaced."""
        head = await head_of(client)
        if self._position is None or self._position.first_seq > head + 1:
            if self._position is not None:
                _log.warning("the history ends before what was sent: going on behind its event %d", head)
            self._position = Position(traces=head, metrics=head)
            await asyncio.to_thread(positions.store, self._state, self._position)
        return self._position

    async def _take(self, client: AsyncClient, records: str) -> None:
        """Make spans of some records, and send them whenever there are enough."""
        size_bytes = 0
        for header, event in records_of(records):
            try:
                done = done_of(event) if event is not None else None
            except (KeyError, TypeError, ValueError) as err:
                _log.warning("an event has no span: %s: %s: %s", type(err).__name__, err, header[:80])
                continue
            if event is None or done is None:
                continue
            content = await content_of(client, event, done) if self._telemetry.content else None
            self._pending.append((event, done, span(event, done, content)))
            size_bytes += sum(len(text) for text in (content or {}).values())
            if len(self._pending) >= BATCH or size_bytes >= BATCH_BYTES:
                await self._send()
                size_bytes = 0

    # Sending

    async def _send(self) -> None:
        """Have the receiver take the batch. Raises NotTaken, ConfigError, StorageError."""
        if not self._pending:
            return
        try:
            await self._send_signal("traces", self._pending)
            await self._send_signal("metrics", self._pending)
        except LightagentError as err:
            self._tell(err.message)
            if isinstance(err, NotTaken):
                await asyncio.sleep(err.wait_s)
            raise
        self._pending = []

    async def _send_signal(self, signal: Signal, batch: Batch) -> None:
        """Send what a batch has of a signal and was not taken before, and store that it is taken."""
        assert self._position is not None
        fresh = [one for one in batch if one[0]["seq"] > self._position.of(signal)]
        if not fresh:
            return
        items = [made for *_, made in fresh] if signal == "traces" else metrics((e, d) for e, d, _ in fresh)
        if items and (signal == "traces" or self._telemetry.metrics):
            taken = await self._receiver.send(signal, request(signal, items))
            if taken.problem:
                many = "all" if taken.refused is None else taken.refused
                _log.warning("%s of %d %s are lost: %s", many, len(items), signal, taken.problem)
            self._tell(taken.problem)
        self._position = self._position.moved(signal, fresh[-1][0]["seq"])
        await asyncio.to_thread(positions.store, self._state, self._position)

    @property
    def problem(self) -> str:
        """Why nothing is taken, or what was refused last; empty when all is well."""
        return self._telling.problem

    def _tell(self, problem: str | None = None) -> None:
        self._telling.tell(f"sending to {self._telemetry.endpoint}", problem)


def main(arguments: Sequence[str] | None = None) -> None:
    def made(config: Config, state: Path, control: Path | None, runtime: Path | None) -> Service:
        told = runtime / PROBLEM if runtime else None
        return Service(checked(config.telemetry), state, control=control, told=told)

    about = (
        "Send what agents do to a receiver of OpenTelemetry. It is what lightagent-telemetry.service starts."
    )
    serve("lightagent-telemetry", about, made, arguments)


if __name__ == "__main__":
    main()
