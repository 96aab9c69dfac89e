"""What goes over a bus is held to what it takes: no NUL, no memory for what peers choose. A real bus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lightagentd import errors
from lightagentd.bus import decoding
from lightagentd.bus.connection import Call, Reply, Variant, connect
from tests.bus.test_connection import INTERFACE, PATH, ask, own
from tests.fake_systemd import private_bus


@pytest.fixture
def address() -> Iterator[str]:
    with private_bus() as found:
        yield found


async def test_nul_in_an_argument_is_an_error_and_not_the_end_of_the_connection(address: str) -> None:
    async with connect(address) as bus:
        for args in (["a\0"], [{"x": Variant("av", [Variant("s", "\0")])}], [{"\0": Variant("s", "")}]):
            with pytest.raises(errors.InvalidArgument, match="NUL"):
                await bus.call(
                    bus.unique_name, PATH, INTERFACE, "Any", "s" if args == ["a\0"] else "a{sv}", args
                )
        await bus.call(bus.unique_name, PATH, "org.freedesktop.DBus.Peer", "Ping")


async def test_signatures_that_peers_choose_do_not_fill_the_memory(address: str) -> None:
    async def take(_: Call) -> Reply:
        return Reply()

    async with connect(address) as server, connect(address) as client:
        server.serve(take)
        await own(server)
        kept: Any = decoding.signatures._cache
        for number in range(kept.LIMIT + 10):
            digits = f"{number:b}".replace("0", "s").replace("1", "u")
            await ask(client, "Take", "v", (Variant(f"({digits})", ["" if c == "s" else 1 for c in digits]),))
        assert len(kept) <= kept.LIMIT


async def test_an_error_holds_its_suggestion_and_no_nul(address: str) -> None:
    async def fail(_: Call) -> Reply:
        raise errors.SkillNotFound("There is no skill 'a\0b'.", suggestion="Run: lactl skills list")

    async with connect(address) as server, connect(address) as client:
        server.serve(fail)
        await own(server)
        with pytest.raises(errors.SkillNotFound) as caught:
            await ask(client, "Any")
    assert caught.value.message == "There is no skill 'a\ufffdb'. Run: lactl skills list"


async def test_what_follows_a_reply_is_sent_after_it(address: str) -> None:
    order: list[str] = []

    async def answer(_: Call) -> Reply:
        return Reply(after=lambda: order.append("after"))

    async with connect(address) as server, connect(address) as client:
        server.serve(answer)
        await own(server)
        await ask(client, "Any")
        assert order == ["after"]
