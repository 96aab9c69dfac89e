"""The content of a prompt from an editor: the question, and attachments, which count as text from outside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from acp import schema

from lightagentd.cli.attaching import attachment, name_of
from lightagentd.errors import InvalidArgument


async def composed(request: schema.PromptRequest) -> tuple[str, list[dict[str, str]]]:
    """The question and the attachments, each an `api.Attachment`. In the question stands the name of each.

    Raises InvalidArgument for an image, a sound and bytes, and what `attachment` raises for a linked file.
    """
    parts, attached = list[str](), list[dict[str, str]]()
    before = None
    for block in request.prompt:
        is_text = isinstance(block, schema.TextContentBlock)
        if before is not None and before == is_text:
            parts.append("\n\n" if is_text else " ")
        before = is_text
        if isinstance(block, schema.TextContentBlock):
            parts.append(block.text)
            continue
        if isinstance(block, schema.ResourceContentBlock):
            found = await asyncio.to_thread(_linked, block)
        elif isinstance(block, schema.EmbeddedResourceContentBlock) and isinstance(
            block.resource, schema.TextResourceContents
        ):
            found = {"name": _name(block.resource.uri), "text": block.resource.text}
        else:
            raise InvalidArgument(
                f"The prompt has content of type {block.type} that is not text; agents read text alone.",
                suggestion="Send text, or name the file so that the agent reads it with its tools.",
                field="prompt",
            )
        parts.append(f"@{found['name']}")
        attached.append(found)
    return "".join(parts), attached


def _linked(link: schema.ResourceContentBlock) -> dict[str, str]:
    """A file of this machine that the person at the editor may read; else the link itself."""
    address = urlsplit(link.uri)
    path = unquote(address.path)
    is_here = address.scheme == "file" and address.netloc in ("", "localhost")
    if is_here and os.path.isfile(path):  # noqa: PTH113 - pathlib raises where a folder is closed
        return attachment(path)
    said: Sequence[str | None] = (link.uri, link.title, link.description)
    return {"name": name_of(link.name) or _name(link.uri), "text": "\n".join(filter(None, said))}


def _name(uri: str) -> str:
    return name_of(unquote(urlsplit(uri).path)) or "resource"
