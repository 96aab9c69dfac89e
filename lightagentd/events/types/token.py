"""What becomes of tokens, and who used them. No event has a token itself."""

from __future__ import annotations

from lightagentd.events.types.event_type import NOTICE, WARNING, Reported, Text


class _About(Reported):
    name: Text
    owner: int
    message: Text


class TokenCreated(_About, topic="token.state", type="created"):
    """Somebody made a token."""

    priority = NOTICE
    catalog = """A token was made
    Whoever has it can do in its owner's name, through the gateway, what its scopes and agents say. It was
    shown once; the daemon keeps its SHA-256.
    > The tokens: lactl tokens list. To end one: lactl tokens revoke NAME"""
    id: Text
    scopes: list[Text]
    agents: list[Text]
    expires_us: int
    by: int


class TokenRevoked(_About, topic="token.state", type="revoked"):
    """Somebody ended a token."""

    priority = NOTICE
    catalog = """A token was revoked
    Calls with it are refused from now on, and its streams have ended.
    > Which are left: lactl tokens list"""
    id: Text
    by: int


class TokenUsed(_About, topic="token.use", type="accepted"):
    """A connection speaks for a token's owner, or for a client of the gateway."""

    catalog = """A connection of the gateway speaks for a user
    It was given a token, or a client on the gateway's own socket, whose user the kernel named. What it does
    has the token's name as its correlation ID.
    > To end a token: lactl tokens revoke NAME"""
    count: int
    """How many times, since the last such event."""


class TokenRefused(Reported, topic="token.use", type="refused"):
    """Somebody came with a token that is not valid, or with a connection that is no client's."""

    priority = WARNING
    catalog = """The gateway was given a token that is not valid
    The message says why. Guesses are counted, and many of them make one event a minute.
    > Where they come from: journalctl -u lightagent-gateway. The tokens: lactl tokens list"""
    message: Text
    reason: Text
    """malformed, unknown, wrong, expired, revoked, client, or answer (of a notification's link)."""
    name: Text
    """The token's; empty where none is known by it."""
    count: int
    """How many times, since the last such event."""
