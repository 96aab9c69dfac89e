"""Makes the mark that replaces a secret: its kind, and a digest that is the same for equal secrets.

The digest is the beginning of an HMAC-SHA-256: without the key nobody can try guesses against it. Whoever
may prompt an agent has guesses marked, though, so what can be guessed gets no digest: passwords and all that
is short.
"""

from __future__ import annotations

import hashlib
import hmac
import re

START = "[removed: "
MARKER = re.compile(r"\[removed: [a-z0-9-]{1,40}(?: [0-9a-f]{8})?\]")
"""A mark, such as `[removed: github-token 5f3a91c2]`; it is never taken for a secret itself."""

_DIGITS = 8
_GUESSED_CHARS = 16
"""A random text of as many characters is beyond guessing."""


def mark(kind: str, secret: str, key: bytes) -> str:
    """The mark of a secret. Without a key, or when the secret could be guessed, it has no digest."""
    if not key or "password" in kind or len(secret) < _GUESSED_CHARS:
        return f"{START}{kind}]"
    found = hmac.new(key, secret.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
    return f"{START}{kind} {found[:_DIGITS]}]"
