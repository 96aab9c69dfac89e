"""The JSON of one event from an endpoint."""

from __future__ import annotations

import json

import pytest

from lightagentd.llm.dialects.dialect import from_json


@pytest.mark.parametrize(
    "text", ['{"a": [1, null]}', ' {"a": 1}\n', "7", '"x"', "", " ", "{", '{"a": 1} x', "[DONE]", "nope"]
)
def test_it_is_what_json_makes_of_it(text: str) -> None:
    try:
        wanted = json.loads(text)
    except ValueError:
        for given in (text, text.encode()):
            with pytest.raises(json.JSONDecodeError):
                from_json(given)
    else:
        assert from_json(text) == from_json(text.encode()) == wanted
