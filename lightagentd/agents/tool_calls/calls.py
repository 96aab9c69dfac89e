"""Turns a model's tool call, or an approved one, into the exact call to run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from lightagentd.agents.tool_calls.described import ActionInfo
from lightagentd.agents.tool_calls.origin import Origin, host_of
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.config.terms import Terms
from lightagentd.errors import ApprovalMismatch, InvalidArgument
from lightagentd.llm.dialects.fitting import wrapped_arguments
from lightagentd.llm.protocol import ToolCall
from lightagentd.policy.questions.approval import Approval, Bound, hide, working_directory
from lightagentd.text.strict_json import BadJson, decoded, is_deeper
from lightagentd.tool import Effect
from lightagentd.worker.call import Call
from lightagentd.worker.lanes import Checked

MAX_DEPTH = 50
"""How deep objects and lists in arguments may be nested; those who send, store and show them recurse."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The exact call to run. `what` describes it in events, without hidden arguments."""

    call: ToolCall
    call_id: str
    action: ActionInfo
    args: dict[str, Any]
    effect: Effect
    host: str = ""

    @property
    def name(self) -> str:
        return f"{self.action.tool}.{self.action.name}"

    @property
    def what(self) -> dict[str, Any]:
        return {
            "tool": self.action.tool,
            "action": self.action.name,
            "effect": self.effect.value,
            "args": hide(self.args, self.action.hidden),
        }

    def bound(self, origin: Origin, terms: Terms | None = None) -> Bound:
        """The facts that an approval of this call on these terms covers."""
        return Bound(
            agent=origin.agent.name,
            session=origin.session_id,
            tool=self.action.tool,
            action=self.action.name,
            effect=self.effect.value,
            args=self.args,
            cwd=working_directory(self.args),
            **(terms.fields() if terms is not None else {}),
        )

    def wanted(self, origin: Origin, longest_s: float) -> Call:
        """The call in the form for a worker."""
        return Call(
            call_id=self.call_id,
            tool=self.action.tool,
            action=self.action.name,
            args=self.args,
            agent=origin.agent.name,
            session=origin.session_id,
            effect=self.effect,
            timeout_s=self.action.timeout_of(self.args, longest_s),
            owner=origin.worker_owner,
            place=self.action.place,
        )


def resumed(call: ToolCall, asked: Approval, toolbox: Toolbox) -> Ready:
    """The call for which an earlier run of the daemon asked. Raises ToolNotFound, ApprovalMismatch."""
    action = toolbox.find(asked.tool, asked.action)
    if action.function != call.name:
        raise ApprovalMismatch(f"The approval {asked.id} is for {action.function}, not {call.name[:100]}.")
    return Ready(
        call=call,
        call_id=asked.call_id,
        action=action,
        args=asked.args,
        effect=action.effect_of(asked.args),
        host=host_of(action.goes_to(asked.args)),
    )


def checked_here(ready: Ready) -> Checked | None:
    """The checked arguments, if that takes no worker. Wrong ones are left to the worker, who says why."""
    check = ready.action.check
    try:
        return None if check is None else Checked(args=check(ready.args))
    except ValidationError:
        return None


def whole(checked: Checked, ready: Ready) -> dict[str, Any]:
    """The checked arguments of a worker, completed with the secret ones that it does not return.

    Raises InvalidArgument for values that cannot be stored, compared and sent unchanged. Pydantic turns "nan"
    into NaN where a number is expected, and a worker is not trusted.
    """
    name, hidden = ready.action.function, ready.action.hidden
    if not isinstance(checked.args, dict):
        raise InvalidArgument(f"The arguments of {name} came back as something else.")
    args = checked.args | {name: value for name, value in ready.args.items() if name in hidden}
    try:
        json.dumps(args, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as err:
        raise InvalidArgument(
            f"The arguments of {name} cannot be written as JSON: {err}.", suggestion="Use ordinary numbers."
        ) from err
    if is_deeper(args, MAX_DEPTH):
        raise InvalidArgument(f"The arguments of {name} are nested deeper than {MAX_DEPTH} levels.")
    return args


def parse_call(call: ToolCall, toolbox: Toolbox) -> tuple[ActionInfo, dict[str, Any]]:
    """The action named by a model, and its arguments. Raises ToolNotFound, InvalidArgument.

    The worker checks the arguments in full, against the action's own pydantic model.
    """
    action = toolbox.by_function(call.name)
    try:
        args = _arguments(call)
    except BadJson as err:
        raise InvalidArgument(
            f"The arguments of {call.name} are not JSON: {err}.", suggestion="Write one JSON object."
        ) from err
    if not isinstance(args, dict):
        raise InvalidArgument(
            f"The arguments of {call.name} are not an object.", suggestion="Write one JSON object."
        )
    known = action.schema.get("properties", {})
    for name in args:
        if name not in known:
            raise InvalidArgument(
                f"{call.name} has no argument {name[:100]!r}.",
                field=name[:100],
                suggestion=f"The arguments are: {', '.join(known) or 'none'}.",
            )
    for name in action.schema.get("required", ()):
        if name not in args:
            raise InvalidArgument(f"{call.name} needs the argument {name!r}.", field=name)
    return action, args


def _arguments(call: ToolCall) -> Any:
    """Raises BadJson."""
    args = decoded(call.arguments or "{}", depth=MAX_DEPTH)
    try:
        json.dumps(args, ensure_ascii=False).encode()
    except UnicodeEncodeError as err:
        raise BadJson("a character in it is half of a pair") from err
    return args


def unread(call: ToolCall, toolbox: Toolbox, readable: Callable[[str], str]) -> dict[str, Any]:
    """What events say of a call that cannot be read: its arguments as the model wrote them, and what is known
    of its action. Arguments that cannot be told apart are left out where one is for the tool alone.
    """
    action = toolbox.functions.get(call.name)
    hidden = () if action is None else action.hidden
    try:
        args = _arguments(call)
    except BadJson:
        args = None
    if isinstance(args, dict):
        args = hide(args, hidden)
    else:
        written = readable(call.arguments).encode("utf-8", "replace").decode()
        args = {} if hidden else wrapped_arguments(written)
    if action is None:
        return {"args": args}
    effect = {} if action.effect is None else {"effect": action.effect.value}
    return {"tool": action.tool, "action": action.name, **effect, "args": args}
