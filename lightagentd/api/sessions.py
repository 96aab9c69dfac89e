"""Sessions and what belongs to one: messages, a plan, questions to a person, memories, changed files."""

from dataclasses import dataclass, fields
from typing import Any, TypedDict


@dataclass(frozen=True, kw_only=True)
class Session:
    """One conversation. `state`: idle, running, waiting (for the approval or the input `waits_for`). A paused
    one takes no prompts and begins no turn. `current`: its owner's prompts without a session go to it.
    `model`: what its turns ask first, empty for the agent's own. `mode`: normal, or the phase of its plan
    (drafting, ready, applying). `tainted`: text from outside is in it, since the call `tainted_by`; `hosts`
    are those that it may reach again without a question. `interrupted` says what is known of a turn that the
    daemon stopped in the middle of, until the next turn is done. `parent` is the session whose turn
    `of_turn` made it to ask its agent; empty for one that a person began. `holder` is the agent that has the
    conversation after a transfer, empty for `agent`. `leaves` are the calls that are allowed for as long as
    it is there: objects with id, agent, tool, action, effect, args, tainted, approval, given_by (a uid),
    given_us.
    """

    id: str
    agent: str
    owner: int
    title: str
    state: str
    created_us: int
    updated_us: int
    turns: int
    queued: int
    paused: bool
    current: bool
    mode: str
    waits_for: str
    forked_from: str
    model: str
    holder: str
    interrupted: str
    tainted: bool
    tainted_by: str
    hosts: list[str]
    leaves: list[Any]
    parent: str
    of_turn: str


@dataclass(frozen=True, kw_only=True)
class Message:
    """One entry of a conversation. `tool_calls` are `{id, name, arguments}` objects. `reasoning` is what the
    model thought before its answer, as far as its endpoint shows that. `cut_off` is the error that ended the
    turn before the answer was whole; `content` is the part that was said by then. `speaker` is the agent that
    said it, where that is another one than the session's.
    """

    seq: int
    time_us: int
    role: str
    speaker: str
    content: str
    name: str
    tool_call_id: str
    tool_calls: list[Any]
    reasoning: str
    cut_off: str


@dataclass(frozen=True, kw_only=True)
class RequestAnswer:
    """What a model answered to a request. `tool_calls` are `{id, name, arguments}` objects. `finish_reason`
    is `failed` where no answer came. Figures that are not known are null, and so is `cost` without a price;
    without `counted` the tokens are an estimate.
    """

    model: str
    text: str
    tool_calls: list[Any]
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    counted: bool
    cost: float | None
    duration_ms: int | None


@dataclass(frozen=True, kw_only=True)
class RebuiltRequest:
    """A request as it is made again. `messages` are objects with `role`, `content` and more, as the history
    has them; `system` and the names in `functions` are as they would be made now.
    """

    system: str
    messages: list[Any]
    functions: list[str]


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """The request `number` of `requests` in a session, made by the turn `turn`. `message_count` is null where
    retention took away what would tell it. `again` is the answer when it was sent once more; `same`: that
    makes the same calls with the same arguments, or says the same without calls. `error` says why no answer
    came. `notes` are sentences on what is not known, or different from then.
    """

    number: int
    requests: int
    turn: int
    time_us: int
    trace_id: str
    request_id: str
    agent: str
    message_count: int | None
    stored: RequestAnswer
    request: RebuiltRequest | None
    again: RequestAnswer | None
    same: bool | None
    error: str
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class SessionContext:
    """About how many tokens the next request of a session has: the system prompt, so many functions, so many
    messages. `tokens` is all of them, by the endpoint's last count where there is one; the parts are
    estimates. `window_tokens` is 0 for a model without a window, and a guess unless `window_known`.
    """

    model: str
    window_tokens: int
    window_known: bool
    compact_at_tokens: int
    tokens: int
    system_tokens: int
    functions: int
    function_tokens: int
    messages: int
    message_tokens: int


@dataclass(frozen=True, kw_only=True)
class SessionCompacted:
    """What a compaction did: messages removed from what the model is sent and kept, and the tokens before and
    after. `summarized_by` is the model, or lightagentd.
    """

    kept: int
    removed: int
    tokens_before: int
    tokens_after: int
    summarized_by: str


@dataclass(frozen=True, kw_only=True)
class Handled:
    """Where an event is handled: the session of its own, and its turn."""

    session: str
    parent: str
    trace_id: str


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A message of an agent to the session `to_session` with the agent `to_agent`. `waits`: that one has not
    read it yet. `hops` is how many messages led to it without a person, with itself. `tainted`: text from
    outside may be in it.
    """

    id: str
    agent: str
    session: str
    to_agent: str
    to_session: str
    sent_us: int
    text: str
    hops: int
    tainted: bool
    waits: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The end of a turn for a caller who did not watch it. `data`, `usage`, `calls` and `finish_reason` are
    as in the turn event done.
    """

    text: str
    session: str
    trace_id: str
    steps: int
    duration_ms: int
    data: Any | None = None
    usage: Any | None = None
    calls: list[Any] | None = None
    finish_reason: str | None = None


def answer_of(done: dict[str, Any]) -> Answer:
    """The answer in the turn event done."""
    return Answer(**{one.name: done[one.name] for one in fields(Answer)})


class Attachment(TypedDict):
    """A file that goes with a prompt: its name, without a path, and its text."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A session as text. `format`: markdown or jsonl; `name` is a file name for it."""

    session: str
    format: str
    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class PlanTask:
    """One task of a plan. `check` is a shell command that observes and must end with status 0, or empty.
    `state`: pending, running, done, failed, skipped; `note` says why it failed, `trace_id` is its last turn.
    """

    id: str
    text: str
    check: str
    state: str
    note: str
    trace_id: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a session. `phase`: off, drafting, ready, applying, completed. `stopped_at`: the task that
    failed, while it is applied; it goes on with retry, skip or abort. `note` is a sentence on how it stands.
    `digest` stands for the title and the tasks with their checks, whatever their states.
    """

    session: str
    phase: str
    title: str
    tasks: list[PlanTask]
    stopped_at: str
    note: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A question about one call, and its answer. `state`: waiting, granted, denied, expired, used, lapsed.

    `args` are what runs, without those that are secret by their nature; `preview` is what the call would do,
    and `rule` and `reason` say why it is asked. `answered_by` is a uid, `note` what that person said, or why
    it lapsed. `volatile`: the daemon keeps it in memory alone, because it holds a secret; it ends with the
    daemon. `may_answer`: whether the caller may approve it; `must_authenticate`: they may once an
    administrator has authenticated. With `confirm_within_s` above 0 the change is taken back after that time,
    by the call `inverse` where there is one, unless it is confirmed or the command `check` ends with 0.
    `approver` is the digest by which it is answered at the approver (org.lightagent1.Approver) and not here;
    empty where the daemon takes the answer.
    """

    id: str
    agent: str
    session: str
    owner: int
    trace_id: str
    call_id: str
    tool: str
    action: str
    effect: str
    args: Any
    cwd: str
    digest: str
    preview: str
    rule: str
    reason: str
    created_us: int
    expires_us: int
    state: str
    answered_by: int | None
    answered_us: int
    note: str
    volatile: bool
    confirm_within_s: int
    check: str
    inverse: str
    may_answer: bool
    must_authenticate: bool = False
    approver: str = ""


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """A change that is taken back unless it is confirmed in time; `id` is its call, `what` its arguments as
    text, `left_s` the time that is left. `state`: running, waiting, confirmed, taking_back, taken_back,
    failed, unchanged. `back` is the call that takes it back, as text. `by` is the uid of who confirmed it,
    null for its check; `why` says why it could not be taken back. `may_confirm`: whether the caller may;
    `must_authenticate`: they may once an administrator has authenticated.
    """

    id: str
    agent: str
    session: str
    owner: int
    tool: str
    action: str
    what: str
    approval: str
    approved_by: int | None
    within_s: int
    begun_us: int
    due_us: int
    left_s: float
    check: str
    inverse: str
    back: str
    state: str
    tries: int
    by: int | None
    ended_us: int
    why: str
    may_confirm: bool
    must_authenticate: bool = False


@dataclass(frozen=True, kw_only=True)
class AnswerToken:
    """What answers an approval from away, with one decision: approve or deny."""

    decision: str
    token: str


@dataclass(frozen=True, kw_only=True)
class AwayAnswer:
    """What a token of a notification answers: the decision that it stands for, in whose name. `approval` is
    as it stands then.
    """

    decision: str
    user: str
    approval: Approval


@dataclass(frozen=True, kw_only=True)
class Input:
    """A question of an agent (`human.ask`) or of an own tool, and its answer. `state`: waiting, answered,
    expired, lapsed. With `choices` the answer is one of them. `answered_by` is a uid.
    """

    id: str
    agent: str
    session: str
    owner: int
    trace_id: str
    call_id: str
    question: str
    choices: list[str]
    created_us: int
    expires_us: int
    state: str
    answer: str
    answered_by: int | None
    answered_us: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Something that an agent is to remember for one owner. `agent` is empty when it is for all agents.

    `state`: kept; candidate, when it comes from a conversation with text from outside in it, and a person has
    not promoted it yet; rejected. `source`: person, agent, reflection, tool (kept by an agent in a
    conversation with text from outside) or import. `confidence` is from 0 to 1, `expires_us` is 0 when it
    does not expire. `scope`: user, agent, session, team, or machine, whose owner is 4294967295. `said_by` is
    the uid in whose words or session it was said, `from_agent` the agent that made it. `proposed_why` says
    why it was a candidate; `promoted_by` is the uid of who promoted it, else -1.
    """

    id: str
    owner: int
    agent: str
    text: str
    tags: list[str]
    source: str
    state: str
    session: str
    trace_id: str
    created_us: int
    updated_us: int
    expires_us: int
    confidence: float
    scope: str
    namespace: str
    said_by: int
    from_agent: str
    proposed_why: str
    promoted_by: int
    promoted_us: int
    promoted_why: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a file that was kept. `undone_by` is the call that took it back, empty while it stands;
    taking back an `undo` makes the change again.
    """

    call_id: str
    agent: str
    owner: int
    action: str
    path: str
    time_us: int
    undone_by: str
