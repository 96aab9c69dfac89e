"""Every error that leaves a component, each with a stable code.

The tree (class: code, exit status of lactl):

    LightagentError: internal, 1
    ├── InvalidArgument: invalid_argument, 65
    │   ├── MalformedMessage: malformed_message, 65
    │   ├── MessageTooLarge: message_too_large, 65
    │   │   └── AttachmentTooLarge: attachment_too_large, 65
    │   ├── AttachmentInvalid: attachment_invalid, 65
    │   ├── PlanInvalid: plan_invalid, 65
    │   ├── ImportInvalid: import_invalid, 65
    │   └── ConfigError: config_invalid, 78
    ├── NotFound: not_found, 66
    │   ├── AgentNotFound: agent_not_found, 66
    │   ├── SessionNotFound: session_not_found, 66
    │   ├── ToolNotFound: tool_not_found, 66
    │   ├── SkillNotFound: skill_not_found, 66
    │   ├── EventNotFound: event_not_found, 66
    │   ├── ApprovalNotFound: approval_not_found, 66
    │   ├── InputNotFound: input_not_found, 66
    │   ├── MemoryNotFound: memory_not_found, 66
    │   └── MethodNotFound: method_not_found, 66
    ├── Conflict: conflict, 73
    │   ├── AgentExists: agent_exists, 73
    │   ├── AgentNotRunning: agent_not_running, 73
    │   ├── AgentBroken: agent_broken, 73
    │   ├── ApprovalClosed: approval_closed, 73
    │   ├── InputClosed: input_closed, 73
    │   ├── SessionPaused: session_paused, 73
    │   ├── SessionNotPaused: session_not_paused, 73
    │   ├── PlanConflict: plan_conflict, 73
    │   └── ConfirmationRequired: confirmation_required, 73
    ├── Refused: refused, 77
    │   ├── PermissionDenied: permission_denied, 77
    │   │   └── AuthorizationRequired: authorization_required, 77
    │   ├── PolicyDenied: policy_denied, 77
    │   │   ├── ChangeNotEnabled: change_not_enabled, 77
    │   │   └── PlanModeBlocked: plan_mode_blocked, 77
    │   ├── ApprovalRequired: approval_required, 77
    │   ├── ApprovalDenied: approval_denied, 77
    │   └── ApprovalMismatch: approval_mismatch, 77
    ├── LimitExceeded: limit_exceeded, 75
    │   ├── QueueFull: queue_full, 75
    │   ├── StepLimit: step_limit, 75
    │   ├── CallLoop: call_loop, 75
    │   ├── ContextFull: context_full, 75
    │   └── BudgetExceeded: budget_exceeded, 79
    ├── Cancelled: cancelled, 130
    ├── TimedOut: timeout, 124
    ├── Unavailable: unavailable, 69
    │   ├── DaemonUnreachable: daemon_unreachable, 69
    │   ├── ShuttingDown: shutting_down, 69
    │   ├── Panicked: panicked, 69
    │   ├── WorkerUnavailable: worker_unavailable, 69
    │   └── SystemdUnavailable: systemd_unavailable, 69
    ├── ModelError: model_failed, 70
    │   ├── ModelUnreachable: model_unreachable, 70
    │   │   ├── ModelTimedOut: model_timeout, 70
    │   │   ├── ModelCutOff: model_cut_off, 70
    │   │   ├── ModelOverloaded: model_overloaded, 70
    │   │   ├── ModelRateLimited: model_rate_limited, 70
    │   │   ├── ModelCircuitOpen: model_circuit_open, 70
    │   │   ├── ModelCertificate: model_certificate, 70
    │   │   ├── ModelRedirected: model_redirected, 70
    │   │   └── ModelGarbled: model_garbled, 70
    │   ├── ModelEmpty: model_empty, 70
    │   └── ModelRejected: model_rejected, 70
    │       ├── ModelKeyRefused: model_key_refused, 70
    │       ├── ModelQuotaExceeded: model_quota_exceeded, 70
    │       ├── ModelNotFound: model_not_found, 70
    │       ├── ModelPromptTooLong: model_prompt_too_long, 70
    │       └── ModelFiltered: model_filtered, 70
    ├── ToolError: tool_failed, 1
    │   └── OutcomeUnknown: outcome_unknown, 1
    └── StorageError: storage_failed, 74
        └── HistoryDamaged: history_damaged, 74

Exit statuses follow sysexits.h where it has one, 124 is that of timeout(1), 130 that of a shell for SIGINT.
The same classes become Varlink errors, D-Bus error names and HTTP statuses: `table()` is the one
mapping, and `tests/test_errors.py` proves that it is complete. This module imports nothing heavy, since
`lactl` imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

VARLINK_PREFIX = "org.lightagent1."
DBUS_PREFIX = "org.lightagent1.Error."


class LightagentError(Exception):
    """Something failed in a way that has no class of its own; the journal has the traceback.

    `message` is one sentence that says what failed and on which object, `suggestion` says what to do
    next, `field` names the argument at fault, if one is.
    """

    code: ClassVar[str] = "internal"
    exit_status: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, suggestion: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.field = field

    def __str__(self) -> str:
        return self.message

    @classmethod
    def varlink_name(cls) -> str:
        """The full name of the Varlink error."""
        return VARLINK_PREFIX + _wire_name(cls)

    def to_dict(self) -> dict[str, str]:
        """`{code, message}` and, where they say something, `field` and `suggestion`."""
        found = {
            "code": self.code,
            "message": self.message,
            "field": self.field,
            "suggestion": self.suggestion,
        }
        return {key: value for key, value in found.items() if value}


class InvalidArgument(LightagentError):
    """An argument of a call is missing, of the wrong type or out of range."""

    code = "invalid_argument"
    exit_status = 65
    http_status = 400


class MalformedMessage(InvalidArgument):
    """The bytes on the socket are not one JSON object ended by a NUL byte."""

    code = "malformed_message"


class MessageTooLarge(InvalidArgument):
    """A message is larger than the limit that the receiver states."""

    code = "message_too_large"
    http_status = 413


class AttachmentTooLarge(MessageTooLarge):
    """An attachment, or all of a prompt's together, is larger than the limit."""

    code = "attachment_too_large"


class AttachmentInvalid(InvalidArgument):
    """An attachment is no text, or its name is none."""

    code = "attachment_invalid"


class PlanInvalid(InvalidArgument):
    """A plan does not have the shape of one, has no tasks, or two of them with one id."""

    code = "plan_invalid"


class ImportInvalid(InvalidArgument):
    """What is to be imported is no whole export; nothing of it was taken."""

    code = "import_invalid"


class ConfigError(InvalidArgument):
    """A configuration file, an agent, a skill or a tool file cannot be used as it is."""

    code = "config_invalid"
    exit_status = 78
    http_status = 500


class NotFound(LightagentError):
    """There is no such object, or the caller may not know that there is."""

    code = "not_found"
    exit_status = 66
    http_status = 404


class AgentNotFound(NotFound):
    """No agent has this name."""

    code = "agent_not_found"


class SessionNotFound(NotFound):
    """The caller has no session with this id."""

    code = "session_not_found"


class ToolNotFound(NotFound):
    """No tool or action has this name."""

    code = "tool_not_found"


class SkillNotFound(NotFound):
    """No skill has this name."""

    code = "skill_not_found"


class EventNotFound(NotFound):
    """The history has no such event."""

    code = "event_not_found"


class ApprovalNotFound(NotFound):
    """The caller knows no approval with this id."""

    code = "approval_not_found"


class InputNotFound(NotFound):
    """There is no such question of an agent, or it is in another user's session."""

    code = "input_not_found"


class MemoryNotFound(NotFound):
    """There is no such memory, or it is another user's."""

    code = "memory_not_found"


class MethodNotFound(NotFound):
    """The peer does not know this method or this interface."""

    code = "method_not_found"


class Conflict(LightagentError):
    """The object is not in a state that allows this."""

    code = "conflict"
    exit_status = 73
    http_status = 409


class AgentExists(Conflict):
    """An agent with this name exists already."""

    code = "agent_exists"


class AgentNotRunning(Conflict):
    """The agent is stopped."""

    code = "agent_not_running"


class AgentBroken(Conflict):
    """The agent's definition cannot be read, so the agent is disabled."""

    code = "agent_broken"


class ApprovalClosed(Conflict):
    """The approval waits for no answer any more."""

    code = "approval_closed"


class InputClosed(Conflict):
    """The question was answered already, or its time is over."""

    code = "input_closed"


class SessionPaused(Conflict):
    """The session is paused: it takes no prompts, and what waits in it stays."""

    code = "session_paused"


class SessionNotPaused(Conflict):
    """The session is not paused, so it cannot be resumed."""

    code = "session_not_paused"


class PlanConflict(Conflict):
    """The session's plan is not in a phase in which this can be done."""

    code = "plan_conflict"


class ConfirmationRequired(Conflict):
    """What would be lost cannot be brought back, so the caller has to say that it is meant."""

    code = "confirmation_required"


class Refused(LightagentError):
    """The caller or the model may not do this."""

    code = "refused"
    exit_status = 77
    http_status = 403


class PermissionDenied(Refused):
    """The caller may not call this operation."""

    code = "permission_denied"


class AuthorizationRequired(PermissionDenied):
    """The caller may do this only once a person has authenticated, and the call did not allow to ask."""

    code = "authorization_required"


class PolicyDenied(Refused):
    """Policy refuses this tool call."""

    code = "policy_denied"


class ChangeNotEnabled(PolicyDenied):
    """The administrator has not enabled a worker for change for this agent."""

    code = "change_not_enabled"


class PlanModeBlocked(PolicyDenied):
    """The session is in plan mode, in which nothing runs but what observes."""

    code = "plan_mode_blocked"


class ApprovalRequired(Refused):
    """This tool call needs the approval of a person, and there is none."""

    code = "approval_required"


class ApprovalDenied(Refused):
    """A person denied this tool call, or nobody answered in time."""

    code = "approval_denied"


class ApprovalMismatch(Refused):
    """What is about to run is not what was approved."""

    code = "approval_mismatch"


class LimitExceeded(LightagentError):
    """A limit of the configuration is reached."""

    code = "limit_exceeded"
    exit_status = 75
    http_status = 429


class QueueFull(LimitExceeded):
    """Too many prompts wait in this session already."""

    code = "queue_full"


class StepLimit(LimitExceeded):
    """The turn used all the steps that the agent's limits allow."""

    code = "step_limit"


class CallLoop(LimitExceeded):
    """The model made the same failing call again and again."""

    code = "call_loop"


class ContextFull(LimitExceeded):
    """The conversation does not fit into the model's window, even after it was compacted."""

    code = "context_full"


class BudgetExceeded(LimitExceeded):
    """A budget is used up."""

    code = "budget_exceeded"
    exit_status = 79


class Cancelled(LightagentError):
    """The turn or the call was cancelled."""

    code = "cancelled"
    exit_status = 130
    http_status = 499


class TimedOut(LightagentError):
    """The operation did not end within its time."""

    code = "timeout"
    exit_status = 124
    http_status = 504


class Unavailable(LightagentError):
    """Something that the operation needs is not there now."""

    code = "unavailable"
    exit_status = 69
    http_status = 503


class DaemonUnreachable(Unavailable):
    """Nothing answers on the daemon's socket."""

    code = "daemon_unreachable"


class ShuttingDown(Unavailable):
    """The daemon is stopping and takes no new work."""

    code = "shutting_down"


class Panicked(Unavailable):
    """An administrator has stopped everything; nothing runs until he allows it again."""

    code = "panicked"


class WorkerUnavailable(Unavailable):
    """The worker for an agent and effect cannot be started or reached."""

    code = "worker_unavailable"


class SystemdUnavailable(Unavailable):
    """systemd is not running on this machine, or not reachable over D-Bus."""

    code = "systemd_unavailable"


class ModelError(LightagentError):
    """A model call failed.

    `transient` says that the same call may well succeed a little later, `retry_after_s` how long the endpoint
    wants to be left alone before that, and `reached` that it had the request and may have worked on it.
    """

    code = "model_failed"
    exit_status = 70
    http_status = 502
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


class ModelUnreachable(ModelError):
    """The model's endpoint cannot be reached: its name, its address, or the way there."""

    code = "model_unreachable"
    transient = True


class ModelTimedOut(ModelUnreachable):
    """The model's endpoint was silent for too long, or did not come to an end."""

    code = "model_timeout"


class ModelCutOff(ModelUnreachable):
    """The answer broke off before its end."""

    code = "model_cut_off"


class ModelOverloaded(ModelUnreachable):
    """The endpoint has too much to do, or failed inside (statuses 408, 409, 425 and 5xx)."""

    code = "model_overloaded"


class ModelRateLimited(ModelUnreachable):
    """The endpoint takes no more requests of this key for now (status 429)."""

    code = "model_rate_limited"


class ModelCircuitOpen(ModelUnreachable):
    """The endpoint failed so often that it is left alone for a while."""

    code = "model_circuit_open"
    transient = False


class ModelCertificate(ModelUnreachable):
    """The endpoint's certificate cannot be trusted, or it does not take ours."""

    code = "model_certificate"
    transient = False


class ModelRedirected(ModelUnreachable):
    """The endpoint sends requests elsewhere; the key is not sent along."""

    code = "model_redirected"
    transient = False


class ModelGarbled(ModelUnreachable):
    """What answers is no model: a web page, a login portal, or bytes that make no sense."""

    code = "model_garbled"
    transient = False


class ModelEmpty(ModelError):
    """The model answered with nothing: no text and no call. `again`: another try may have something."""

    code = "model_empty"
    again = False


class ModelRejected(ModelError):
    """The model's endpoint refused the request."""

    code = "model_rejected"


class ModelKeyRefused(ModelRejected):
    """The API key is wrong, missing, or may not do this."""

    code = "model_key_refused"


class ModelQuotaExceeded(ModelRejected):
    """The account has no credit left."""

    code = "model_quota_exceeded"


class ModelNotFound(ModelRejected):
    """The endpoint has no such model, or no such API."""

    code = "model_not_found"


class ModelPromptTooLong(ModelRejected):
    """The request does not fit into the model's window."""

    code = "model_prompt_too_long"


class ModelFiltered(ModelRejected):
    """The endpoint's own rules about content refused the prompt or the answer."""

    code = "model_filtered"


class ToolError(LightagentError):
    """A tool call failed; tools raise it, and the model reads it as the result."""

    code = "tool_failed"
    http_status = 502


class OutcomeUnknown(ToolError):
    """The call was started, and whether it took effect is not known; it is never run again by itself."""

    code = "outcome_unknown"


class StorageError(LightagentError):
    """The history could not store or read something; the step that needed it fails."""

    code = "storage_failed"
    exit_status = 74
    http_status = 507


class HistoryDamaged(StorageError):
    """The history's file is damaged; it is left as it is."""

    code = "history_damaged"


@dataclass(frozen=True, kw_only=True)
class ErrorRow:
    """What one error class is called on each side."""

    cls: type[LightagentError]
    code: str
    varlink: str
    dbus: str
    http_status: int
    exit_status: int


def _walk(cls: type[LightagentError]) -> Iterator[type[LightagentError]]:
    yield cls
    for sub in cls.__subclasses__():
        if sub.__module__ == __name__:
            yield from _walk(sub)


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
        for cls in _walk(LightagentError)
    ]


def _wire_name(cls: type[LightagentError]) -> str:
    own = next(base for base in cls.__mro__ if base.__module__ == __name__)
    return "Internal" if own is LightagentError else own.__name__


def from_code(code: str, message: str, suggestion: str = "") -> LightagentError:
    """The error with a code, such as that of a turn's last event; of an unknown one the base class."""
    cls = next((row.cls for row in table() if row.code == code), LightagentError)
    return cls(message, suggestion=suggestion)


def from_varlink(name: str, parameters: dict[str, Any]) -> LightagentError:
    """The error that a Varlink peer answered with; names of `org.varlink.service` are mapped too."""
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
