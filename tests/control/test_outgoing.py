"""The last look at answers and errors: no secret leaves, on either plane, but in questions about a call."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightagentd.control.outgoing import cleaned, cleaned_error, varlink_cleaner
from lightagentd.errors import ConfigError
from lightagentd.redaction import Redactor

KNOWN = "correct-horse-battery"
REDACTOR = Redactor([KNOWN])
MARK = "[removed: credential]"


@dataclass(frozen=True)
class _Inner:
    text: str
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Outer:
    name: str
    inner: _Inner
    many: list[_Inner]
    count: int = 1


def test_types_of_the_api_stay_what_they_are() -> None:
    value = _Outer(KNOWN, _Inner("a", {"password": "hunter2"}), [_Inner(KNOWN), _Inner("b")])
    expected = _Outer(MARK, _Inner("a", {"password": "[removed: password]"}), [_Inner(MARK), _Inner("b")])
    assert cleaned(REDACTOR, "org.lightagent1.Agents", value) == expected
    assert cleaned(REDACTOR, "org.lightagent1.Agents", [value, KNOWN]) == [expected, MARK]


def test_who_decides_on_a_call_sees_all_of_it() -> None:
    assert cleaned(REDACTOR, "org.lightagent1.Approvals", KNOWN) == KNOWN


def test_an_error_says_no_secret() -> None:
    err = cleaned_error(REDACTOR, ConfigError(f"bad {KNOWN}", suggestion=f"remove {KNOWN}", field=KNOWN))
    assert KNOWN not in str([err.message, err.suggestion, err.field])


def test_a_varlink_reply_and_an_error_of_any_interface_are_cleaned() -> None:
    clean = varlink_cleaner(REDACTOR)
    reply = {"parameters": {"text": KNOWN}}
    assert clean("org.lightagent1.Agents.Get", reply) == {"parameters": {"text": MARK}}
    assert clean("org.lightagent1.Approvals.Get", reply) == reply
    refused = {"error": "org.lightagent1.NotFound", "parameters": {"message": KNOWN}}
    assert clean("org.lightagent1.Approvals.Get", refused)["parameters"] == {"message": MARK}
    assert clean("x", {}) == {}
    asks_for_more = {"error": "org.varlink.service.ExpectedMore"}
    assert clean("org.lightagent1.Events.Subscribe", asks_for_more) == asks_for_more
