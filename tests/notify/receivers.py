"""Receivers of notifications for tests: HTTP on loopback, shaped as ntfy, webhooks and Matrix document it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOKEN = "tk_a-token-of-the-receiver"
SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes, or so").decode()
ROOM = "!room:example.org"
NTFY_FIELDS = frozenset(
    [
        *("topic", "title", "message", "priority", "tags", "actions", "click", "attach", "markdown", "icon"),
        *("filename", "delay", "email", "call", "sequence_id"),
    ]
)
Reply = Callable[[], web.StreamResponse | None]
"""An answer in place of a good one, to what is not taken; None for no answer at all."""


def answers(status: int, text: str = "", **headers: str) -> Reply:
    return lambda: web.Response(status=status, text=text, headers=headers)


def hangs_up_after_taking() -> Reply:
    return lambda: None


@dataclass
class Receiver:
    """Enter it to receive. `replies` come first, one a request. `taken` are the messages that were taken, by
    their ids: one that comes again takes the place of the former, as each of these protocols says.
    """

    replies: list[Reply] = field(default_factory=list)
    taken: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Everything that came, also what was not taken."""
    faults: list[str] = field(default_factory=list)
    taken_before_reply: bool = False
    """Whether what `replies` answer is taken all the same: an answer that is lost on its way."""
    port: int = 0
    listens: socket.socket | None = None
    """Where it listens, in the place of a port of this machine."""

    async def __aenter__(self) -> Receiver:
        app = web.Application(client_max_size=1 << 20)
        app.router.add_post("/", self._ntfy)
        app.router.add_post("/hook", self._webhook)
        app.router.add_put("/_matrix/client/v3/rooms/{room}/send/m.room.message/{txn}", self._matrix)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        where = self.listens or socket.create_server(("127.0.0.1", self.port))
        await web.SockSite(self._runner, where).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._runner.cleanup()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.taken.values())

    async def _ntfy(self, request: web.Request) -> web.StreamResponse:
        """https://docs.ntfy.sh/publish/#publish-as-json"""
        said = await request.json()
        self.requests.append(said)
        if request.headers.get("Authorization") not in (None, f"Bearer {TOKEN}"):
            return web.json_response({"code": 40101, "http": 401, "error": "unauthorized"}, status=401)
        if unknown := said.keys() - NTFY_FIELDS:
            self.faults.append(f"ntfy knows no {unknown}")
        if len(said["message"].encode()) > 4096 or len(said.get("actions", [])) > 3:
            self.faults.append("too long")
        for one in said.get("actions", ()):
            if one["action"] not in ("view", "http") or not one["label"] or not one["url"]:
                self.faults.append(f"no action: {one}")
        answer = {"id": "sPs71M8A2T", "time": 1, "event": "message", **said}
        return self._answered(said["sequence_id"], said, answer)

    async def _webhook(self, request: web.Request) -> web.StreamResponse:
        """https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md"""
        body = await request.read()
        number, stamp = request.headers["webhook-id"], request.headers["webhook-timestamp"]
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        signed = f"{number}.{stamp}.".encode() + body
        mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        if request.headers["webhook-signature"] != f"v1,{mac}" or abs(time.time() - int(stamp)) > 60:
            self.faults.append("a wrong signature or an old time")
        self.requests.append(json.loads(body))
        return self._answered(number, json.loads(body), {})

    async def _matrix(self, request: web.Request) -> web.StreamResponse:
        """https://spec.matrix.org/latest/client-server-api/#put_matrixclientv3roomsroomidsendeventtypetxnid"""
        said = await request.json()
        self.requests.append(said)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"errcode": "M_UNKNOWN_TOKEN", "error": "no"}, status=401)
        if request.match_info["room"] != ROOM or said.keys() != {"msgtype", "body", "m.mentions"}:
            self.faults.append(f"not as Matrix says: {request.path} {said}")
        return self._answered(request.match_info["txn"], said, {"event_id": "$one"})

    def _answered(self, number: str, said: dict[str, Any], answer: dict[str, Any]) -> web.StreamResponse:
        reply = self.replies.pop(0) if self.replies else None
        if reply is None or self.taken_before_reply:
            self.taken[number] = said
        if reply is None:
            return web.json_response(answer)
        if (other := reply()) is not None:
            return other
        raise ConnectionResetError
