"""The base class of tools that were made from an OpenAPI document; the tool file holds the facts alone.

A call goes to one of the servers in the file and nowhere else: a redirect to another origin is refused. What
asks (GET, HEAD) has the effect reach, everything else the effect change. A credential never stands in the
file: the daemon hands its credentials `tool.NAME.SCHEME` to the calls of the tool NAME (systemd.exec(5),
LoadCredential=).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from lightagentd.errors import (
    ConfigError,
    InvalidArgument,
    OutcomeUnknown,
    PermissionDenied,
    TimedOut,
    ToolError,
)
from lightagentd.text.reason import LOOK_FIRST
from lightagentd.tool import Args, Context, Effect, Result, Tool, action
from lightagentd.toolkit.openapi.document import argument_names
from lightagentd.toolkit.schema_model import args_model
from lightagentd.toolkit.web import fetch
from lightagentd.toolkit.web import text as webtext
from lightagentd.toolkit.web.guard import Guard, parse_url, rules_in_force

_ASKING = ("GET", "HEAD")
_REDIRECTS = 3
_SIMPLE = "/?#[]@!$&'()*+,;="
TIMEOUT_S = 60.0


class OpenApiTool(Tool):
    """A tool with the facts of `document.Document.facts`."""

    facts: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        for operation in cls.facts["operations"]:
            method = _action_of(operation, cls.facts["servers"])
            setattr(cls, operation["name"], method)


def _action_of(operation: dict[str, Any], servers: list[str]) -> Any:
    names = argument_names(operation)
    properties: dict[str, Any] = {
        name: one["schema"] for name, one in zip(names, operation["parameters"], strict=True)
    }
    required = [name for name, one in zip(names, operation["parameters"], strict=True) if one["required"]]
    if (body := operation["body"]) is not None:
        properties["body"] = body["schema"]
        required += ["body"] if body["required"] else []
    properties["server"] = {"type": "string", "enum": servers, "default": servers[0]}
    model = args_model(f"{operation['name']}_args", properties, required)

    async def call(self: OpenApiTool, ctx: Context, args: Args) -> Result:
        return await _call(self, ctx, operation, {name: getattr(args, name) for name in properties})

    call.__doc__, call.__name__ = operation["description"], operation["name"]
    call.__annotations__ = {"ctx": Context, "args": model, "return": Result}
    effect = Effect.REACH if operation["method"] in _ASKING else Effect.CHANGE
    return action(effect=effect, taints=True, timeout_s=TIMEOUT_S, host="server")(call)


async def _call(tool: OpenApiTool, ctx: Context, operation: dict[str, Any], args: dict[str, Any]) -> Result:
    request = _with_credentials(tool, ctx, operation, _request(operation, args, ctx.timeout_s))
    guard = Guard(rules_in_force())
    asks = operation["method"] in _ASKING
    for _ in range(_REDIRECTS + 1):
        try:
            response = await fetch.fetch(request, guard)
        except (TimedOut, ToolError) as err:
            if asks or fetch.never_sent(err):
                raise
            raise OutcomeUnknown(err.message, suggestion=LOOK_FIRST) from err
        moved = response.header("location")
        if response.status not in (301, 302, 303, 307, 308) or not moved:
            return _result(response, operation["method"])
        request = _moved(request, response, moved, asks=asks)
    raise InvalidArgument(f"{request.target.url} redirects more than {_REDIRECTS} times.")


def _moved(request: fetch.Request, response: fetch.Response, moved: str, *, asks: bool) -> fetch.Request:
    """The same request elsewhere on its server. Raises PermissionDenied."""
    try:
        target = fetch.parse_location(response.target, moved)
    except ValueError as err:
        raise PermissionDenied(f"{request.target.url} redirects to something that is no URL.") from err
    if target.origin != request.target.origin:
        raise PermissionDenied(
            f"{request.target.url} redirects to {target.url}, and this tool may ask its own servers alone.",
            suggestion="An administrator can draft the tool again with that server.",
        )
    if not asks:
        raise PermissionDenied(f"{request.target.url} redirects a request that changes something.")
    return replace(request, target=target)


def _request(operation: dict[str, Any], args: dict[str, Any], timeout_s: float) -> fetch.Request:
    path, query, headers = operation["path"], list[tuple[str, str]](), dict[str, str]()
    for name, one in zip(argument_names(operation), operation["parameters"], strict=True):
        if (value := args[name]) is None:
            continue
        if one["in"] == "path":
            path = path.replace(f"{{{one['name']}}}", _segment(name, _text(value, one)))
        elif one["in"] == "query":
            query += _pairs(value, one)
        else:
            headers[one["name"]] = _text(value, one)
    url = args["server"] + path + (f"?{urlencode(query)}" if query else "")
    headers, content = fetch.checked_headers({"Accept": "application/json, */*", **headers}), None
    if args.get("body") is not None:
        kind = operation["body"]["type"]
        headers["content-type"] = kind
        content = _form(args["body"]) if kind.endswith("urlencoded") else json.dumps(args["body"]).encode()
    target = parse_url(url)
    if target.origin != parse_url(args["server"]).origin:
        raise InvalidArgument(f"{target.url} is not on the tool's server.")
    return fetch.Request(
        method=operation["method"],
        target=target,
        headers=headers,
        content=content,
        redirects=0,
        timeout_s=timeout_s,
    )


def _segment(name: str, text: str) -> str:
    """A value in a path; it cannot lead to another path."""
    if text in ("", ".", ".."):
        raise InvalidArgument(f"{name}: {text!r} cannot be a part of a path.", field=name)
    return quote(text, safe="")


def _pairs(value: Any, one: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A parameter in a query, in the style form (OpenAPI Specification 3.1, section 4.8.12.3)."""
    if one["json"] or not one["explode"] or not isinstance(value, list | dict):
        return [(one["name"], _text(value, one))]
    if isinstance(value, dict):
        return [(str(key), _scalar(each)) for key, each in value.items()]
    return [(one["name"], _scalar(each)) for each in value]


def _text(value: Any, one: Mapping[str, Any]) -> str:
    if one["json"]:
        return json.dumps(value)
    if isinstance(value, list):
        return ",".join(map(_scalar, value))
    if isinstance(value, dict):
        return ",".join(f"{key},{_scalar(each)}" for key, each in value.items())
    return _scalar(value)


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _form(body: Any) -> bytes:
    if not isinstance(body, dict):
        raise InvalidArgument("body must be an object: it is sent as a form.", field="body")
    return urlencode([(key, _scalar(value)) for key, value in body.items()]).encode()


def _with_credentials(
    tool: OpenApiTool, ctx: Context, operation: dict[str, Any], request: fetch.Request
) -> fetch.Request:
    """Raises ConfigError for a credential that the daemon was not given."""
    headers, target = dict(request.headers), request.target
    for name in operation["security"]:
        secret = ctx.expected.get("credentials", {}).get(name, "")
        if not secret:
            raise ConfigError(
                f"The daemon has no credential tool.{tool.name}.{name}.",
                suggestion="An administrator gives it one with LoadCredential= (systemd.exec(5)) in a drop-in"
                " of lightagentd.service.",
            )
        scheme = tool.facts["security"][name]
        if scheme["in"] == "query":
            path = f"{target.path}{'&' if '?' in target.path else '?'}{urlencode({scheme['name']: secret})}"
            target = replace(target, path=path)
        elif scheme["in"] == "header":
            headers |= fetch.checked_headers({scheme["name"]: secret})
        elif scheme["in"] == "basic":
            headers["authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
        else:
            headers |= fetch.checked_headers({"authorization": f"Bearer {secret}"})
    return replace(request, headers=headers, target=target)


def _result(response: fetch.Response, method: str) -> Result:
    """The status, an empty line, and the body."""
    kind, where = response.header("content-type"), response.target.url.partition("?")[0]
    lines = [f"{response.status} {response.reason}".rstrip() + f" {method} {where}"]
    data: dict[str, Any] = {"status": response.status, "content_type": webtext.media_type(kind)[:100]}
    if not response.body:
        return Result(output=f"{lines[0]}\n\n(The body is empty.)", metadata=data)
    if webtext.is_text(response.body, kind):
        lines += ["", webtext.decode(response.body, kind)[0]]
    else:
        lines += ["", f"Binary content: {len(response.body)} bytes."]
    if response.truncated:
        lines.append(f"[Only the first {len(response.body)} bytes of the body were kept.]")
    return Result(output="\n".join(lines), metadata={**data, "truncated": response.truncated})
