"""Finds out whether a request comes from who knows the secret, and what tells it from any other.

GitHub (X-Hub-Signature-256) signs the body alone, Stripe (Stripe-Signature) a time with it, and Standard
Webhooks (https://www.standardwebhooks.com) an id, too. A token proves who sends, but not what was sent.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from lightagentd.errors import PermissionDenied

TOLERANCE_S = 300
"""How far the time of a request may be from now, either way."""
HEADERS = (
    *("authorization", "x-gitlab-token", "x-webhook-token"),
    *("x-hub-signature-256", "x-github-event", "x-github-delivery", "stripe-signature"),
    *("webhook-id", "webhook-timestamp", "webhook-signature"),
)
"""What is looked at, in small letters."""
_STANDARD = "whsec_"

Headers = Mapping[str, str]
Check = Callable[[Sequence[str], Headers, bytes], str]


def _github(secrets: Sequence[str], headers: Headers, body: bytes) -> str:
    """The signature, for the delivery's number is not signed: who saw a request could give it another one."""
    algorithm, _, given = headers.get("x-hub-signature-256", "").partition("=")
    return _one_of([given.lower()] if algorithm == "sha256" else [], _hex(secrets, body))


def _stripe(secrets: Sequence[str], headers: Headers, body: bytes) -> str:
    """The digest of what is signed, for a request has a signature for each secret while these are changed."""
    parts = [part.strip().partition("=") for part in headers.get("stripe-signature", "").split(",")]
    at = next((value for name, _, value in parts if name == "t"), "")
    _check_time(at)
    given = [value for name, _, value in parts if name == "v1"]
    signed = at.encode() + b"." + body
    _one_of(given, _hex(secrets, signed))
    return hashlib.sha256(signed).hexdigest()


def _standard(secrets: Sequence[str], headers: Headers, body: bytes) -> str:
    number, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    _check_time(at)
    given = [one.partition(",")[2] for one in headers.get("webhook-signature", "").split()]
    signed = b".".join((number.encode(), at.encode(), body))
    _one_of(given if number else [], (_base64(secret, signed) for secret in secrets))
    return number


def _token(secrets: Sequence[str], headers: Headers, body: bytes) -> str:  # noqa: ARG001
    """Who has the token may send the same as often as they like."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    given = [headers.get("x-gitlab-token", ""), headers.get("x-webhook-token", "")]
    given.append(bearer.strip() if scheme.lower() == "bearer" else "")
    _one_of([one for one in given if one], secrets)
    return ""


CHECKS: Mapping[str, Check] = {
    "github": _github,
    "stripe": _stripe,
    "standard": _standard,
    "token": _token,
}
"""By the name of how it is signed: each takes the secrets, the headers and the body, and gives what is the
same for the same request and for no other one, empty where nothing is. Raises PermissionDenied.
"""


def _hex(secrets: Sequence[str], signed: bytes) -> Iterator[str]:
    return (hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets)


def _base64(secret: str, signed: bytes) -> str:
    """A secret without its `whsec_` is taken as it is."""
    key = secret.encode()
    if secret.startswith(_STANDARD):
        try:
            key = base64.b64decode(secret.removeprefix(_STANDARD), validate=True)
        except binascii.Error:
            return ""
    return base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def _one_of(given: Sequence[str], right: Iterator[str] | Sequence[str]) -> str:
    """The right signature, if it was given. Raises PermissionDenied."""
    for one in right:
        if one and any(hmac.compare_digest(one.encode(), each.encode()) for each in given):
            return one
    raise PermissionDenied(
        "The request is not signed with the webhook's secret.",
        suggestion="Give the sender the secret in secret_file, and see signed in the trigger's file.",
    )


def _check_time(at: str) -> None:
    if not (at.isascii() and at.isdecimal() and len(at) < 12 and abs(time.time() - int(at)) <= TOLERANCE_S):
        raise PermissionDenied(
            f"The request's time is not within {TOLERANCE_S} s of now.",
            suggestion="Look at the clocks of both machines; an old request is not taken again.",
        )
