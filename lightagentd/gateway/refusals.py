"""Refusals that only HTTP has, and errors in the shape of OpenAI, which is also that of everything else here
that no client has another shape for.

A class says only its status; its code is that of the family, so that clients need to know no more codes.
"""

from __future__ import annotations

import time
from typing import Any

from lightagentd.errors import (
    BudgetExceeded,
    InvalidArgument,
    LightagentError,
    LimitExceeded,
    NotFound,
    PermissionDenied,
)

_DAY_S = 86_400


class NoToken(PermissionDenied, http_status=401):
    """The request has no token, or one that the daemon does not know."""


class WrongPlace(PermissionDenied, http_status=421):
    """The request calls the gateway by a name that is not its own (RFC 9110, 15.5.20)."""


class WrongType(InvalidArgument, http_status=415):
    """The body is of a type that is not taken."""


class WrongMethod(NotFound, http_status=405):
    """The path is known, and this method of it is not."""


class TooSlow(InvalidArgument, code="timeout", http_status=408):
    """The request took too long to arrive."""


class TooMany(LimitExceeded):
    """A limit of the gateway; `retry_after_s` says when there may be room again."""

    def __init__(self, message: str, *, retry_after_s: float, suggestion: str = "") -> None:
        super().__init__(message, suggestion=suggestion)
        self.retry_after_s = retry_after_s


class ClientGone(Exception):
    """The client hung up: nobody reads an answer."""


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_object(err: LightagentError) -> dict[str, Any]:
    """The error as the body of an answer: `{"error": {message, type, param, code}}`."""
    kind = "invalid_request_error" if err.http_status < 500 else "server_error"
    message = f"{err.message} {err.suggestion}".rstrip()
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(err.http_status, kind),
            "param": err.field or None,
            "code": err.code,
        }
    }


def retry_after_s(err: LightagentError) -> float | None:
    """When there may be room again, of the tokens of models on the next day (UTC); None where unknown."""
    if isinstance(err, BudgetExceeded) and err.field == "tokens_per_day":
        return _DAY_S - time.time() % _DAY_S
    return err.retry_after_s if isinstance(err, TooMany) else None


def status_of(err: LightagentError) -> int:
    """499 is no status of HTTP: a turn that somebody else cancelled is a conflict for its client."""
    return 409 if err.http_status == 499 else err.http_status
