"""Asks a person what a server wants to know (an elicitation), one question for each value.

A server of an older version waits in its call for the answers. A newer one has ended the call, which is made
again with the answers. Only forms of plain values are asked; all else is declined.
"""

from __future__ import annotations

from typing import Any

from lightagentd.text.mcp import ELICIT
from lightagentd.tool import NeedsInput
from lightagentd.toolkit.mcp.results import clean

DECLINE = "decline"
_DECLINED: dict[str, Any] = {"action": "decline"}
_YES = {"yes": True, "no": False}
_PLAIN = ("string", "number", "integer", "boolean")
_MOST_VALUES = 8
"""So many questions one call may ask."""
_ASKED_CHARS, _CHOICE_CHARS, _MOST_CHOICES = 2000, 200, 19


def answers(name: str, requests: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The results of all requests of a server, by their keys. `state` has the answers until now.

    Raises NeedsInput for the first value that nobody was asked for yet; its state has the key `at`.
    """
    found: dict[str, Any] = state.setdefault("answers", {})
    for key, request in requests.items():
        form = _form(request)
        if form is None:
            method = request.get("method") if isinstance(request, dict) else None
            found[key] = {"roots": []} if method == "roots/list" else dict(_DECLINED)
            continue
        if key not in found and not form:
            raise NeedsInput(_said(name, request), ["accept", DECLINE], {**state, "at": [key, ""]})
        result = found.setdefault(key, {"action": "accept", "content": {}})
        for value, schema in form.items():
            if result["action"] == "accept" and value not in result["content"]:
                raise NeedsInput(*_question(name, request, value, schema), {**state, "at": [key, value]})
    return found


def take(requests: dict[str, Any], state: dict[str, Any], answer: str) -> None:
    """Put the answer of a person into the state, where the question was."""
    key, value = state.pop("at")
    result = state["answers"].setdefault(key, {"action": "accept", "content": {}})
    if answer.strip().lower() == DECLINE:
        state["answers"][key] = dict(_DECLINED)
    elif value:
        result["content"][value] = _typed((_form(requests[key]) or {}).get(value, {}), answer)


def _form(request: Any) -> dict[str, Any] | None:
    """The values that a request asks for; None for what is no form of plain values, or a long one.

    What a form does not require is left out where it is not plain, or where there is too much.
    """
    params = request.get("params") if isinstance(request, dict) else None
    if (
        not isinstance(params, dict)
        or request.get("method") != ELICIT
        or params.get("mode", "form") != "form"
    ):
        return None
    schema = params.get("requestedSchema", {})
    properties = schema.get("properties", {}) if isinstance(schema, dict) else None
    required = schema.get("required", []) if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not isinstance(required, list):
        return None
    if not all(isinstance(name, str) for name in required):
        return None
    plain = {
        name: one for name, one in properties.items() if isinstance(one, dict) and one.get("type") in _PLAIN
    }
    if len(plain) > _MOST_VALUES or (properties and not plain):
        plain = {name: one for name, one in plain.items() if name in required}
    whole = all(name in plain for name in required) and len(plain) <= _MOST_VALUES
    return plain if whole and (plain or not properties) else None


def _question(
    name: str, request: dict[str, Any], value: str, schema: dict[str, Any]
) -> tuple[str, list[str]]:
    about = clean(str(schema.get("description") or schema.get("title") or ""))[:500]
    question = f"{_said(name, request)}\n\n{clean(value)[:100]}{f': {about}' if about else ''}"
    choices = [*_YES] if schema["type"] == "boolean" else _choices(schema)
    if choices:
        return question, [*choices, DECLINE]
    return f"{question}\n(Answer {DECLINE} to tell it nothing.)", []


def _choices(schema: dict[str, Any]) -> list[str]:
    values, said = schema.get("enum"), schema.get("oneOf")
    if not values and isinstance(said, list):
        values = [one.get("const") for one in said if isinstance(one, dict)]
    if not isinstance(values, list) or len(values) > _MOST_CHOICES:
        return []
    fit = all(
        isinstance(one, str) and one.isprintable() and one.strip() == one[:_CHOICE_CHARS] for one in values
    )
    return list(dict.fromkeys(one for one in values if one)) if fit else []


def _said(name: str, request: dict[str, Any]) -> str:
    return f"The MCP server {name} asks: {clean(str(request['params'].get('message', '')))[:_ASKED_CHARS]}"


def _typed(schema: dict[str, Any], answer: str) -> Any:
    """The answer as the type that is wanted; as text where it is not of that type: the server judges."""
    kind = schema.get("type")
    try:
        if kind in ("integer", "number"):
            return int(answer) if kind == "integer" else float(answer)
    except ValueError:
        return answer
    return _YES.get(answer.strip().lower(), answer) if kind == "boolean" else answer
