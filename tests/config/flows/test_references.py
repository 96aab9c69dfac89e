"""Templates: what a reference is, what it stands for, and what a broken one gets."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.config.flows.references import (
    MISSING,
    Reference,
    as_text,
    dig,
    filled,
    parsed,
    references,
)
from lightagentd.errors import InvalidArgument

VALUES = {
    "inputs": {"host": "web1", "n": 5, "l": [1, "b"]},
    "a": {"output": "x", "json": {"b": [None, {"c": 1}]}},
}


def look_up(reference: Reference) -> Any:
    return dig(VALUES.get(reference.to, MISSING), reference.path)


def test_a_template_is_texts_and_references() -> None:
    found = parsed("a {inputs.host} {{b}} {s-1_x.json.A.0.k_@-?}")
    assert "".join(one if isinstance(one, str) else "·" for one in found) == "a · {b} ·"
    first, second = references("a {inputs.host} {{b}} {s-1_x.json.A.0.k_@-?}")
    assert (first.to, first.path, first.optional) == ("inputs", ("host",), False)
    assert (second.to, second.path, second.optional) == ("s-1_x", ("json", "A", "0", "k_@-"), True)
    assert str(second) == "{s-1_x.json.A.0.k_@-?}"
    assert [str(one) for one in references({"a": ["{b}", ("{c}", 5)], "{d}": {"e": "{f}"}})] == [
        *("{b}", "{c}", "{f}")
    ]


@pytest.mark.parametrize(
    "template",
    [
        *("{", "}", "{}", "{a", "a}", "{0}", "{A}", "{a b}", "{a..b}", "{.a}", "{a.}", "{a??}", "{?}"),
        *("{a!r}",),
        *("{a:>99999999}", "{a[0]}", "{a.b c}", "{a{b}}", "{a.__class__.é}", "{a\n}", "{-a}"),
        *("{" + "a" * 65 + "}",),
        *("{a." + "b" * 129 + "}", "{a" + ".b" * 21 + "}", "{{a}", "{a:{b}}"),
    ],
)
def test_what_is_no_reference_is_a_sentence(template: str) -> None:
    with pytest.raises(ValueError, match=r"(?s)the template is broken: .*a brace is written twice"):
        parsed(template)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{inputs.n}", 5),
        ("{inputs.n} ", "5 "),
        ("{inputs.l}", [1, "b"]),
        ("{inputs.l}{inputs.l.1}", '[1, "b"]b'),
        ("{a.json.b.1.c}", 1),
        ("{a.json.b.0}", None),
        ("{a.json.b.7?}", ""),
        ("[{a.json.x?}]", "[]"),
        ("{b?}", ""),
        ("", ""),
        ("{{}}", "{}"),
        ({"k{x": ["{a.output}", 1, None]}, {"k{x": ["x", 1, None]}),
        (("{a.output}",), ["x"]),
    ],
)
def test_values_stand_in_for_references(template: Any, value: Any) -> None:
    assert filled(template, look_up) == value


def test_what_does_not_exist_is_an_error_without_a_question_mark() -> None:
    with pytest.raises(InvalidArgument, match=r"\{a\.json\.x\} does not exist in this run") as caught:
        filled("{a.json.x}", look_up)
    assert "?" in caught.value.suggestion


def test_a_value_is_never_read_as_a_template() -> None:
    assert filled("{a}{a}", lambda _: "{inputs.host}{{") == "{inputs.host}{{{inputs.host}{{"


def test_a_path_goes_into_objects_and_lists_and_nothing_else() -> None:
    value = {"a": [{"0": "x"}], "": 1, "keys": 2}
    assert dig(value, ()) is value
    assert dig(value, ("a", "0", "0")) == "x"
    assert dig(value, ("keys",)) == 2
    for path in (
        ("b",),
        ("a", "-1"),
        ("a", "1"),
        ("a", "x"),
        ("a", "0", "0", "0"),
        ("values",),
        ("a", "9" * 100),
    ):
        assert dig(value, path) is MISSING
    assert dig(MISSING, ("a",)) is MISSING


def test_other_values_stand_in_texts_as_json() -> None:
    assert [as_text(one) for one in ("é", True, None, 1.5, ["é"])] == ["é", "true", "null", "1.5", '["é"]']
