"""What agents do in their turns: prompts, model calls, decisions on tool calls, messages and errors."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from lightagentd import errors
from lightagentd.events.model import Event
from lightagentd.events.types.event_type import (
    ERROR,
    NOTICE,
    WARNING,
    AboutCall,
    EventType,
    Object,
    Objects,
    Reported,
    Text,
)


class Prompted(EventType, topic="agent.prompt", type="prompt", source="agent"):
    """A prompt was taken: its turn is in the queue of the session."""

    catalog = """The agent @AGENT@ was prompted
    The user with uid @CALLER_UID@ (or a program of theirs) prompted the agent @AGENT@ in the session
    @SESSION@. The prompt is stored, and the turn @TRACE_ID@ begins when those before it in the session have
    ended.
    > What came of it: lactl trace show @TRACE_ID@"""
    text: Text
    question_chars: int = 0
    """How long the question is before its blocks; absent when all of it is the question."""
    choice: Object = Field(default_factory=dict)
    """What the prompt chose for its turn: model, tools, effects, max_steps, and whether there is a schema."""


class _ModelCall(EventType):
    """What one model call came to, and what it cost."""

    model: Text
    finish_reason: Text
    tool_calls: int
    """How many tool calls the model asked for."""
    text_chars: int
    duration_ms: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    counted: bool
    """Whether the endpoint said how many tokens it took; else the figures are an estimate, or 0 where nothing
    was said."""
    cost: float | int | None
    """In the currency of the configured prices; null when there is no price, or no count."""
    started_us: int = 0
    """When the call was made, in microseconds UTC; with the duration that says when it ended."""
    step: int = 0
    """The step of the turn that it answers, from 1; 0 for a summary, and for a call that broke off."""


class ModelAnswered(_ModelCall, topic="agent.llm_response", type="response", source="agent"):
    """A model answered a step of a turn."""

    catalog = """A model answered the agent @AGENT@
    One call of a model has ended in the turn @TRACE_ID@. The history has which model that was, how long it
    took, and how many tokens it used.
    > The calls of the turn: lactl trace show @TRACE_ID@"""


class ModelSummedUp(_ModelCall, topic="agent.llm_response", type="summary", source="agent"):
    """A model was asked to shorten a conversation; no step of a turn."""

    catalog = """A model summed up a conversation of the agent @AGENT@
    The conversation in the session @SESSION@ became too long for the model, which was asked to put its older
    part in short. The call is counted like every other.
    > What was left out: lactl events --topic session.compacted"""


class ModelDeliberated(_ModelCall, topic="agent.llm_response", type="deliberation", source="agent"):
    """A model drafted or judged plans before the first step of a turn."""

    catalog = """A model thought about a plan for the agent @AGENT@
    Before the first step of the turn @TRACE_ID@ a model was asked for a draft of a plan, or to judge drafts,
    as the definition of the agent or the prompt wants it. The call is counted like every other.
    > The drafts and their scores: lactl trace show @TRACE_ID@"""


class ModelBrokeOff(_ModelCall, topic="agent.llm_response", type="failed", source="agent"):
    """A model call came to nothing: it was cancelled, refused, broke off, or its answer was empty."""

    catalog = """A model's answer to the agent @AGENT@ broke off
    One call of a model ended early in the turn @TRACE_ID@: it was cancelled, or the endpoint failed in the
    middle. What it had used until then is counted; the history has the figures, where the endpoint had given
    them.
    > What became of the turn: lactl trace show @TRACE_ID@"""


class CallIntended(AboutCall, topic="agent.tool_dispatch", type="intent", source="agent"):
    """A tool call was decided on and is about to run. Without an invocation its outcome is unknown."""

    catalog = """@AGENT@ is about to call @TOOL@.@ACTION@
    Policy decided '@DECISION@', and the worker for the effect '@EFFECT@' starts the call now; the entry was
    stored before it. An entry of the same LIGHTAGENT_TRACE_ID says how it ended. The history has the
    arguments: lactl trace show @TRACE_ID@
    > When that entry is missing, the daemon or its worker ended in the middle, and whether the call took
    effect is not known. It is not run again."""
    call_id: Text
    function: Text
    """As the model called it."""
    position: int = 0
    """Its place in the model's answer, from 1, where calls of that ran at once."""
    trigger: Text = ""
    """Why nobody can be asked: `unattended`, or the check of a plan's task; absent for a person's prompt."""
    tool: Text
    action: Text
    effect: Text
    args: Object
    """As they run, without those that nobody gets to see."""
    decision: Text
    rule: Text
    """What decided: the name of a rule, or of a built-in one."""
    tainted: bool = False
    """Text from outside is in the conversation."""
    plan: Text = ""
    """What may run while a plan is drafted."""
    host: Text = ""
    known_host: bool = False
    """Whether the session went to `host` untainted before, or was let."""
    approval: Text = ""
    """The approval that was asked for; it is used up with this event."""


class CallRefused(AboutCall, topic="agent.tool_dispatch", type="refused", source="agent"):
    """A tool call does not run. What was not known of it by then is absent."""

    priority = WARNING
    catalog = """A call that @AGENT@ wanted was refused
    The call did not run. LIGHTAGENT_RESULT has the reason: policy_denied (a rule), approval_denied (a person,
    or nobody in time), change_not_enabled (there is no worker for change), invalid_argument, and so on. The
    model reads the reason and may try something else.
    > To see the call: lactl trace show @TRACE_ID@. To see which rule decided: lactl policy explain. One
    refusal is how this is meant to work; many of one kind mean that the agent lacks something that it
    needs, or that somebody tries what they should not."""
    call_id: Text
    function: Text
    trigger: Text = ""
    tool: Text = ""
    action: Text = ""
    effect: Text = ""
    args: Object = Field(default_factory=dict)
    decision: Text = ""
    rule: Text = ""
    tainted: bool = False
    plan: Text = ""
    host: Text = ""
    known_host: bool = False
    approval: Text = ""
    result: Text
    """The code of the error."""
    message: Text


class Said(EventType, topic="agent.message", type="message", source="agent"):
    """A message of the conversation: a session's messages are rebuilt from these, and from nothing else."""

    catalog = """A message was added to a conversation with @AGENT@
    A prompt, an answer or the result of a tool call became part of the session @SESSION@. Its text is in the
    history alone, unless journal_content is on.
    > To read it: lactl sessions show @SESSION@"""
    role: Literal["user", "assistant", "tool"]
    content: Text
    tool_calls: Objects = Field(default_factory=list)
    """Of an assistant: `id`, `name` and `arguments`, which is JSON as the model wrote it."""
    reasoning: Objects = Field(default_factory=list)
    """Of an assistant: blocks of reasoning that go back to the `model` that gave them, and to no other."""
    question_chars: int = 0
    """Of a user: how long the question is before its blocks; absent when all of it is the question."""
    tool_call_id: Text = ""
    name: Text = ""
    """Of a tool's result: the function that was called."""
    cut_off: Text = ""
    """Of an assistant: the error that ended the turn before the answer was whole."""
    speaker: Text = ""
    """The agent that said it, where that is another one than the session's."""
    copied_from: int = 0
    """Of a forked session: the number of the event that has the message in the session before."""
    said_us: int = 0
    """Of a copied or imported message: when it was said, in microseconds UTC."""


class TurnFailed(Reported, topic="agent.error", types=[row.code for row in errors.table()], source="agent"):
    """A turn ended without an answer; the type is the code of the error."""

    priority = ERROR

    code: Text
    message: Text
    field: Text = ""
    suggestion: Text = ""
    steps: int
    duration_ms: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    total_tokens: int = 0
    cost: float | int | None = None
    calls: int = 0
    unattended: bool = False

    @property
    def event_type(self) -> str:
        return self.code

    @classmethod
    def priority_of(cls, event: Event) -> str:
        return NOTICE if event.type in (errors.Cancelled.code, errors.NoRunbook.code) else cls.priority

    @classmethod
    def catalog_of(cls, event_type: str) -> str:
        advice = re.search(rf"^{event_type}: (.*(?:\n  .*)*)", _ADVICE, re.MULTILINE)
        if advice is None:
            raise LookupError(f"no advice for the error {event_type}")
        failed = next(row.cls for row in errors.table() if row.code == event_type)
        happened, _, next_step = advice[1].rpartition(" | ")
        if not happened:
            happened = " ".join((failed.__doc__ or "").split()).partition(". ")[0].rstrip(".") + "."
        return (
            f"A turn of @AGENT@ failed: {event_type}\nThe turn @TRACE_ID@ in the session @SESSION@ for the "
            f"user with uid @CALLER_UID@ ended with this error. {happened}\n> {next_step}"
        )


class FellBack(Reported, topic="agent.error", type="fallback"):
    """A model failed before it said anything, and the turn goes on with the next one."""

    priority = WARNING
    catalog = """Another model took over for @AGENT@
    The model that was asked could not answer before it had said anything, and the turn goes on with the next
    one that the agent or the configuration names. The message has the reason.
    > When it happens often, look at the first model's endpoint. Which ones: lactl agents show @AGENT@"""
    code: Text
    message: Text


class ModelTriedAgain(Reported, topic="agent.retry", type="retry"):
    """A model call failed in a way that may pass before it said anything, and is made again."""

    priority = WARNING
    catalog = """A model call of @AGENT@ is made again
    A model call failed in a way that may pass, before the model had said anything. The call is made again
    after a short wait. The message has the reason, and how often it was made until now.
    > When it happens often, look at the model's endpoint. How often and how long calls are tried again:
    max_retries and max_retry_s of the provider."""
    code: Text
    message: Text
    model: Text
    tries: int
    """How often the call was made until now."""
    wait_s: float | int
    """How long until it is made again."""


class TurnInterrupted(Reported, topic="agent.error", type="interrupted", source="agent"):
    """The daemon stopped in the middle of a turn; its next start found and ended it."""

    priority = WARNING
    catalog = """A turn of @AGENT@ was cut off
    The daemon ended in the middle of the turn @TRACE_ID@ (a crash, a kill, a power failure), and found it
    again now. A call that had begun may have taken effect or not; it is not run again.
    > What it was doing: lactl trace show @TRACE_ID@. Prompt again in the same session to go on."""
    code: Text
    """`outcome_unknown` when a call ran by then, else `interrupted`."""
    message: Text
    unknown_calls: int
    unattended: bool = False


_ADVICE = """
internal: Something failed that has no code of its own. | This is a defect of lightagentd. The entries before
  have the traceback; please report it with the output of lactl status --json.
invalid_argument: Look at what was asked for: lactl trace show @TRACE_ID@
malformed_message: A program speaks something else than Varlink to the socket. Find it by its uid, and mend
  it.
message_too_large: Send less at once, or the name of a file that the agent can read.
attachment_too_large: A file that went with the prompt, or all of them together, is larger than
  max_attachment_bytes allows. | See the limit: lactl config show
attachment_invalid: A file that went with the prompt is no text, or its name is invalid. | Attach text, or
  name a file that the agent can read.
plan_invalid: A plan did not have the shape of one, had no tasks, or two of them with one id. | How a plan is
  written: lactl plan set --help
import_invalid: What was to be imported is no whole export. | Nothing of it was taken. The error names the
  line and what is wrong there.
schema_invalid: The schema for an answer could not be used. | The message says why. A schema is one JSON
  object of at most 64 KiB; nothing that it refers to outside of itself is fetched.
schema_unsupported: The model that would have answered writes no JSON of its own. | Prompt without a schema,
  or choose a language model for the agent.
config_invalid: Mend the file that the message names; to check: lactl config check; lactl policy check; lactl
  agents list
not_found: Look at what was asked for: lactl trace show @TRACE_ID@
agent_not_found: The agent was deleted while it had work. To see which there are: lactl agents list
session_not_found: The session was deleted while it had work.
tool_not_found: Look whether the tool's file is there and loads: lactl tools list
skill_not_found: Look whether the skill is there and can be used: lactl skills list
event_not_found: Look whether the history is whole: lactl audit verify
approval_not_found: To see the questions: lactl approvals list --all
input_not_found: There is no such question of an agent. | lactl inputs --all lists those that the user may
  see.
memory_not_found: There is no memory with this id, or it is another user's. | To see the memories: lactl
  memory list
method_not_found: Client and daemon have different versions; restart the one that is older.
conflict: Look at what was asked for: lactl trace show @TRACE_ID@
agent_exists: To see which there are: lactl agents list
agent_not_running: To start it: lactl agents start @AGENT@
agent_broken: Mend its AGENT.md, then: lactl reload. What is wrong: lactl agents show @AGENT@
approval_closed: The question was answered already, or its time was over.
approver_answers: The question is about a change, and the daemon does not answer it. | People answer it at the
  approver: lactl approve ID
input_closed: The question waits for no answer any more. | It was answered already, its time was over, or its
  turn had ended.
session_paused: The session is paused. | It takes no prompts until somebody takes it up again: lactl sessions
  resume @SESSION@
session_not_paused: The session is not paused. | Somebody wanted to take it up again. It takes prompts as it
  is.
plan_conflict: The session's plan was not in a phase in which this could be done. | To see the plan: lactl
  plan show @SESSION@
confirmation_required: What was asked for cannot be taken back. | Whoever asks for it has to say that it is
  meant, for example with the option --yes of lactl.
refused: Look at what was asked for: lactl trace show @TRACE_ID@
choice_too_wide: The prompt chose tools, effects or steps that the agent does not have. | See what it has:
  lactl agents show @AGENT@
permission_denied: Who may do what is decided by polkit; org.lightagent1(5) lists the actions.
authorization_required: Who may do what is decided by polkit; org.lightagent1(5) lists the actions. A person
  has to authenticate, as lactl asks for on a terminal.
policy_denied: Which rule decided: lactl policy explain
hook_blocked: The hooks and what they are asked for: lactl hooks list
change_not_enabled: If this agent is to change the machine: systemctl enable --now
  lightagent-change@@AGENT@.socket
plan_mode_blocked: To leave plan mode: lactl plan end @SESSION@
approval_required: Prompt without --unattended, or write a rule into policy.d that allows the call.
approval_denied: A person said no, or nobody answered in time.
child_failed: Another agent was asked and gave no answer. Its own session says why: lactl sessions list
child_refused: An agent asked one that waits for its answer itself. Its agents: key names whom it may ask.
approval_mismatch: What was about to run was not what a person had allowed, so it did not run. Something
  changed it in between; find out what: lactl trace show @TRACE_ID@
limit_exceeded: The limits: lactl config show
queue_full: Too many prompts wait in one session. Wait for them, or raise max_queue; lightagentd.toml(5).
step_limit: The model asked for more and more calls without coming to an end. See whether it went in circles:
  lactl trace show @TRACE_ID@. The limit is max_steps; lightagentd.toml(5).
call_loop: The model made the same failing call again and again, and was told so. | The same call with the
  same arguments failed three times in a row, and the model wanted it once more. Look at the call and its
  error: lactl trace show @TRACE_ID@. Prompt again in the same session, and say what it should do instead.
context_full: Ask for less at once, give the agent fewer tools, or correct context_tokens of the model's
  provider in the configuration.
budget_exceeded: Wait until the budget is renewed, or raise it.
callback_failed: A function of the program that embeds the agents raised something. | The message has it; the
  log of the program has where.
cancelled: Somebody cancelled it, its agent was stopped, or the daemon stops. What had been done until then
  stays done.
timeout: The turn or a call took longer than it may. See where the time went: lactl trace show @TRACE_ID@. The
  limits are turn_timeout_s and call_timeout_s; lightagentd.toml(5).
unavailable: Look at how the daemon is: lactl status; lactl doctor
daemon_unreachable: Look at how the daemon is: systemctl status lightagentd
shutting_down: The daemon was stopping. Prompt again when it runs.
panicked: Everything is stopped by 'lactl panic'. When all is well again: lactl panic --off
worker_unavailable: Look at the worker's unit: systemctl status 'lightagent-*@@AGENT@'; lactl doctor
systemd_unavailable: Look whether systemd answers: systemctl is-system-running; busctl status
model_failed: Look at the endpoint's own log. Which model it is: lactl agents show @AGENT@
model_unreachable: The model's endpoint cannot be reached or broke off. | Look whether the endpoint runs and
  can be reached from here, and whether its name resolves. Models that are named as 'fallback' of the agent
  are tried in turn.
model_timeout: It was tried again as often as the provider's max_retries says, unless it had begun to answer.
  A slow model wants more idle_timeout_s or total_timeout_s in its provider's table.
model_cut_off: The answer of the model broke off before its end. | Look at the endpoint and at what stands
  between, such as a proxy that ends long answers. Prompt again in the same session to go on.
model_overloaded: The model's endpoint has too much to do, or failed inside. | It was tried again as often as
  the provider's max_retries says. Look at the endpoint's own log or status page, or name another model as
  'fallback' of the agent.
model_rate_limited: The model's endpoint takes no more requests of this key for now. | The endpoint says how
  long it wants to be left alone; what is longer than max_retry_s of the provider is not waited for. Ask its
  operator for more, or name another model as 'fallback' of the agent.
model_circuit_open: The model's endpoint failed so often that it is left alone for a while. | No request was
  made. The message says until when, and lactl status which endpoints are left alone. Mend the endpoint; the
  first call after that time tries it again.
model_certificate: The certificate of the model's endpoint cannot be trusted, or it does not take the
  daemon's. | Nothing was sent. For a certificate of your own, set ca_file of the provider; for an endpoint
  that wants one of the daemon, client_cert and client_key. Look at the clock, too.
model_redirected: The model's endpoint sends requests elsewhere. | Neither the request nor the key was sent
  there. If the other place is the right one, name it in base_url; if it is a login page, log in to the
  network first.
model_garbled: What answers at the model's address is no model. | It is a web page, a login portal, or bytes
  that make no sense. Check base_url of the provider: it names the API, up to and with /v1, and not a web
  site.
model_empty: It was asked once more. When it happens often, give it more room to answer (max_output_tokens of
  the provider), or choose another model.
answer_misfit: The answer does not fit the schema of the prompt, not at the second try either. | Say in the
  prompt what belongs where, choose another model, or a simpler schema. The answers: lactl sessions show
  @SESSION@
no_runbook: No runbook fits the prompt, and the agent has no language model to ask. | See what can be asked:
  lactl skills list. To have a language model answer: lactl setup
model_rejected: The endpoint refused the request: a wrong or missing key, a model that it does not have, or a
  conversation that is too long for it. The message has its words.
model_key_refused: The model's endpoint refused the API key. | The key is wrong, missing, or may not use this
  model. Look at the provider's api_key_file or api_key_env, and try it: lactl models test
model_quota_exceeded: The account at the model's endpoint has no credit left. | Pay there, or name another
  model as 'fallback' of the agent. Waiting does not help, so it was not tried again.
model_not_found: The model's endpoint has no such model, or no such API. | Check the name of the model, and
  base_url of its provider. Which models are known here: lactl models list
model_prompt_too_long: The conversation could not be made shorter. Begin a new session, correct context_tokens
  of the provider, or choose a model with a larger window.
model_filtered: The rules of the model's endpoint about content refused the prompt or the answer. | Ask in
  other words, or choose another model. What was asked: lactl trace show @TRACE_ID@
tool_failed: What failed, and what the tool suggests: lactl trace show @TRACE_ID@
input_invalid: What the tool's author has to mend: lactl trace show @TRACE_ID@
outcome_unknown: Look at the machine whether the call took effect; it is not run again. Which call: lactl
  trace show @TRACE_ID@
command_failed: A command ended with a status other than 0. | Its output: lactl trace show @TRACE_ID@
storage_failed: The step that could not be stored was not taken. Look at the disk that holds
  /var/lib/lightagentd: df -h /var; df -i /var
history_damaged: The file is left as it is. Where it is damaged: lactl audit verify. Restore it from a backup,
  or move it away.
"""
"""By error: what to do. Before a bar stands what happened, where the docstring of the error says more."""
