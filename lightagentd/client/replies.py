"""Generated from the code by packaging/generate.py; do not edit.

The types of what the methods of `Client` and `AsyncClient` give: plain dictionaries, as they come over the
wire. No code of the package imports this module when it runs.
"""

# ruff: noqa: UP013
# fmt: off

from typing import Any, Required, TypedDict

EmergencyStop = TypedDict("EmergencyStop", {"since_us": int, "by": int | None, "reason": str})
HistoryStatus = TypedDict("HistoryStatus", {"path": str, "events": int, "size_bytes": int, "disk_low": bool,
        "examined_us": int})
WorkerStatus = TypedDict("WorkerStatus", {"agent": str, "owner": int, "effect": str, "unit": str,
        "backend": str, "enforced": bool, "pid": int, "busy": bool})
Status = TypedDict("Status", {"version": str, "pid": int, "state": str, "panic": EmergencyStop | None,
        "started_us": int, "uptime_s": float, "model": str, "agents_running": int, "agents_total": int,
        "sessions": int, "turns_running": int, "turns_queued": int, "turns_waiting": int, "sandbox": str,
        "journal": bool, "journal_dropped": int, "history": HistoryStatus, "workers": list[WorkerStatus],
        "problems": list[str]})
StatusReply = TypedDict("StatusReply", {"status": Status})
Reloaded = TypedDict("Reloaded", {"applied": list[str], "needs_restart": list[str], "problems": list[str],
        "refused": list[str]})
ReloadedReply = TypedDict("ReloadedReply", {"reloaded": Reloaded})
SnapshotSection = TypedDict("SnapshotSection", {"name": str, "count": int})
Snapshot = TypedDict("Snapshot", {"seq": int, "taken_us": int, "sections": list[SnapshotSection]})
SnapshotReply = TypedDict("SnapshotReply", {"snapshot": Snapshot})
Stopped = TypedDict("Stopped", {"panic": EmergencyStop, "turns": int, "workers": int, "problems": list[str]})
StoppedReply = TypedDict("StoppedReply", {"stopped": Stopped})
Finding = TypedDict("Finding", {"name": str, "status": str, "detail": str, "group": str, "remedy": str})
Examined = TypedDict("Examined", {"agent": str, "effect": str, "backend": str, "enforced": bool,
        "reason": str, "findings": list[Finding]})
Diagnosis = TypedDict("Diagnosis", {"ok": bool, "workers": list[Examined], "checks": list[Finding]})
DiagnosisReply = TypedDict("DiagnosisReply", {"diagnosis": Diagnosis})
Answer = TypedDict("Answer", {"text": str, "session": str, "trace_id": str, "steps": int, "duration_ms": int,
        "data": Any | None, "usage": Any | None, "calls": list[Any] | None, "finish_reason": str | None})
AnswerReply = TypedDict("AnswerReply", {"answer": Answer})
TokenLimits = TypedDict("TokenLimits", {"requests_per_minute": int, "streams": int, "request_bytes": int,
        "tokens_per_day": int})
Identity = TypedDict("Identity", {"uid": int, "user": str, "name": str, "scopes": list[str],
        "agents": list[str], "expires_us": int, "limits": TokenLimits})
IdentityReply = TypedDict("IdentityReply", {"identity": Identity})
Agent = TypedDict("Agent", {"name": str, "description": str, "role": str, "model": str, "model_from": str,
        "fallback": list[str], "tools": list[str], "skills": list[str], "agents": list[str], "kit": str,
        "own_tools": list[str], "own_skills": list[str], "covered_skills": list[str], "effects": list[str],
        "max_steps": int, "origin": str, "state": str, "restarts": int, "sessions": int, "problem": str})
AgentsReply = TypedDict("AgentsReply", {"agents": list[Agent]})
AgentReply = TypedDict("AgentReply", {"agent": Agent})
Action = TypedDict("Action", {"name": str, "description": str, "effect": str, "taints": bool,
        "timeout_s": float, "schema": Any})
Tool = TypedDict("Tool", {"name": str, "description": str, "origin": str, "actions": list[Action],
        "problem": str})
ToolsReply = TypedDict("ToolsReply", {"tools": list[Tool]})
Skill = TypedDict("Skill", {"name": str, "description": str, "prompts": list[str], "args": list[str],
        "effect": str, "runbook": bool, "origin": str, "problem": str, "body": str})
SkillsReply = TypedDict("SkillsReply", {"skills": list[Skill]})
Kit = TypedDict("Kit", {"name": str, "description": str, "folder": str, "added": bool, "skills": list[str],
        "tools": list[str], "agents": list[str], "flows": list[str], "evals": list[str], "hooks": list[str],
        "references": list[str], "files": int, "size_bytes": int, "problems": list[str],
        "warnings": list[str]})
KitsReply = TypedDict("KitsReply", {"kits": list[Kit]})
KitReply = TypedDict("KitReply", {"kit": Kit})
Session = TypedDict("Session", {"id": str, "agent": str, "owner": int, "title": str, "state": str,
        "created_us": int, "updated_us": int, "turns": int, "queued": int, "paused": bool, "current": bool,
        "mode": str, "waits_for": str, "forked_from": str, "model": str, "holder": str, "interrupted": str,
        "tainted": bool, "tainted_by": str, "hosts": list[str], "leaves": list[Any], "parent": str,
        "of_turn": str})
SessionReply = TypedDict("SessionReply", {"session": Session})
SessionsReply = TypedDict("SessionsReply", {"sessions": list[Session]})
Message = TypedDict("Message", {"seq": int, "time_us": int, "role": str, "speaker": str, "content": str,
        "name": str, "tool_call_id": str, "tool_calls": list[Any], "reasoning": str, "cut_off": str})
MessagesReply = TypedDict("MessagesReply", {"messages": list[Message]})
Letter = TypedDict("Letter", {"id": str, "agent": str, "session": str, "to_agent": str, "to_session": str,
        "sent_us": int, "text": str, "hops": int, "tainted": bool, "waits": bool})
LettersReply = TypedDict("LettersReply", {"letters": list[Letter]})
Transcript = TypedDict("Transcript", {"session": str, "format": str, "name": str, "text": str})
ExportReply = TypedDict("ExportReply", {"export": Transcript})
Attachment = TypedDict("Attachment", {"name": str, "text": str})
TurnEvent = TypedDict("TurnEvent", {"type": Required[str], "session": Required[str],
        "trace_id": Required[str], "text": str, "position": int, "model": str, "call_id": str, "tool": str,
        "action": str, "effect": str, "decision": str, "args": Any, "stream": str, "result": str,
        "metadata": Any, "approval": str, "cwd": str, "preview": str, "rule": str, "reason": str,
        "expires_us": int, "volatile": bool, "digest": str, "confirm_within_s": int, "check": str,
        "inverse": str, "approver": str, "may_answer": bool, "must_authenticate": bool, "state": str,
        "answered_by": int | None, "note": str, "input": str, "question": str, "choices": list[str],
        "answer": str, "plan": Any, "task": str, "session_info": Any, "kept": int, "removed": int,
        "tokens_before": int, "tokens_after": int, "summarized_by": str, "total_tokens": int,
        "cost": float | None, "prompt_tokens": int, "completion_tokens": int, "cached_tokens": int,
        "code": str, "message": str, "suggestion": str, "steps": int, "data": Any, "usage": Any,
        "calls": list[Any] | None, "finish_reason": str | None, "duration_ms": int}, total=False)
EventReply = TypedDict("EventReply", {"event": TurnEvent})
Handled = TypedDict("Handled", {"session": str, "parent": str, "trace_id": str})
HandledReply = TypedDict("HandledReply", {"handled": Handled})
SessionsEventReply = TypedDict("SessionsEventReply", {"event": TurnEvent | None})
SessionInfoReply = TypedDict("SessionInfoReply", {"session_info": Session})
CancelledReply = TypedDict("CancelledReply", {"cancelled": int})
RequestAnswer = TypedDict("RequestAnswer", {"model": str, "text": str, "tool_calls": list[Any],
        "finish_reason": str, "prompt_tokens": int | None, "completion_tokens": int | None,
        "cached_tokens": int | None, "counted": bool, "cost": float | None, "duration_ms": int | None})
RebuiltRequest = TypedDict("RebuiltRequest", {"system": str, "messages": list[Any], "functions": list[str]})
SessionRequest = TypedDict("SessionRequest", {"number": int, "requests": int, "turn": int, "time_us": int,
        "trace_id": str, "request_id": str, "agent": str, "message_count": int | None,
        "stored": RequestAnswer, "request": RebuiltRequest | None, "again": RequestAnswer | None,
        "same": bool | None, "error": str, "notes": list[str]})
RequestReply = TypedDict("RequestReply", {"request": SessionRequest | None})
SessionContext = TypedDict("SessionContext", {"model": str, "window_tokens": int, "window_known": bool,
        "compact_at_tokens": int, "tokens": int, "system_tokens": int, "functions": int,
        "function_tokens": int, "messages": int, "message_tokens": int})
ContextReply = TypedDict("ContextReply", {"context": SessionContext})
SessionCompacted = TypedDict("SessionCompacted", {"kept": int, "removed": int, "tokens_before": int,
        "tokens_after": int, "summarized_by": str})
CompactedReply = TypedDict("CompactedReply", {"compacted": SessionCompacted})
Trigger = TypedDict("Trigger", {"name": str, "on": str, "about": str, "agent": str, "owner": str,
        "prompt": str, "flow": str, "session": str, "effects": list[str], "rate_limit": int,
        "rate_period_s": float, "coalesce_s": float, "catch_up": bool, "answer": str, "state": str,
        "problem": str, "fired": int, "coalesced": int, "limited": int, "refused": int, "missed": int,
        "waiting": int, "answered": int, "failed": int, "last_us": int})
TriggersReply = TypedDict("TriggersReply", {"triggers": list[Trigger]})
FoundReply = TypedDict("FoundReply", {"found": Trigger})
TriggerQuestion = TypedDict("TriggerQuestion", {"question": str, "prompt": str, "sample": Any})
QuestionReply = TypedDict("QuestionReply", {"question": TriggerQuestion})
Fired = TypedDict("Fired", {"fired": int, "coalesced": int, "limited": int, "refused": int, "missed": int})
CountsReply = TypedDict("CountsReply", {"counts": Fired})
NumberReply = TypedDict("NumberReply", {"number": str})
Followed = TypedDict("Followed", {"name": str, "position": str})
TriggerAnswer = TypedDict("TriggerAnswer", {"firing": str, "trigger": str, "agent": str, "session": str,
        "trace_id": str, "text": str, "code": str, "refused": list[str], "duration_ms": int})
TriggerWork = TypedDict("TriggerWork", {"follow": list[Followed] | None, "answer": TriggerAnswer | None})
WorkReply = TypedDict("WorkReply", {"work": TriggerWork | None})
FlowInput = TypedDict("FlowInput", {"name": str, "type": str, "description": str, "required": bool,
        "default": Any})
Flow = TypedDict("Flow", {"name": str, "path": str, "description": str, "agent": str,
        "inputs": list[FlowInput], "steps": int, "problem": str})
FlowsReply = TypedDict("FlowsReply", {"flows": list[Flow]})
FlowCheck = TypedDict("FlowCheck", {"name": str, "faults": list[str], "warnings": list[str]})
CheckedReply = TypedDict("CheckedReply", {"checked": FlowCheck})
PictureReply = TypedDict("PictureReply", {"picture": str})
FlowStep = TypedDict("FlowStep", {"name": str, "kind": str, "state": str, "after": list[str], "attempt": int,
        "agent": str, "session": str, "trace_id": str, "run": str, "waits_for": str, "will": str,
        "output": str, "code": str, "message": str, "total_tokens": int, "cost": float | None,
        "started_us": int, "ended_us": int})
StepsReply = TypedDict("StepsReply", {"steps": list[FlowStep]})
FlowRun = TypedDict("FlowRun", {"id": str, "flow": str, "state": str, "owner": int, "agent": str,
        "session": str, "inputs": str, "unattended": bool, "trigger": str, "parent": str, "copied_from": str,
        "changed": bool, "started_us": int, "ended_us": int, "code": str, "message": str, "waits": list[str],
        "done": int, "steps": int})
RunReply = TypedDict("RunReply", {"run": FlowRun})
RunsReply = TypedDict("RunsReply", {"runs": list[FlowRun]})
FlowsFoundReply = TypedDict("FlowsFoundReply", {"found": FlowRun})
FlowShown = TypedDict("FlowShown", {"run": FlowRun, "steps": list[FlowStep]})
ShownReply = TypedDict("ShownReply", {"shown": FlowShown})
OutputReply = TypedDict("OutputReply", {"output": str})
FlowProgress = TypedDict("FlowProgress", {"run": FlowRun, "steps": list[FlowStep]})
ProgressReply = TypedDict("ProgressReply", {"progress": FlowProgress | None})
EvalRun = TypedDict("EvalRun", {"id": str, "name": str, "owner": int, "agent": str, "models": list[str],
        "cases": int, "times": int, "state": str, "passed": int, "failed": int, "errors": int,
        "started_us": int, "ended_us": int})
EvalsRunReply = TypedDict("EvalsRunReply", {"run": EvalRun})
EvalsRunsReply = TypedDict("EvalsRunsReply", {"runs": list[EvalRun]})
EvalShown = TypedDict("EvalShown", {"run": EvalRun, "definition": Any})
EvalsFoundReply = TypedDict("EvalsFoundReply", {"found": EvalShown})
EvalTrial = TypedDict("EvalTrial", {"number": int, "case": str, "model": str, "state": str, "why": list[str],
        "code": str, "answer": str, "calls": list[Any], "score": float | None, "reason": str, "session": str,
        "trace_id": str, "steps": int, "total_tokens": int, "cost": float | None, "duration_ms": int})
TrialsReply = TypedDict("TrialsReply", {"trials": list[EvalTrial]})
Rating = TypedDict("Rating", {"trace_id": str, "session": str, "agent": str, "owner": int, "rating": str,
        "note": str, "time_us": int})
RatingReply = TypedDict("RatingReply", {"rating": Rating})
RatingsReply = TypedDict("RatingsReply", {"ratings": list[Rating]})
PlanTask = TypedDict("PlanTask", {"id": str, "text": str, "check": str, "state": str, "note": str,
        "trace_id": str})
Plan = TypedDict("Plan", {"session": str, "phase": str, "title": str, "tasks": list[PlanTask],
        "stopped_at": str, "note": str, "digest": str})
PlanReply = TypedDict("PlanReply", {"plan": Plan})
Input = TypedDict("Input", {"id": str, "agent": str, "session": str, "owner": int, "trace_id": str,
        "call_id": str, "question": str, "choices": list[str], "created_us": int, "expires_us": int,
        "state": str, "answer": str, "answered_by": int | None, "answered_us": int})
InputsReply = TypedDict("InputsReply", {"inputs": list[Input]})
InputReply = TypedDict("InputReply", {"input": Input})
Memory = TypedDict("Memory", {"id": str, "owner": int, "agent": str, "text": str, "tags": list[str],
        "source": str, "state": str, "session": str, "trace_id": str, "created_us": int, "updated_us": int,
        "expires_us": int, "confidence": float, "scope": str, "namespace": str, "said_by": int,
        "from_agent": str, "proposed_why": str, "promoted_by": int, "promoted_us": int, "promoted_why": str})
MemoriesReply = TypedDict("MemoriesReply", {"memories": list[Memory]})
MemoryReply = TypedDict("MemoryReply", {"memory": Memory})
TextReply = TypedDict("TextReply", {"text": str})
ModelPrice = TypedDict("ModelPrice", {"prompt": float, "completion": float, "cached": float | None,
        "cache_write": float | None, "origin": str})
Model = TypedDict("Model", {"model": str, "name": str, "provider": str, "state": str, "problem": str,
        "suggestion": str, "default": bool, "agents": list[str], "context_tokens": int | None,
        "context_from": str, "input_tokens": int | None, "max_output_tokens": int | None,
        "tools": bool | None, "reasoning": bool | None, "attachments": bool | None,
        "price": ModelPrice | None, "knowledge": str, "released": str, "status": str, "facts_from": str})
ModelsReply = TypedDict("ModelsReply", {"models": list[Model]})
ModelProvider = TypedDict("ModelProvider", {"name": str, "kind": str, "base_url": str, "state": str,
        "problem": str, "suggestion": str, "key": str, "known_models": int, "models": list[str]})
ProvidersReply = TypedDict("ProvidersReply", {"providers": list[ModelProvider]})
ModelReply = TypedDict("ModelReply", {"model": Model})
ModelCheck = TypedDict("ModelCheck", {"name": str, "seen": bool | None, "detail": str})
ModelTest = TypedDict("ModelTest", {"model": str, "agent": str, "endpoint": str, "duration_ms": int,
        "text": str, "finish_reason": str, "prompt_tokens": int, "completion_tokens": int,
        "cached_tokens": int, "cost": float | None, "checks": list[ModelCheck]})
ReportReply = TypedDict("ReportReply", {"report": ModelTest})
ModelsRefreshed = TypedDict("ModelsRefreshed", {"providers": int, "models": int, "changes": list[str]})
RefreshedReply = TypedDict("RefreshedReply", {"refreshed": ModelsRefreshed})
Usage = TypedDict("Usage", {"scope": str, "name": str, "turns": int, "steps": int, "steps_without_usage": int,
        "steps_without_price": int, "calls": int, "prompt_tokens": int, "completion_tokens": int,
        "cached_tokens": int, "total_tokens": int, "cost": float, "wall_ms": int})
UsageReply = TypedDict("UsageReply", {"usage": list[Usage]})
BudgetState = TypedDict("BudgetState", {"scope": str, "name": str, "what": str, "used": float,
        "limit": float})
BudgetsReply = TypedDict("BudgetsReply", {"budgets": list[BudgetState]})
StoredEvent = TypedDict("StoredEvent", {"seq": int, "time": int, "topic": str, "type": str, "source": str,
        "agent": str, "session": str, "owner": int | None, "caller": int | None, "request_id": str,
        "trace_id": str, "correlation_id": str, "data_sha256": str, "prev": str, "data": Any | None,
        "hash": str})
Missed = TypedDict("Missed", {"count": int, "first_seq": int, "from_seq": int})
EventItem = TypedDict("EventItem", {"event": StoredEvent | None, "missed": Missed | None})
EventsReply = TypedDict("EventsReply", {"events": list[StoredEvent]})
EventPage = TypedDict("EventPage", {"events": list[StoredEvent], "next_seq": int})
PageReply = TypedDict("PageReply", {"page": EventPage})
RecordPage = TypedDict("RecordPage", {"records": str, "next_seq": int, "head_seq": int, "missed": int})
HistoryPageReply = TypedDict("HistoryPageReply", {"page": RecordPage})
Pruned = TypedDict("Pruned", {"removed": int, "sessions": list[str], "freed_bytes": int, "live_bytes": int,
        "first_seq": int, "compacted": bool, "dry_run": bool})
PrunedReply = TypedDict("PrunedReply", {"pruned": Pruned})
Compacted = TypedDict("Compacted", {"bytes_before": int, "bytes_after": int})
HistoryCompactedReply = TypedDict("HistoryCompactedReply", {"compacted": Compacted})
Removal = TypedDict("Removal", {"seq": int, "time_us": int, "by": int | None, "reason": str, "session": str,
        "first_seq": int, "last_seq": int, "events": int, "rows": int, "states": list[str]})
Verification = TypedDict("Verification", {"ok": bool, "events": int, "first_bad_seq": int, "reason": str,
        "head_seq": int, "head_hash": str, "first_seq": int, "began": str, "kept": int, "erased": int,
        "checkpoints": int, "key": str, "trusted": bool, "covered_seq": int, "index_entries": int,
        "rows": int, "bad_rows": list[str], "removed": int, "removals": list[Removal], "notes": list[str]})
VerificationReply = TypedDict("VerificationReply", {"verification": Verification})
Token = TypedDict("Token", {"id": str, "name": str, "uid": int, "user": str, "scopes": list[str],
        "agents": list[str], "limits": TokenLimits, "created_us": int, "expires_us": int, "used_us": int,
        "tokens_today": int})
NewToken = TypedDict("NewToken", {"token": Token, "secret": str})
CreatedReply = TypedDict("CreatedReply", {"created": NewToken})
TokensReply = TypedDict("TokensReply", {"tokens": list[Token]})
TokenReply = TypedDict("TokenReply", {"token": Token})
ToolReply = TypedDict("ToolReply", {"tool": Tool})
ToolChoice = TypedDict("ToolChoice", {"function": str, "tool": str, "action": str, "effect": str,
        "description": str, "why": str, "score": float, "words": list[str]})
Selection = TypedDict("Selection", {"agent": str, "functions": int, "max_tools": int, "all_offered": bool,
        "offered": int, "choices": list[ToolChoice]})
SelectionReply = TypedDict("SelectionReply", {"selection": Selection})
ToolDraft = TypedDict("ToolDraft", {"name": str, "digest": str, "by": int, "origin": str, "problem": str,
        "description": str, "actions": list[Action], "uses": list[str], "hosts": list[str], "source": str})
DraftReply = TypedDict("DraftReply", {"draft": ToolDraft})
DraftsReply = TypedDict("DraftsReply", {"drafts": list[ToolDraft]})
SkillReply = TypedDict("SkillReply", {"skill": Skill})
Approval = TypedDict("Approval", {"id": str, "agent": str, "session": str, "owner": int, "trace_id": str,
        "call_id": str, "tool": str, "action": str, "effect": str, "args": Any, "cwd": str, "digest": str,
        "preview": str, "rule": str, "reason": str, "created_us": int, "expires_us": int, "state": str,
        "answered_by": int | None, "answered_us": int, "note": str, "volatile": bool, "confirm_within_s": int,
        "check": str, "inverse": str, "may_answer": bool, "must_authenticate": bool, "approver": str})
ApprovalsReply = TypedDict("ApprovalsReply", {"approvals": list[Approval]})
ApprovalReply = TypedDict("ApprovalReply", {"approval": Approval})
PolicyChange = TypedDict("PolicyChange", {"seq": int, "time_us": int, "agent": str, "session": str,
        "owner": int | None, "call_id": str, "tool": str, "action": str, "effect": str, "args": Any,
        "before": str, "before_rule": str, "after": str, "after_rule": str})
RuleProposal = TypedDict("RuleProposal", {"approval": str, "name": str, "path": str, "text": str,
        "sha256": str, "words": str, "judged": int, "allowed": int, "past": list[PolicyChange]})
ProposalReply = TypedDict("ProposalReply", {"proposal": RuleProposal})
PathReply = TypedDict("PathReply", {"path": str})
AnswerToken = TypedDict("AnswerToken", {"decision": str, "token": str})
AnswersReply = TypedDict("AnswersReply", {"answers": list[AnswerToken]})
AwayAnswer = TypedDict("AwayAnswer", {"decision": str, "user": str, "approval": Approval})
ApprovalsAnswerReply = TypedDict("ApprovalsAnswerReply", {"answer": AwayAnswer})
Confirmation = TypedDict("Confirmation", {"id": str, "agent": str, "session": str, "owner": int, "tool": str,
        "action": str, "what": str, "approval": str, "approved_by": int | None, "within_s": int,
        "begun_us": int, "due_us": int, "left_s": float, "check": str, "inverse": str, "back": str,
        "state": str, "tries": int, "by": int | None, "ended_us": int, "why": str, "may_confirm": bool,
        "must_authenticate": bool})
ConfirmationsReply = TypedDict("ConfirmationsReply", {"confirmations": list[Confirmation]})
ConfirmationReply = TypedDict("ConfirmationReply", {"confirmation": Confirmation})
PolicyRule = TypedDict("PolicyRule", {"name": str, "decision": str, "reason": str, "even_if_tainted": bool,
        "conditions": Any, "origin": str})
RulesReply = TypedDict("RulesReply", {"rules": list[PolicyRule]})
PolicyExplanation = TypedDict("PolicyExplanation", {"decision": str, "rule": str, "origin": str,
        "reason": str, "effect": str, "message": str, "suggestion": str, "matched": list[PolicyRule],
        "notes": list[str]})
ExplanationReply = TypedDict("ExplanationReply", {"explanation": PolicyExplanation})
PolicyGuard = TypedDict("PolicyGuard", {"name": str, "on": list[str], "action": str, "match": list[str],
        "pattern": list[str], "reason": str, "conditions": Any, "origin": str})
GuardsReply = TypedDict("GuardsReply", {"guards": list[PolicyGuard]})
PolicyGuardHit = TypedDict("PolicyGuardHit", {"name": str, "action": str, "origin": str, "count": int,
        "unsure": bool})
PolicyTextExplanation = TypedDict("PolicyTextExplanation", {"action": str, "text": str,
        "hits": list[PolicyGuardHit], "notes": list[str]})
PolicyExplanationReply = TypedDict("PolicyExplanationReply", {"explanation": PolicyTextExplanation})
PolicyTextChange = TypedDict("PolicyTextChange", {"seq": int, "time_us": int, "agent": str, "session": str,
        "owner": int | None, "on": str, "action": str, "hits": list[PolicyGuardHit]})
PolicyTextReplay = TypedDict("PolicyTextReplay", {"judged": int, "changed": int,
        "change": PolicyTextChange | None})
ReplayReply = TypedDict("ReplayReply", {"replay": PolicyTextReplay})
PolicyReplay = TypedDict("PolicyReplay", {"judged": int, "changed": int, "skipped": int,
        "change": PolicyChange | None})
PolicyReplayReply = TypedDict("PolicyReplayReply", {"replay": PolicyReplay})
Hook = TypedDict("Hook", {"kit": str, "name": str, "path": str, "phases": list[str], "agents": list[str],
        "on_error": str, "timeout_s": float, "sha256": str, "problem": str})
HooksReply = TypedDict("HooksReply", {"hooks": list[Hook]})
HookTest = TypedDict("HookTest", {"payload": Any, "decided": list[Any], "blocked": bool, "asked": list[str]})
TestReply = TypedDict("TestReply", {"test": HookTest})
McpServer = TypedDict("McpServer", {"kit": str, "name": str, "path": str, "reached": str, "agents": list[str],
        "functions": int, "problem": str})
ServersReply = TypedDict("ServersReply", {"servers": list[McpServer]})
McpTool = TypedDict("McpTool", {"name": str, "effect": str, "state": str, "told": Any, "approved": Any})
McpOffers = TypedDict("McpOffers", {"name": str, "path": str, "version": str, "server": str,
        "tools": list[McpTool], "resources": bool, "prompts": bool, "approval": Any, "digest": str,
        "in_force": bool})
OffersReply = TypedDict("OffersReply", {"offers": McpOffers})
Change = TypedDict("Change", {"call_id": str, "agent": str, "owner": int, "action": str, "path": str,
        "time_us": int, "undone_by": str})
ChangesReply = TypedDict("ChangesReply", {"changes": list[Change]})
