"""Tokens: secrets that let a program speak for a user through the gateway, within scopes.

A token is `la_`, 8 characters that name it, 43 that are secret (256 bits), and 6 of a checksum (CRC-32), so
that a scanner knows one when it sees it. All are of 0-9A-Za-z. The stored state `tokens` has the SHA-256 of a
token by its 8 characters, never the token: it needs no slow hash, since nobody guesses 256 bits. A token
that was revoked or has expired stays for KEPT_S, so that it can be said why it is refused.

The daemon owns one `Tokens`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import string
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from lightagentd.control.grants import SCOPES, Ending, Grant
from lightagentd.errors import Conflict, InvalidArgument, LimitExceeded, NotFound, PermissionDenied
from lightagentd.events.history import Change, History
from lightagentd.events.model import EventContext, NewEvent, current_context
from lightagentd.events.types.token import TokenCreated, TokenRefused, TokenRevoked, TokenUsed
from lightagentd.host.users import called
from lightagentd.policy.operation import Operation

PREFIX, _ID_CHARS, _SECRET_CHARS, _SUM_CHARS = "la_", 8, 43, 6
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_TOKEN = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{_ID_CHARS + _SECRET_CHARS + _SUM_CHARS}}}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_STATE = "tokens"
MOST_OF_USER = 100
KEPT_S = 30 * 86_400
TOLD_S, TOLD_MOST = 60.0, 10
"""So many events of one kind about one token are stored in that time; the others are counted in one."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a token is held to: by the daemon to tokens of models, by the gateway to the others. 0 is no
    limit.
    """

    requests_per_minute: int = 0
    streams: int = 0
    request_bytes: int = 0
    tokens_per_day: int = 0


@dataclass(frozen=True, kw_only=True)
class Token:
    """A stored token, without its secret. Times are in microseconds, and 0 for never."""

    id: str
    name: str
    owner: int
    sha256: str
    scopes: tuple[str, ...]
    agents: tuple[str, ...]
    limits: Limits
    created_us: int
    expires_us: int = 0
    revoked_us: int = 0
    used_us: int = 0

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Token:
        """Raises TypeError, ValueError, KeyError."""
        limits = Limits(**value["limits"])
        found = cls(
            **{**value, "scopes": tuple(value["scopes"]), "agents": tuple(value["agents"]), "limits": limits}
        )
        texts = (found.id, found.name, found.sha256, *found.scopes, *found.agents)
        numbers = (found.owner, found.created_us, found.expires_us, found.revoked_us, found.used_us)
        if not all(isinstance(one, str) for one in texts) or not all(type(one) is int for one in numbers):
            raise TypeError("a field has another type")
        if not {Operation(one) for one in found.scopes} <= set(SCOPES):
            raise ValueError("it has a scope that no token can have")
        return found

    @property
    def problem(self) -> str:
        """Why it is not valid any more: revoked or expired; empty while it is."""
        if self.revoked_us:
            return "revoked"
        return "expired" if 0 < self.expires_us <= _now_us() else ""


class Tokens:
    """`start` reads them; they are in memory then, with those that the daemon's history does not keep."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._by_id: dict[str, Token] = {}
        self._endings: dict[str, Ending] = {}
        self._told = _Told(history)

    async def start(self) -> None:
        """Raises StorageError."""
        stored = await asyncio.to_thread(self._history.queries.state, _STATE)
        self._by_id = {key: Token.from_dict(value) for key, value in stored.items()}

    def close(self) -> None:
        self._told.close()

    def listed(self, owner: int | None) -> list[Token]:
        """Those that are neither revoked nor expired long ago, of one user or all, the newest last."""
        found = [one for one in self._by_id.values() if owner in (None, one.owner) and not one.revoked_us]
        return sorted(found, key=lambda one: (one.created_us, one.id))

    async def create(self, token: Token, *, by: int) -> tuple[Token, str]:
        """Store a new token, of which name, owner, scopes, agents, limits and expiry are given. Gives it, and
        its text. Raises InvalidArgument, Conflict, LimitExceeded, StorageError.
        """
        if _NAME.fullmatch(token.name) is None:
            raise InvalidArgument(
                f"{token.name[:60]!r} is no name for a token.",
                field="name",
                suggestion="Take up to 63 of a-z, 0-9, dot, dash and underscore; a letter or digit first.",
            )
        own = self.listed(token.owner)
        if any(one.name == token.name for one in own):
            raise Conflict(
                f"{called(token.owner)} has a token {token.name} already.",
                suggestion=f"Take another name, or first: lactl tokens revoke {token.name}",
            )
        if len(own) >= MOST_OF_USER:
            raise LimitExceeded(
                f"{called(token.owner)} has {len(own)} tokens, the most for one user.",
                suggestion="Revoke some: lactl tokens revoke",
            )
        text = _new_text(self._by_id)
        made = replace(token, id=_id_of(text), sha256=_digest(text), created_us=_now_us())
        event = TokenCreated(
            name=made.name,
            owner=made.owner,
            message=f"{made.name} of {called(made.owner)}, for {', '.join(made.scopes)}",
            id=made.id,
            scopes=list(made.scopes),
            agents=list(made.agents),
            expires_us=made.expires_us,
            by=by,
        ).event(context=_of(made.owner))
        self._by_id[made.id] = made
        try:
            await self._history.append(event, changes=[self._change(made), *self._outdated()])
        except BaseException:
            del self._by_id[made.id]
            raise
        return made, text

    async def revoke(self, name: str, owner: int | None, *, by: int) -> Token:
        """End a token: its streams first. Raises NotFound; Conflict where several users have one."""
        found = [one for one in self.listed(owner) if name in (one.name, one.id)]
        if not found:
            raise NotFound(f"There is no token {name[:60]!r}.", suggestion="Run: lactl tokens list")
        if len(found) > 1:
            raise Conflict(
                f"Several users have a token {name}.", suggestion="Say its ID, from: lactl tokens list"
            )
        ended = self._by_id[found[0].id] = replace(found[0], revoked_us=_now_us())
        if (ending := self._endings.pop(ended.id, None)) is not None:
            ending.come()
        message = f"{ended.name} of {called(ended.owner)}"
        told = TokenRevoked(name=ended.name, owner=ended.owner, message=message, id=ended.id, by=by)
        event = told.event(context=_of(ended.owner))
        await self._history.append(event, changes=[self._change(ended)])
        return ended

    def check(self, text: str) -> tuple[Token, Grant]:
        """The token with this text, and what it grants. Raises PermissionDenied."""
        if _TOKEN.fullmatch(text) is None or _checksum(text[:-_SUM_CHARS]) != text[-_SUM_CHARS:]:
            raise self._refusal("malformed", None)
        token = self._by_id.get(_id_of(text))
        expected = token.sha256 if token is not None else _digest("")
        if not hmac.compare_digest(_digest(text), expected) or token is None:
            raise self._refusal("unknown" if token is None else "wrong", token)
        if token.problem:
            raise self._refusal(token.problem, token)
        used = self._by_id[token.id] = replace(token, used_us=_now_us())
        message = f"{used.name} of {called(used.owner)}"
        kind = TokenUsed(name=used.name, owner=used.owner, message=message, count=1)
        self._told.tell(kind, used.owner, self._change(used))
        return used, Grant(
            id=used.id,
            name=used.name,
            scopes=frozenset(Operation(one) for one in used.scopes),
            agents=frozenset(used.agents),
            expires_us=used.expires_us,
            tokens_per_day=used.limits.tokens_per_day,
            ending=self._endings.setdefault(used.id, Ending()),
        )

    def used_by_client(self, uid: int) -> None:
        """Tell of a client of the gateway without a token."""
        self._told.tell(TokenUsed(name="", owner=uid, message=called(uid), count=1), uid)

    def refused_client(self, why: str) -> PermissionDenied:
        """Tell of a descriptor that is no client's."""
        self._told.tell(TokenRefused(reason="client", name="", message=why, count=1), None)
        return PermissionDenied(f"The connection that was passed is no client's: {why}.")

    def refused_answer(self) -> None:
        """Tell of a link of a notification that answers nothing."""
        self._told.tell(TokenRefused(reason="answer", name="", message="answer", count=1), None)

    def _refusal(self, reason: str, token: Token | None) -> PermissionDenied:
        name, owner = (token.name, token.owner) if token is not None else ("", None)
        message = f"{reason} {name}".rstrip()
        self._told.tell(TokenRefused(reason=reason, name=name, message=message, count=1), owner)
        if reason in ("revoked", "expired"):  # the holder has its secret
            return PermissionDenied(f"The token {name} is {reason}.", suggestion="Use another one.")
        return PermissionDenied("This is not a valid token.", suggestion="Look at: lactl tokens list")

    def _outdated(self) -> list[Change]:
        """Forget those that ended long ago."""
        before_us = _now_us() - KEPT_S * 1_000_000
        gone = [one.id for one in self._by_id.values() if 0 < (one.revoked_us or one.expires_us) < before_us]
        for each in gone:
            del self._by_id[each]
            self._endings.pop(each, None)
        return [Change(state=_STATE, key=each, value=None) for each in gone]

    @staticmethod
    def _change(token: Token) -> Change:
        return Change(state=_STATE, key=token.id, value=asdict(token))


_Kind = TokenUsed | TokenRefused


class _Told:
    """Stores events about the use of tokens: a few of each kind, and then one with the number of the rest."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._stored: Counter[_Kind] = Counter()
        self._more: Counter[tuple[_Kind, int | None]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Store what was counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._renew()

    def tell(self, kind: _Kind, owner: int | None, *changes: Change) -> None:
        """`kind` has the count 1."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOLD_S, self._renew)
        self._stored[kind] += 1
        if self._stored[kind] > TOLD_MOST:
            self._more[kind, owner] += 1
        else:
            self._append(kind.event(context=_of(owner)), changes)

    def _renew(self) -> None:
        more, self._more, self._timer = self._more, Counter(), None
        self._stored.clear()
        for (kind, owner), count in more.items():
            self._append(kind.model_copy(update={"count": count}).event(context=_of(owner)), ())

    def _append(self, event: NewEvent, changes: tuple[Change, ...]) -> None:
        """Nobody waits for it: what the connection does next waits for its own event, which comes after."""
        done = self._history.append(event, changes=changes, may_wait=True)
        done.add_done_callback(lambda one: one.cancelled() or one.exception())


def _of(owner: int | None) -> EventContext:
    return replace(current_context(), owner=owner)


def _new_text(taken: Mapping[str, Token]) -> str:
    while True:
        body = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_ID_CHARS + _SECRET_CHARS))
        if _id_of(body) not in taken:
            return body + _checksum(body)


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(_SUM_CHARS):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def _id_of(text: str) -> str:
    return text[len(PREFIX) : len(PREFIX) + _ID_CHARS]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _now_us() -> int:
    return time.time_ns() // 1000
