"""One turn in an editor: its events as updates of the session, and the questions that a person answers there.

A turn that is left before its end (the editor is gone) is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import aclosing
from typing import Any

from acp import helpers, schema
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import CLIENT_METHODS
from acp.utils import notify_model, request_model
from pydantic import ValidationError

from lightagentd import errors
from lightagentd.api import LAST_EVENTS
from lightagentd.cli.editor import calls
from lightagentd.cli.editor.daemon import Daemon
from lightagentd.cli.question import (
    REQUESTS,
    how_to_answer,
    is_about_call,
    question_id,
    question_lines,
    visible,
)
from lightagentd.errors import ApprovalClosed, Cancelled, InputClosed, LightagentError, StepLimit

_log = logging.getLogger(__name__)
_CANCEL_TIMEOUT_S = 5.0
_OUTPUT_CHARS = 4000
"""So much of what a call writes is shown while it runs."""
_ALLOW, _REJECT = "allow", "reject"
_STOPS: dict[str | None, schema.StopReason] = {"length": "max_tokens", "content_filter": "refusal"}
"""Reasons why a model ended that are not the end of a turn."""
_FAILED_STOPS: dict[str, schema.StopReason] = {
    Cancelled.code: "cancelled",
    StepLimit.code: "max_turn_requests",
}
"""Errors for which the protocol has a reason to stop."""


async def update(editor: Connection, session: str, what: helpers.SessionUpdate) -> None:
    """Raises ConnectionError when the editor is gone."""
    await notify_model(editor, CLIENT_METHODS["session_update"], helpers.session_notification(session, what))


class EditorTurn:
    """`run` it once."""

    def __init__(self, editor: Connection, daemon: Daemon, session: str) -> None:
        self._editor, self._daemon, self._session = editor, daemon, session
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._known: set[str] = set()
        """The calls that the editor knows and whose end it has not heard of."""
        self._outputs: dict[str, str] = {}
        self._has_said = False
        """Whether text came since the last call."""
        self._cancelled = False

    async def cancel(self) -> None:
        """Cancel the turn; its end still comes. Raises the daemon's error."""
        self._cancelled = True
        await self._daemon.call("Sessions.Cancel", session=self._session)

    async def run(self, **prompt: Any) -> schema.StopReason:
        """Prompt the session. Raises the error of the daemon or of the turn."""
        is_left = True
        try:
            async with (
                self._daemon.client() as client,
                aclosing(client.stream("Sessions.Prompt", session=self._session, **prompt)) as replies,
            ):
                begun = False
                async for reply in replies:
                    event = reply["event"]
                    if self._cancelled and not begun:  # it was not stored yet when it was to be cancelled
                        await self.cancel()
                    begun = True
                    if event["type"] in LAST_EVENTS:
                        is_left = False
                        return await self._end(event)
                    await self._show(event)
            raise LightagentError("The turn ended without a last event.")
        except LightagentError:
            is_left = False
            raise
        finally:
            if is_left:
                with contextlib.suppress(LightagentError, TimeoutError):
                    await asyncio.wait_for(self.cancel(), _CANCEL_TIMEOUT_S)
            await self._drop(*self._questions)

    async def _end(self, event: dict[str, Any]) -> schema.StopReason:
        is_done = event["type"] == "done"
        for call_id in self._known:  # such as a question of another agent that this one asked
            await self._update(helpers.update_tool_call(call_id, status="completed" if is_done else "failed"))
        if is_done:
            if not self._has_said and event["text"].strip():
                await self._update(helpers.update_agent_message_text(event["text"]))
            return _STOPS.get(event.get("finish_reason"), "end_turn")
        if event["code"] in _FAILED_STOPS:
            if event["code"] != Cancelled.code:
                await self._remark(event["message"])
            return _FAILED_STOPS[event["code"]]
        raise errors.from_dict(event)

    async def _show(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "text_delta":
            self._has_said = True
            await self._update(helpers.update_agent_message_text(event["text"]))
        elif kind == "reasoning_delta":
            await self._update(helpers.update_agent_thought_text(event["text"]))
        elif kind in ("tool_call", "tool_output", "tool_result"):
            await self._show_call(event)
        elif kind in REQUESTS:
            await self._ask(event)
        elif kind in ("approval_answered", "input_answered"):
            await self._drop(question_id(event))
        elif kind == "plan":
            await self._update(calls.plan(event["plan"]))
        elif kind == "queued" and event["position"]:
            await self._remark(f"Before this prompt come {event['position']} others of the session.")
        elif kind == "notice":
            await self._remark(event["message"])

    async def _show_call(self, event: dict[str, Any]) -> None:
        call_id, self._has_said = event["call_id"], False
        if event["type"] == "tool_output":
            said = self._outputs.get(call_id, "") + event["text"]
            self._outputs[call_id] = said[-_OUTPUT_CHARS:]
            content = calls.as_text(self._outputs[call_id])
            await self._update(helpers.update_tool_call(call_id, content=content))
        elif event["type"] == "tool_result":
            if call_id not in self._known:  # it was refused before it began
                await self._begin(event)
            self._known.discard(call_id)
            self._outputs.pop(call_id, None)
            await self._update(calls.ended(event))
        elif call_id in self._known:  # it was asked about
            await self._update(helpers.update_tool_call(call_id, status="in_progress"))
        else:
            await self._begin(event)

    async def _begin(self, call: dict[str, Any], *, waits: bool = False) -> None:
        self._known.add(call["call_id"])
        await self._update(calls.started(call, "pending" if waits else "in_progress"))

    # Questions

    async def _ask(self, event: dict[str, Any]) -> None:
        """Ask the person at the editor if there is something to choose from; else say how to answer."""
        is_call, event = is_about_call(event), await self._daemon.client().asked(event)
        if event["call_id"] not in self._known:
            await self._begin(event if is_call else {"tool": "human", "action": "ask", **event}, waits=True)
        if is_call or event["choices"]:
            self._questions[question_id(event)] = asyncio.create_task(self._answer(event))
        if not (_may_allow(event) if is_call else event["choices"]):
            told = question_lines(event) if event.get("problem") or not is_call else []
            await self._remark(*told, self._waits(event))

    async def _answer(self, event: dict[str, Any]) -> None:
        """Ask, and tell the daemon the answer. Without one the question stays."""
        name, is_call, problem = question_id(event), is_about_call(event), ""
        try:
            chosen = await self._chosen(event)
            if chosen == _ALLOW:
                async with self._daemon.client() as client:
                    await client.approve(event)
            elif chosen is not None and is_call:
                async with self._daemon.client() as client:
                    await client.deny(event)
            elif chosen is not None:
                await self._daemon.call("Inputs.Answer", input=name, text=event["choices"][int(chosen)])
            if chosen is not None:
                return
        except (ApprovalClosed, InputClosed):
            return
        except LightagentError as err:
            problem = f"{err.message} {err.suggestion}".strip()
        except (RequestError, ValidationError) as err:
            _log.warning("The editor did not ask: %s", err)
        if not self._cancelled:
            await self._remark(problem, self._waits(event))

    async def _chosen(self, event: dict[str, Any]) -> str | None:
        """The id of the option that the person chose; None when they chose none."""
        text = calls.as_text("\n".join(question_lines(event)))
        if is_about_call(event):
            call = calls.started(event, "pending", [*text, *calls.diffs(event["preview"])]).model_dump()
            options = [schema.PermissionOption(option_id=_REJECT, name="Reject once", kind="reject_once")]
            if _may_allow(event):
                allow = "Allow once, as an administrator" if event["must_authenticate"] else "Allow once"
                options.insert(0, schema.PermissionOption(option_id=_ALLOW, name=allow, kind="allow_once"))
        else:
            title = visible(event["question"])
            call = {"tool_call_id": event["call_id"], "title": title, "content": text}
            options = [
                schema.PermissionOption(option_id=str(number), name=visible(choice), kind="allow_once")
                for number, choice in enumerate(event["choices"])
            ]
        request = schema.RequestPermissionRequest(
            session_id=self._session, tool_call=schema.ToolCallUpdate(**call), options=options
        )
        method = CLIENT_METHODS["session_request_permission"]
        answer = await request_model(self._editor, method, request, schema.RequestPermissionResponse)
        chosen = getattr(answer.outcome, "option_id", None)
        return chosen if chosen in {one.option_id for one in options} else None

    def _waits(self, event: dict[str, Any]) -> str:
        what = f"{event['tool']}.{event['action']}" if is_about_call(event) else "an answer"
        return f"The turn waits for {visible(what)}. {how_to_answer(event)}"

    async def _drop(self, *questions: str) -> None:
        """End the asking of questions that are answered, here or elsewhere, or are over."""
        tasks = [self._questions.pop(one) for one in questions if one in self._questions]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                with contextlib.suppress(ConnectionError):
                    task.result()

    async def _remark(self, *sentences: str) -> None:
        """Say something that is not the agent's: in a quotation of its own."""
        lines = "\n".join(filter(None, sentences)).split("\n")
        quotation = "".join(f"> {line}  \n" for line in lines)
        await self._update(helpers.update_agent_message_text(f"\n\n{quotation}\n"))

    async def _update(self, what: helpers.SessionUpdate) -> None:
        await update(self._editor, self._session, what)


def _may_allow(event: dict[str, Any]) -> bool:
    """Whether the person may allow the call that is asked about, if need be after an authentication."""
    return bool(event["may_answer"] or event["must_authenticate"])
