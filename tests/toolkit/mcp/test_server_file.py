"""The files of MCP servers, the functions that are made of them, and the questions that servers ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import ConfigError
from lightagentd.tool import Effect, NeedsInput, Place
from lightagentd.toolkit.mcp.asking import answers, take
from lightagentd.toolkit.mcp.results import call_result
from lightagentd.toolkit.mcp.server_file import approved_path, read_approved, read_server
from lightagentd.toolkit.mcp.tool import class_of
from lightagentd.toolkit.mcp.undoing import result_of
from lightagentd.worker.calls import describe
from lightagentd.worker.loader import load_tool
from tests.conftest import write

_BAD = [
    ("", "either a command or a url"),
    ('command = ["a"]\nurl = "https://x.example"', "either a command or a url"),
    ('command = ["a", ""]', "command: a word of it is empty"),
    ('command = ["a"]\nheaders = {a = "b"}', "headers go with a url"),
    ('url = "ftp://x.example/"', "not one of http or https"),
    ('url = "https://me@x.example/"', "not one of http or https"),
    ('url = "http://x.example/"\ncredentials = ["A"]', "credentials go to an https url"),
    ('url = "https://x.example"\nenvironment = {A = "b"}', "environment goes with a command"),
    ('url = "https://x.example"\n[tools]\na = "observe"', "cannot be observe"),
    ('command = ["a"]\n[tools]\na = "harmless"', "tools.a:"),
    ('command = ["a"]\ncredentials = ["A=B"]', "credentials.0:"),
    ('command = ["a"]\ncolour = "red"', "colour:"),
    ('command = ["a"\n', "Unclosed array"),
    ("\x00", "line 1"),
]


def test_a_bad_file_is_told_with_its_place(tmp_path: Path) -> None:
    for text, why in _BAD:
        with pytest.raises(ConfigError) as caught:
            read_server(write(tmp_path / "one.toml", text))
        assert why in caught.value.message, (text, caught.value.message)
    with pytest.raises(ConfigError, match="a letter first"):
        read_server(write(tmp_path / "Two.toml", 'command = ["a"]'))


def test_an_approval_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "one.toml", 'command = ["a"]')
    assert read_approved(path) is None
    for text in ("[]", '{"tools": 3}', '{"tools": [{"name": 1}]}', '{"tools": [{"name": "a"}]}', "[" * 200):
        write(approved_path(path), text)
        with pytest.raises(ConfigError, match=r"one\.approved"):
            read_approved(path)


def _tool(name: str, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema or {"type": "object"}, **more}


def _loaded(tmp_path: Path, tools: list[dict[str, Any]], text: str = 'command = ["a"]') -> dict[str, Any]:
    path = write(tmp_path / "mcp.d/one.toml", text)
    write(approved_path(path), json.dumps({"tools": tools}))
    return describe(load_tool(path))


def test_an_approval_that_others_can_write_is_none(tmp_path: Path) -> None:
    assert _loaded(tmp_path, [_tool("a")])["problem"] == ""
    approved_path(tmp_path / "mcp.d/one.toml").chmod(0o666)
    described = describe(load_tool(tmp_path / "mcp.d/one.toml"))
    assert described["problem"] == "one.approved: everybody can write to it; take that away with chmod o-w"


def test_functions_have_names_that_models_take(tmp_path: Path) -> None:
    names = [
        "read",
        "Read",
        "a.b-c",
        "1st",
        "préparé",
        "x" * 200,
        "x" * 201,
        "close",
        "resume",
        "__init__",
        "_",
    ]
    described = _loaded(tmp_path, [_tool(name) for name in names])
    assert described["problem"] == ""
    found = [one["name"] for one in described["actions"]]
    assert len({*found}) == len(names)
    assert {"read", "read_2", "a_b_c", "tool_1st", "close_2", "resume_2", "x" * 60} <= {*found}
    assert all(len(f"one_{name}") <= 64 for name in found)
    assert {one["effect"] for one in described["actions"]} == {"change"}


def test_what_undoes_a_call_takes_values_of_it_and_of_its_result(tmp_path: Path) -> None:
    def schema(*names: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {} for name in names}}

    head = 'command = ["a"]\nundo.add = { tool = "del", arguments = { %s } }'
    tools = [_tool("add", schema("repo", "a-b")), _tool("del", schema("json", "note", "why", "all"))]
    parts = 'json = "{result.ids.1}", note = "{repo}/{a-b}", why = "{a-b}", all = true'
    path = write(tmp_path / "one.toml", head % parts)
    write(approved_path(path), json.dumps({"tools": tools}))
    undoing = class_of(path).undone["add"]  # type: ignore[attr-defined]
    given, result = {"repo": "r\x1b", "a-b": 3}, {"content": [{"text": '{"ids": ["x", 7]}'}]}
    args = {"arg_json": 7, "note": "r\\x1b/3", "why": 3, "all": True}
    assert undoing.told(given, result_of(result)) == {"action": "del", "args": args}
    assert undoing.told(given) == {"action": "del", "args": {**args, "arg_json": "{result.ids.1}"}}
    for wrong in ({"ids": "x"}, {"ids": [1]}, {"ids": [1, {}]}, {"ids": ["", "x" * 501]}):
        assert undoing.told(given, result_of({"structuredContent": wrong})) is None
    assert undoing.told({"repo": "r"}, {"ids": [1, 2]}) is None
    for text, why in (('no = "x"', "del has no argument 'no'"), ('json = "{b}"', "add has no argument 'b'")):
        assert why in _loaded(tmp_path, tools, head % text)["problem"]
    assert "'del' is none of its approved tools" in _loaded(tmp_path, tools[:1], head % "")["problem"]


def test_schemas_are_bounded_and_hold_no_reference(tmp_path: Path) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"x": deep}}
    schema = {
        "type": "object",
        "properties": {"deep": deep, "self": {"$ref": "#"}, "plain": {"type": "integer"}, "json": {}},
        "required": ["plain", "json"],
    }
    odd = [
        _tool("a", schema, description="one \x1b[1mline\n\u202etwo"),
        _tool("b", {"type": "object", "properties": {f"p{number}": {} for number in range(1000)}}),
    ]
    described = _loaded(tmp_path, odd, 'command = ["a"]\nexclude = ["b"]\n[tools]\na = "observe"')
    assert described["problem"] == ""
    (action,) = described["actions"]
    assert (action["effect"], action["place"], action["taints"]) == ("observe", "server", True)
    assert action["description"] == "one \\x1b[1mline\n\\x202etwo"
    assert action["schema"]["required"] == ["plain", "arg_json"]
    assert "$ref" not in json.dumps(action["schema"])
    assert len(json.dumps(action["schema"])) < 5000
    wrong = _loaded(tmp_path, [_tool("a", {"properties": {"x": {"$ref": "https://x.example/y"}}})])
    assert "nothing is fetched" in wrong["problem"]


def test_a_url_is_reached_from_reach_whatever_the_effect(tmp_path: Path) -> None:
    path = write(tmp_path / "one.toml", 'url = "https://x.example/mcp"')
    write(approved_path(path), json.dumps({"tools": [_tool("a")], "resources": True}))
    tool = class_of(path)
    assert tool.a._action["place"] is Place.REMOTE  # type: ignore[attr-defined]
    assert tool.a._action["effect"] is Effect.CHANGE  # type: ignore[attr-defined]
    assert tool.resources._action["effect"] is Effect.REACH  # type: ignore[attr-defined]
    assert tool.a._action["host"] == "https://x.example/mcp"  # type: ignore[attr-defined]


def _form(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, **more}
    return {"method": "elicitation/create", "params": {"message": "So?", "requestedSchema": schema}}


def _asked(requests: dict[str, Any], *said: str) -> tuple[list[tuple[str, list[str]]], dict[str, Any]]:
    """What a person is asked, and the results when they have answered."""
    state: dict[str, Any] = {}
    seen: list[tuple[str, list[str]]] = []
    left = [*said]
    while True:
        try:
            return seen, answers("one", requests, state)
        except NeedsInput as raised:
            seen.append((raised.question, [*raised.choices]))
            state = json.loads(json.dumps(raised.state))
            take(requests, state, left.pop(0))


def test_each_value_of_a_form_is_a_question() -> None:
    requests = {
        "a": _form({"sure": {"type": "boolean"}, "size": {"type": "number"}, "name": {"type": "string"}}),
        "b": _form({}),
        "c": {"method": "sampling/createMessage", "params": {}},
        "d": {"method": "roots/list"},
        "e": _form({"x": {"type": "array"}, "y": {"type": "string"}}),
        "f": _form({"x": {"type": "array"}}, required=["x"]),
        "g": {"method": "elicitation/create", "params": {"mode": "url", "message": "x", "url": "https://x"}},
        "h": "nonsense",
        "i": _form({"x": {"type": "string"}}, required=[["x"]]),
        "j": _form({"x": {"type": "string", "oneOf": 5}}),
    }
    seen, found = _asked(requests, "yes", "1.5", "me", "accept", "decline", "decline")
    assert [choices for _, choices in seen] == [
        ["yes", "no", "decline"],
        [],
        [],
        ["accept", "decline"],
        [],
        [],
    ]
    declined = {"action": "decline"}
    assert found == {
        "a": {"action": "accept", "content": {"sure": True, "size": 1.5, "name": "me"}},
        "b": {"action": "accept", "content": {}},
        "c": declined,
        "d": {"roots": []},
        "e": declined,
        "f": declined,
        "g": declined,
        "h": declined,
        "i": declined,
        "j": declined,
    }


def test_results_that_are_odd_are_shown_as_far_as_they_can_be() -> None:
    content = [
        {"type": "image", "data": "AAAA", "mimeType": "image/png\x1b"},
        {"type": "new"},
        3,
        {"text": "x"},
    ]
    assert call_result({"content": content}).output == (
        "[image of 3 bytes, image/png\\x1b, not shown]\n[content of the unknown type new]\n"
        "[content of the unknown type None]"
    )
    assert call_result({}).output == "(The result is empty.)"
    assert call_result({"content": "x", "structuredContent": [1]}).output == "[\n 1\n]"
