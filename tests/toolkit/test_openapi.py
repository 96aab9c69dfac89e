"""OpenAPI documents as tools: what is read, what is refused with its place, and where calls may go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import ConfigError, InvalidArgument, OutcomeUnknown, PermissionDenied, ToolError
from lightagentd.tool import Effect, Result
from lightagentd.toolkit.openapi.document import SCHEMA_NODES, Document, looks_like_one, read
from lightagentd.toolkit.openapi.source import source_of
from lightagentd.worker.calls import describe
from lightagentd.worker.loader import LoadedTool, load_tool
from tests.tools.conftest import CallContext, context
from tests.tools.web_server import Asked, reply, serve

__all__ = ["context"]  # a fixture

HOST = "https://api.example.org/v1"


def document(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "A"}, "servers": [{"url": HOST}], "paths": paths, **more}


def facts(found: dict[str, Any], **how: Any) -> dict[str, Any]:
    return Document(found, "a.yaml").facts(**how)


def loaded(tmp_path: Path, found: dict[str, Any], server: str = "") -> LoadedTool:
    path = tmp_path / "api.py"
    path.write_text(source_of("api", facts(found, server=server)))
    tool = load_tool(path)
    assert tool.error == ""
    assert describe(tool)["problem"] == ""
    return tool


NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#/components/schemas/Node"}, "n": {"type": "integer"}},
}
WIDE = {"type": "object", "properties": {f"p{n}": {"$ref": "#/components/schemas/Node"} for n in range(3000)}}


def test_references_that_lead_to_themselves_are_cut() -> None:
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}}}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    for schema in (NODE, WIDE, deep):
        made = document({"/a": {"post": {"requestBody": body}}}, components={"schemas": {"Node": schema}})
        (one,) = facts(made)["operations"]
        assert len(json.dumps(one)) < 100 * SCHEMA_NODES
    made = document({"/a": {"post": {"requestBody": body}}}, components={"schemas": {"Node": NODE}})
    shape = facts(made)["operations"][0]["body"]["schema"]
    assert shape["properties"]["next"] == {"description": "As Node around it."}


def _ref(reference: str) -> dict[str, Any]:
    return {"parameters": [{"$ref": reference}]}


LOOP = {
    "parameters": {"A": {"$ref": "#/components/parameters/B"}, "B": {"$ref": "#/components/parameters/A"}}
}


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (
            _ref("https://elsewhere.example/p.yaml#/P"),
            "'https://elsewhere.example/p.yaml#/P' leads elsewhere",
        ),
        (_ref("../../etc/passwd"), "'../../etc/passwd' leads elsewhere"),
        (_ref("#/components/parameters/None"), "leads to nothing"),
        (_ref("#/components/parameters/A"), "lead to each other more than 20 times"),
        ({"parameters": [{"name": "s", "in": "cookie", "required": True}]}, "'s' is in 'cookie'"),
        ({"security": [{"tls": []}]}, "no alternative is a key"),
        ({"parameters": 7}, "must be a list"),
        ({"requestBody": {"required": True, "content": {"image/png": {}}}}, "image/png is no JSON or form"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_its_place(operation: dict[str, Any], said: str) -> None:
    parts = {**LOOP, "securitySchemes": {"tls": {"type": "mutualTLS"}}}
    with pytest.raises(InvalidArgument, match=r"^a\.yaml, at #/paths/~1a/get") as caught:
        facts(document({"/a": {"get": operation}}, components=parts))
    assert said in caught.value.message


def test_text_that_is_no_document_is_refused_with_file_and_line() -> None:
    for text, said in (
        ("openapi: 3.0.0\npaths: [\n", "a.yaml, line 3"),
        ('{"openapi": "3.0.0",\n "paths": }', "a.yaml, line 2"),
        ("openapi: 3.0.0\na: &a [x, x]\nb: &b [*a, *a]\n" + _bombs(), "a.yaml, line"),
        ("swagger: '2.0'\n", "a.yaml: it has no key openapi with a version 3"),
        ("openapi: 3.0.0\nx: " + "[" * 200, "nested more than 100 deep"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            read(text, "a.yaml")
        assert said in caught.value.message
    assert looks_like_one("swagger: '2.0'\n")
    assert looks_like_one('{"openapi": "3.0.0"}')
    assert not looks_like_one("# How to use openapi\nIt is good.\n")


def _bombs() -> str:
    return "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
        for old, new in zip("bcdefghi", "cdefghij", strict=True)
    )


def test_servers_are_whole_urls_over_http() -> None:
    host = {"url": "https://{zone}.example.org/v1/", "variables": {"zone": {"default": "eu"}}}
    made = document({"/a": {"get": {}}}) | {"servers": [{"url": "wss://x.example"}, {"url": "/v1"}, host]}
    assert facts(made)["servers"] == ["https://eu.example.org/v1"]
    for servers, said in (
        ([{"url": "/v1"}], "no server has a whole URL"),
        ([{"url": "https://u:p@x.example"}], "has a user name in it"),
        ([{"url": "https://x.example/?a=b"}], "a server has no query"),
    ):
        with pytest.raises(InvalidArgument, match=r"a\.yaml, at #/servers") as caught:
            facts(made | {"servers": servers})
        assert said in caught.value.message


def test_of_5000_operations_some_are_chosen() -> None:
    paths = {f"/a{n}": {"get": {"operationId": f"getA{n}", "tags": [f"t{n // 50}"]}} for n in range(5000)}
    with pytest.raises(InvalidArgument, match="5000 operations are more than the 100") as caught:
        facts(document(paths))
    assert "--operation ID or --tag TAG" in caught.value.suggestion
    assert len(facts(document(paths), tags=["t3", "t4"])["operations"]) == 100
    chosen = facts(document(paths), chosen=["getA17", "GET /a18"])["operations"]
    assert [one["name"] for one in chosen] == ["get_a17", "get_a18"]
    with pytest.raises(InvalidArgument, match="there is no operation nosuch"):
        facts(document(paths), chosen=["nosuch"])


SECURED = {
    "securitySchemes": {
        "query": {"type": "apiKey", "in": "query", "name": "k"},
        "basic": {"type": "http", "scheme": "basic"},
        "bearer": {"type": "http", "scheme": "bearer"},
        "oauth": {"type": "oauth2", "flows": {}},
    }
}
PATHS: dict[str, Any] = {
    "/{id}/x": {
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
        "get": {
            "operationId": "show",
            "parameters": [
                {"name": "X-Trace", "in": "header", "schema": {"type": "string", "enum": ["a", "b"]}},
                {"name": "ids", "in": "query", "explode": False, "schema": {"type": "array"}},
                {"name": "server", "in": "query", "schema": {"type": "string"}},
            ],
            "security": [{"query": []}],
        },
        "put": {
            "operationId": "close",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "security": [{"bearer": []}],
        },
        "patch": {"operationId": "b", "security": [{"basic": []}]},
    }
}
SECRETS = {"query": "q&1", "basic": "ann:word", "bearer": "token-1"}


async def called(tool: LoadedTool, context: CallContext, action: str, **args: Any) -> Result:
    found = tool.actions[action]
    return await found.method(context, found.args_model.model_validate(args))


async def test_calls_are_sent_as_described(
    tmp_path: Path, context: CallContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW", "127.0.0.0/8")
    async with serve(lambda _: reply(b'{"ok":1}', content_type="application/json")) as server:
        tool = loaded(tmp_path, document(PATHS, components=SECURED), server.url("/v1"))
        effects = {name: action.effect for name, action in tool.actions.items()}
        assert effects == {"show": Effect.REACH, "close_it": Effect.CHANGE, "b": Effect.CHANGE}
        with pytest.raises(ConfigError, match=r"no credential tool\.api\.query"):
            await called(tool, context, "show", id="a")
        context.expected = {"credentials": SECRETS}
        given = {"X_Trace": "b", "ids": [1, 2], "query_server": "s"}
        result = await called(tool, context, "show", id="../a?b", **given)
        await called(tool, context, "close_it", id="ü", body={"a": [1]})
        await called(tool, context, "b", id="1")
    first, second, third = server.asked
    assert first.line == "GET /v1/..%2Fa%3Fb/x?ids=1%2C2&server=s&k=q%261 HTTP/1.1"
    assert first.headers["x-trace"] == "b"
    assert (second.line, second.body) == ("PUT /v1/%C3%BC/x HTTP/1.1", b'{"a": [1]}')
    assert (second.headers["authorization"], second.headers["content-type"]) == (
        "Bearer token-1",
        "application/json",
    )
    assert third.headers["authorization"] == "Basic YW5uOndvcmQ="
    assert result.output.startswith("200 OK GET http://127.0.0.1:")
    assert "q%261" not in result.output
    with pytest.raises(InvalidArgument, match="cannot be a part of a path"):
        await called(tool, context, "show", id="..")
    for wrong in ({"id": "1", "server": "https://evil.example"}, {"id": "1", "X_Trace": "c"}, {}):
        with pytest.raises(ValueError, match="validation error"):
            tool.actions["show"].args_model.model_validate(wrong)


async def test_a_call_goes_nowhere_else(
    tmp_path: Path, context: CallContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW", "127.0.0.0/8")
    context.expected = {"credentials": SECRETS}
    async with serve(lambda _: reply(b"other")) as other:

        def answer(asked: Asked) -> bytes:
            if asked.line.startswith("GET /v1/near"):
                return reply(status="302 Found", location="/v1/there")
            if "/there" in asked.line:
                return reply(b"here", content_type="text/plain")
            return reply(status="307 Moved", location=other.url("/x"))

        async with serve(answer) as server:
            tool = loaded(tmp_path, document(PATHS, components=SECURED), server.url("/v1"))
            assert "here" in (await called(tool, context, "show", id="near")).output
            with pytest.raises(PermissionDenied, match="may ask its own servers alone"):
                await called(tool, context, "show", id="far")
            with pytest.raises(PermissionDenied, match="may ask its own servers alone"):
                await called(tool, context, "close_it", id="far", body={})
        assert other.asked == []


async def test_a_change_without_an_answer_is_unknown(
    tmp_path: Path, context: CallContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW", "127.0.0.0/8")
    context.expected, context.timeout_s = {"credentials": SECRETS}, 5.0
    async with serve(lambda _: b"") as server:
        tool = loaded(tmp_path, document(PATHS, components=SECURED), server.url("/v1"))
        with pytest.raises(OutcomeUnknown):
            await called(tool, context, "b", id="1")
    with pytest.raises(ToolError, match="cannot be connected to"):
        await called(tool, context, "b", id="1")
