"""Decides on every tool call, whoever asked for it.

The checks run in this order, and the first refusal decides:

1. While a plan is drafted in the session, whatever does more than observe is denied, or every call where the
   agent says `plan_tools: none`. A shell command is only as harmless as its sandbox: where nothing enforces
   `observe`, a command that claims it counts as `change`, here and for everything that follows. The runbooks
   of installed skills that nobody else can write are the exception.
2. What the agent does not have (tools, skills, effects) is denied, and so is a change by an agent that has no
   worker for change, and every change while the history's disk is full: what was changed must be on record.
   What takes a change back goes on from the reserve.
   No rule can grant what was denied until here, and no approval.
3. The rules of policy.d: of those that match, the strictest decides (deny, then ask, then allow). Where none
   matches, `observe` and `reach` are allowed, and `change` is asked for.
4. Taint: when text from outside is in the session, each change, and each reach to a host that the session did
   not know before, is asked for even when it was allowed, unless the rule says `even_if_tainted`.
5. Without a person to ask, ask becomes deny.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lightagentd.config.configuration import Worker
from lightagentd.errors import (
    ApprovalRequired,
    ChangeNotEnabled,
    LightagentError,
    PlanModeBlocked,
    PolicyDenied,
)
from lightagentd.policy.call import CHECK, CONFIRM, CONTEXT, PERSON, Decision, PolicyCall, Ruling
from lightagentd.policy.rulefiles import RuleSet
from lightagentd.policy.rules import LoadedRule
from lightagentd.signed.statement import USES_KEY
from lightagentd.tool import Effect

__all__ = [
    "CHECK",
    "PERSON",
    "STRICTEST_FIRST",
    "Decision",
    "Explanation",
    "Policy",
    "PolicyCall",
    "Ruling",
    "blocked_by_plan",
]

SHELLS = frozenset({("bash", "exec")})
"""Actions that run whatever the caller writes."""
SCRIPTS = frozenset({("skill", "run")})
"""Actions that run a file of the administrator's."""

STRICTEST_FIRST = (Decision.DENY, Decision.ASK, Decision.ALLOW)
_ASK_SUGGESTION = "Say what you would do, and let the user do it or approve it."


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A ruling and the steps that led to it."""

    ruling: Ruling
    effect: Effect
    """The effect in force, which the rules saw."""
    decided: LoadedRule | None
    """The rule of policy.d that decided, if one did."""
    matched: tuple[LoadedRule, ...]
    """All rules of policy.d that are about the call."""
    notes: tuple[str, ...]
    """What else had a part in it, as sentences."""


class Policy:
    """Decides on calls. `enforced`: the workers' sandbox holds. `trusted_skill`: whether nobody else can
    write the files of an agent's skill. `disk_low`: the disk has room only to record calls that observe.
    `granted` gives the effects that a trigger has without a person. `verified`: workers for change and the
    key store take no word of the daemon, so that a change, or the use of a key, runs without a person only by
    a rule that needs none (`worker.verifying`, `worker.admission`). `trusts` says with what the daemon is
    trusted all the same.

    `rules` are the active rules of policy.d, replaced as a whole. `problem` says why newer ones were
    rejected, if so, and `lint` names the rules that can match nothing.
    """

    def __init__(
        self,
        *,
        enforced: Callable[[], bool],
        trusted_skill: Callable[[str, str], bool],
        rules: RuleSet | None = None,
        disk_low: Callable[[], bool] = lambda: False,
        granted: Callable[[str], Sequence[Effect]] = lambda _: (),
        verified: Callable[[], bool] = lambda: False,
        trusts: Worker | None = None,
    ) -> None:
        self._enforced = enforced
        self._trusted_skill = trusted_skill
        self._disk_low, self._granted, self._verified = disk_low, granted, verified
        self._trusts = trusts or Worker()
        self.rules = rules or RuleSet()
        self.problem = ""
        self.lint: tuple[str, ...] = ()

    def with_rules(self, rules: RuleSet) -> Policy:
        """The same policy with other rules, to try them."""
        other = copy.copy(self)
        other.rules = rules
        return other

    def is_verified(self, effect: Effect) -> bool:
        """Whether the worker of calls with this effect takes no word of the daemon."""
        return effect is Effect.CHANGE and self._verified()

    @property
    def trusts_taint(self) -> bool:
        """Whether it takes that about taint."""
        return self._trusts.trust_daemon_taint

    def decide(self, call: PolicyCall) -> Ruling:
        """The ruling on one call. Never raises."""
        return self.explain(call).ruling

    def explain(self, call: PolicyCall) -> Explanation:
        """The ruling on one call, with the steps that led to it. Never raises."""
        effect, unenforced = self.effect_in_force(call)
        notes = []
        if unenforced:
            notes.append(f"No sandbox enforces {call.effect} on this machine, so the call counts as change.")
        seen = replace(call, effect=effect)
        matched = tuple(self.rules.matching(seen))
        missing = _in_plan_mode(call, effect, unenforced) or self._not_had(call, effect, unenforced)
        if missing is not None:
            if matched and call.plan:
                notes.append("A plan is drafted in the session, so no rule decided.")
            elif matched:
                notes.append("The agent may not make this call at all, so no rule decided.")
            return Explanation(
                ruling=missing, effect=effect, decided=None, matched=matched, notes=tuple(notes)
            )
        decided = strictest_of(matched)
        ruling = _by_rule(decided, seen) if decided else _by_default(seen)
        if unenforced and ruling.decision is Decision.ASK:  # who is asked reads the effect that it claims
            ruling = replace(ruling, reason=f"{notes[0]} {ruling.reason}")
        if ruling.decision is Decision.ALLOW and (taint := _taint_rule(seen)):
            if decided is not None and decided.rule.even_if_tainted:
                notes.append("The session is tainted, and the rule allows the call even so.")
            else:
                notes.append(f"The session is tainted: {ruling.rule} alone would allow the call.")
                ruling, decided = _by_taint(taint, seen), None
        uses_key = (call.tool, call.action) in USES_KEY and not self._trusts.trust_daemon_keys
        verified = (effect is Effect.CHANGE or uses_key) and self._verified()
        unsigned = verified and ruling.decision is Decision.ALLOW
        if unsigned and not (decided and decided.needs_no_word(trusts_taint=self._trusts.trust_daemon_taint)):
            notes.append(f"{ruling.rule} alone would allow the call, if its worker took the daemon's word.")
            ruling, decided = _by_worker(seen), None
        if (
            ruling.decision is Decision.ASK
            and decided is None
            and not verified
            and effect in self._granted(call.trigger)
        ):
            notes.append(f"{ruling.rule} asks a person, and the file of the trigger does not.")
            ruling = Ruling(decision=Decision.ALLOW, rule="trigger-effects")
        if ruling.decision is Decision.ASK and call.trigger != PERSON and not call.waits:
            notes.append(_nobody(call))
            ruling = _unattended(ruling, seen)
        terms = [one.terms for one in matched if one.terms is not None]
        if terms and effect is Effect.CHANGE and ruling.decision is not Decision.DENY:
            ruling = replace(ruling, terms=min(terms, key=lambda one: one.within_s))
        return Explanation(ruling=ruling, effect=effect, decided=decided, matched=matched, notes=tuple(notes))

    def _not_had(self, call: PolicyCall, effect: Effect, unenforced: str) -> Ruling | None:
        """The refusal of a call for which the agent lacks the tool, skill, effect or worker."""
        name = f"{call.tool}.{call.action}"
        if not call.offered:
            return _deny("agent-tools", f"The agent {call.agent} may not use {name}.", "Use another tool.")
        skill = _skill_of(call)
        if (
            call.tool == "skill"
            and skill
            and call.agent_skills is not None
            and skill not in call.agent_skills
        ):
            return _deny("agent-skills", f"The agent {call.agent} may not use the skill {skill[:100]}.", "")
        if effect not in call.agent_effects:
            has = ", ".join(call.agent_effects)
            return _deny(
                unenforced or "agent-effects",
                f"{name} has the effect {effect}, and the agent {call.agent} has only: {has}.",
                "No sandbox enforces observe on this machine: lactl status says why."
                if unenforced
                else "Ask for less, or ask an administrator to allow the effect.",
            )
        if effect is Effect.CHANGE and not call.change_enabled:
            message = f"{name} would change the system, and the agent {call.agent} has no worker for change."
            unit = f"lightagent-change@{call.agent}.socket"
            hint = (
                f"An administrator can enable it: systemctl enable --now {unit}"
                " (without systemd: [worker] change_agents in lightagentd.toml)"
            )
            if unenforced:
                message = (
                    f"No sandbox enforces {call.effect} on this machine, so {name} counts as change, and the"
                    f" agent {call.agent} has no worker for that."
                )
                hint = f"lactl status says why. {hint}"
            refused = ChangeNotEnabled(message, suggestion=hint)
            return _refusal(Decision.DENY, unenforced or "no-change-worker", message, refused)
        if effect is Effect.CHANGE and self._disk_low() and not call.takes_back:
            message = f"{name} would change the system, and the disk that holds the history is nearly full."
            return _deny("disk-full", message, "Find out what takes the room, and have a person make some.")
        return None

    def effect_in_force(self, call: PolicyCall) -> tuple[Effect, str]:
        """The effect that counts, and the rule that changed it from the call's own, if any."""
        if self._enforced() or call.effect is Effect.CHANGE:
            return call.effect, ""
        key = (call.tool, call.action)
        if key in SHELLS:
            return Effect.CHANGE, "unenforced-shell"
        # Who installed a skill said what its runbook does, and of its other scripts nothing.
        if key in SCRIPTS and (
            call.args.get("script") or not self._trusted_skill(call.agent, _skill_of(call))
        ):
            return Effect.CHANGE, "unenforced-script"
        return call.effect, ""


def _skill_of(call: PolicyCall) -> str:
    return str(call.args.get("name", ""))


def strictest_of(rules: Sequence[LoadedRule]) -> LoadedRule | None:
    """The rule that decides; of several that allow, one with `even_if_tainted`."""
    return min(
        rules,
        key=lambda one: (STRICTEST_FIRST.index(one.rule.decision), not one.rule.even_if_tainted),
        default=None,
    )


def _by_rule(decided: LoadedRule, call: PolicyCall) -> Ruling:
    name, reason = f"{call.tool}.{call.action}", decided.rule.reason
    because = f": {reason.rstrip('.')}" if reason else ""
    if decided.rule.decision is Decision.ALLOW:
        return Ruling(decision=Decision.ALLOW, rule=decided.label, reason=reason)
    if decided.rule.decision is Decision.ASK:
        message = f"The rule {decided.label} asks for a person's approval of {name}{because}."
        return _refusal(Decision.ASK, decided.label, reason or message, _asked(message))
    message = f"The rule {decided.label} denies {name}{because}."
    suggestion = "Do without it, and tell the user which rule forbids it."
    return _refusal(
        Decision.DENY, decided.label, reason or message, PolicyDenied(message, suggestion=suggestion)
    )


def _by_default(call: PolicyCall) -> Ruling:
    rule = f"default-{call.effect}"
    if call.effect is not Effect.CHANGE:
        return Ruling(decision=Decision.ALLOW, rule=rule)
    message = f"{call.tool}.{call.action} would change the system, and nobody has approved it."
    return _refusal(Decision.ASK, rule, "A change needs the approval of a person.", _asked(message))


def _taint_rule(call: PolicyCall) -> str:
    """The taint rule that requires a question for a call; empty when none does."""
    if not call.tainted:
        return ""
    if call.effect is Effect.CHANGE:
        return "tainted-change"
    known = call.known_host and call.host
    return "tainted-reach" if call.effect is Effect.REACH and not known else ""


def _by_taint(rule: str, call: PolicyCall) -> Ruling:
    if call.effect is Effect.CHANGE:
        what = "would change the system"
    else:
        where = call.host[:100] or "a host that cannot be told from the call"
        what = f"would reach {where}, which the session has not reached before"
    reason = f"Text from outside is in this session, and {call.tool}.{call.action} {what}."
    return _refusal(Decision.ASK, rule, reason, _asked(f"{reason} Nobody has approved it."))


def _by_worker(call: PolicyCall) -> Ruling:
    name = f"{call.tool}.{call.action}"
    only = "without a person only where a rule says even_if_tainted and names neither a caller nor a trigger."
    if call.effect is not Effect.CHANGE:
        reason = f"The key store runs {name} {only}"
        return _refusal(Decision.ASK, "unsigned-key", reason, _asked(reason))
    reason = f"The worker of {call.agent} for change runs {name} {only}"
    return _refusal(Decision.ASK, "unsigned-change", reason, _asked(reason))


def _unattended(ruling: Ruling, call: PolicyCall) -> Ruling:
    assert ruling.error is not None
    nobody = _nobody(call)
    error = PolicyDenied(
        f"{ruling.error.message} {nobody}",
        suggestion="Say in the answer what a person has to do or to allow.",
    )
    return _refusal(Decision.DENY, ruling.rule, f"{ruling.reason} {nobody}", error)


def _nobody(call: PolicyCall) -> str:
    if call.trigger == CHECK:
        return "Nobody is asked about the check of a task."
    if call.trigger == CONFIRM:
        return "Nobody is asked about the check of a change."
    if call.trigger == CONTEXT:
        return "Nobody is asked about a context skill."
    return f"Nobody is there to ask, since {call.trigger or 'no person'} began the turn."


def blocked_by_plan(plan: str, effect: Effect) -> bool:
    """Whether a call with this effect may not be made in plan mode; `plan` is `PolicyCall.plan`."""
    return bool(plan) and (plan != "observe" or effect is not Effect.OBSERVE)


def _in_plan_mode(call: PolicyCall, effect: Effect, unenforced: str) -> Ruling | None:
    """The refusal of a call that may not run while a plan is drafted."""
    if not blocked_by_plan(call.plan, effect):
        return None
    name = f"{call.tool}.{call.action}"
    if call.plan != "observe":
        message = f"The session is in plan mode, in which the agent {call.agent} may make no call."
    elif unenforced:
        message = (
            f"The session is in plan mode, and no sandbox enforces {call.effect} on this machine, so {name}"
            " counts as change, which waits until the plan is applied."
        )
    else:
        message = (
            f"The session is in plan mode: {name} has the effect {effect}, and nothing but observe runs until"
            " the plan is applied."
        )
    suggestion = "Make it a task of the plan; it can run once the user applies the plan."
    return _refusal(Decision.DENY, "plan-mode", message, PlanModeBlocked(message, suggestion=suggestion))


def _asked(message: str) -> ApprovalRequired:
    return ApprovalRequired(message, suggestion=_ASK_SUGGESTION)


def _deny(rule: str, message: str, suggestion: str) -> Ruling:
    return _refusal(Decision.DENY, rule, message, PolicyDenied(message, suggestion=suggestion))


def _refusal(decision: Decision, rule: str, reason: str, error: LightagentError) -> Ruling:
    return Ruling(decision=decision, rule=rule, reason=reason, error=error)
