"""What both ends of the Model Context Protocol say alike: its versions, names and headers.

Since 2026-07-28 each request brings its version and what its sender can do; nothing is agreed on before. The
versions until then begin with `initialize`. https://modelcontextprotocol.io/specification/2026-07-28
"""

from __future__ import annotations

import base64
from typing import Any

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The newest first."""
PREFIX = "io.modelcontextprotocol/"
"""Of the protocol's own keys in `_meta`."""
HEADER_MISMATCH, UNSUPPORTED_VERSION, RESOURCE_NOT_FOUND = -32020, -32022, -32002
ELICIT = "elicitation/create"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that the header Mcp-Name repeats, by the method."""
EVENTS = "text/event-stream"
_BASE64 = "=?base64?"


def me(version: str) -> dict[str, Any]:
    """How either end names itself."""
    return {"name": "lightagentd", "title": "lightagentd, the agent daemon", "version": version}


def header(text: str) -> str:
    """A text as the value of a header, encoded where it has to be."""
    plain = fits_header(text) and text == text.strip() and not text.startswith(_BASE64)
    return text if plain else f"{_BASE64}{base64.b64encode(text.encode()).decode()}?="


def fits_header(text: str) -> bool:
    return text.isascii() and text.isprintable()


def plain(header: str) -> str:
    """The text in the value of a header; empty for an invalid one."""
    if not (header.startswith(_BASE64) and header.endswith("?=")):
        return header
    try:
        return base64.b64decode(header[len(_BASE64) : -2], validate=True).decode()
    except ValueError:
        return ""
