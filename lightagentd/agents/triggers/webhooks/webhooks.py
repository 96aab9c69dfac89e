"""Takes the requests that fire triggers: looks who signed them, and stores each with what it fires.

The gateway passes on what it gets and knows no secret; so a gateway that was taken over can neither forge a
request nor send an old one again. A request is known again by the `request_id` of its event, which is made of
what its signature covers: as long as the history has that event, the same is not taken twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.agents.triggers.records import Happening
from lightagentd.agents.triggers.webhooks.bodies import BODY_BYTES, data_of
from lightagentd.agents.triggers.webhooks.signatures import CHECKS, HEADERS
from lightagentd.config.models import credential
from lightagentd.config.triggers import TriggerFile
from lightagentd.errors import (
    ConfigError,
    Conflict,
    EventNotFound,
    MessageTooLarge,
    NotFound,
    PermissionDenied,
)
from lightagentd.events.context import within
from lightagentd.events.filter import Filter
from lightagentd.events.model import new_id
from lightagentd.events.types.trigger import WebhookRefused, WebhookTaken
from lightagentd.text.reason import reason

if TYPE_CHECKING:
    from lightagentd.agents.triggers.triggers import Triggers
    from lightagentd.events.history import History

_TOLD_S = 60.0
"""Requests that are refused are told of so often at the most, and counted meanwhile."""
_TOPIC = "trigger.webhook"
_SHOWN = frozenset({"x-github-event", "x-github-delivery", "webhook-id", "webhook-timestamp"})
"""The headers that are stored: no token, and no signature."""


class Webhooks:
    """The webhooks among the triggers."""

    def __init__(self, triggers: Triggers, history: History) -> None:
        self._triggers, self._history = triggers, history
        self._taking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._refused: Counter[str] = Counter()
        self._told_s: dict[str, float] = {}

    async def take(self, name: str, headers: Mapping[str, str], body: str) -> str:
        """Take a request; gives its number once it is stored. `headers` have small letters.

        Raises NotFound, PermissionDenied, Conflict for one that was taken before, InvalidArgument,
        ConfigError, and the errors of `Triggers.fire`.
        """
        file = self._file(name)
        headers = {key: value for key, value in headers.items() if key in HEADERS}
        if len(body.encode("utf-8", "surrogatepass")) > BODY_BYTES:
            raise MessageTooLarge(f"The body has more than {BODY_BYTES >> 20} MiB.", field="body")
        secrets = await asyncio.to_thread(secrets_of, file)
        try:
            same = CHECKS[file.signed or ""](secrets, headers, body.encode("utf-8", "surrogatepass"))
        except PermissionDenied as err:
            await self._tell(name, err.message)
            raise
        number = _number(name, same) if same else new_id("hook")
        async with self._taking[name]:
            is_known = await asyncio.to_thread(self._is_stored, number)
            if is_known:
                raise Conflict(
                    f"This request was taken before, as {number}.",
                    suggestion=f"To have it asked about again: lactl webhooks replay {number}",
                )
            await self._fire(name, file, number, headers, body)
        return number

    async def again(self, number: str) -> str:
        """Take a stored request again, as a new one. Raises EventNotFound and what `take` raises."""
        name, said = await asyncio.to_thread(self.stored, number)
        replayed = new_id("hook")
        await self._fire(name, self._file(name), replayed, said["headers"], said["body"], of=number)
        return replayed

    def stored(self, number: str) -> tuple[str, Mapping[str, Any]]:
        """The webhook of a stored request, and the data of its event. Raises EventNotFound."""
        for event in self._history.queries.select(
            Filter(request=number, topic=_TOPIC, type="taken"), limit=1
        ):
            if event.data is not None:
                return event.data["trigger"], event.data
        raise EventNotFound(
            f"There is no request {number[:80]!r}.", field="number", suggestion="See: lactl webhooks list"
        )

    async def _fire(
        self, name: str, file: TriggerFile, number: str, headers: Mapping[str, str], body: str, of: str = ""
    ) -> None:
        data = await asyncio.to_thread(data_of, file.template, body, headers)
        with within(agent=file.agent, owner=file.account(Path(name)).pw_uid, request_id=number):
            event = WebhookTaken(
                message=f"{name}: {number}" + (f", again after {of}" if of else ""),
                trigger=name,
                digest=hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest(),
                headers={key: value for key, value in headers.items() if key in _SHOWN},
                body=body,
                **({"replay_of": of} if of else {}),
            ).event()
        happened = [Happening(data=data, at_us=event.time_us)] if file.fits(data) else []
        await self._triggers.fire(name, happened, told=[event])

    def _file(self, name: str) -> TriggerFile:
        file = self._triggers.files.get(name)
        if not isinstance(file, TriggerFile) or file.on != "webhook" or file.signed is None:
            raise NotFound(f"There is no webhook {name[:80]!r}.", field="name")
        return file

    def _is_stored(self, number: str) -> bool:
        found = Filter(request=number, topic=_TOPIC, type="taken")
        return bool(self._history.queries.select(found, limit=1))

    async def _tell(self, name: str, why: str) -> None:
        """Store that requests are refused, however many there are, now and then."""
        self._refused[name] += 1
        now = time.monotonic()
        if now - self._told_s.get(name, -_TOLD_S) < _TOLD_S:
            return
        count, self._told_s[name] = self._refused.pop(name), now
        await self._history.append(
            WebhookRefused(message=f"{name}: {count} refused: {why}", trigger=name, count=count).event()
        )


def secrets_of(file: TriggerFile) -> list[str]:
    """The secrets in the file that a trigger names, one a line: while they are changed there are two.

    Raises ConfigError, which shows none of them.
    """
    assert file.secret_file is not None
    path = credential(file.secret_file)
    try:
        found = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(
            f"The file with a webhook's secret {path} cannot be read: {reason(err)}.",
            suggestion="Name a file that the daemon can read, or a credential of its service.",
        ) from err
    if not found or min(map(len, found)) < 16:
        raise ConfigError(
            f"The file with a webhook's secret {path} has none of 16 characters or more on each line.",
            suggestion="Make one: openssl rand -hex 32",
        )
    return found


def _number(name: str, same: str) -> str:
    digest = hashlib.sha256(b"\0".join((name.encode(), same.encode()))).hexdigest()
    return f"hook_{digest[:24]}"
