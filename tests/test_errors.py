"""The table of errors is complete and frozen: the tree, the codes and the names on each wire."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from lightagentd import errors
from lightagentd.errors import (
    ErrorRow,
    InvalidArgument,
    LightagentError,
    MethodNotFound,
    NotFound,
    from_varlink,
    table,
)

ROWS = table()
FROZEN = Path(__file__).parent / "data" / "errors.txt"
CODES = [row.code for row in ROWS]


def frozen() -> dict[str, tuple[str, int, int]]:
    """Class → code, exit status and depth, as the stored file draws the tree."""
    found = {}
    for line in FROZEN.read_text().splitlines():
        drawn = re.fullmatch(r"((?:[│ ]   )*(?:[├└]── )?)(\w+): (\w+), (\d+)", line)
        assert drawn, line
        found[drawn[2]] = (drawn[3], int(drawn[4]), len(drawn[1]) // 4)
    return found


def declared() -> dict[str, tuple[str, int, int]]:
    """The same of the classes."""
    return {
        row.cls.__name__: (row.code, row.exit_status, row.cls.__mro__.index(LightagentError)) for row in ROWS
    }


def test_each_class_keeps_its_code_its_exit_status_and_its_place() -> None:
    assert list(frozen().items()) == list(declared().items())


def test_the_docstring_names_each_family_with_its_statuses() -> None:
    drawn = re.findall(r"^    (?:[├└]── )?(\w+): (\d+), (\d+)$", errors.__doc__ or "", re.MULTILINE)
    families = [row for row in ROWS if row.cls.__mro__.index(LightagentError) < 2]
    assert drawn == [(row.cls.__name__, str(row.exit_status), str(row.http_status)) for row in families]


def test_the_table_has_every_class_of_the_module() -> None:
    classes = {
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }
    assert classes == {row.cls for row in ROWS}
    assert len(ROWS) == len(classes)


def test_the_tree_is_drawn_below_the_right_parent() -> None:
    parents: dict[int, str] = {}
    for name, (_, _, depth) in frozen().items():
        parents[depth] = name
        if depth:
            assert getattr(errors, name).__bases__ == (getattr(errors, parents[depth - 1]),)


@pytest.mark.parametrize("name", ["code", "varlink", "dbus"])
def test_each_class_has_a_name_of_its_own_on_each_wire(name: str) -> None:
    names = [getattr(row, name) for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", ROWS, ids=CODES)
def test_a_row_is_well_formed(row: ErrorRow) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", row.code)
    assert re.fullmatch(r"org\.lightagent1\.[A-Z][A-Za-z]+", row.varlink)
    assert re.fullmatch(r"org\.lightagent1\.Error\.[A-Z][A-Za-z]+", row.dbus)
    assert 400 <= row.http_status < 600
    assert 1 <= row.exit_status <= 130
    assert row.cls.__doc__


@pytest.mark.parametrize("row", ROWS, ids=CODES)
def test_an_error_comes_back_from_varlink_as_it_was(row: ErrorRow) -> None:
    sent = row.cls("The unit x is gone.", suggestion="Look again.", field="unit")
    got = from_varlink(row.varlink, dict(sent.to_dict()))
    assert type(got) is row.cls
    assert got.to_dict() == sent.to_dict()
    assert str(got) == "The unit x is gone."


def test_an_error_without_details_has_none() -> None:
    assert NotFound("Gone.").to_dict() == {"code": "not_found", "message": "Gone."}
    got = from_varlink("org.lightagent1.NotFound", {"message": None, "suggestion": None, "field": None})
    assert got.to_dict() == {"code": "not_found", "message": "org.lightagent1.NotFound"}


def test_a_class_of_another_module_goes_by_the_name_of_its_nearest_one_here() -> None:
    class UnitNotFound(NotFound):
        pass

    assert UnitNotFound.varlink_name() == "org.lightagent1.NotFound"
    assert UnitNotFound not in {row.cls for row in table()}


@pytest.mark.parametrize(
    ("name", "parameters", "cls", "said"),
    [
        ("org.varlink.service.InvalidParameter", {"parameter": "limit"}, InvalidArgument, "'limit'"),
        ("org.varlink.service.MethodNotFound", {"method": "a.b.C"}, MethodNotFound, "'a.b.C'"),
        ("org.varlink.service.InterfaceNotFound", {"interface": "a.b"}, MethodNotFound, "'a.b'"),
        ("org.varlink.service.ExpectedMore", {}, InvalidArgument, "more"),
        ("org.example.Odd", {}, LightagentError, "org.example.Odd"),
        ("", {}, LightagentError, "error"),
    ],
)
def test_errors_that_are_not_ours_have_a_class_too(
    name: str, parameters: dict[str, str], cls: type[LightagentError], said: str
) -> None:
    got = from_varlink(name, parameters)
    assert type(got) is cls
    assert said in got.message
