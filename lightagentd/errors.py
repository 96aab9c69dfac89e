"""Every error that leaves a component, each with a stable code.

The families, each with its exit status of lactl and its HTTP status:

    LightagentError: 1, 500
    ├── InvalidArgument: 65, 400
    ├── NotFound: 66, 404
    ├── Conflict: 73, 409
    ├── Refused: 77, 403
    ├── LimitExceeded: 75, 429
    ├── CallbackFailed: 1, 500
    ├── Cancelled: 130, 499
    ├── TimedOut: 124, 504
    ├── Unavailable: 69, 503
    ├── ModelError: 70, 502
    ├── ToolError: 1, 502
    └── StorageError: 74, 507

Exit statuses follow sysexits.h where it has one, 124 is that of timeout(1), 130 that of a shell for SIGINT.
A class says its code, and only those statuses in which it differs from its parent. The same classes become
Varlink errors, D-Bus error names and HTTP statuses: `table()`. Nothing heavy is imported: `lactl` imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

VARLINK_PREFIX = "org.lightagent1."
DBUS_PREFIX = "org.lightagent1.Error."


class LightagentError(Exception):
    """Something failed in a way that has no class of its own; the journal has the traceback.

    `message` is one sentence: what failed, on which object; `suggestion` says what to do next, `field` names
    the argument at fault, if one is.
    """

    code: ClassVar[str] = "internal"
    exit_status: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls, *, code: str = "", exit_status: int = 0, http_status: int = 0) -> None:
        cls.code = code or cls.code
        cls.exit_status = exit_status or cls.exit_status
        cls.http_status = http_status or cls.http_status
        if cls.__module__ == __name__:
            _CLASSES.append(cls)

    def __init__(self, message: str, *, suggestion: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message, self.suggestion, self.field = message, suggestion, field

    def __str__(self) -> str:
        return self.message

    @classmethod
    def varlink_name(cls) -> str:
        """The full name of the Varlink error."""
        return VARLINK_PREFIX + _wire_name(cls)

    def to_dict(self) -> dict[str, str]:
        """`{code, message}` and, where they say something, `field` and `suggestion`."""
        found = {name: getattr(self, name) for name in ("code", "message", "field", "suggestion")}
        return {key: value for key, value in found.items() if value}


_CLASSES = [LightagentError]


class InvalidArgument(LightagentError, code="invalid_argument", exit_status=65, http_status=400):
    """An argument of a call is missing, of the wrong type or out of range."""


class MalformedMessage(InvalidArgument, code="malformed_message"):
    """The bytes on the socket are not one JSON object ended by a NUL byte."""


class MessageTooLarge(InvalidArgument, code="message_too_large", http_status=413):
    """A message is larger than the limit that the receiver states."""


class AttachmentTooLarge(MessageTooLarge, code="attachment_too_large"):
    """An attachment, or all of a prompt's together, is larger than the limit."""


class AttachmentInvalid(InvalidArgument, code="attachment_invalid"):
    """An attachment is no text, or its name is none."""


class PlanInvalid(InvalidArgument, code="plan_invalid"):
    """A plan does not have the shape of one, has no tasks, or two of them with one id."""


class ImportInvalid(InvalidArgument, code="import_invalid"):
    """What is to be imported is no whole export; nothing of it was taken."""


class SchemaInvalid(InvalidArgument, code="schema_invalid"):
    """The schema for an answer is no JSON Schema, or one that is not taken: too large, too slow, or with
    references out of itself.
    """


class SchemaUnsupported(InvalidArgument, code="schema_unsupported"):
    """The model that would answer cannot answer with JSON that fits a schema."""


class ConfigError(InvalidArgument, code="config_invalid", exit_status=78, http_status=500):
    """A configuration file, an agent, a skill or a tool file cannot be used as it is."""


class NotFound(LightagentError, code="not_found", exit_status=66, http_status=404):
    """There is no such object, or the caller may not know that there is."""


class AgentNotFound(NotFound, code="agent_not_found"):
    """No agent has this name."""


class SessionNotFound(NotFound, code="session_not_found"):
    """The caller has no session with this id."""


class ToolNotFound(NotFound, code="tool_not_found"):
    """No tool or action has this name."""


class SkillNotFound(NotFound, code="skill_not_found"):
    """No skill has this name."""


class EventNotFound(NotFound, code="event_not_found"):
    """The history has no such event."""


class ApprovalNotFound(NotFound, code="approval_not_found"):
    """The caller knows no approval with this id."""


class InputNotFound(NotFound, code="input_not_found"):
    """There is no such question of an agent, or it is in another user's session."""


class MemoryNotFound(NotFound, code="memory_not_found"):
    """There is no such memory, or it is another user's."""


class MethodNotFound(NotFound, code="method_not_found"):
    """The peer does not know this method or this interface."""


class Conflict(LightagentError, code="conflict", exit_status=73, http_status=409):
    """The object is not in a state that allows this."""


class AgentExists(Conflict, code="agent_exists"):
    """An agent with this name exists already."""


class AgentNotRunning(Conflict, code="agent_not_running"):
    """The agent is stopped."""


class AgentBroken(Conflict, code="agent_broken"):
    """The agent's definition cannot be read, so the agent is disabled."""


class ApprovalClosed(Conflict, code="approval_closed"):
    """The approval waits for no answer any more."""


class ApproverAnswers(Conflict, code="approver_answers"):
    """The approval is about a change, which the approver answers, and not the daemon."""


class InputClosed(Conflict, code="input_closed"):
    """The question was answered already, or its time is over."""


class SessionPaused(Conflict, code="session_paused"):
    """The session is paused: it takes no prompts, and what waits in it stays."""


class SessionNotPaused(Conflict, code="session_not_paused"):
    """The session is not paused, so it cannot be resumed."""


class PlanConflict(Conflict, code="plan_conflict"):
    """The session's plan is not in a phase in which this can be done."""


class ConfirmationRequired(Conflict, code="confirmation_required"):
    """What follows cannot be taken back, so the caller has to say that it is meant."""


class Refused(LightagentError, code="refused", exit_status=77, http_status=403):
    """The caller or the model may not do this."""


class ChoiceTooWide(Refused, code="choice_too_wide"):
    """A prompt chose tools, effects or steps that its agent does not have; a choice only narrows."""


class PermissionDenied(Refused, code="permission_denied"):
    """The caller may not call this operation."""


class AuthorizationRequired(PermissionDenied, code="authorization_required"):
    """The caller may do this only once a person has authenticated, and the call did not allow to ask."""


class PolicyDenied(Refused, code="policy_denied"):
    """Policy refuses this tool call, or a guard of it this text."""


class ChangeNotEnabled(PolicyDenied, code="change_not_enabled"):
    """The administrator has not enabled a worker for change for this agent."""


class PlanModeBlocked(PolicyDenied, code="plan_mode_blocked"):
    """The session is in plan mode, in which nothing runs but what observes."""


class HookBlocked(Refused, code="hook_blocked"):
    """An administrator's hook does not let this go on, or could not say so."""


class ApprovalRequired(Refused, code="approval_required"):
    """This tool call needs the approval of a person, and there is none."""


class ApprovalDenied(Refused, code="approval_denied"):
    """A person denied this tool call, or nobody answered in time."""


class ApprovalMismatch(Refused, code="approval_mismatch"):
    """What is about to run is not what was approved."""


class ChildRefused(Refused, code="child_refused"):
    """An agent asked itself, or one that waits for its answer."""


class LimitExceeded(LightagentError, code="limit_exceeded", exit_status=75, http_status=429):
    """A limit of the configuration is reached."""


class QueueFull(LimitExceeded, code="queue_full"):
    """Too many prompts wait in this session already."""


class StepLimit(LimitExceeded, code="step_limit"):
    """The turn used all the steps that the agent's limits allow."""


class CallLoop(LimitExceeded, code="call_loop"):
    """The model made the same failing call again and again."""


class ContextFull(LimitExceeded, code="context_full"):
    """The conversation does not fit into the model's window, even after it was compacted."""


class BudgetExceeded(LimitExceeded, code="budget_exceeded", exit_status=79):
    """A budget is used up."""


class CallbackFailed(LightagentError, code="callback_failed"):
    """A function of the program that embeds the agents raised something."""


class Cancelled(LightagentError, code="cancelled", exit_status=130, http_status=499):
    """The turn or the call was cancelled."""


class TimedOut(LightagentError, code="timeout", exit_status=124, http_status=504):
    """The operation did not end within its time."""


class Unavailable(LightagentError, code="unavailable", exit_status=69, http_status=503):
    """Something that the operation needs is not there now."""


class DaemonUnreachable(Unavailable, code="daemon_unreachable"):
    """Nothing answers on the daemon's socket."""


class ShuttingDown(Unavailable, code="shutting_down"):
    """The daemon is stopping and takes no new work."""


class Panicked(Unavailable, code="panicked"):
    """An administrator has stopped everything; nothing runs until he allows it again."""


class WorkerUnavailable(Unavailable, code="worker_unavailable"):
    """The worker for an agent and effect cannot be started or reached."""


class SystemdUnavailable(Unavailable, code="systemd_unavailable"):
    """systemd is not running on this machine, or not reachable over D-Bus."""


class ModelError(LightagentError, code="model_failed", exit_status=70, http_status=502):
    """A model call failed.

    `transient` says that the same call may well succeed a little later, `retry_after_s` how long the endpoint
    wants to be left alone before that, and `reached` that it had the request and may have worked on it.
    """

    transient: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        suggestion: str = "",
        field: str = "",
        retry_after_s: float | None = None,
        reached: bool = False,
    ) -> None:
        super().__init__(message, suggestion=suggestion, field=field)
        self.retry_after_s = retry_after_s
        self.reached = reached


class ModelUnreachable(ModelError, code="model_unreachable"):
    """The model's endpoint cannot be reached: its name, its address, or the way there."""

    transient = True


class ModelTimedOut(ModelUnreachable, code="model_timeout"):
    """The model's endpoint was silent for too long, or did not come to an end."""


class ModelCutOff(ModelUnreachable, code="model_cut_off"):
    """The answer broke off before its end."""


class ModelOverloaded(ModelUnreachable, code="model_overloaded"):
    """The endpoint has too much to do, or failed inside (statuses 408, 409, 425 and 5xx)."""


class ModelRateLimited(ModelUnreachable, code="model_rate_limited"):
    """The endpoint takes no more requests of this key for now (status 429)."""


class ModelCircuitOpen(ModelUnreachable, code="model_circuit_open"):
    """The endpoint failed so often that it is left alone for a while."""

    transient = False


class ModelCertificate(ModelUnreachable, code="model_certificate"):
    """The endpoint's certificate cannot be trusted, or it does not take ours."""

    transient = False


class ModelRedirected(ModelUnreachable, code="model_redirected"):
    """The endpoint sends requests elsewhere; the key is not sent along."""

    transient = False


class ModelGarbled(ModelUnreachable, code="model_garbled"):
    """What answers is no model: a web page, a login portal, or bytes that make no sense."""


class ModelEmpty(ModelError, code="model_empty"):
    """The model answered with nothing: no text and no call. `again`: another try may have something."""

    again = False


class AnswerMisfit(ModelError, code="answer_misfit"):
    """The answer does not fit the schema that the caller gave, not at the second try either."""


class NoRunbook(ModelError, code="no_runbook", exit_status=81):
    """No runbook fits the prompt, and the agent has no language model to ask."""


class ModelRejected(ModelError, code="model_rejected"):
    """The model's endpoint refused the request."""


class ModelKeyRefused(ModelRejected, code="model_key_refused"):
    """The API key is wrong, missing, or may not do this."""


class ModelQuotaExceeded(ModelRejected, code="model_quota_exceeded"):
    """The account has no credit left."""


class ModelNotFound(ModelRejected, code="model_not_found"):
    """The endpoint has no such model, or no such API."""


class ModelPromptTooLong(ModelRejected, code="model_prompt_too_long"):
    """The request does not fit into the model's window."""


class ModelFiltered(ModelRejected, code="model_filtered"):
    """The endpoint's own rules about content refused the prompt or the answer."""


class ToolError(LightagentError, code="tool_failed", http_status=502):
    """A tool call failed; tools raise it, and the model reads it as the result."""


class ChildFailed(ToolError, code="child_failed"):
    """Another agent was asked, and its turn ended without an answer."""


class InputInvalid(ToolError, code="input_invalid"):
    """A tool asked a person something that cannot be asked, or could not go on with the answer."""


class OutcomeUnknown(ToolError, code="outcome_unknown"):
    """The call was started, and whether it took effect is not known; it is never run again by itself."""


class CommandFailed(ToolError, code="command_failed", exit_status=80):
    """The command of 'lactl tools call' ran, and ended with a status other than 0 or by a signal."""


class StorageError(LightagentError, code="storage_failed", exit_status=74, http_status=507):
    """The history could not store or read something; the step that needed it fails."""


class HistoryDamaged(StorageError, code="history_damaged"):
    """The history's file is damaged; it is left as it is."""


@dataclass(frozen=True, kw_only=True)
class ErrorRow:
    """The names and numbers of one error class on each side."""

    cls: type[LightagentError]
    code: str
    varlink: str
    dbus: str
    http_status: int
    exit_status: int


def table() -> list[ErrorRow]:
    """One row for each class of this module, in the order of the tree."""
    return [
        ErrorRow(
            cls=cls,
            code=cls.code,
            varlink=cls.varlink_name(),
            dbus=DBUS_PREFIX + _wire_name(cls),
            http_status=cls.http_status,
            exit_status=cls.exit_status,
        )
        for cls in _CLASSES
    ]


def _wire_name(cls: type[LightagentError]) -> str:
    own = next(base for base in cls.__mro__ if base.__module__ == __name__)
    return "Internal" if own is LightagentError else own.__name__


def from_dict(said: Mapping[str, Any]) -> LightagentError:
    """The error from `to_dict`, or from a turn's last event; the base class for an unknown code."""
    cls = next((row.cls for row in table() if row.code == said.get("code")), LightagentError)
    message = str(said.get("message") or "The turn failed.")
    return cls(message, suggestion=str(said.get("suggestion") or ""), field=str(said.get("field") or ""))


def from_varlink(name: str, parameters: dict[str, Any]) -> LightagentError:
    """The error from a Varlink peer's answer; names of `org.varlink.service` are mapped too."""
    by_name = {row.varlink: row.cls for row in table()}
    cls = by_name.get(name)
    if cls is not None:
        return cls(
            str(parameters.get("message") or name),
            suggestion=str(parameters.get("suggestion") or ""),
            field=str(parameters.get("field") or ""),
        )
    if name == "org.varlink.service.InvalidParameter":
        field = str(parameters.get("parameter", ""))
        return InvalidArgument(f"The daemon does not accept the parameter {field!r}.", field=field)
    if name in ("org.varlink.service.MethodNotFound", "org.varlink.service.InterfaceNotFound"):
        what = parameters.get("method") or parameters.get("interface") or ""
        return MethodNotFound(
            f"The daemon does not know {what!r}.",
            suggestion="Check that lactl and lightagentd have the same version.",
        )
    if name == "org.varlink.service.ExpectedMore":
        return InvalidArgument("The method streams its answer: call it with the flag 'more'.")
    return LightagentError(f"The peer answered with the error {name}.")
