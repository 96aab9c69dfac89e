"""Shows bytes of other programs so that no reader and no terminal takes them for something else."""

from __future__ import annotations


def visible(data: bytes, keep: str = "") -> str:
    """As UTF-8, with other bytes, blanks and control characters escaped, but for those of `keep`."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c in keep or (c.isprintable() and c != " ") else f"\\x{ord(c):02x}" for c in text)
