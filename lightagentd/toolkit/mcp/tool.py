"""The tool that an MCP server is: a function for each tool that was approved, made of the server's two files.

The connection is made at the first call and kept: a program runs until its worker ends, or until it dies,
which is an error of that call alone. What the server says of its tools now is compared with what was
approved, when it is connected to and when it says that its list has changed. A tool that differs is held
back.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from lightagentd.errors import (
    ConfigError,
    InvalidArgument,
    OutcomeUnknown,
    PermissionDenied,
    ToolError,
)
from lightagentd.text.jsonrpc import Lost, RpcError
from lightagentd.text.mcp import ELICIT
from lightagentd.text.reason import LOOK_FIRST
from lightagentd.tool import (
    ActionMethod,
    Args,
    Context,
    Effect,
    NeedsInput,
    Place,
    Preview,
    Result,
    Tool,
    action,
    by_hand,
)
from lightagentd.toolkit.mcp.asking import answers, take
from lightagentd.toolkit.mcp.connection import Connection, Running, Transport
from lightagentd.toolkit.mcp.results import call_result, clean, listed_text, prompt_text, resource_text
from lightagentd.toolkit.mcp.server_file import ServerFile, digest, read_approved, read_server
from lightagentd.toolkit.mcp.stdio import Program
from lightagentd.toolkit.mcp.undoing import Function, Undoing, result_of, undoings
from lightagentd.toolkit.openapi.document import Document
from lightagentd.toolkit.schema_model import args_model

CHANGED = "changed"
"""The type of the event which says that a server's tools are not those that were approved."""
FUNCTION_CHARS = 64
_DESCRIPTION_CHARS = 4000
_HELD, _HOLD_S = 8, 3600.0
"""How many calls of older servers may wait for a person, and how long."""
_ROUNDS = 8
_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "resources/read": resource_text,
    "prompts/get": prompt_text,
}


class _NoArgs(Args):
    pass


class _UriArgs(Args):
    uri: str = Field(min_length=1, max_length=4000, description="The URI of the resource.")


class _PromptArgs(Args):
    name: str = Field(min_length=1, max_length=200, description="The name of the prompt.")
    arguments: dict[str, str] = Field(default={}, description="Its arguments, each a text.")


class _Pending:
    """A request that runs, and what an older server asks meanwhile."""

    def __init__(self, ctx: Context, connection: Connection, method: str, params: dict[str, Any]) -> None:
        self.ctx, self.connection, self.method, self.params = ctx, connection, method, params
        running = Running(progress=lambda text: self.ctx.progress(f"{clean(text)}\n"), ask=self._ask)
        self.task = asyncio.create_task(connection.request(method, params, running))
        self._question, self._answer = _future(), _future()

    async def reply(self) -> dict[str, Any]:
        """The result once the task is done, else what the server asks. A cancel cancels the request."""
        try:
            await asyncio.wait([self.task, self._question], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            raise
        return self.task.result() if self.task.done() else self._question.result()

    def answer(self, result: dict[str, Any]) -> None:
        answer, self._question, self._answer = self._answer, _future(), _future()
        if not answer.done():
            answer.set_result(result)

    async def _ask(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._question.done():
            return {"action": "decline"}  # one at a time
        self._question.set_result({"method": ELICIT, "params": params})
        return await self._answer


def _future() -> asyncio.Future[dict[str, Any]]:
    return asyncio.get_running_loop().create_future()


class McpTool(Tool):
    """An MCP server."""

    server: ClassVar[ServerFile]
    approved: ClassVar[dict[str, str]]
    """The digests of its tools by name."""
    undone: ClassVar[dict[str, Undoing]]
    """How calls of its tools are undone, by name."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._credentials: dict[str, str] = {}
        self._now: dict[str, str] = {}
        """The digests of its tools as they are."""
        self._held: dict[str, _Pending] = {}

    async def close(self) -> None:
        for pending in self._held.values():
            pending.task.cancel()
        self._held.clear()
        await self._drop()

    async def preview(self, ctx: Context, action: str, args: Any) -> Preview | None:
        """The call's arguments, and how it is undone, where that is known."""
        undo = next((one for one in self.undone.values() if one.of.action == action), None)
        if undo is None:
            return None
        given = args.model_dump(exclude_none=True)
        told = undo.told({name: given.get(own) for name, own in undo.of.names.items()})
        how = by_hand(ctx.agent, self.name, **told) if told else "what it was not called with is needed"
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in given.items()]
        text = clean("\n".join([*lines, f"Undone by: {how}", ""]))
        known = told and not undo.needs_result
        return Preview(text=text, expected={"undo": told} if known else {})

    async def ask_server(self, ctx: Context, method: str, params: dict[str, Any]) -> Result:
        """Make a request, and show its result. Raises the call's errors, and NeedsInput."""
        async with self._failing(ctx):
            if method.endswith("/list"):
                return Result(output=await self._lists(await self._connected(ctx), method))
            return await self._finished(await self._begun(ctx, method, params))

    async def resume(self, ctx: Context, state: Any, answer: str) -> Result:
        """Go on with the answer of a person."""
        take(state["requests"], state, answer)
        found = answers(self.name, state["requests"], state)
        async with self._failing(ctx):
            if (key := state["held"]) is None:
                params = _answered(state["params"], found, state["requestState"])
                return await self._finished(await self._begun(ctx, state["method"], params))
            pending = self._held.pop(key, None)
            if pending is None or pending.connection is not self._connection or not pending.connection.alive:
                why = f"The MCP server {self.name} has ended since it asked."
                raise ToolError(why, suggestion="Ask for the call again.")
            pending.ctx = ctx
            pending.answer(found[""])
            return await self._finished(pending)

    async def _begun(self, ctx: Context, method: str, params: dict[str, Any]) -> _Pending:
        connection = await self._connected(ctx)
        if method == "tools/call":
            self._check(params["name"])
        return _Pending(ctx, connection, method, params)

    async def _finished(self, pending: _Pending) -> Result:
        """The result of a request. Raises NeedsInput where the server asks a person."""
        method, params = pending.method, pending.params
        for _ in range(_ROUNDS):
            found = await pending.reply()
            state: dict[str, Any] = {"method": method, "params": params, "held": None, "requestState": None}
            if not pending.task.done():
                state |= {"requests": {"": found}, "held": secrets.token_hex(8)}
                try:
                    pending.answer(answers(self.name, state["requests"], state)[""])
                except NeedsInput:
                    self._hold(state["held"], pending)
                    raise
                continue
            if found.get("resultType") != "input_required":
                return self._result(method, params, found)
            requests = found.get("inputRequests", {})
            state |= {"requests": requests, "requestState": found.get("requestState")}
            if not isinstance(requests, dict) or len(requests) > _ROUNDS:
                raise RpcError(-1, "it asks in a way that is not understood")
            params = _answered(params, answers(self.name, requests, state), state["requestState"])
            pending = _Pending(pending.ctx, pending.connection, method, params)
        pending.task.cancel()
        raise RpcError(-1, f"it asked more than {_ROUNDS} times what nobody can be asked")

    def _hold(self, key: str, pending: _Pending) -> None:
        if len(self._held) >= _HELD:
            pending.task.cancel()
            raise ToolError(f"{_HELD} calls of the MCP server {self.name} wait for a person already.")
        self._held[key] = pending
        asyncio.get_running_loop().call_later(_HOLD_S, self._let_go, key)

    def _let_go(self, key: str) -> None:
        if (pending := self._held.pop(key, None)) is not None:
            pending.task.cancel()

    def _result(self, method: str, params: dict[str, Any], found: dict[str, Any]) -> Result:
        if method in _TEXTS:
            return Result(output=_TEXTS[method](found) or "(It is empty.)")
        result = call_result(found)
        if found.get("isError") is True:
            raise ToolError(f"The MCP server {self.name} says: {result.output[:4000]}")
        undo = self.undone.get(params["name"])
        if undo is not None and (told := undo.told(params["arguments"], result_of(found))):
            result.metadata["undo"] = told
        return result

    async def _lists(self, connection: Connection, method: str) -> str:
        if method == "prompts/list":
            return listed_text(await connection.listed(method, "prompts"), "name")
        found = listed_text(await connection.listed(method, "resources"), "uri")
        with suppress(RpcError):  # few servers have templates
            templates = await connection.listed("resources/templates/list", "resourceTemplates")
            found += f"\n\nTemplates:\n{listed_text(templates, 'uriTemplate')}" if templates else ""
        return found

    async def _connected(self, ctx: Context) -> Connection:
        """The connection, made or looked at again if it has to be. Raises ToolError, ConfigError."""
        given = ctx.expected.get("credentials", {})
        async with self._connecting:
            connection = self._connection
            try:
                if connection is None or not connection.alive or given != self._credentials:
                    await self._drop()
                    apart = f"server-{self.name}"
                    transport = transport_of(self.name, self.server, given, ctx.scratch.parent, apart=apart)
                    connection = self._connection = Connection(transport)
                    self._credentials = given
                    await connection.start()
                    connection.changed = True
                if connection.changed:
                    self._compare(ctx, (await connection.offers())["tools"])
            except BaseException:
                await self._drop()
                raise
            return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _compare(self, ctx: Context, tools: list[dict[str, Any]]) -> None:
        named = {str(one.get("name")): one for one in tools}
        self._now = {name: digest(one) for name, one in named.items() if self.server.takes(name)}
        changed = [name for name, was in self.approved.items() if self._now.get(name, was) != was]
        new = [name for name in self._now if name not in self.approved]
        if changed or new:
            names = {"tools": [clean(one)[:100] for one in changed], "new": [clean(one)[:100] for one in new]}
            ctx.emit(f"tool.{self.name}", CHANGED, {key: found[:20] for key, found in names.items()})

    def _check(self, tool: str) -> None:
        """Raises PermissionDenied for a tool that is not as it was approved, and ToolError for one that is
        gone.
        """
        if (now := self._now.get(tool)) is None:
            raise ToolError(f"The MCP server {self.name} does not offer {clean(tool)} any more.")
        if now != self.approved[tool]:
            raise PermissionDenied(
                f"The MCP server {self.name} says something else of {clean(tool)} than what was approved.",
                suggestion=f"It is held back until an administrator looks at it: lactl mcp show {self.name}",
            )

    @asynccontextmanager
    async def _failing(self, ctx: Context) -> AsyncIterator[None]:
        """Turns errors into those of a call. A server that cannot be used is ended; the next call starts it
        again.
        """
        try:
            yield
        except RpcError as err:
            raise ToolError(f"The MCP server {self.name} refuses: {_why(err)}.") from None
        except (Lost, OSError) as err:
            await self._drop()
            how = (
                "it did not answer in time when it was started"
                if isinstance(err, TimeoutError)
                else _why(err)
            )
            why = f"The MCP server {self.name} was lost: {how}."
            if ctx.effect is Effect.CHANGE and isinstance(err, Lost):
                raise OutcomeUnknown(why, suggestion=LOOK_FIRST) from None
            raise ToolError(why, suggestion="Another call starts it again.") from None


def _why(err: Exception) -> str:
    return clean(str(err) or type(err).__name__)[:2000].rstrip(".")


def _answered(params: Mapping[str, Any], found: dict[str, Any], state: Any) -> dict[str, Any]:
    kept = {key: one for key, one in params.items() if key not in ("inputResponses", "requestState")}
    return {**kept, "inputResponses": found, **({"requestState": state} if state is not None else {})}


def transport_of(
    name: str, server: ServerFile, credentials: Mapping[str, str], above: Path, *, apart: str = ""
) -> Transport:
    """The way to a server. Raises ConfigError for a credential that the daemon was not given."""
    if missing := [one for one in server.credentials if one not in credentials]:
        raise ConfigError(
            f"The daemon has no credential tool.{name}.{missing[0]}.",
            suggestion="An administrator gives it one with LoadCredential= (systemd.exec(5)) in a drop-in of"
            " lightagentd.service. Servers of kits get none.",
        )
    kept = {one: credentials[one] for one in server.credentials}
    if server.command:
        return Program(server.command, {**server.environment, **kept}, above, apart=apart)
    from lightagentd.toolkit.mcp.http import Http  # few workers need it

    headers = dict(server.headers)
    for one, secret in kept.items():
        headers = {key: value.replace(f"{{{one}}}", secret) for key, value in headers.items()}
    return Http(server.url, headers)


def class_of(path: Path) -> type[Tool]:
    """The tool of a server's file. Raises ConfigError that names what is wrong."""
    server, approved = read_server(path), read_approved(path)
    name = path.stem
    if approved is None:
        raise ConfigError(f"nobody has looked at its tools and approved them: lactl mcp approve {name}")
    taken = {*dir(McpTool), *Args.model_fields}
    actions: dict[str, ActionMethod] = {}
    functions: dict[str, Function] = {}
    for one in approved["tools"]:
        if not server.takes(one["name"]):
            continue
        try:
            called = _called(one["name"], name, {*taken, *actions})
            actions[called], names = _function(name, server, one)
            functions[one["name"]] = Function(action=called, names=names)
        except (InvalidArgument, TypeError) as err:
            why = f"its tool {clean(one['name'])[:60]!r} cannot be used: {str(err).rstrip('.')}"
            raise ConfigError(f"{why}; leave it out with exclude") from None
    for called, method, words, model, has in _BESIDE:
        if approved[has]:
            made = _method(server, server.listed_in, method, model, words.format(name=name))
            actions[_called(called, name, {*taken, *actions})] = made
    about = clean(server.description) or f"The MCP server {name}."
    return type(
        name,
        (McpTool,),
        {
            "__doc__": about,
            "name": name,
            "agents": tuple(server.agents),
            "server": server,
            "undone": undoings(server, functions),
            "approved": {one["name"]: digest(one) for one in approved["tools"]},
            **actions,
        },
    )


_BESIDE: tuple[tuple[str, str, str, type[Args], str], ...] = (
    ("resources", "resources/list", "List the resources of the MCP server {name}.", _NoArgs, "resources"),
    ("read_resource", "resources/read", "Read a resource of the MCP server {name}.", _UriArgs, "resources"),
    ("prompts", "prompts/list", "List the prompts of the MCP server {name}.", _NoArgs, "prompts"),
    ("get_prompt", "prompts/get", "Get a prompt of the MCP server {name}.", _PromptArgs, "prompts"),
)


def _called(tool: str, server: str, taken: set[str]) -> str:
    """A name for an action: lower case, short enough for a function, and of this one alone."""
    room = FUNCTION_CHARS - len(server) - 1
    found = re.sub(r"[^a-z0-9]+", "_", tool.lower()).strip("_")
    found = (found if re.match(r"[a-z]", found) else f"tool_{found}")[:room].rstrip("_")
    number, name = 1, found
    while name in taken:
        number += 1
        name = f"{found[: room - 1 - len(str(number))]}_{number}"
    return name


def _function(name: str, server: ServerFile, tool: dict[str, Any]) -> tuple[ActionMethod, dict[str, str]]:
    """A tool as an action, whose arguments have the names that the server's are given. Raises TypeError."""
    schema = Document(tool["inputSchema"], name).schema(tool["inputSchema"], tool["name"][:60])
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise TypeError(f"the schema of {clean(tool['name'])[:60]} is not that of an object")
    safe: dict[str, str] = {}
    for key in properties:
        found = re.sub(r"[^A-Za-z0-9_]", "_", key)[:60]
        found = found if re.match(r"[A-Za-z]", found) else f"arg_{found}"
        while found in safe or found.startswith("model_") or hasattr(Args, found):
            found = f"arg_{found}"
        safe[found] = key
    shown = {key: one for key, given in safe.items() if isinstance(one := properties[given], dict)}
    model = args_model(f"{name}_args", shown, [key for key in shown if safe[key] in required])
    told_of = clean(str(tool.get("description") or tool.get("title") or "")).strip()
    words = told_of[:_DESCRIPTION_CHARS] or f"The tool {clean(tool['name'])} of the MCP server {name}."

    def params(args: Args) -> dict[str, Any]:
        given = {safe[key]: found for key in safe if (found := getattr(args, key, None)) is not None}
        return {"name": tool["name"], "arguments": given}

    made = _method(server, server.effect_of(tool["name"]), "tools/call", model, words, params)
    return made, {given: own for own, given in safe.items()}


def _method(
    server: ServerFile,
    effect: Effect,
    method: str,
    model: type[Args],
    words: str,
    params: Callable[[Args], dict[str, Any]] = lambda args: args.model_dump(),
) -> ActionMethod:
    async def run(self: McpTool, ctx: Context, args: Args) -> Result:
        return await self.ask_server(ctx, method, params(args))

    run.__doc__ = words
    run.__annotations__ = {"ctx": Context, "args": model, "return": Result}
    return action(
        effect=effect,
        taints=True,
        timeout_s=server.timeout_s,
        place=Place.REMOTE if server.url else Place.SERVER,
        host=server.url,
        resume="resume",
    )(run)
