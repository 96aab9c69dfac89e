"""Models, their providers and tests, and what was used of them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelPrice:
    """What a million tokens cost: of prompts, of answers, of prompts that the endpoint had cached, and of
    those that it put into its cache; null for what is not known. `origin`: as `facts_from` of `Model`.
    """

    prompt: float
    completion: float
    cached: float | None
    cache_write: float | None
    origin: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model: who uses it, whether it can be used, and what is known of it; null and empty are what is not.

    `state`: ready, unusable (`problem` says why, `suggestion` what to do), paused (its endpoint failed too
    often), known (nobody uses it). `agents` may ask it. `input_tokens` is how long a prompt may be, where
    that is less than the window. `facts_from`, and with it where window and price are from: configuration,
    refreshed, shipped, local. `status`: alpha, beta, deprecated. `knowledge` and `released` are YYYY, YYYY-MM
    or YYYY-MM-DD.
    """

    model: str
    name: str
    provider: str
    state: str
    problem: str
    suggestion: str
    default: bool
    agents: list[str]
    context_tokens: int | None
    context_from: str
    input_tokens: int | None
    max_output_tokens: int | None
    tools: bool | None
    reasoning: bool | None
    attachments: bool | None
    price: ModelPrice | None
    knowledge: str
    released: str
    status: str
    facts_from: str


@dataclass(frozen=True, kw_only=True)
class ModelProvider:
    """An endpoint of models. `state`: ready, unusable, paused (as in `Model`), or found: a server on this
    machine or of models.look_at that nobody uses, with the `models` that it has; unreachable: nothing answers
    at an address of models.look_at. `key`: present, missing, or not needed.
    `known_models`: of how many of its models something is known.
    """

    name: str
    kind: str
    base_url: str
    state: str
    problem: str
    suggestion: str
    key: str
    known_models: int
    models: list[str]


@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """One thing that a test of a model looked for. `seen` is null where it could not be told."""

    name: str
    seen: bool | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class ModelTest:
    """What one real call of a model showed. `cost` is null when no price is known, or nothing was counted."""

    model: str
    agent: str
    endpoint: str
    duration_ms: int
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost: float | None
    checks: list[ModelCheck]


@dataclass(frozen=True, kw_only=True)
class ModelsRefreshed:
    """What a new table of models came to. `changes` are sentences, about the models in use."""

    providers: int
    models: int
    changes: list[str]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What was used in one scope. `scope`: turn, session, agent, owner, owner_day, day, all; `name` says
    which. `steps_without_usage`: the endpoint did not count; `steps_without_price`: no price was known, so
    they are not in `cost`. `wall_ms` is the time of turns without that which they waited for a person.
    """

    scope: str
    name: str
    turns: int
    steps: int
    steps_without_usage: int
    steps_without_price: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    total_tokens: int
    cost: float
    wall_ms: int


@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """One limit of the configuration, and how much of it is used. `what`: tokens, cost, steps, calls,
    wall_s.
    """

    scope: str
    name: str
    what: str
    used: float
    limit: float
