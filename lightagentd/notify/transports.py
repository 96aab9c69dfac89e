"""The ways of a message to its destination, each with the id by which a repeated message is known.

ntfy: https://docs.ntfy.sh/publish/ (the id is a sequence id: what comes again takes the place of the former,
from server 2.16 on). Webhooks: https://www.standardwebhooks.com (the id is `webhook-id`). Matrix: the
client-server API (the id is the transaction). Mail: RFC 5322 (the id is the Message-ID). Each `send` raises
NotTaken for what is sent again, and Refused for what would never be taken.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from email.policy import default as plain_mail
from email.utils import formatdate
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from lightagentd.config.notify import Destination, secret_of
from lightagentd.errors import LightagentError, MessageTooLarge, ToolError, Unavailable
from lightagentd.host.process import run
from lightagentd.notify.messages import Message
from lightagentd.text.strict_json import BadJson, decoded
from lightagentd.unattended.delivery import check_sendmail
from lightagentd.unattended.posting import LONGEST_WAIT_S, Answered, NotTaken, Poster

NTFY_BYTES, MATRIX_BYTES, WHOLE_BYTES = 4096, 32 << 10, 64 << 10
_JSON = {"Content-Type": "application/json"}
_HELD_S = 5.0
"""How much longer than its command the program that runs it may take."""


class NotAccepted(LightagentError):
    """The destination refused a message, and would again."""


class Transport(Protocol):
    """One destination; `close` it. `most_bytes` is how long the text of a message may be."""

    most_bytes: int

    async def send(self, message: Message) -> None:
        """Raises NotTaken, NotAccepted, MessageTooLarge, ConfigError."""

    async def close(self) -> None: ...


class _OverHttp:
    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._poster = Poster(destination.timeout_s)
        parts = urlsplit(destination.url)
        self._shown = f"{parts.scheme}://{parts.netloc}"
        """The address for errors: the path may be a secret."""

    async def close(self) -> None:
        await self._poster.close()

    async def _sent(
        self, url: str, body: bytes, headers: Mapping[str, str], method: str = "POST"
    ) -> Answered:
        answer = await self._poster.send(url, body, headers, method=method, shown=self._shown)
        if answer.status == 413:
            raise MessageTooLarge(answer.words)
        if not answer.taken:
            raise NotAccepted(answer.words)
        return answer

    def _bearer(self) -> dict[str, str]:
        token = secret_of(self._destination)
        return {"Authorization": f"Bearer {token}"} if token else {}


class Ntfy(_OverHttp):
    most_bytes = NTFY_BYTES

    async def send(self, message: Message) -> None:
        server, _, topic = self._destination.url.rpartition("/")
        said: dict[str, Any] = {
            "topic": topic,
            "title": message.title,
            "message": message.text or message.title,
            "priority": 4 if message.urgent else 3,
            "sequence_id": message.id,
        }
        if actions := _actions(message):
            said["actions"] = actions
        answer = await self._sent(f"{server}/", _dumped(said), {**_JSON, **self._bearer()})
        if _object(answer.said).get("event") != "message":
            raise NotTaken(f"{self._shown} is no server of ntfy: its answer is not the JSON of one.")


def _actions(message: Message) -> list[dict[str, Any]]:
    """Buttons for the one approval that the message is about. A button allows a call only where the message
    shows all of it; otherwise it opens the page that does.
    """
    if len(message.notices) != 1:
        return []
    found = []
    for decision, url in message.links.get(message.notices[0].key, {}).items():
        at_once = decision == "deny" or message.whole
        how: dict[str, Any] = {"action": "http", "method": "POST"} if at_once else {"action": "view"}
        found.append({**how, "label": decision.capitalize(), "url": url, "clear": True})
    return found


class Webhook(_OverHttp):
    most_bytes = WHOLE_BYTES

    async def send(self, message: Message) -> None:
        body, now = _dumped(as_json(message)), str(int(time.time()))
        signed = b".".join((message.id.encode(), now.encode(), body))
        mac = hmac.digest(signing_key(secret_of(self._destination)), signed, hashlib.sha256)
        headers = {
            "webhook-id": message.id,
            "webhook-timestamp": now,
            "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
        }
        await self._sent(self._destination.url, body, {**_JSON, **headers})


class Matrix(_OverHttp):
    most_bytes = MATRIX_BYTES

    async def send(self, message: Message) -> None:
        room, number = quote(self._destination.room, safe=""), quote(message.id, safe="")
        base = self._destination.url.rstrip("/")
        url = f"{base}/_matrix/client/v3/rooms/{room}/send/m.room.message/{number}"
        said = {"msgtype": "m.text", "body": f"{message.title}\n{message.text}"}
        body = _dumped({**said, "m.mentions": {}})  # "@room" in a text calls nobody
        try:
            answer = await self._sent(url, body, {**_JSON, **self._bearer()}, "PUT")
        except NotTaken as err:
            wait_ms = _object(err.said).get("retry_after_ms")
            if isinstance(wait_ms, int | float) and not err.wait_s:
                err.wait_s = min(max(0.0, wait_ms / 1000), LONGEST_WAIT_S)
            raise
        if not isinstance(_object(answer.said).get("event_id"), str):
            raise NotTaken(f"{self._shown} is no homeserver: its answer is not the JSON of one.")


class Mail:
    """Through sendmail(8), which a process of the destination's user runs."""

    most_bytes = WHOLE_BYTES

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    async def close(self) -> None:
        """There is nothing to close."""

    async def send(self, message: Message) -> None:
        mail = EmailMessage(policy=plain_mail.clone(cte_type="7bit"))
        mail["To"] = self._destination.mail_to
        mail["Subject"] = " ".join(message.title.split())
        mail["Date"] = formatdate(localtime=True)
        mail["Message-ID"] = f"<{message.id}@{socket.gethostname() or 'localhost'}>"
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no out-of-office answers
        mail.set_content(message.text)
        try:
            argv = [check_sendmail(), "-t", "-i"]
        except Unavailable as err:
            raise NotTaken("There is no sendmail(8) on this machine.") from err
        await _run_as(self._destination, argv, bytes(mail), message.id, mail=True)


class Command(Mail):
    """Gives the JSON of a webhook to a command of the destination's user."""

    async def send(self, message: Message) -> None:
        await _run_as(self._destination, self._destination.command, _dumped(as_json(message)), message.id)


async def _run_as(
    destination: Destination, argv: Sequence[str], stdin: bytes, number: str, *, mail: bool = False
) -> None:
    """Raises NotTaken."""
    timeout_s = destination.timeout_s
    start = [sys.executable, "-I", "-m", "lightagentd.notify.local", f"--user={destination.user}"]
    start += [f"--timeout={timeout_s}", f"--id={number}", *(["--mail"] if mail else []), "--", *argv]
    try:
        done = await run(start, timeout_s=timeout_s + _HELD_S, stdin=stdin)
    except ToolError as err:
        raise NotTaken(f"{argv[0]} cannot be started: {err}") from err
    if done.timed_out or done.status != 0:
        said = " ".join(done.stderr.text().split())[:300]
        raise NotTaken(said or f"{argv[0]} took too long.")


TRANSPORTS: Mapping[str, type[Ntfy] | type[Webhook] | type[Matrix] | type[Mail]] = {
    "ntfy": Ntfy,
    "webhook": Webhook,
    "matrix": Matrix,
    "mail": Mail,
    "command": Command,
}
"""By the kind of a destination."""


def as_json(message: Message) -> dict[str, Any]:
    """A message for programs."""
    notices = [
        {
            "id": one.id,
            "about": one.about,
            "title": one.title,
            "text": one.text,
            "time_us": one.at_us,
            "agent": one.agent,
            "key": one.key,
            "expires_us": one.expires_us,
            "links": dict(message.links.get(one.key, {})),
        }
        for one in message.notices
    ]
    data = {"id": message.id, "title": message.title, "text": message.text, "notices": notices}
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"type": "lightagent.notify", "timestamp": stamp, "data": data}


def signing_key(secret: str) -> bytes:
    """The bytes of a secret: `whsec_` is Base64, and any other text counts as it is."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def _dumped(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _object(said: bytes) -> dict[str, Any]:
    """A JSON object of others; empty for anything else."""
    try:
        found = decoded(said, depth=20)
    except BadJson:
        return {}
    return found if isinstance(found, dict) else {}
