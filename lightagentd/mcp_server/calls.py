"""The tools of an agent, and `ask_agent`, which prompts it: their list, and calls of them.

A call goes through the daemon as one that text from outside has chosen: policy, approvals and history are
those of every call. What went wrong with a call is a result with `isError`, which the client's model reads.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from lightagentd.errors import InvalidArgument, LightagentError
from lightagentd.mcp_server import asking
from lightagentd.mcp_server.held import PROMPT, Held, Telling
from lightagentd.mcp_server.request import Connect, Request, called
from lightagentd.text.jsonrpc import INVALID_PARAMS, Peer, RpcError
from lightagentd.text.mcp import ELICIT

ASK = "ask_agent"
_IN_TURNS = {"agent", "flows", "human", "message", "plan", "tools", "skill_activate"}
"""Tools and functions that do nothing outside of a turn."""
_MOST_HELD = 16
"""So many calls wait for a person at once; one more ends the oldest."""
_EFFECTS: dict[str, dict[str, bool]] = {
    "observe": {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
    "reach": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True},
    "change": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False},
    "": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
}
"""The annotations for the effect of an action; with none, each call names its effect."""


class Calls:
    """Owns the calls that wait for a person after their requests were answered, until `close`."""

    def __init__(self, connect: Connect, agent: str, peer: Peer) -> None:
        self._connect, self._agent, self._peer = connect, agent, peer
        self._actions: dict[str, tuple[str, str]] = {}
        self._held: dict[str, Held] = {}

    async def close(self) -> None:
        held = [*self._held.values()]
        self._held.clear()
        await asyncio.gather(*(one.stop(cancel=False) for one in held))

    async def listed(self, request: Request) -> dict[str, Any]:  # noqa: ARG002
        return {"tools": [self._ask_tool(), *await self._tools()]}

    async def call(self, request: Request) -> dict[str, Any]:
        """Raises RpcError for a tool that is not there; all else is in the result."""
        name, arguments = request.text("name"), request.object("arguments")
        key = json.dumps([name, arguments], sort_keys=True)
        held = self._held.pop(key, None)
        try:
            if held is None or held.stale:
                held = Held(self._connect, *await self._call_of(name, arguments))
                held.start()
            held.teller = Telling(self._peer, request)
            result = await self._result(held, request)
        except asyncio.CancelledError:
            if held is not None:
                await held.stop(cancel=True)
            raise
        except LightagentError as err:
            return _failed(err.to_dict())
        held.teller = None
        if held.end is None:
            self._held[key] = held
        while len(self._held) > _MOST_HELD:
            await self._held.pop(next(iter(self._held))).stop(cancel=False)
        return result

    async def _call_of(self, name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The daemon's method for a call, and its parameters. Raises RpcError, InvalidArgument."""
        if name == ASK:
            return PROMPT, _prompt(arguments, self._agent)
        if name not in self._actions:
            await self._tools()
        if name not in self._actions:
            raise RpcError(INVALID_PARAMS, f"There is no tool {name[:60]!r}.", {"code": "tool_not_found"})
        tool, action = self._actions[name]
        named = {"agent": self._agent, "tool": tool, "action": action}
        return "Tools.Call", {**named, "args": arguments, "outside": True}

    async def _result(self, held: Held, request: Request) -> dict[str, Any]:
        """The result of a call that has ended, or that it waits for somebody whom nobody can ask here."""
        brought = request.object("inputResponses")
        while (question := await held.next_question()) is not None:
            params = asking.form(question) if request.elicits else None
            given = brought.pop(asking.question_id(question), None) if params else None
            if params and given is None and request.modern:
                return _wants(question, params)
            if params and given is None:
                given = await self._elicited(held, question, params)
            told = given if isinstance(given, dict) else {}
            why = "" if given is None else await asking.answer(self._connect, question, told)
            left = (given is None or why) and await asking.is_open(self._connect, question)
            if left and held.question is question:
                return _waits(held, question, why)
            await held.until_over(question)
        return _ended(held)

    async def _elicited(
        self, held: Held, question: dict[str, Any], params: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The client's answer, empty if it fails; None if the question is answered elsewhere before."""
        asked = asyncio.create_task(self._peer.ask(ELICIT, params))
        over = asyncio.create_task(held.until_over(question))
        try:
            await asyncio.wait([asked, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            over.cancel()
            ended: tuple[Any, Any] = await asyncio.gather(asked, over, return_exceptions=True)
        if isinstance(found := ended[0], asyncio.CancelledError):
            return None
        return found if isinstance(found, dict) else {}

    async def _tools(self) -> list[dict[str, Any]]:
        found = (await called(self._connect, "Agents.UsableTools", name=self._agent))["tools"]
        listed = []
        for tool in found:
            for action in tool["actions"]:
                function = f"{tool['name']}_{action['name']}"
                if not {tool["name"], function} & _IN_TURNS:
                    self._actions[function] = tool["name"], action["name"]
                    title = {"title": f"{tool['name']}: {action['name'].replace('_', ' ')}"}
                    told = {"name": function, **title, "description": action["description"]}
                    told["inputSchema"] = {"type": "object", **action["schema"]}
                    listed.append({**told, "annotations": title | _EFFECTS[action["effect"]]})
        return sorted(listed, key=lambda one: str(one["name"]))

    def _ask_tool(self) -> dict[str, Any]:
        text = {"type": "string"}
        session = {**text, "description": "Go on with this session, which an earlier answer named."}
        return {
            "name": ASK,
            "title": f"Ask the agent {self._agent}",
            "description": f"Prompt the agent {self._agent}, which works with its own tools until it has an"
            " answer.",
            "inputSchema": {
                "type": "object",
                "properties": {"prompt": {**text, "minLength": 1}, "session": session},
                "required": ["prompt"],
                "additionalProperties": False,
            },
            "outputSchema": {
                "type": "object",
                "properties": {"answer": text, "session": text, "trace_id": text},
                "required": ["answer", "session", "trace_id"],
            },
            "annotations": _EFFECTS[""],
        }


def _prompt(arguments: dict[str, Any], agent: str) -> dict[str, Any]:
    """Raises InvalidArgument."""
    text, session = arguments.get("prompt"), arguments.get("session", "")
    if not isinstance(text, str) or not text.strip() or not isinstance(session, str):
        raise InvalidArgument(
            f"{ASK} takes the texts prompt and, if it goes on with one, session.", field="prompt"
        )
    where = {"session": session} if session else {"new": True}
    return {"agent": agent, "text": text, "outside": True, "becomes_current": False, **where}


def _wants(question: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """An InputRequiredResult. The retry says which call it belongs to by its arguments."""
    name = asking.question_id(question)
    asked = {"method": ELICIT, "params": {"mode": "form", **params}}
    return {"resultType": "input_required", "inputRequests": {name: asked}, "requestState": name}


def _waits(held: Held, question: dict[str, Any], why: str) -> dict[str, Any]:
    text = f"{asking.how_to_answer(question)}\nAfterwards make the same call again: it gives the result."
    data = {"code": "approval_required", "id": asking.question_id(question), "session": held.session}
    return _failed({**data, "message": f"{why} {text}".strip()})


def _ended(held: Held) -> dict[str, Any]:
    """The CallToolResult of a call that has ended, with what the history knows it by."""
    end, report = held.end or {}, held.report
    if end.get("type") != "done":
        return _failed({**end, "session": held.session})
    about = {"trace_id": end["trace_id"], "metadata": report.get("metadata") or {}}
    result: dict[str, Any] = {"content": [_text(end["text"])], "_meta": {"org.lightagent1/call": about}}
    if held.session:
        answer = {"answer": end["text"], "session": held.session, "trace_id": end["trace_id"]}
        result["structuredContent"] = answer
        result["content"].append(_text(f"(The session is {held.session}.)"))
    return result


def _failed(error: dict[str, Any]) -> dict[str, Any]:
    said = f"{error['message']} {error.get('suggestion') or ''}".strip()
    shown = ("code", "message", "suggestion", "field", "id", "session")
    known = {key: error[key] for key in shown if error.get(key)}
    return {"content": [_text(said)], "isError": True, "_meta": {"org.lightagent1/error": known}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
