"""What a client can read: skills as prompts, sessions and events as resources."""

from __future__ import annotations

import json
import re
from contextlib import aclosing
from typing import Any

from lightagentd.errors import NotFound, SkillNotFound, from_dict
from lightagentd.mcp_server.request import Connect, Request, called, rpc_error
from lightagentd.text.jsonrpc import INVALID_PARAMS, RpcError
from lightagentd.text.mcp import RESOURCE_NOT_FOUND

EVENTS = "lightagent://events"
_URI = re.compile(
    rf"{EVENTS}|lightagent://(?:sessions/(?P<session>\w{{1,64}})(?P<of>/events)?|traces/(?P<trace>\w{{1,64}}))"
)
_TEMPLATES = (
    ("lightagent://sessions/{session}", "session", "The conversation of a session.", "text/markdown"),
    ("lightagent://sessions/{session}/events", "session events", "The newest events of a session.", ""),
    ("lightagent://traces/{trace}", "trace", "The events of one turn or call.", ""),
)
_EVENTS_READ, _PAGE, _COMPLETIONS = 100, 100, 100


class Reading:
    def __init__(self, connect: Connect, agent: str) -> None:
        self._connect, self._agent = connect, agent

    # Prompts

    async def prompts(self, request: Request) -> dict[str, Any]:  # noqa: ARG002
        argument = {"name": "request", "description": "What to do with the skill.", "required": False}
        listed = [
            {"name": skill["name"], "description": skill["description"], "arguments": [argument]}
            for skill in await self._skills()
        ]
        return {"prompts": listed}

    async def prompt(self, request: Request) -> dict[str, Any]:
        """A skill, and what to do with it, as a message of the user. Raises RpcError, LightagentError."""
        name, wanted = request.text("name"), request.object("arguments").get("request", "")
        if not isinstance(wanted, str):
            raise RpcError(INVALID_PARAMS, "The argument request is a text.")
        found = [skill for skill in await self._skills() if skill["name"] == name]
        if not found:
            raise SkillNotFound(f"The agent {self._agent} has no skill {name[:60]!r}.")
        called = {"agent": self._agent, "tool": "skill", "action": "load", "args": {"name": name}}
        text = ""
        async with (
            self._connect() as client,
            aclosing(client.stream("Tools.Call", **called, outside=True)) as replies,
        ):
            async for reply in replies:
                if (event := reply["event"])["type"] == "error":
                    raise from_dict(event)
                text = event["text"] if event["type"] == "done" else text
        said = f"Use this skill{f' for: {wanted}' if wanted else ''}\n\n{text}"
        message = {"role": "user", "content": {"type": "text", "text": said}}
        return {"description": found[0]["description"], "messages": [message]}

    async def complete(self, request: Request) -> dict[str, Any]:
        """Words for a prompt's request, from the examples of its skill, and the ids of sessions."""
        ref, argument = request.object("ref"), request.object("argument")
        begun, values = argument.get("value"), list[str]()
        if not isinstance(begun, str) or ref.get("type") not in ("ref/prompt", "ref/resource"):
            raise RpcError(INVALID_PARAMS, "Completion takes ref, and argument with name and value.")
        if ref["type"] == "ref/prompt":
            skills = [skill for skill in await self._skills() if skill["name"] == ref.get("name")]
            values = [one for skill in skills for one in skill["prompts"]]
        elif argument.get("name") == "session":
            values = [session["id"] for session in await self._sessions()]
        values = [one for one in values if begun.lower() in one.lower()]
        more = {"total": len(values), "hasMore": len(values) > _COMPLETIONS}
        return {"completion": {"values": values[:_COMPLETIONS], **more}}

    # Resources

    async def resources(self, request: Request) -> dict[str, Any]:
        """The events, then the sessions, newest first, by pages."""
        cursor = request.params.get("cursor", "0")
        if not isinstance(cursor, str) or not re.fullmatch(r"[0-9]{1,9}", cursor):
            raise RpcError(INVALID_PARAMS, "There is no such cursor.")
        first = int(cursor)
        sessions = await self._sessions()
        listed = [] if first else [_resource(EVENTS, "events", f"The newest events of {self._agent}.", "")]
        for one in sessions[first : first + _PAGE]:
            uri, said = (
                f"lightagent://sessions/{one['id']}",
                f"A conversation with {one['agent']}, {one['state']}.",
            )
            listed.append(_resource(uri, one["title"] or one["id"], said, "text/markdown"))
        more = {"nextCursor": str(first + _PAGE)} if len(sessions) > first + _PAGE else {}
        return {"resources": listed, **more}

    async def templates(self, request: Request) -> dict[str, Any]:  # noqa: ARG002
        found = [_resource(*template) for template in _TEMPLATES]
        return {"resourceTemplates": [{"uriTemplate": one.pop("uri"), **one} for one in found]}

    async def read(self, request: Request) -> dict[str, Any]:
        """Raises RpcError for what is not there, LightagentError."""
        uri = request.text("uri")
        missing = INVALID_PARAMS if request.modern else RESOURCE_NOT_FOUND
        which = self.events_of(uri, missing)
        try:
            if "session" in which and not uri.endswith("/events"):
                export = await called(self._connect, "Sessions.Export", **which)
                text, kind = export["export"]["text"], "text/markdown"
            else:
                told = await called(self._connect, "History.Query", limit=_EVENTS_READ, **which)
                text, kind = json.dumps(told["events"], ensure_ascii=False), "application/json"
        except NotFound as err:
            raise rpc_error(err, missing) from err
        return {"contents": [{"uri": uri, "mimeType": kind, "text": text}]}

    def events_of(self, uri: str, missing: int = RESOURCE_NOT_FOUND) -> dict[str, str]:
        """The filter of the events that a resource is made of. Raises RpcError for an unknown one."""
        if (found := _URI.fullmatch(uri)) is None:
            raise RpcError(
                missing, f"There is no resource {uri[:100]!r}.", {"uri": uri[:200], "code": "not_found"}
            )
        return {name: found[name] for name in ("session", "trace") if found[name]} or {"agent": self._agent}

    async def _skills(self) -> list[Any]:
        found = (await called(self._connect, "Agents.Skills", name=self._agent))["skills"]
        return [skill for skill in found if not skill["problem"]]

    async def _sessions(self) -> list[Any]:
        found = (await called(self._connect, "Sessions.List", agent=self._agent))["sessions"]
        return sorted(found, key=lambda session: session["updated_us"], reverse=True)


def _resource(uri: str, name: str, description: str, kind: str) -> dict[str, Any]:
    return {"uri": uri, "name": name, "description": description, "mimeType": kind or "application/json"}
