"""The part of a call whose change is taken back unless it is confirmed in time (`agents.confirming`).

A `ConfirmedCall` belongs to one call. What cannot be taken back is refused before it is done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightagentd.agents.confirming import ways
from lightagentd.agents.tool_calls.calls import Ready, checked_here, parse_call, whole
from lightagentd.agents.tool_calls.deciding import decide
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.results import Outcome
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.agents.tool_calls.working import checked_by, previewed
from lightagentd.config.terms import Terms
from lightagentd.errors import Conflict, InvalidArgument, NotFound, PolicyDenied
from lightagentd.events.history import Change, NewEvent
from lightagentd.llm.protocol import ToolCall
from lightagentd.policy.call import Decision, Ruling
from lightagentd.policy.questions.approval import Approval
from lightagentd.tool import Effect
from lightagentd.worker.ways import needs_preview, way_back


class ConfirmedCall:
    def __init__(self, dispatcher: Dispatcher, origin: Origin) -> None:
        self._dispatcher, self._origin = dispatcher, origin
        self.terms: Terms | None = None
        """Those in force; known after `prepare`."""
        self._back: dict[str, Any] = {}
        self._expected: dict[str, Any] = {}

    def asked_for(self, ready: Ready, ruling: Ruling) -> Terms | None:
        """The terms that its caller, a step of a flow or a rule sets; none for what takes a change back."""
        if ready.effect is not Effect.CHANGE or self._origin.takes_back:
            return None
        turn = self._origin.turn
        return (self._origin.terms if turn is None else turn.terms) or ruling.terms

    async def prepare(self, ready: Ready, ruling: Ruling, granted: Approval | None) -> None:
        """Find out how the change can be taken back. Raises Conflict and InvalidArgument where it cannot."""
        self._expected = dict(ruling.expected if granted is None else granted.expected)
        wanted = self.asked_for(ready, ruling)
        self.terms = terms = wanted if granted is None else granted.terms
        if terms is None:
            if wanted is not None:
                raise Conflict(
                    "This change has to be confirmed by now, and who approved it was not shown how it takes"
                    " itself back. Nothing was done.",
                    suggestion="Ask for it again.",
                )
            return
        action, confirmations = ready.action, self._dispatcher.confirmations
        toolbox = self._dispatcher.toolbox(self._origin.agent.name)
        confirmations.check_room(self._origin.owner)
        before: dict[str, Any] = {}
        if needs_preview(terms, action.tool):
            _, before = await previewed(self._dispatcher, self._origin, ready)
        ways.check(terms, toolbox, action.tool, action.name, ready.effect.value, before)
        self._back = way_back(terms, action.tool, action.name, ready.call_id, ready.args, before)
        try:
            await self._check_back(toolbox, ready, granted)
        except (InvalidArgument, NotFound, PolicyDenied) as err:
            raise Conflict(
                f"The call that takes the change back cannot be made: {err.message} Nothing was done.",
                suggestion="Name another one: --inverse 'COMMAND'",
            ) from err

    async def _check_back(self, toolbox: Toolbox, ready: Ready, granted: Approval | None) -> None:
        """As far as can be known now. Raises InvalidArgument, NotFound, PolicyDenied."""
        dispatcher, origin = self._dispatcher, self._origin
        approver = granted.answered_by if granted is not None else None
        maker = Origin(
            definition=origin.definition,
            owner=origin.owner if approver is None else approver,
            takes_back=ready.call_id,
        )
        function = toolbox.find(self._back["tool"], self._back["action"]).function
        call = ToolCall(id="", name=function, arguments=json.dumps(self._back["args"]))
        action, args = parse_call(call, toolbox)
        back = Ready(call=call, call_id="", action=action, args=args, effect=action.effect_of(args))
        back = replace(
            back, args=whole(checked_here(back) or await checked_by(dispatcher, maker, back), back)
        )
        ruling = decide(dispatcher.policy, back, maker, has_change=dispatcher.pool.has_change)
        if ruling.decision is Decision.DENY:
            raise PolicyDenied(ruling.reason or f"The rule {ruling.rule} denies it.")

    def begin(self, ready: Ready, granted: Approval | None) -> tuple[Sequence[NewEvent], tuple[Change, ...]]:
        """What to store with the intent."""
        if self.terms is None:
            return (), ()
        confirmations = self._dispatcher.confirmations
        events, changes = confirmations.begin(ready, self._origin, self.terms, self._back, granted)
        return events, tuple(changes)

    def expected(self, granted: Approval | None) -> dict[str, Any]:
        """What the worker is told of the state that the call rests on. `granted` lets it go on after a
        question.
        """
        return self._expected or (dict(granted.expected) if granted is not None else {})

    def end(self, call_id: str, outcome: Outcome) -> tuple[Sequence[NewEvent], Sequence[Change]]:
        """What to store with the end of the call."""
        return self._dispatcher.confirmations.ended(call_id, outcome)

    def leave(self, call_id: str) -> None:
        """The call is over, however it ended."""
        if self.terms is not None:
            self._dispatcher.confirmations.left(call_id)
