"""Makes text of what a server gives: results, resources and prompts, without control characters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lightagentd.tool import Result

_KEPT_CHARS = 64 << 10
"""The largest structured content that goes along as metadata, as JSON."""


def clean(text: str) -> str:
    """A text whose control characters, which could drive a terminal or turn text around, are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def call_result(result: dict[str, Any]) -> Result:
    """The result of `tools/call`."""
    structured = result.get("structuredContent")
    shown = "\n".join(_contents(result.get("content")))
    if structured is not None and not shown:
        shown = clean(json.dumps(structured, ensure_ascii=False, indent=1))
    kept = structured is not None and len(json.dumps(structured)) <= _KEPT_CHARS
    return Result(
        output=shown or "(The result is empty.)", metadata={"structured": structured} if kept else {}
    )


def resource_text(result: dict[str, Any]) -> str:
    """The contents of `resources/read`."""
    found = result.get("contents")
    return (
        "\n".join(_resource(one) for one in found if isinstance(one, dict)) if isinstance(found, list) else ""
    )


def prompt_text(result: dict[str, Any]) -> str:
    """The messages of `prompts/get`, each after who speaks."""
    found, lines = result.get("messages"), list[str]()
    for one in found if isinstance(found, list) else []:
        if isinstance(one, dict):
            said = "\n".join(_contents([one.get("content")]))
            lines.append(f"{clean(str(one.get('role', '')))[:20]}: {said}")
    return "\n\n".join(lines)


def listed_text(entries: list[dict[str, Any]], key: str) -> str:
    """A list of resources, templates or prompts: a line each, with what `key` names first."""
    lines = []
    for one in entries:
        told = " ".join(str(one.get(part) or "") for part in ("title", "description")).split()
        arguments = one.get("arguments")
        names = [str(each.get("name")) for each in arguments or [] if isinstance(each, dict)]
        takes = f" ({', '.join(names)})" if names else ""
        lines.append(clean(f"{one.get(key, '')}{takes}  {' '.join(told)}"[:1000].rstrip()))
    return "\n".join(lines) or "There are none."


def _contents(content: Any) -> Iterator[str]:
    for one in content if isinstance(content, list) else []:
        if not isinstance(one, dict):
            continue
        kind = one.get("type")
        if kind == "text":
            yield clean(str(one.get("text", "")))
        elif kind in ("image", "audio"):
            yield _binary(one, kind, one.get("data"))
        elif kind == "resource_link":
            yield clean(
                f"[a resource: {one.get('uri')} {one.get('description') or one.get('name') or ''}".rstrip()
                + "]"
            )
        elif kind == "resource" and isinstance(one.get("resource"), dict):
            yield _resource(one["resource"])
        else:
            yield f"[content of the unknown type {clean(str(kind))[:40]}]"


def _resource(one: dict[str, Any]) -> str:
    if isinstance(one.get("text"), str):
        return clean(f"{one.get('uri', '')}:\n{one['text']}")
    return _binary(one, clean(str(one.get("uri", "a resource"))), one.get("blob"))


def _binary(one: dict[str, Any], what: str, data: Any) -> str:
    size = len(data) * 3 // 4 if isinstance(data, str) else 0
    return (
        f"[{what} of {size} bytes, {clean(str(one.get('mimeType', 'of an unknown type')))[:60]}, not shown]"
    )
