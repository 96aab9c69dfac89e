"""The methods of the Agent Client Protocol that an editor calls, version 1.

The sessions are the daemon's: it decides on each call whose they are and what may be done. Kept here are the
turns that run, and what is still to be said in a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from acp import helpers, schema
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import PROTOCOL_VERSION
from acp.utils import serialize_params
from pydantic import BaseModel, ValidationError

from lightagentd import __version__
from lightagentd.cli.editor import history, lines
from lightagentd.cli.editor.daemon import Daemon
from lightagentd.cli.editor.prompt import composed
from lightagentd.cli.editor.turn import EditorTurn, update
from lightagentd.cli.question import visible
from lightagentd.errors import InvalidArgument, LightagentError, NotFound

_INVALID_PARAMS, _INTERNAL_ERROR, _NOT_FOUND = -32602, -32603, -32002
_MOST_LISTED = 200
_REST_TIMEOUT_S = 5.0
_TITLE_CHARS = 60
_MICROSECONDS = 1_000_000
_log = logging.getLogger(__name__)


async def serve(daemon: Daemon, agent: str) -> None:
    """Serve one editor on standard input and output until it leaves. Raises InvalidArgument."""
    streams = await lines.standard_streams()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, streams.end)
    editor = EditorAgent(daemon, agent, streams)
    try:
        await editor.connection.main_loop()
        await editor.answer_the_rest()
    finally:
        await editor.connection.close()  # which cancels what runs


def request_error(err: LightagentError) -> RequestError:
    """An error of ours in the shape of JSON-RPC: `data` has its code."""
    kinds = {InvalidArgument: _INVALID_PARAMS, NotFound: _NOT_FOUND}
    code = next((code for kind, code in kinds.items() if isinstance(err, kind)), _INTERNAL_ERROR)
    return RequestError(code, f"{err.message} {err.suggestion}".strip(), err.to_dict())


class EditorAgent:
    """`agent` is the name of the one that new sessions are with."""

    def __init__(self, daemon: Daemon, agent: str, streams: lines.Lines) -> None:
        self._daemon, self._agent = daemon, agent
        self._turns: dict[str, list[EditorTurn]] = {}
        """Those that run, by session."""
        self._folders: dict[str, str] = {}
        """What the first prompt of a new session is to say, by session."""
        self._refusals: dict[str, str] = {}
        """What is to be said before the next answer, by session."""
        self._asked: set[asyncio.Task[Any]] = set()
        """Requests that are not answered yet, but for prompts."""
        self.connection = Connection(self._handle, streams, listening=False)
        self._methods: dict[str, tuple[type[BaseModel], Callable[[Any], Awaitable[BaseModel | None]]]] = {
            "initialize": (schema.InitializeRequest, self._initialize),
            "session/new": (schema.NewSessionRequest, self._new),
            "session/load": (schema.LoadSessionRequest, self._load),
            "session/list": (schema.ListSessionsRequest, self._list),
            "session/set_mode": (schema.SetSessionModeRequest, self._set_mode),
            "session/prompt": (schema.PromptRequest, self._prompt),
            "session/cancel": (schema.CancelNotification, self._cancel),
        }

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:
        """Answer a request, or take a notification, which has no answer. Raises RequestError."""
        try:
            if method not in self._methods:
                raise RequestError.method_not_found(method)
            shape, answer = self._methods[method]
            if method != "session/prompt" and (task := asyncio.current_task()) is not None:
                self._asked.add(task)
                task.add_done_callback(self._asked.discard)
            found = await answer(_read(method, shape, params))
        except ConnectionError as err:
            raise RequestError(_INTERNAL_ERROR, "The editor reads no more.") from err
        except (LightagentError, RequestError) as err:
            failed = request_error(err) if isinstance(err, LightagentError) else err
            if not is_notification:
                raise failed from err
            _log.warning("The notification %s was not taken: %s", visible(method[:100]), failed)
            return None
        return {} if found is None else serialize_params(found)

    async def answer_the_rest(self) -> None:
        """Answer what was asked before the editor left, but for prompts."""
        await asyncio.sleep(0)  # the last of them begins
        if self._asked:
            await asyncio.wait(self._asked, timeout=_REST_TIMEOUT_S)

    async def _initialize(self, _: schema.InitializeRequest) -> schema.InitializeResponse:
        sessions = schema.SessionCapabilities(list=schema.SessionListCapabilities())
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(embedded_context=True),
                session_capabilities=sessions,
            ),
            agent_info=schema.Implementation(name="lightagentd", title=self._agent, version=__version__),
        )

    async def _new(self, request: schema.NewSessionRequest) -> schema.NewSessionResponse:
        _check_folder(request.cwd)
        found = await self._daemon.call("Agents.Get", name=self._agent)
        session = await self._daemon.call("Sessions.Create", agent=self._agent)
        if found["model"] != "runbook":  # the words of the folder would choose a runbook, too
            folder = json.dumps(visible(request.cwd), ensure_ascii=False)
            self._folders[session["id"]] = f"\n\n(My editor has the folder {folder} open.)"
        self._refuse_servers(session["id"], request)
        return schema.NewSessionResponse(session_id=session["id"], modes=await self._modes(session))

    async def _load(self, request: schema.LoadSessionRequest) -> schema.LoadSessionResponse:
        _check_folder(request.cwd)
        name = request.session_id
        session = await self._daemon.call("Sessions.Get", session=name)
        found = await self._daemon.call("Sessions.Messages", session=name, limit=history.MOST_MESSAGES)
        for each in history.updates(found):
            await update(self.connection, name, each)
        self._refuse_servers(name, request)
        return schema.LoadSessionResponse(modes=await self._modes(session))

    def _refuse_servers(
        self, session: str, request: schema.NewSessionRequest | schema.LoadSessionRequest
    ) -> None:
        """Tool servers of the editor are not used. That is said with the next answer: an error would keep
        from the agent everybody who has such a server for another one.
        """
        if request.mcp_servers:
            names = ", ".join(visible(each.name) for each in request.mcp_servers)
            self._refusals[session] = (
                f"> The tool servers of the editor are refused: {names}. An agent of this machine has the"
                " tools and tool servers that its administrator gave it.\n\n"
            )
            _log.warning("The tool servers of the editor are refused: %s", names)

    async def _list(self, request: schema.ListSessionsRequest) -> schema.ListSessionsResponse:
        """The newest. Sessions belong to no folder, so each goes on in the one that is asked about."""
        found = await self._daemon.call("Sessions.List")
        infos = [
            schema.SessionInfo(
                session_id=each["id"],
                cwd=request.cwd or "/",
                title=f"{each['agent']}: {each['title']}",
                updated_at=_moment(each["updated_us"]),
            )
            for each in found[:_MOST_LISTED]
        ]
        return schema.ListSessionsResponse(sessions=infos)

    async def _modes(self, session: dict[str, Any]) -> schema.SessionModeState | None:
        """The agents that the session's own may give it to, and itself; None if there is no other."""
        own = await self._daemon.call("Agents.Get", name=session["agent"])
        names = [own["name"], *(name for name in own["agents"] if name != own["name"])]
        modes = [schema.SessionMode(id=name, name=name) for name in names]
        modes[0].description = own["description"]
        current = session["holder"] or own["name"]
        if len(modes) == 1:
            return None
        return schema.SessionModeState(current_mode_id=current, available_modes=modes)

    async def _set_mode(self, request: schema.SetSessionModeRequest) -> None:
        session = await self._daemon.call("Sessions.Get", session=request.session_id)
        if request.mode_id != (session["holder"] or session["agent"]):
            await self._daemon.call("Sessions.Transfer", session=request.session_id, agent=request.mode_id)

    async def _prompt(self, request: schema.PromptRequest) -> schema.PromptResponse:
        name = request.session_id
        text, attachments = await composed(request)
        before = await self._daemon.call("Sessions.Get", session=name)
        if refusal := self._refusals.pop(name, ""):
            await update(self.connection, name, helpers.update_agent_message_text(refusal))
        title = " ".join("".join(char if char.isprintable() else " " for char in text[:1000]).split())
        if title and (folder := self._folders.pop(name, "")):
            text += folder
            await self._daemon.call("Sessions.Rename", session=name, title=title[:_TITLE_CHARS].strip())
        turn = EditorTurn(self.connection, self._daemon, name)
        turns = self._turns.setdefault(name, [])
        turns.append(turn)
        try:
            stop = await turn.run(text=text, attachments=attachments or None)
        finally:
            turns.remove(turn)
            if not turns:
                self._turns.pop(name, None)
        with contextlib.suppress(LightagentError):  # the turn is over, whatever becomes of this
            await self._tell_changes(before)
        return schema.PromptResponse(stop_reason=stop)

    async def _tell_changes(self, before: dict[str, Any]) -> None:
        """A turn gives a new session its title, and may hand it to another agent."""
        after = await self._daemon.call("Sessions.Get", session=before["id"])
        changes: list[helpers.SessionUpdate] = []
        if after["title"] != before["title"]:
            title = after["title"]
            changes.append(schema.SessionInfoUpdate(session_update="session_info_update", title=title))
        if after["holder"] != before["holder"]:
            changes.append(helpers.update_current_mode(after["holder"] or after["agent"]))
        for change in changes:
            await update(self.connection, before["id"], change)

    async def _cancel(self, request: schema.CancelNotification) -> None:
        """Cancel the turns that this editor began."""
        for turn in list(self._turns.get(request.session_id, ())):
            await turn.cancel()


def _read(method: str, shape: type[BaseModel], params: Any) -> BaseModel:
    """Raises InvalidArgument."""
    try:
        return shape.model_validate(params)
    except ValidationError as err:
        first = err.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:100] or "params"
        raise InvalidArgument(
            f"The parameters of {method} are invalid: {where}: {first['msg'][:200]}.", field=where
        ) from err


def _check_folder(folder: str) -> None:
    if not folder.startswith("/"):
        raise InvalidArgument("The working directory is not an absolute path.", field="cwd")


def _moment(time_us: int) -> str:
    """As RFC 3339 has it."""
    moment = datetime.datetime.fromtimestamp(time_us / _MICROSECONDS, datetime.UTC)
    return moment.isoformat(timespec="seconds")
