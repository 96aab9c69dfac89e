"""Tools that a client brings along and runs itself, where `[gateway] client_tools` allows them.

The agent works with its own tools as always; its answer is then JSON that fits a schema: a text, calls of the
client's tools, or both. The client gets these as `tool_calls`, runs them, and sends their results with its
next request, where they are text from outside. So no tool of a client's runs here, and the daemon knows of
none: a description that lies can only make an answer that is wrong.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any

from lightagentd.errors import InvalidArgument
from lightagentd.quoted import quoted

MOST = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOW = (
    "The client runs these functions itself. When you are done with your own tools, answer with `calls`: "
    "those that the client is to run now, each with name and arguments. It sends you their results. Where "
    "none is needed, `calls` is empty and `text` is your answer."
)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The tools of one request."""

    functions: list[dict[str, Any]]
    needed: bool
    """Whether one must be called."""

    @staticmethod
    def of(given: Any, choice: Any) -> Tools:
        """From `tools` or `functions`, and `tool_choice`. Raises InvalidArgument."""
        if not isinstance(given, list) or len(given) > MOST:
            raise InvalidArgument(f"tools must be a list of at most {MOST} functions.", field="tools")
        functions: list[dict[str, Any]] = []
        for position, one in enumerate(given):
            function = one.get("function", one) if isinstance(one, dict) else {}
            if not isinstance(function, dict) or not _NAME.fullmatch(str(function.get("name"))):
                raise InvalidArgument(f"tools.[{position}] is no function with a name.", field="tools")
            if isinstance(one, dict) and one.get("type", "function") != "function":
                raise InvalidArgument(f"tools.[{position}] is of a type that is not taken.", field="tools")
            functions.append(function)
        if isinstance(choice, dict):
            name = choice.get("function", choice).get("name")
            functions = [one for one in functions if one["name"] == name]
            if not functions:
                raise InvalidArgument("tool_choice names none of the tools.", field="tool_choice")
        return Tools(functions=functions, needed=choice == "required" or isinstance(choice, dict))

    @property
    def schema(self) -> dict[str, Any]:
        """What the answer must fit."""
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "enum": [one["name"]]},
                    "arguments": one.get("parameters") or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for one in self.functions
        ]
        listed: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}}
        if self.needed:
            listed["minItems"] = 1
        return {
            "type": "object",
            "properties": {"text": {"type": "string"}, "calls": listed},
            "required": ["text", "calls"],
            "additionalProperties": False,
        }

    def asked(self, text: str) -> str:
        """The prompt, with what the model must know of the tools."""
        names = ("name", "description", "parameters")
        told = "\n".join(
            json.dumps({name: one.get(name) for name in names}, ensure_ascii=False) for one in self.functions
        )
        return f"{text}\n\n{quoted('functions of the client', told)}\n\n{_HOW}"

    def calls(self, data: Any) -> list[dict[str, Any]]:
        """The calls in an answer: `{id, name, arguments}`, the arguments as JSON."""
        return [
            {
                "id": f"call_{secrets.token_hex(12)}",
                "name": one["name"],
                "arguments": json.dumps(one["arguments"], ensure_ascii=False),
            }
            for one in data["calls"]
        ]

    def text(self, data: Any) -> str:
        """The text in an answer."""
        return str(data["text"])
