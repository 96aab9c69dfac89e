"""Reads and checks the table of models, in the JSON shape of https://models.dev/api.json.

`{provider: {name, models: {id: {name, attachment, reasoning, tool_call, knowledge, release_date, status,
modalities: {output}, cost: {input, output, cache_read, cache_write, context_over_200k}, limit: {context,
input, output}}}}}`; prices are in USD for a million tokens. Only these fields are kept. The shape also has an
endpoint's address and the variable of its key, but a table from outside never decides where a key is sent.
Models that do not answer with text are left out. `lactl` imports this module.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lightagentd.errors import InvalidArgument
from lightagentd.text.strict_json import BadJson, decoded

MAX_FILE_BYTES = 32 << 20
"""The largest file that is read from outside; that of models.dev has about 4 MB."""
MAX_TABLE_CHARS = 8 << 20
"""The largest table, when what is not needed is left out."""
_MAX_PROVIDERS = 2000
_MAX_MODELS = 100_000
_MAX_DEPTH = 20
_MAX_TOKENS = 1_000_000_000
_MAX_PRICE = 1_000_000.0
_ID = re.compile(r"[!-~]{1,200}")
_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")
_FLAGS = ("attachment", "reasoning", "tool_call")
_DATES = ("knowledge", "release_date")
_STATES = ("alpha", "beta", "deprecated")
_PRICES = ("input", "output", "cache_read", "cache_write")
LONG_PROMPT = "context_over_200k"
"""The prices of a call whose prompt has more than 200,000 tokens."""
_LIMITS = ("context", "input", "output")


class _Unfit(Exception):
    """Why a model cannot be in a table."""


Table = dict[str, dict[str, Any]]
"""Provider to `{name, models}`."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A table, and the problems of the models left out, as sentences."""

    table: Table
    left_out: list[str] = field(default_factory=list)

    @property
    def models(self) -> int:
        return count(self.table)


def count(table: Table) -> int:
    """The number of models."""
    return sum(len(provider["models"]) for provider in table.values())


def read_table(text: str | bytes, *, strict: bool) -> Reading:
    """The table in a text. A wrong field of a model is an error if `strict`; otherwise the model is left out.

    Raises InvalidArgument for text that is not such a table, or has no model.
    """
    decoded = _decode(text)
    if not isinstance(decoded, dict):
        _refuse("it is not a JSON object")
    if len(decoded) > _MAX_PROVIDERS:
        _refuse(f"it has more than {_MAX_PROVIDERS} providers")
    left_out: list[str] = []
    table: Table = {}
    for provider, value in decoded.items():
        models = value.get("models") if isinstance(value, dict) else None
        if not _ID.fullmatch(provider) or "/" in provider or not isinstance(models, dict):
            left_out.append(f"{_shown(provider)} is not a provider with models")
            continue
        found = dict(_models(provider, models, left_out))
        if found:
            table[provider] = {"name": _text(value.get("name")) or provider, "models": found}
        if count(table) > _MAX_MODELS:
            _refuse(f"it has more than {_MAX_MODELS} models")
    if strict and left_out:
        _refuse(left_out[0])
    if not table:
        _refuse(left_out[0] if left_out else "there is no model in it")
    return Reading(table=table, left_out=left_out)


def table_text(table: Table) -> str:
    """A table as JSON, one model on each line."""
    return "{\n" + ",\n".join(_lines(table)) + "\n}\n"


def _lines(table: Table) -> Iterator[str]:
    for provider, value in table.items():
        models = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(model, ensure_ascii=False)}"
            for name, model in value["models"].items()
        )
        head = f'{{"name": {json.dumps(value["name"], ensure_ascii=False)}, "models": {{'
        yield f" {json.dumps(provider)}: {head}\n{models}\n }}}}"


def _decode(text: str | bytes) -> Any:
    try:
        return decoded(text, depth=_MAX_DEPTH)
    except BadJson as err:
        _refuse(f"it is not JSON in line {err.line}: {err}")


def _models(
    provider: str, models: Mapping[str, Any], left_out: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in models.items():
        try:
            kept = _model(name, value)
        except _Unfit as err:
            left_out.append(f"{_shown(f'{provider}/{name}')}: {err}")
            continue
        if kept is not None:
            yield name, kept


def _model(name: str, value: Any) -> dict[str, Any] | None:
    """The entry of a model; None for one that does not answer with text. Raises _Unfit."""
    if not _ID.fullmatch(name):
        raise _Unfit("that is not the id of a model")
    if not isinstance(value, dict):
        raise _Unfit("it is not an object")
    output = _object(value, "modalities").get("output")
    if isinstance(output, list) and "text" not in output:
        return None
    kept: dict[str, Any] = {"name": _text(value.get("name")) or name}
    for flag in _FLAGS:
        if flag in value:
            if not isinstance(value[flag], bool):
                raise _Unfit(f"{flag} is neither true nor false")
            kept[flag] = value[flag]
    for date in _DATES:
        found = value.get(date)
        if isinstance(found, str) and _DATE.fullmatch(found):
            kept[date] = found
    if value.get("status") in _STATES:
        kept["status"] = value["status"]
    if cost := _cost(_object(value, "cost")):
        kept["cost"] = cost
    if limit := _limit(_object(value, "limit")):
        kept["limit"] = limit
    return kept


def _cost(cost: Mapping[str, Any]) -> dict[str, Any]:
    """The prices; none at all unless those of prompts and answers are both there."""
    kept = _prices(cost)
    longer = _prices(_object(cost, LONG_PROMPT)) if kept else {}
    return kept | ({LONG_PROMPT: longer} if longer else {})


def _prices(cost: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _number(cost[name], f"cost.{name}", _MAX_PRICE) for name in _PRICES if name in cost}
    return found if "input" in found and "output" in found else {}


def _limit(limit: Mapping[str, Any]) -> dict[str, int]:
    """The known limits; 0 means unknown."""
    found = {name: _number(limit[name], f"limit.{name}", _MAX_TOKENS) for name in _LIMITS if name in limit}
    return {name: int(value) for name, value in found.items() if value >= 1}


def _number(value: Any, name: str, most: float) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Unfit(f"{name} is not a number")
    if not math.isfinite(value) or not 0 <= value <= most:
        raise _Unfit(f"{name} is not from 0 to {most:,.0f}")
    return value


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _Unfit(f"{name} is not an object")
    return found


def _text(value: Any) -> str:
    """A text that can be shown on one line; otherwise empty."""
    return value.strip()[:200] if isinstance(value, str) and value.isprintable() else ""


def _shown(name: str) -> str:
    return ascii(name[:100])


def _refuse(why: str) -> NoReturn:
    raise InvalidArgument(
        f"The table of models cannot be used: {why}.",
        field="data",
        suggestion="It must have the shape of https://models.dev/api.json.",
    )
