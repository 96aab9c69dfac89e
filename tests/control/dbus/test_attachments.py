"""What is attached to a prompt on D-Bus: an array of dictionaries with name and text, checked at the edge."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.bus.connection import Bus, Variant, connect
from lightagentd.control.dbus.methods import methods
from lightagentd.errors import LightagentError
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from tests.control.dbus.on_the_bus import MANAGER, ROOT, serving
from tests.scripted_model import say

NAME = "org.lightagent1"
GOOD = {"name": Variant("s", "a.log"), "text": Variant("s", "one\n")}


async def prompt(client: Bus, *attachments: dict[str, Variant]) -> list[Any]:
    options = {"attachments": Variant("aa{sv}", list(attachments))}
    return await client.call(NAME, ROOT, MANAGER, "Prompt", "ssa{sv}", ["talker", "look", options], 60.0)


async def test_they_follow_the_text(paths: Paths) -> None:
    async with serving(paths, [say("seen")]) as (daemon, address), connect(address) as client:
        await prompt(client, GOOD)
        [stored] = daemon.history.queries.select(Filter(topic="agent.prompt"), limit=10)
        assert stored.data is not None
        assert stored.data["text"] == "look\n\n```a.log\none\n```"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": Variant("s", "a")}, "Each has just these: name, text"),
        ({**GOOD, "path": Variant("s", "/etc/shadow")}, "Each has just these: name, text"),
        ({"name": Variant("s", "a"), "text": Variant("ay", b"bytes")}, "attachments.text must be a string"),
        ({"name": Variant("s", "a/b"), "text": Variant("s", "x")}, "cannot be the name"),
    ],
)
async def test_what_is_none_is_refused(paths: Paths, wrong: dict[str, Variant], words: str) -> None:
    async with serving(paths, []) as (daemon, address), connect(address) as client:
        with pytest.raises(LightagentError) as caught:
            await prompt(client, wrong)
        assert words in f"{caught.value} {caught.value.suggestion}"
        assert daemon.history.queries.select(Filter(topic="agent.prompt"), limit=10) == []


def test_every_method_that_takes_them_knows_their_members() -> None:
    taking = [method for method in methods().values() if "attachments" in method.optional]
    assert {method.name for method in taking} == {"Prompt"}
    assert all(method.members == {"attachments": {"name": "s", "text": "s"}} for method in taking)
