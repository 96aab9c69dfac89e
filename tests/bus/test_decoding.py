"""Bodies of D-Bus messages: what dbus-next packs comes back plain, and decoding ends at its limit."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from dbus_next._private.marshaller import Marshaller
from dbus_next.signature import Variant

from lightagentd.bus.decoding import STEP_VALUES, decode, decoding, signatures
from lightagentd.errors import MalformedMessage, MessageTooLarge
from lightagentd.limits import MAX_MESSAGE_BYTES

LIMIT = 100_000
_marshaller: Any = Marshaller  # the library has no annotations
NESTED: dict[str, Variant] = {
    "a": Variant("v", Variant("ay", b"\x00\xff")),
    "b": Variant("(sx)", ["ü", -1]),
    "": Variant("av", [Variant("d", 1.5), Variant("b", True), Variant("g", "a{sv}")]),
}


def packed(signature: str, *values: Any) -> bytes:
    return bytes(_marshaller(signature, list(values)).marshall())


def array(item: bytes, size_bytes: int) -> bytes:
    data = item * (size_bytes // len(item))
    return struct.pack("<I", len(data)) + data


def steps_of(data: bytes, signature: str, limit: int = LIMIT) -> tuple[int, Any]:
    """How often the decoder gave way, and what it gave: values, or the error."""
    found, steps = decoding(data, "<", signature, limit), 0
    while True:
        try:
            next(found)
            steps += 1
        except StopIteration as end:
            return steps, end.value
        except (MessageTooLarge, MalformedMessage) as err:
            return steps, err


@pytest.mark.parametrize(
    ("signature", "values", "plain"),
    [
        ("", [], []),
        ("ybnqiuxtd", [255, True, -2, 3, -4, 5, -6, 7, 0.5], [255, True, -2, 3, -4, 5, -6, 7, 0.5]),
        ("sogh", ["ü", "/a", "a{sv}", 1], ["ü", "/a", "a{sv}", 1]),
        ("yas", [1, ["x", "", "y"]], [1, ["x", "", "y"]]),
        (
            "ayabaiat",
            [b"\0x", [True, False], [-1, 2], [1 << 63]],
            [b"\0x", [True, False], [-1, 2], [1 << 63]],
        ),
        ("y(y(st)ax)", [1, [2, ["s", 3], [4]]], [1, [2, ["s", 3], [4]]]),
        ("a{us}a{sas}", [{1: "a", 2: ""}, {"k": ["v"]}], [{1: "a", 2: ""}, {"k": ["v"]}]),
        ("a{sv}", [NESTED], [{"a": b"\x00\xff", "b": ["ü", -1], "": [1.5, True, "a{sv}"]}]),
        ("ya(ss)yaax", [1, [], 2, [[], [1]]], [1, [], 2, [[], [1]]]),
    ],
)
async def test_what_dbus_next_packs_comes_back_plain(
    signature: str, values: list[Any], plain: list[Any]
) -> None:
    assert await decode(packed(signature, *values), "<", signature, LIMIT) == plain


async def test_the_other_byte_order_is_read_too() -> None:
    data = struct.pack(">I2s2xI4xqI3sx", 1, b"\x01x", 8, -2, 2, b"ab")
    assert await decode(struct.pack(">IIq", 8, 0, -2), ">", "ax", LIMIT) == [[-2]]
    assert await decode(data[:4], ">", "u", LIMIT) == [1]


@pytest.mark.parametrize("size_bytes", [31 << 20])
@pytest.mark.parametrize(
    ("signature", "item"),
    [
        ("ag", b"\0\0"),
        ("ab", b"\0\0\0\0"),
        ("an", b"\0\0"),
        ("aay", b"\0\0\0\0"),
        ("av", b"\x01y\0\0"),
        ("a(y)", b"\0\0\0\0\0\0\0\0"),
        ("as", b"\0\0\0\0\0\0\0\0"),
    ],
)
def test_a_body_of_many_values_is_given_up_after_so_many(
    signature: str, item: bytes, size_bytes: int
) -> None:
    data = array(item, size_bytes)
    if signature == "a(y)":
        data = data[:4] + b"\0\0\0\0" + data[4:]
    steps, err = steps_of(data, signature)
    assert isinstance(err, MessageTooLarge)
    assert "100000 values" in err.message
    assert steps <= LIMIT // STEP_VALUES


def test_a_dictionary_of_500000_entries_is_given_up() -> None:
    entries = b"".join(
        struct.pack("<I8s2sxxI", 7, f"{number:07}\0".encode(), b"\x01u", number) + b"\0\0\0\0"
        for number in range(500_000)
    )
    steps, err = steps_of(struct.pack("<II", len(entries), 0) + entries, "a{sv}")
    assert isinstance(err, MessageTooLarge)
    assert steps <= LIMIT // STEP_VALUES


def test_the_event_loop_gets_its_turn_after_each_step() -> None:
    for signature, value in (("as", ["x"] * 50_000), ("a{us}", dict.fromkeys(range(25_000), "x"))):
        steps, [found] = steps_of(packed(signature, value), signature)
        assert steps >= 50_000 // STEP_VALUES - 1
        assert found == value


def test_a_long_string_and_long_bytes_cost_one_value_each() -> None:
    text = "x" * MAX_MESSAGE_BYTES
    for known in ("s", "ay"):  # a signature that was never seen costs something too
        steps_of(bytes(8), known)
    assert steps_of(struct.pack("<I", len(text)) + text.encode() + b"\0", "s", limit=1) == (0, [text])
    assert steps_of(array(b"x", MAX_MESSAGE_BYTES), "ay", limit=1)[1] == [text.encode()]


def test_variants_in_variants_are_decoded_as_deep_as_the_specification_lets_them_be() -> None:
    assert steps_of(b"\x01v\0" * 60 + b"\x01y\0\x07", "v")[1] == [7]
    assert isinstance(steps_of(b"\x01v\0" * 64 + b"\x01y\0\x07", "v")[1], MalformedMessage)


def test_signatures_that_were_never_seen_cost_their_length() -> None:
    signatures._cache.clear()
    kinds = [f"({number:020b})".replace("0", "y").replace("1", "n") for number in range(100)]
    items = [Variant(kind, [0] * 20) for kind in kinds]
    data = packed("av", items)
    known = 1 + 100 * (1 + 1 + 20)
    assert not isinstance(steps_of(data, "av", limit=known + 2)[1], MessageTooLarge)  # they are known now
    signatures._cache.clear()
    assert isinstance(steps_of(data, "av", limit=known + 2)[1], MessageTooLarge)


@pytest.mark.parametrize(
    ("signature", "data"),
    [
        ("s", struct.pack("<I", 9) + b"short\0"),
        ("u", b"\0"),
        ("y", b""),
        ("as", struct.pack("<I", 99)),
        ("au", struct.pack("<II", 3, 0)),
        ("as", struct.pack("<II2s", 5, 1, b"x\0")),
        ("s", struct.pack("<I", 1) + b"\xff\0"),
        ("v", b"\x02yy\0\0\0"),
        ("v", b"\x01?\0\0"),
        ("v", b"\0\0"),
        ("u(", b"\0\0\0\0"),
    ],
)
async def test_a_body_that_does_not_fit_its_signature_is_malformed(signature: str, data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="does not fit the signature"):
        await decode(data, "<", signature, LIMIT)
