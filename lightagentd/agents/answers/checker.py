"""The program that checks a JSON Schema, and a value against it; `schema` starts it for each check.

It is a process of its own because a schema is a program of the caller's: a pattern such as `(a+)+$` or a
chain of `allOf` can compute for years, and nothing can end that in a thread. The process has a few seconds of
processor time and a bound of memory, follows no reference out of the schema, and loads nothing.

Standard input has `{"schema": ..., "value": ...}`; without `value` only the schema is checked. Standard
output gets `{"invalid": why}` or `{"misfits": [why, ...]}`. The dialects are those of the library
(https://json-schema.org/specification), 2020-12 where the schema names none; `format` is not asserted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from lightagentd.host import rlimit

CPU_S = 3
_MEMORY_BYTES = 1 << 30
_MOST_MISFITS = 5
_WHY_CHARS = 300
_PROBES: tuple[Any, ...] = (None, True, 0, "", [], {})
"""A schema that leads nowhere, such as one that refers to itself, fails with one of these at once."""


def invalid(schema: dict[str, Any]) -> str:
    """Why a schema cannot be used, as the rest of a sentence; empty if it can."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable

    nothing: Any = None
    named = schema.get("$schema")
    if named is not None and not (isinstance(named, str) and validator_for(schema, default=nothing)):
        return f"it names a dialect that is not known: {str(named)[:100]!r}"
    try:
        validator_for(schema, default=_default()).check_schema(schema)
        for probe in _PROBES:
            any(True for _ in _validator(schema).iter_errors(probe))
        if not any("$id" in one for one in list(_objects(schema))[1:]):  # these change what "#" means
            _look_up_all(schema)
    except SchemaError as err:
        return f"{_place(err.json_path)}{_short(err.message)}"
    except Unresolvable as err:
        return f"it refers to {str(err.ref)[:100]!r}, which it does not have"
    except RecursionError:
        return "it refers to itself without end, or is nested too deeply"
    return ""


def misfits(schema: dict[str, Any], value: Any) -> list[str]:
    """Where a value does not fit a valid schema, the first few places."""
    found = itertools.islice(_validator(schema).iter_errors(value), _MOST_MISFITS)
    return [f"{_place(one.json_path)}{_short(one.message)}" for one in found]


def _default() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator


def _validator(schema: dict[str, Any]) -> Any:
    """The validator; its registry is empty, and retrieves nothing."""
    from jsonschema.validators import validator_for
    from referencing import Registry

    return validator_for(schema, default=_default())(schema, registry=Registry())


def _look_up_all(schema: dict[str, Any]) -> None:
    """Raises Unresolvable for a reference to what is not there."""
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012, specification_with

    named = schema.get("$schema")
    specification = specification_with(named) if isinstance(named, str) else DRAFT202012
    resolver = Registry().resolver_with_root(specification.create_resource(schema))
    for one in _objects(schema):
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(one.get(keyword), str):
                resolver.lookup(one[keyword])


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _place(path: str) -> str:
    return "" if path == "$" else f"at {path[:100]}: "


def _short(text: str) -> str:
    return text if len(text) <= _WHY_CHARS else f"{text[:_WHY_CHARS]} …"


def main() -> int:
    """The child."""
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    for limit, value in ((resource.RLIMIT_CPU, CPU_S), (resource.RLIMIT_AS, _MEMORY_BYTES)):
        with contextlib.suppress(OSError, ValueError):  # whoever started it has a limit, too
            rlimit.lower(limit, value)
    asked = json.load(sys.stdin)
    try:
        answer = _answer(asked)
    except MemoryError:
        raise
    except Exception as err:  # noqa: BLE001 - the library fails at some schemas and numbers: the daemon logs it
        sys.stderr.write(f"{type(err).__name__}\n")  # its message may have some of the answer
        traceback.print_tb(err.__traceback__, limit=-2)
        answer = {"invalid": f"the check of it failed ({type(err).__name__})"}
    sys.stdout.write(json.dumps(answer))
    return 0


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    if why := invalid(asked["schema"]):
        return {"invalid": why}
    try:
        return {"misfits": misfits(asked["schema"], asked["value"]) if "value" in asked else []}
    except RecursionError:
        return {"misfits": ["it is nested too deeply"]}


if __name__ == "__main__":
    sys.exit(main())
