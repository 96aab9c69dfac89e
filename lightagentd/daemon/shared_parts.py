"""Makes the parts that all agents share (`SharedParts`); none of them runs before `Registry.start`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from lightagentd.agents import snapshots
from lightagentd.agents.builtin import Builtins
from lightagentd.agents.builtin.flows import FlowsTool
from lightagentd.agents.builtin.human import Human
from lightagentd.agents.builtin.memory import Memory
from lightagentd.agents.builtin.message import MessageTool
from lightagentd.agents.builtin.plan import PlanTool
from lightagentd.agents.builtin.skill import SkillTool
from lightagentd.agents.builtin.team import AgentTool
from lightagentd.agents.builtin.tool_search import ToolSearch
from lightagentd.agents.confirming.confirmations import Confirmations
from lightagentd.agents.content import Content
from lightagentd.agents.guarding import guard_memory
from lightagentd.agents.hook_phases import MemoryHooks
from lightagentd.agents.hooks import HOOKS_FOLDER, Hooks
from lightagentd.agents.model_calls.clients import ModelClients, store_circuit
from lightagentd.agents.model_calls.metering.ledger import Ledger
from lightagentd.agents.parts import SharedParts
from lightagentd.agents.planning.plans import Plans
from lightagentd.agents.system_prompt import SystemPrompts
from lightagentd.agents.team.asides import Asides
from lightagentd.agents.team.children import Children
from lightagentd.agents.team.mail import Mail
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.given import given
from lightagentd.agents.tool_choice.choice import Offers
from lightagentd.agents.watches import Watches
from lightagentd.config.configuration import Config
from lightagentd.events.history import History
from lightagentd.host.paths import Paths
from lightagentd.llm.circuit import Circuits
from lightagentd.llm.metadata.facts import Metadata
from lightagentd.memory.memories import Memories
from lightagentd.memory.profiles import Profiles
from lightagentd.policy.decide import Policy
from lightagentd.policy.panic import Panic
from lightagentd.policy.questions.approver import ApproverLink
from lightagentd.policy.questions.asked import AllQuestions
from lightagentd.tool import Effect
from lightagentd.worker.pool import Pool

Granted = Callable[[str], Sequence[Effect]]


def _policy(config: Config, content: Content, history: History, pool: Pool, granted: Granted) -> Policy:
    return Policy(
        enforced=lambda: pool.backend.enforced,
        trusted_skill=content.trusts_skill,
        disk_low=lambda: history.disk_low,
        granted=granted,
        verified=lambda: pool.source.verifies,
        trusts=config.worker,
    )


def shared_parts(
    config: Config, paths: Paths, history: History, pool: Pool, panic: Panic, granted: Granted
) -> SharedParts:
    """`granted` gives the effects that a trigger has without a person."""
    limits, content, profiles = config.limits, Content(paths), Profiles(history)
    policy = _policy(config, content, history, pool, granted)
    asked = AllQuestions(history, limits, key_file=paths.state / "approvals.key")
    plans, offers = Plans(history), Offers(history, policy, content.members_of, content.skill_names)
    metadata = Metadata(config.models, paths.state / "models.json")
    hooks = Hooks(history, pool, paths.config / HOOKS_FOLDER)
    memories = Memories(config.memory, history, content.memory_policy_of)
    memories.around = MemoryHooks(hooks, partial(guard_memory, policy, history))
    children = Children(history, limits, asked, content.members_of)
    mail = Mail(history, limits, content.members_of, lambda: content.definitions.agents)
    skills, tools = (content.catalog_of, content.skills_of_team), content.toolbox_of
    skill, search = SkillTool(children, content.catalog_of, tools), ToolSearch(offers, tools, pool.has_change)
    team = AgentTool(children), MessageTool(mail), skill, FlowsTool(), search
    builtins = Builtins([Human(asked.inputs), PlanTool(plans), Memory(memories), *team])
    return SharedParts(
        paths=paths,
        limits=limits,
        history=history,
        pool=pool,
        panic=panic,
        content=content,
        policy=policy,
        asked=asked,
        plans=plans,
        metadata=metadata,
        model_clients=ModelClients(config.models, metadata, history.redactor, *skills),
        circuits=Circuits(lambda circuit: store_circuit(history, circuit)),
        ledger=Ledger(history, config.budgets, metadata.price),
        memories=memories,
        profiles=profiles,
        prompts=SystemPrompts(paths, memories, profiles),
        offers=offers,
        builtins=builtins,
        dispatcher=Dispatcher(
            history=history,
            policy=policy,
            asked=asked,
            pool=pool,
            limits=limits,
            builtins=builtins,
            hooks=hooks,
            confirmations=Confirmations(history),
            approver=ApproverLink(asked.approvals, history),
            toolbox=tools,
            give=partial(given, content, policy, pool, partial(snapshots.before, history)),
        ),
        hooks=hooks,
        watches=Watches(history, pool, content, policy),
        children=children,
        mail=mail,
        asides=Asides(history, content, limits),
    )
