"""One call inside a worker: its context, the check of its arguments, and the check of its result.

Also describes the worker's tools. `program` owns the tools and the running calls.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import logging
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lightagentd.bus.errors import NoAnswer
from lightagentd.errors import (
    InvalidArgument,
    LightagentError,
    OutcomeUnknown,
    TimedOut,
    ToolError,
)
from lightagentd.text.reason import LOOK_FIRST
from lightagentd.tool import Action, Args, Effect, NeedsInput, Result
from lightagentd.worker.loader import LoadedTool
from lightagentd.worker.needs_input import Asked, asked_by
from lightagentd.worker.outputs import CALL_LIMIT_BYTES, handle_of
from lightagentd.worker.plain import plain_fields

_log = logging.getLogger(__name__)

LAST = frozenset({"result", "asked"})
"""The kinds of event with which a call ends: its result, or what it asks a person."""
OUTPUT_LIMIT_CHARS = 1 << 20
"""A result's text is cut here; the daemon cuts it further for a model."""
METADATA_LIMIT_CHARS = 1 << 20
_PROGRESS_LIMIT = 256
"""Pieces of live output that may wait for a slow daemon; beyond it pieces are left out, and it is said."""
_PIECE_CHARS = 64 << 10
_KEPT_PIECE_BYTES = 192 << 10


@dataclass(kw_only=True)
class CallContext:
    """The context of a running call (see `lightagentd.tool.Context`)."""

    call_id: str
    agent: str
    session: str
    owner: int
    effect: Effect
    scratch: Path
    timeout_s: float
    expected: dict[str, Any] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=deque)
    """What waits to be sent; at most `_PROGRESS_LIMIT`."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """There is something in `events`, or the call is done."""
    left_out: int = 0
    kept: deque[tuple[str, memoryview, int]] = field(default_factory=deque)
    """Pieces of long outputs: stream, data and the stream's length. They are sent before the result."""

    def keep(self, stream: str, data: bytes, total_bytes: int) -> str:
        for start in range(0, min(len(data), CALL_LIMIT_BYTES), _KEPT_PIECE_BYTES):
            self.kept.append((stream, memoryview(data)[start : start + _KEPT_PIECE_BYTES], total_bytes))
        return handle_of(self.call_id)

    def kept_event(self) -> dict[str, Any]:
        """The next piece of a kept output, as an event to send."""
        stream, data, total_bytes = self.kept.popleft()
        encoded = base64.b64encode(data).decode("ascii")
        return {"kind": "kept", "stream": stream, "data": encoded, "total_bytes": total_bytes}

    def progress(self, text: str, stream: str = "stdout") -> None:
        for start in range(0, len(text), _PIECE_CHARS):
            self._put({"kind": "output", "stream": stream, "text": text[start : start + _PIECE_CHARS]})

    def emit(self, topic: str, event_type: str, data: dict[str, Any]) -> None:
        json.dumps(data, allow_nan=False)  # what cannot be sent is the tool's error, here and now
        self._put({"kind": "event", "topic": topic, "type": event_type, "data": data})

    def _put(self, item: dict[str, Any]) -> None:
        if len(self.events) >= _PROGRESS_LIMIT:
            self.left_out += 1
            return
        self.events.append(item)
        self.news.set()


def describe(loaded: LoadedTool) -> dict[str, Any]:
    """One tool as JSON."""
    problem, line = loaded.error, loaded.line
    actions: list[dict[str, Any]] = []
    try:
        for action in loaded.actions.values():
            line = action.method.__code__.co_firstlineno
            actions.append(_describe_action(action))
        line = loaded.line
    except Exception as err:  # noqa: BLE001 - pydantic raises many kinds for types without a JSON Schema
        problem, actions = f"{action.name}: {type(err).__name__}: {err}", []
    return {
        "name": loaded.name,
        "description": (loaded.tool.__doc__ or "").strip() if loaded.tool else "",
        "path": str(loaded.path),
        "sha256": loaded.sha256,
        "problem": problem,
        "agents": list(loaded.tool.agents) if loaded.tool else [],
        "line": line,
        "actions": actions,
    }


@functools.cache
def _schemas(model: type[Args]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The JSON Schema of a model, and its plain fields; kept, since a daemon describes its own tools at each
    reload.
    """
    return model.model_json_schema(), plain_fields(model)


def _describe_action(action: Action) -> dict[str, Any]:
    schema, plain = _schemas(action.args_model)
    return {
        "name": action.name,
        "description": action.description,
        "effect": action.effect.value if action.effect else "",
        "taints": action.taints,
        "timeout_s": action.timeout_s,
        "place": action.place.value if action.place else "",
        "host": action.host,
        "schema": schema,
        "plain": plain,
    }


def check_args(action: Action, args: Any) -> Args:
    """The arguments as the action's pydantic model. Raises InvalidArgument that names the wrong argument."""
    try:
        return action.args_model.model_validate(args)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "args"
        known = ", ".join(action.args_model.model_fields) or "none"
        said = " is missing" if first["type"] == "missing" else f": {first['msg']}"
        raise InvalidArgument(
            f"{action.tool}.{action.name}: {where}{said}.",
            field=where,
            suggestion=f"The arguments are: {known}.",
        ) from err


async def run_action(action: Action, args: Args, context: CallContext) -> Result | Asked:
    """Run an action to its result, or to its question to a person. Raises the action's errors."""
    try:
        async with asyncio.timeout(context.timeout_s):
            result = await action.method(context, args)
        return check_result(result)
    except TimeoutError as err:
        raise TimedOut(
            f"{action.tool}.{action.name} did not end within {context.timeout_s:g} seconds.",
            suggestion="Ask for less at once, or for a longer time.",
        ) from err
    except NeedsInput as raised:
        return asked_by(action, raised)
    except LightagentError as err:
        if isinstance(err, NoAnswer) and action.effect is Effect.CHANGE:
            raise OutcomeUnknown(err.message, suggestion=LOOK_FIRST) from err
        raise
    except (Exception, SystemExit) as err:
        _log.exception("%s.%s failed in a way that nobody expected", action.tool, action.name)
        raise ToolError(f"{action.tool}.{action.name} failed: {type(err).__name__}: {err}") from err


def check_result(result: Any) -> Result:
    """The result of a tool, if it is valid. Raises TypeError or ValueError."""
    if not isinstance(result, Result) or not isinstance(result.output, str):
        raise TypeError("the tool must give a Result with a text as its output")
    size = len(json.dumps(result.metadata, allow_nan=False))
    if size > METADATA_LIMIT_CHARS:
        raise ValueError(f"the metadata have {size} characters as JSON, more than {METADATA_LIMIT_CHARS}")
    return result


def result_event(result: Result | Asked, left_out: int) -> dict[str, Any]:
    """The last event of a call."""
    if isinstance(result, Asked):
        return {"kind": "asked", **result.model_dump()}
    output, metadata = result.output, dict(result.metadata)
    if len(output) > OUTPUT_LIMIT_CHARS:
        half = OUTPUT_LIMIT_CHARS // 2
        cut = len(output) - 2 * half
        output = f"{output[:half]}\n[... {cut} characters left out ...]\n{output[-half:]}"
        metadata["left_out_chars"] = cut
    if left_out:
        metadata["live_output_left_out"] = left_out
    return {"kind": "result", "output": output, "metadata": metadata}
