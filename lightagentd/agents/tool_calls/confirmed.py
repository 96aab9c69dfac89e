"""The part of a call whose change is taken back unless it is confirmed in time (`agents.confirming`).

A `ConfirmedCall` belongs to one call. What cannot be taken back is refused before it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightagentd.agents.confirming import ways
from lightagentd.agents.tool_calls.calls import Ready
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.results import Outcome
from lightagentd.agents.tool_calls.working import previewed
from lightagentd.config.terms import Terms
from lightagentd.errors import Conflict
from lightagentd.events.history import Change, NewEvent
from lightagentd.policy.call import Ruling
from lightagentd.policy.questions.approval import Approval
from lightagentd.tool import Effect


class ConfirmedCall:
    def __init__(self, dispatcher: Dispatcher, origin: Origin) -> None:
        self._dispatcher, self._origin = dispatcher, origin
        self.terms: Terms | None = None
        """Those in force; known after `prepare`."""
        self._back: dict[str, Any] = {}

    def asked_for(self, ready: Ready, ruling: Ruling) -> Terms | None:
        """The terms that the step of a flow or a rule sets. What the daemon takes back has none."""
        if ready.effect is not Effect.CHANGE or self._origin.on_end is not None:
            return None
        turn = self._origin.turn
        return (turn.terms if turn is not None else None) or ruling.terms

    async def prepare(self, ready: Ready, ruling: Ruling, granted: Approval | None) -> None:
        """Find out how the change can be taken back. Raises Conflict and InvalidArgument where it cannot."""
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
        confirmations.check_room()
        ways.check(terms, toolbox, action.tool, action.name, ready.effect.value)
        before: dict[str, Any] = {}
        if action.tool == "systemd" and not terms.inverse:
            _, before = await previewed(self._dispatcher, self._origin, ready)
        self._back = ways.way_back(terms, action.tool, action.name, ready.call_id, ready.args, before)

    def begin(self, ready: Ready, granted: Approval | None) -> tuple[Sequence[NewEvent], tuple[Change, ...]]:
        """What to store with the intent."""
        if self.terms is None:
            return (), ()
        confirmations = self._dispatcher.confirmations
        events, changes = confirmations.begin(ready, self._origin, self.terms, self._back, granted)
        return events, tuple(changes)

    def expected(self, granted: Approval | None) -> dict[str, Any]:
        """What the worker is told of the state that the change rests on."""
        found = dict(granted.expected) if granted is not None else {}
        if self._back.get("action") == "undo" and self.terms is not None and not self.terms.inverse:
            found |= ways.KEEPS
        return found

    def end(self, call_id: str, outcome: Outcome) -> tuple[Sequence[NewEvent], Sequence[Change]]:
        """What to store with the end of the call."""
        return self._dispatcher.confirmations.ended(call_id, outcome)

    def leave(self, call_id: str) -> None:
        """The call is over, however it ended."""
        if self.terms is not None:
            self._dispatcher.confirmations.left(call_id)
