"""Results about tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TokenLimits:
    """What a token is held to; 0 is no limit. `tokens_per_day` are those of models, on a day in UTC."""

    requests_per_minute: int
    streams: int
    request_bytes: int
    tokens_per_day: int


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token without its secret. `id` is the part of its text that is no secret. No `agents` stands for all.
    Times are 0 for never. `tokens_today` are the tokens of models that its turns used on this day (UTC).
    """

    id: str
    name: str
    uid: int
    user: str
    scopes: list[str]
    agents: list[str]
    limits: TokenLimits
    created_us: int
    expires_us: int
    used_us: int
    tokens_today: int


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """A token that was just made. `secret` is its whole text, which nobody can see again."""

    token: Token
    secret: str


@dataclass(frozen=True, kw_only=True)
class Identity:
    """For whom a connection speaks. `name` is the token's, empty for a client of the gateway without one."""

    uid: int
    user: str
    name: str
    scopes: list[str]
    agents: list[str]
    expires_us: int
    limits: TokenLimits
