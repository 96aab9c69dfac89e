"""The operations that propose a rule from an approval, and write it to policy.d.

A proposal changes nothing. The daemon writes a rule only where it can write policy.d; as a hardened unit it
cannot, and then lactl does it as the administrator who runs it. Either way the file is new, whole or not at
all, and the others are untouched.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd import api
from lightagentd.agents.tool_calls.origin import host_of
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.approvals import admit_to
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.operations.policy import policy_change
from lightagentd.errors import Conflict, LightagentError, PermissionDenied, Refused
from lightagentd.events.queries import Filter
from lightagentd.events.types.policy import RuleWritten
from lightagentd.host.atomic_file import write_whole
from lightagentd.policy.call import PERSON, Decision, PolicyCall
from lightagentd.policy.decide import SHELLS
from lightagentd.policy.in_force import retake_rules
from lightagentd.policy.operation import Operation
from lightagentd.policy.proposed import Proposal, propose
from lightagentd.policy.questions.approval import LEFT_OUT, Approval
from lightagentd.policy.replay import Replay
from lightagentd.policy.rulefiles import POLICY_FOLDER, RuleSet, load_texts, read_files, rule_files
from lightagentd.text.reason import reason
from lightagentd.tool import Effect

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

PAST_CALLS = 1000
"""So many of the newest calls of the tool are judged again."""
_SHOWN = 20


class Rules(Operations, interface="org.lightagent1.Approvals"):
    """Rules that are proposed from approvals."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._registry, self._history = access, runtime.registry, runtime.history
        self._shared = runtime.registry.shared
        self._kept = self._shared.asked.approvals
        self._folder = runtime.paths.config / POLICY_FOLDER

    @method("ProposeRule", returns="proposal")
    async def propose(self, caller: Caller, approval: str, *, tainted: bool = False) -> api.RuleProposal:
        """The narrowest rule that would allow the call of an approval from now on, as a file of policy.d with
        its examples, and the past calls that it would have allowed. With tainted it also counts while text
        from outside is in the session. Nothing is written.
        """
        found = await self._found(caller, approval)
        made, rules = await self._proposed(found, tainted=tainted)
        judged, past = await self._past(made, rules, found)
        return api.RuleProposal(
            approval=found.id,
            name=made.name,
            path=str(self._folder / made.file),
            text=made.text,
            sha256=made.sha256,
            words=made.words,
            judged=judged,
            allowed=len(past),
            past=past[:_SHOWN],
        )

    @method("WriteRule", returns="path")
    async def write(self, caller: Caller, approval: str, sha256: str, *, tainted: bool = False) -> str:
        """Write the rule that was proposed, by the sha256 of its text, and take it into force. Needs
        org.lightagent1.administer, and a person.
        """
        self._access.check_owner(caller)
        caller, _ = await self._access.admit_person(caller, Operation.ADMINISTER)
        found = await self._found(caller, approval)
        made, _ = await self._proposed(found, tainted=tainted)
        if made.sha256 != sha256:
            raise Conflict("The rule is not the one that was shown.", suggestion="Look at it again.")
        path = self._folder / made.file
        try:
            await asyncio.to_thread(_write, path, made.text)
        except FileExistsError as err:
            raise Conflict(f"There is a file {path} already; it is left as it is.") from err
        except OSError as err:
            raise PermissionDenied(
                f"The daemon cannot write {path}: {reason(err)}.",
                suggestion=f"An administrator can: sudo lactl approve {found.id} --rule",
            ) from err
        written = RuleWritten(
            message=made.name, path=str(path), approval=found.id, sha256=sha256, by=caller.uid
        )
        await self._history.append(written.event())
        actions = self._shared.content.actions()
        await retake_rules(self._shared.policy, self._folder, self._history, actions)
        return str(path)

    async def _found(self, caller: Caller, approval: str) -> Approval:
        """Raises ApprovalNotFound; Conflict for one whose call cannot be put into a rule."""
        _, found = await admit_to(self._access, self._kept, caller, Operation.INSPECT, approval)
        if found.volatile or found.hidden or found.args != self._history.redactor.value(found.args):
            raise Conflict(
                f"The call of {found.id} holds a secret, which no file of rules may have.",
                suggestion="Allow it once.",
            )
        if (found.tool, found.action) in SHELLS and (files := found.expected.get("files")):
            raise Conflict(
                f"Others can write {', '.join(files)[:200]}, and a rule does not see what is in there.",
                suggestion="Allow it once, or for this session; or put the files into a folder of root's.",
            )
        if not found.open and not found.args and found.preview == LEFT_OUT:
            raise Conflict(f"The arguments of {found.id} are too long to be kept, or to be a rule.")
        return found

    async def _proposed(self, found: Approval, *, tainted: bool) -> tuple[Proposal, RuleSet]:
        """The rule, and all rules with it. Raises Refused and Conflict where it would allow nothing."""
        call = self._call(found, tainted=tainted)
        policy = self._shared.policy
        call_in_force = replace(call, effect=policy.effect_in_force(call)[0])
        if policy.is_verified(call_in_force.effect):  # by a worker that knows neither, and believes nobody
            call_in_force = replace(call_in_force, caller=None, trigger="")
            if not (tainted or policy.trusts_taint):
                raise Conflict(
                    "The worker for change has only the daemon's word that no text from outside is there, so"
                    " no rule that rests on that counts there.",
                    suggestion=f"Allow it also then: lactl approve {found.id} --rule --tainted",
                )
        made = propose(call_in_force, found.id, tainted=tainted)
        path = str(self._folder / made.file)
        texts = await asyncio.to_thread(lambda: read_files(rule_files(self._folder)))
        if path in texts:
            raise Conflict(f"There is a file {path} already; it is left as it is.")
        rules = load_texts({**texts, path: made.text})  # in the main thread, as at a start
        explained = policy.with_rules(rules).explain(call)
        ruling = explained.ruling
        if ruling.decision is Decision.DENY:
            raise Refused(
                f"Policy never allows this call ({ruling.rule}), and no rule that allows changes that."
                f" {ruling.reason}".rstrip(),
            )
        if explained.decided is None or explained.decided.name != made.name:
            raise Conflict(
                f"The rule would change nothing: {ruling.rule} decides.",
                suggestion="The strictest rule decides. Change that one in policy.d.",
            )
        return made, rules

    def _call(self, found: Approval, *, tainted: bool) -> PolicyCall:
        shared = self._shared
        definition = shared.content.definitions.agents.get(found.agent)
        if definition is None:
            self._registry.get(found.agent)
            raise Conflict(f"The agent {found.agent} is not there any more.")
        info = shared.content.toolbox_of(found.agent).find(found.tool, found.action)
        front = definition.front
        return PolicyCall(
            agent=found.agent,
            tool=found.tool,
            action=found.action,
            args=found.args,
            effect=Effect(found.effect),
            agent_effects=tuple(front.effects),
            offered=definition.offers(found.tool, found.action),
            agent_skills=None if front.skills is None else tuple(front.skills),
            caller=found.owner,
            trigger=self._trigger(found),
            tainted=tainted,
            host=host_of(info.goes_to(found.args)),
            known_host=False,
            change_enabled=shared.pool.has_change(found.agent),
            plan="",
        )

    def _trigger(self, found: Approval) -> str:
        """What began the turn that asks; a person where no such turn waits any more."""
        try:
            _, session = self._registry.session(found.session)
        except LightagentError:
            return PERSON
        turn = session.running
        return turn.origin.trigger if turn is not None and turn.origin is not None else PERSON

    async def _past(self, made: Proposal, rules: RuleSet, found: Approval) -> tuple[int, list[Any]]:
        """How many past calls were judged, and those that the rule alone would have allowed."""
        wanted = Filter(agent=found.agent, topic="agent.tool_dispatch", tool=found.tool)
        events = await asyncio.to_thread(self._history.queries.newest, wanted, PAST_CALLS)
        replay, allowed, judged = Replay(rules, self._shared.policy), [], 0
        for event in events:
            await asyncio.sleep(0)
            one = replay.judge(event.agent, event.owner, event.data or {})
            judged += one is not None
            if (
                one is not None
                and one.before is not Decision.ALLOW
                and one.after.decision is Decision.ALLOW
                and one.after.rule.startswith(f"{made.name} ")
            ):
                allowed.append(policy_change(event, one))
        return judged, allowed


def _write(path: Path, text: str) -> None:
    """Raises OSError."""
    path.parent.mkdir(mode=0o755, exist_ok=True)
    write_whole(path, text.encode(), mode=0o644, replace=False)
