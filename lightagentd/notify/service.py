"""`lightagent-away.service`: follows the events, and tells people who are away.

It is an ordinary client of the control socket. What is to be told is stored before the position behind its
event moves, and a message is taken out of that store once its destination took it: each comes at least once,
and with the same id whenever it comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightagentd.client.aio import AsyncClient
from lightagentd.client.pause import keep_trying
from lightagentd.config.configuration import Config
from lightagentd.config.notify import checked, secrets_of
from lightagentd.config.service_problem import PROBLEM
from lightagentd.errors import (
    ApprovalClosed,
    ApprovalMismatch,
    ConfigError,
    LightagentError,
    MessageTooLarge,
    NotFound,
    StorageError,
)
from lightagentd.host.atomic_file import whole_file
from lightagentd.notify import looking
from lightagentd.notify.messages import Message, message_of
from lightagentd.notify.notices import KINDS, Notice, Reader, Settled
from lightagentd.notify.outbox import Outbox, Outlet, quiet_left_s
from lightagentd.notify.transports import TRANSPORTS
from lightagentd.redaction import Redactor
from lightagentd.text.reason import reason
from lightagentd.unattended.asking import CONNECT_TIMEOUT_S
from lightagentd.unattended.following import Telling, head_of, page_from, records_of, serve
from lightagentd.unattended.posting import NotTaken, line

_log = logging.getLogger("lightagentd.notify")

FIRST_S, LONGEST_S = 1.0, 300.0
"""The pauses between attempts, which double."""
LEAST_BYTES = 256
AT_ONCE = frozenset({"confirmation", "panic"})
"""What waits for no others to be one message."""
_MOVED_MOST = 1000
"""After so many events the position is stored, although none was worth a notice."""
STATUS, TEST = "status.json", "test"
"""Files in the runtime folder: how each destination is, and a test that root asks for (`lactl notify`)."""


class Service:
    """`await run()` follows and tells until it is cancelled. `runtime` is the folder for what others may see,
    and `clock` gives the time in seconds.
    """

    def __init__(
        self,
        config: Config,
        state: Path,
        *,
        control: Path | None = None,
        runtime: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._notify, self._control = config, checked(config.notify), control
        self._runtime, self._clock = runtime, clock
        self._telling = Telling(runtime / PROBLEM if runtime else None)
        self._redactor = Redactor(secrets_of(config.notify))
        self._reader = Reader(self._redactor)
        self._transports = {name: TRANSPORTS[one.kind](one) for name, one in self._notify.to.items()}
        self.outbox = Outbox(self._notify, state)
        self._caught_up = asyncio.Event()
        """Whether what waits was compared with all that happened."""

    async def run(self) -> None:
        """Never returns. Raises StorageError."""
        self.outbox.load()
        try:
            async with asyncio.TaskGroup() as group:
                for outlet in self.outbox.outlets.values():
                    group.create_task(self._deliver(outlet), name=f"notify {outlet.name}")
                group.create_task(
                    keep_trying(self._connection, self._follow, "daemon", self._tell), name="follow"
                )
                group.create_task(keep_trying(self._connection, self._look, "daemon"), name="look")
                if self._runtime is not None:
                    group.create_task(self._watch_for_tests(self._runtime), name="tests")
        finally:
            for transport in self._transports.values():
                await transport.close()

    def _connection(self) -> AsyncClient:
        return AsyncClient(self._control, timeout_s=CONNECT_TIMEOUT_S)

    # What happened

    async def _follow(self, client: AsyncClient) -> None:
        self._caught_up.clear()
        if self.outbox.seq is None:
            await self._replaced(client)
        self._tell()
        while True:
            assert self.outbox.seq is not None
            taken: list[Notice | Settled] = []
            next_seq, all_read = await page_from(
                client,
                self.outbox.seq + 1,
                KINDS,
                lambda records, taken=taken: self._take(client, records, taken),  # type: ignore[misc]
                lambda: self._replaced(client),
            )
            # No other task may store one without the other.
            for one in taken:
                if isinstance(one, Settled):
                    self.outbox.settle(one.key)
                else:
                    self.outbox.add(one)
            moved, self.outbox.seq = next_seq - 1 - self.outbox.seq, next_seq - 1
            if taken or moved >= _MOVED_MOST:
                await self.outbox.store()
                self._tell()
            if all_read:
                self._caught_up.set()
                await asyncio.sleep(self._notify.interval_s)

    async def _replaced(self, client: AsyncClient) -> int:
        """Begin behind the newest event: at the first start, and where the history was replaced."""
        self.outbox.seq = await head_of(client)
        await self.outbox.store()
        return self.outbox.seq + 1

    async def _take(self, client: AsyncClient, records: str, taken: list[Notice | Settled]) -> None:
        for header, event in records_of(records):
            if event is None:
                continue
            try:
                found = await self._reader.notice_of(client, event)
            except (KeyError, TypeError, ValueError) as err:
                _log.warning("an event has no notice: %s: %s: %s", type(err).__name__, err, header[:80])
                continue
            if found is not None:
                taken.append(found)

    async def _look(self, client: AsyncClient) -> None:
        """Look again and again at what has no event. Raises the errors of a client, StorageError."""
        told = self.outbox.told
        while True:
            if self.outbox.wants("health"):
                before = told.get("health")
                known, worse = await looking.health(client, before, self._reader)
                told["health"] = known
                if worse is not None:
                    self.outbox.add(worse)
                if known != before:
                    await self.outbox.store()
            if self.outbox.wants("budget"):
                percent = self._notify.budget_percent
                near = await looking.budgets(client, self._config.budgets, percent, self._reader)
                if [one for one in near if self.outbox.add(one)]:
                    await self.outbox.store()
            self._tell()
            await asyncio.sleep(self._notify.health_s)

    # Telling

    async def _deliver(self, outlet: Outlet) -> None:
        """Send message after message to one destination."""
        pause_s = 0.0
        while True:
            await self._begin(outlet)
            sending, begun_s = outlet.sending, time.monotonic()
            try:
                if await self._try(outlet):
                    outlet.sent_us, pause_s = self._now_us(), 0.0
                outlet.problem = ""
            except LightagentError as err:
                outlet.failed_us, outlet.problem = self._now_us(), self._safe(err)
                if isinstance(err, NotTaken):
                    pause_s = min(max(FIRST_S, pause_s * 2), LONGEST_S)
                    if sending is None or sending.tried_s < outlet.destination.give_up_s:
                        await self._done()
                        await asyncio.sleep(max(pause_s, err.wait_s))
                        if sending is not None:
                            sending.tried_s += time.monotonic() - begun_s
                        continue
                    outlet.problem = f"It was given up: {outlet.problem}"
                _log.warning("%s: a message is lost: %s", outlet.name, outlet.problem)
            outlet.sending = None
            await self._done()

    async def _begin(self, outlet: Outlet) -> None:
        """Wait until something is to be sent, which is stored as the next message. One that cannot be stored
        is sent all the same: a full disk is what people are told about.
        """
        while True:
            await self._caught_up.wait()
            outlet.wake.clear()
            outlet.keep(self._waits)
            quiet_s = quiet_left_s(outlet.quiet, self._clock())
            begun = outlet.sending.notices if outlet.sending else []
            due = [
                one
                for one in [*begun, *outlet.waiting]
                if not quiet_s or one.about in self._notify.quiet_lets
            ]
            wait_s = quiet_s or 60.0
            if due:
                age_s = self._clock() - min(one.at_us for one in due) / 1e6
                wait_s = self._notify.batch_s - age_s
                at_once = (
                    begun or age_s < 0 or any(one.about in AT_ONCE for one in due)
                )  # < 0: the clock was set
                if at_once or wait_s <= 0:
                    if outlet.sending is None:
                        outlet.begin(due)
                        await self._stored()
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, 60.0)):
                    await outlet.wake.wait()

    async def _try(self, outlet: Outlet) -> bool:
        """One attempt; False where nothing of the message waits any more. Raises NotTaken and what ends a
        message.
        """
        await self._caught_up.wait()
        outlet.keep(self._waits)
        transport = self._transports[outlet.name]
        most_bytes = transport.most_bytes
        links = await self._links(outlet)
        while (sending := outlet.sending) is not None:
            message = message_of(
                sending.id,
                sending.notices,
                links=links,
                link=self._notify.link,
                left_out=outlet.left_out,
                most_bytes=most_bytes,
            )
            try:
                await self._send(outlet, message)
            except MessageTooLarge:
                if most_bytes <= LEAST_BYTES:
                    raise
                most_bytes //= 2
                continue
            outlet.left_out = 0
            return True
        return False

    async def _send(self, outlet: Outlet, message: Message) -> None:
        try:
            await self._transports[outlet.name].send(message)
        except ConfigError as err:  # a secret that cannot be read now may be there later
            raise NotTaken(err.message) from err

    async def _links(self, outlet: Outlet) -> dict[str, dict[str, str]]:
        """The links that answer the approvals of the next message, which what was decided meanwhile leaves.
        Raises NotTaken.
        """
        base, answers = self._config.gateway.public_url.rstrip("/"), self._notify.answers
        asked = [one for one in outlet.sending.notices if one.about == "approval"] if outlet.sending else []
        if not (asked and base and answers.on and outlet.destination.user):
            return {}
        found: dict[str, dict[str, str]] = {}
        try:
            async with self._connection() as client:
                for one in asked:
                    given = {"approval": one.key, "digest": one.digest, "destination": outlet.name}
                    try:
                        made = await client.call("Approvals.MakeAnswers", **given)
                    except (ApprovalClosed, ApprovalMismatch, NotFound):
                        outlet.keep(lambda other, key=one.key: other.key != key)  # type: ignore[misc]
                        continue
                    found[one.key] = {
                        each["decision"]: f"{base}/answers/{each['token']}" for each in made["answers"]
                    }
        except LightagentError as err:
            raise NotTaken(f"The daemon gives no links: {err.message}") from err
        return found

    async def _done(self) -> None:
        """Store what became of a message, and say how all destinations are."""
        if await self._stored():
            problems = [f"{name}: {one.problem}" for name, one in self.outbox.outlets.items() if one.problem]
            self._tell(" ".join(problems))

    async def _stored(self) -> bool:
        """Store all; False where that failed, which is told."""
        try:
            await self.outbox.store()
        except StorageError as err:
            self._tell(err.message)
            return False
        return True

    def _waits(self, notice: Notice) -> bool:
        return not notice.expires_us or notice.expires_us > self._now_us()

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    def _safe(self, err: LightagentError) -> str:
        return line(self._redactor.text(err.message))

    # How it is

    def _tell(self, problem: str | None = None) -> None:
        self._telling.tell(f"telling {', '.join(self.outbox.outlets)}", problem)
        if self._runtime is None:
            return
        shown = {
            name: {
                "kind": one.destination.kind,
                "waiting": len(one.waiting) + (len(one.sending.notices) if one.sending else 0),
                "sent_us": one.sent_us,
                "failed_us": one.failed_us,
                "problem": one.problem,
            }
            for name, one in self.outbox.outlets.items()
        }
        self._write(self._runtime / STATUS, {"destinations": shown})

    def _write(self, path: Path, value: dict[str, Any]) -> None:
        try:
            with whole_file(path, mode=0o644) as file:
                file.write(json.dumps(value).encode())
        except OSError as err:
            _log.warning("%s cannot be written: %s", path, reason(err))

    async def _watch_for_tests(self, runtime: Path) -> None:
        """Answer `lactl notify test`: a file with the name of a destination; the result comes beside it."""
        path = runtime / TEST
        while True:
            await asyncio.sleep(min(1.0, self._notify.interval_s))
            try:
                asked = json.loads(path.read_bytes())
                path.unlink()
                outlet, number = self.outbox.outlets[str(asked["name"])], str(asked["number"])
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, KeyError) as err:
                _log.warning("%s is no request for a test: %s", path, err)
                path.unlink(missing_ok=True)
                continue
            self._write(runtime / f"{TEST}.json", {"number": number, "result": await self._test(outlet)})

    async def _test(self, outlet: Outlet) -> str:
        """Send a test, at once; empty when it was taken, else why not."""
        number = f"test-{time.time_ns()}"
        text = "This is what messages look like."
        notice = self._reader.made("health", "A test of lightagentd", text, number=number)
        most = self._transports[outlet.name].most_bytes
        message = message_of(number, [notice], links={}, link=self._notify.link, left_out=0, most_bytes=most)
        try:
            await self._send(outlet, message)
        except LightagentError as err:
            return self._safe(err)
        return ""


def main(arguments: Sequence[str] | None = None) -> None:
    def made(config: Config, state: Path, control: Path | None, runtime: Path | None) -> Service:
        return Service(config, state, control=control, runtime=runtime)

    about = "Tell people who are away. It is what lightagent-away.service starts."
    serve("lightagent-away", about, made, arguments)


if __name__ == "__main__":
    main()
