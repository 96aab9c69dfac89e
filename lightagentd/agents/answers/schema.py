"""The schema that an answer has to fit: what a caller may give, and whether an answer fits.

The JSON is decoded here, with bounds; what computes runs in a process of its own (`checker`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from lightagentd.agents.answers.checker import CPU_S
from lightagentd.errors import AnswerMisfit, SchemaInvalid, ToolError
from lightagentd.host import process
from lightagentd.text.reason import reason
from lightagentd.text.strict_json import BadJson, counting, decoded

_log = logging.getLogger(__name__)

MAX_BYTES = 64 << 10
MAX_DEPTH = 32
"""How deep a schema may be nested."""
MAX_ANSWER_BYTES = 1 << 20
_ANSWER_DEPTH = 64
_LONGEST_S = 60.0
"""For a machine that is so busy that a process gets no processor time; `CPU_S` is the limit otherwise."""
_AT_ONCE = 2
"""How many checks run at once: each may take a processor for itself."""
_room: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_FENCE = "```"
_HINT = "See https://json-schema.org; the schema is one JSON object of at most 64 KiB."


async def checked_schema(given: Any) -> dict[str, Any]:
    """The schema as a caller gave it, an object or its text. Raises SchemaInvalid."""
    schema = _schema(given)
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise _invalid(
                f"it refers to {reference[:100]!r}, and nothing is fetched",
                "Put what it refers to into $defs, and refer to it as #/$defs/NAME.",
            )
    found = await _check({"schema": schema})
    if found is None:
        raise _invalid(f"to check it takes more than {CPU_S} s of processor time, or too much memory")
    if why := found.get("invalid"):
        raise _invalid(why)
    return schema


async def fitting(schema: dict[str, Any], text: str) -> tuple[Any, list[str]]:
    """The value of an answer, and why it does not fit, which is empty if it does.

    Raises AnswerMisfit for an answer that cannot be checked.
    """
    try:
        data = json_of(text).encode()
        if len(data) > MAX_ANSWER_BYTES:
            raise BadJson(f"it has more than {MAX_ANSWER_BYTES} bytes")
        for _ in counting(data):
            pass
        value = decoded(data, depth=_ANSWER_DEPTH, surrogates=False)
    except (BadJson, UnicodeEncodeError) as err:
        return None, [f"it is not one JSON value: {err}"]
    found = await _check({"schema": schema, "value": value})
    if found is None:
        raise AnswerMisfit(
            f"To check the answer against the schema takes more than {CPU_S} s of processor time, or"
            " too much memory.",
            suggestion="Simplify the patterns and the allOf of the schema.",
        )
    return value, [found["invalid"]] if "invalid" in found else list(found["misfits"])


def json_of(text: str) -> str:
    """The JSON in an answer: all of it, or all that is in its one code fence."""
    stripped = text.strip()
    head, line, rest = stripped.partition("\n")
    if line and rest.endswith(_FENCE) and head.rstrip() in (_FENCE, f"{_FENCE}json"):
        return rest.removesuffix(_FENCE).strip()
    return stripped


def _schema(given: Any) -> dict[str, Any]:
    """Decoded, with bounds. Raises SchemaInvalid."""
    try:
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as err:
        raise _invalid(f"it holds what JSON has no value for: {reason(err)}") from None
    except RecursionError:
        raise _invalid("it is nested too deeply") from None
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise _invalid(f"it has more than {MAX_BYTES} bytes")
    try:
        schema = decoded(text, depth=MAX_DEPTH, surrogates=False)
    except BadJson as err:
        raise _invalid(f"line {err.line}: {err}") from None
    if not isinstance(schema, dict):
        raise _invalid("it is not a JSON object")
    return schema


def _references(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield from (one[name] for name in _REFERENCES if isinstance(one.get(name), str))
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


async def _check(asked: dict[str, Any]) -> dict[str, Any] | None:
    """What the checker says; None if it came to no end within its limits. Raises ToolError."""
    argv = [sys.executable, "-m", "lightagentd.agents.answers.checker"]
    stdin = json.dumps(asked).encode()
    async with _room.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
        done = await process.run(argv, timeout_s=_LONGEST_S, cwd=Path("/"), stdin=stdin)
    if done.timed_out or done.signal:
        return None
    if done.status != 0 and "MemoryError" in done.stderr.text():
        return None
    if done.stderr.text():
        _log.warning("the check of a schema: %s", done.stderr.text()[-2000:])
    if done.status != 0:
        raise ToolError("The check of a schema cannot be run.", suggestion="The log of the daemon says why.")
    found: dict[str, Any] = json.loads(done.stdout.text())
    return found


def _invalid(why: str, suggestion: str = _HINT) -> SchemaInvalid:
    return SchemaInvalid(f"The schema cannot be used: {why}.", suggestion=suggestion, field="schema")
