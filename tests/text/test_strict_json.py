"""What two programs could read in different ways is refused, and said."""

from __future__ import annotations

import pytest

from lightagentd.text.strict_json import BadJson, TooDeep, counting, decoded, is_deeper


def test_what_rfc_8259_leaves_open_is_refused() -> None:
    for text, why in {
        b'{"a": 1, "a": 1}': "the key 'a' stands twice",
        b"[NaN]": "NaN is not a number",
        b"[-Infinity]": "-Infinity is not a number",
        b"[1e999]": "out of range",
        b"\xff": "not UTF-8 at byte 1",
        b'["\\ud800"]': "half of a surrogate pair",
        b"[\n1,": "line 2",
        b"": "it is empty",
        b"9" * 5000: "digits",
    }.items():
        with pytest.raises(BadJson) as raised:
            decoded(text, depth=5, surrogates=False)
        assert why in str(raised.value)
    assert decoded('["\\ud800"]', depth=5) == ["\ud800"]


def test_nesting_is_bounded_to_the_level() -> None:
    assert decoded("[" * 5 + "]" * 5, depth=5) == [[[[[]]]]]
    for text in ("[" * 6 + "]" * 6, '{"a":' * 6 + "1" + "}" * 6, "[" * 100_000):
        with pytest.raises(TooDeep):
            decoded(text, depth=5)
    assert not any(is_deeper(value, 1) for value in (1, [1], {"a": 1}))
    assert is_deeper({"a": [1]}, 1)


def test_a_line_is_named() -> None:
    with pytest.raises(BadJson) as raised:
        decoded('{\n"a": 1,\n}', depth=5)
    assert raised.value.line == 3


def test_what_takes_long_to_decode_is_refused_before() -> None:
    with pytest.raises(BadJson):
        list(counting(b"[" + b"1," * 60_000 + b"1]"))
    list(counting(b'["' + b"1," * 60_000 + b'"]'))
