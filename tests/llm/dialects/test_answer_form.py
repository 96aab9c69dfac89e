"""The form of an answer and the temperature in each dialect, and that both go when the endpoint refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from lightagentd.llm.dialects.chat_completions import ChatCompletions
from lightagentd.llm.dialects.dialect import Dialect
from lightagentd.llm.dialects.messages import Messages
from lightagentd.llm.dialects.responses import Responses
from lightagentd.llm.protocol import Function, Message, ModelSettings, Request
from lightagentd.llm.text_calls import in_words

SCHEMA = {"type": "object", "properties": {"used": {"type": "integer"}}}
LOOK = Function(name="disk_usage", description="Look.", parameters={"type": "object"})
OPENAI = "https://api.openai.com/v1"
FORMS: dict[Callable[[ModelSettings], Dialect], tuple[str, Any]] = {
    ChatCompletions: (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": False}},
    ),
    Responses: (
        "text",
        {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": False}},
    ),
    Messages: ("output_config", {"format": {"type": "json_schema", "schema": SCHEMA}}),
}
EACH = pytest.mark.parametrize("make", FORMS, ids=lambda make: make.__name__)


def settings(base_url: str = OPENAI) -> ModelSettings:
    return ModelSettings(provider="p", model="m", base_url=base_url, extra_body={"temperature": 0.5})


def asked(**more: Any) -> Request:
    return Request(system="s", messages=(Message(role="user", content="go"),), functions=(LOOK,), **more)


def body(dialect: Dialect, request: Request) -> dict[str, Any]:
    return dict(json.loads(dialect.body(request)))


@EACH
def test_each_has_its_form_and_drops_what_is_refused(make: Callable[[ModelSettings], Dialect]) -> None:
    field, form = FORMS[make]
    dialect = make(settings())
    assert field not in body(dialect, asked())
    sent = body(dialect, asked(schema=SCHEMA))
    assert (sent[field], sent["temperature"]) == (form, 0.5)
    assert not dialect.concedes("temperature: Input should be less than or equal to 1")
    assert dialect.concedes("Unsupported value: 'temperature' does not support 0.5 with this model")
    assert not dialect.concedes("Unsupported value: 'temperature' does not support 0.5 with this model")
    sent = body(dialect, asked(schema=SCHEMA))
    assert (sent[field], "temperature" in sent) == (form, False)
    assert dialect.concedes(f"{field}.format: structured outputs are not supported: json_schema")
    assert field not in body(dialect, asked(schema=SCHEMA))


def test_a_server_that_would_let_pass_no_call_is_asked_at_the_second_try() -> None:
    dialect = ChatCompletions(settings("http://127.0.0.1:8000/v1"))
    assert "response_format" not in body(dialect, asked(schema=SCHEMA))
    assert "response_format" in body(dialect, asked(schema=SCHEMA, must_answer=True))
    without = Request(system="s", messages=asked().messages, schema=SCHEMA)
    assert "response_format" in body(dialect, without)


def test_a_model_with_functions_in_words_is_free_to_call_them() -> None:
    dialect = ChatCompletions(settings())
    assert "response_format" not in body(dialect, in_words(asked(schema=SCHEMA)))
    assert "response_format" in body(dialect, in_words(asked(schema=SCHEMA, must_answer=True)))
