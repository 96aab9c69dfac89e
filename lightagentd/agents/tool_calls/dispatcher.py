"""The parts of the daemon that every tool call needs; the daemon makes one `Dispatcher` for all agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightagentd.agents.builtin import Builtins
from lightagentd.agents.hooks import Hooks
from lightagentd.agents.tool_calls.results import cap_text
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.config.configuration import Limits
from lightagentd.events.history import History
from lightagentd.policy.decide import Policy
from lightagentd.policy.questions.approver import ApproverLink
from lightagentd.policy.questions.asked import AllQuestions
from lightagentd.worker.pool import Pool

if TYPE_CHECKING:
    from lightagentd.agents.confirming.confirmations import Confirmations


@dataclass(frozen=True, kw_only=True)
class Dispatcher:
    """The parts of the daemon that every call needs."""

    history: History
    policy: Policy
    asked: AllQuestions
    pool: Pool
    limits: Limits
    builtins: Builtins
    hooks: Hooks
    confirmations: Confirmations
    approver: ApproverLink
    toolbox: Callable[[str], Toolbox]
    """The tools of an agent."""
    give: Callable[..., Awaitable[dict[str, Any]]]
    """What a call is given beside its arguments (`given`)."""

    def readable(self, text: str) -> str:
        """A text as the model, the history and the watchers get it. Secrets are removed before the text is
        cut, because a cut could halve one.
        """
        return cap_text(self.history.redactor.result(text), self.limits.result_bytes)
