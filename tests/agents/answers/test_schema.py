"""What is taken as a schema, and which answers fit one."""

from __future__ import annotations

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from lightagentd.agents.answers.schema import checked_schema, fitting
from lightagentd.errors import AnswerMisfit, SchemaInvalid

DISK = {
    "type": "object",
    "properties": {"mount": {"type": "string"}, "used": {"type": "integer", "maximum": 100}},
    "required": ["mount", "used"],
    "additionalProperties": False,
}
SLOW = {"type": "string", "pattern": "^(a+)+$"}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"properties": {"x": schema}}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """It takes two to the power of its levels of time."""
    names = [f"l{number}" for number in range(levels)]
    steps = itertools.pairwise(names)
    defs: dict[str, Any] = {one: {"allOf": [{"$ref": f"#/$defs/{two}"}] * 2} for one, two in steps}
    return {"$ref": "#/$defs/l0", "$defs": {**defs, names[-1]: {"type": "object"}}}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("{", "line 1"),
        ("[]", "not a JSON object"),
        (7, "not a JSON object"),
        ('{"type": "object", "type": "array"}', "twice"),
        ({"type": "objekt"}, "at $.type: 'objekt' is not valid"),
        ({"pattern": "("}, "at $.pattern: '(' is not a 'regex'"),
        ({"minimum": "1"}, "at $.minimum"),
        ({"$schema": "https://example.org/mine"}, "a dialect that is not known"),
        ({"$ref": "#/$defs/missing"}, "'/$defs/missing'"),
        ({"properties": {"a": {"$ref": "#/$defs/missing"}}}, "'/$defs/missing'"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"items": {"$ref": "file:///etc/passwd"}}, "'file:///etc/passwd', and nothing is fetched"),
        (nested(40), "nested too deeply"),
        (nested(400), "nested too deeply"),
        ({"$schema": 7}, "a dialect that is not known"),
        ({"$schema": ["x"]}, "a dialect that is not known"),
        ({"$ref": "#/x", "x": 5}, "the check of it failed"),
        ({"default": {1, 2}}, "JSON has no value for"),
        ({"minimum": float("nan")}, "JSON has no value for"),
        (json.dumps(nested(40)), "nested too deeply"),
        ({"description": "x" * (10 << 20)}, "more than 65536 bytes"),
        ("x" * (10 << 20), "more than 65536 bytes"),
        (doubling(40), "more than 3 s of processor time"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_is_no_schema_is_refused_with_the_reason(given: Any, why: str) -> None:
    with pytest.raises(SchemaInvalid) as failure:
        await checked_schema(given)
    assert why in failure.value.message
    assert len(failure.value.message) < 500


async def test_no_reference_is_fetched() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "object"}')

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/schema.json"
        try:
            with pytest.raises(SchemaInvalid, match="nothing is fetched"):
                await checked_schema({"$ref": url})
            # Past the look at the references: what "$id" makes of a local one leads nowhere either.
            based = {"$defs": {"x": {"$id": url, "$ref": "#/nothing"}}, "$ref": "#/$defs/x"}
            with pytest.raises(SchemaInvalid, match="does not have"):
                await checked_schema(based)
        finally:
            server.shutdown()
            thread.join()
    assert asked == []


@pytest.mark.parametrize(
    ("text", "value", "why"),
    [
        ('{"mount": "/", "used": 42}', {"mount": "/", "used": 42}, ""),
        ('```json\n{"mount": "/", "used": 42}\n```', {"mount": "/", "used": 42}, ""),
        ('Here it is: {"mount": "/", "used": 42}', None, "not one JSON value"),
        ('{"mount": "/", "used": 142}', None, "at $.used: 142 is greater than the maximum of 100"),
        ('{"mount": "/"}', None, "'used' is a required property"),
        ('{"mount": "/", "used": 1, "used": 2}', None, "twice"),
        ('{"mount": "/", "used": NaN}', None, "NaN"),
        ("[" * 100 + "]" * 100, None, "too deeply"),
        (json.dumps("x" * (2 << 20)), None, "more than 1048576 bytes"),
        ("", None, "not one JSON value"),
        ("```json\n" + " " * 1_000_000 + "x", None, "not one JSON value"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_an_answer_fits_or_is_told_why_not(text: str, value: Any, why: str) -> None:
    found, misfits = await fitting(DISK, text)
    if why:
        assert why in " ".join(misfits)
    else:
        assert (found, misfits) == (value, [])


async def test_a_number_at_which_the_library_fails_is_a_misfit() -> None:
    schema = await checked_schema({"multipleOf": 0.5})
    assert await fitting(schema, "1" + "0" * 400) == (10**400, ["the check of it failed (OverflowError)"])


async def test_a_pattern_that_would_never_end_ends() -> None:
    schema = await checked_schema(SLOW)
    assert await fitting(schema, '"aaa"') == ("aaa", [])
    with pytest.raises(AnswerMisfit, match="more than 3 s of processor time"):
        await fitting(schema, json.dumps("a" * 60 + "!"))
