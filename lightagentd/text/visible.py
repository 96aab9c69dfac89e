"""Shows bytes of other programs safely: they can neither mislead a reader nor drive a terminal."""

from __future__ import annotations


def visible(data: bytes, keep: str = "") -> str:
    """As UTF-8, with other bytes, blanks and control characters escaped, but for those of `keep`."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c in keep or (c.isprintable() and c != " ") else f"\\x{ord(c):02x}" for c in text)


def escaped(char: str) -> str:
    """A character as an escape, such as \\x1b or \\u200b."""
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
