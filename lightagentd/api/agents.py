"""Agents, and the tools and skills that they have."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A definition and its running instance. `state`: running, stopped, failed (being restarted), broken.
    `model_from` says where its model stands: `set` (by Agents.Set), `definition`, or `configuration` for the
    default of all. `agents` are those that it may ask. `kit` names the agent whose kit it belongs to as a
    member; others are not offered it. `own_tools` and `own_skills` are in its folder, for it alone;
    `covered_skills` are those of them that stand in place of one that all agents have.
    """

    name: str
    description: str
    role: str
    model: str
    model_from: str
    fallback: list[str]
    tools: list[str]
    skills: list[str]
    agents: list[str]
    kit: str
    own_tools: list[str]
    own_skills: list[str]
    covered_skills: list[str]
    effects: list[str]
    max_steps: int
    origin: str
    state: str
    restarts: int
    sessions: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class Action:
    """One action of a tool. `effect` is empty where each call chooses; `schema` is that of its arguments."""

    name: str
    description: str
    effect: str
    taints: bool
    timeout_s: float
    schema: Any


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool file. `problem` says why it is disabled, if it is."""

    name: str
    description: str
    origin: str
    actions: list[Action]
    problem: str


@dataclass(frozen=True, kw_only=True)
class ToolDraft:
    """A draft of a tool, which nothing loads before an administrator installs it. `digest` is the SHA-256 of
    `source`, `origin` what it was made of, `by` the uid who had it made. `uses` are the modules that it
    imports and the names that it uses of them, as its text says. `hosts` are those that its text names.
    """

    name: str
    digest: str
    by: int
    origin: str
    problem: str
    description: str
    actions: list[Action]
    uses: list[str]
    hosts: list[str]
    source: str


@dataclass(frozen=True, kw_only=True)
class ToolChoice:
    """How one function fits a prompt. `why`: always, when every conversation needs it; fits, when it is
    offered for the prompt; left_out, when it fits less and is not offered. `words` are those of the prompt
    that it was found by. `effect` is empty where each call chooses.
    """

    function: str
    tool: str
    action: str
    effect: str
    description: str
    why: str
    score: float
    words: list[str]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a model is offered for a prompt: `offered` of the `functions` that its agent has. `all_offered`
    when they are no more than `max_tools`, so that nothing is left out; that is `limits.max_tools`, or fewer
    where the agent's model has a small window.
    """

    agent: str
    functions: int
    max_tools: int
    all_offered: bool
    offered: int
    choices: list[ToolChoice]


@dataclass(frozen=True, kw_only=True)
class Skill:
    """One skill. `body` is empty in lists."""

    name: str
    description: str
    prompts: list[str]
    args: list[str]
    effect: str
    runbook: bool
    origin: str
    problem: str
    body: str


@dataclass(frozen=True, kw_only=True)
class Kit:
    """What an agent's folder holds beside its definition. `added`: it was added at run time, and can be
    removed. `agents` are its members by their short names. `problems` keep it from work; they and `warnings`
    name the file, and the line if known.
    """

    name: str
    description: str
    folder: str
    added: bool
    skills: list[str]
    tools: list[str]
    agents: list[str]
    flows: list[str]
    evals: list[str]
    hooks: list[str]
    references: list[str]
    files: int
    size_bytes: int
    problems: list[str]
    warnings: list[str]
