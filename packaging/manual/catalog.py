"""The journal's catalog: the text of `journalctl -x` for each entry (https://systemd.io/CATALOG/).

The texts are declared with the event types, and with the few entries that are not events.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator

from lightagentd.events.journal.entry import GAP, GAP_CATALOG
from lightagentd.events.model import message_id
from lightagentd.events.types.event_type import ANY
from lightagentd.events.types.registry import all_types
from lightagentd.unattended import journal

_HEAD = """\
# What the entries of lightagentd mean: journalctl -x shows it. The format is that of
# https://systemd.io/CATALOG/; before each entry stands the topic and type of the event.
# This file is generated: make generate.
"""
_ENTRY = """
# {topic}/{type}
-- {message_id}
Subject: {subject}
Defined-By: lightagentd
Documentation: man:lightagentd(8)

{text}
"""
_FIELD = re.compile(r"@([A-Z_]+)@")
_COMMAND = re.compile(r"(?<=: )(?:lactl|systemctl|journalctl)(?: [\w@'*=/-]+)+")


def catalog() -> str:
    """The whole file."""
    return _HEAD + "".join(_entry(*declared) for declared in _declared())


def _declared() -> Iterator[tuple[str, str, str]]:
    """Topic, type and text of all journal entries, except for events that tools define themselves."""
    for (topic, event_type), declared in all_types().items():
        if event_type != ANY:
            yield topic, event_type, declared.catalog_of(event_type)
    yield *GAP, GAP_CATALOG
    for kind, text in journal.CATALOG.items():
        topic, _, event_type = kind.rpartition(".")
        yield f"unattended.{topic}", event_type, text


def _entry(topic: str, event_type: str, declared: str) -> str:
    subject, _, text = inspect.cleandoc(declared).partition("\n")
    paragraphs = "\n\n".join(_wrapped(_FIELD.sub(r"@LIGHTAGENT_\1@", one)) for one in text.split("\n> "))
    return _ENTRY.format(
        topic=topic,
        type=event_type,
        message_id=message_id(topic, event_type),
        subject=_FIELD.sub(r"@LIGHTAGENT_\1@", subject),
        text=paragraphs,
    )


def _wrapped(paragraph: str) -> str:
    """For a terminal of 80 columns. A command stays in one line, so that it can be copied."""
    joined = _COMMAND.sub(lambda found: found[0].replace(" ", "\0"), " ".join(paragraph.split()))
    return textwrap.fill(joined, 80, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
