"""All agents of the daemon: their definitions, their running instances, and what they share.

The registry is made by the daemon, which starts and closes it. It reads definitions and skills, has the
tools described by a worker, and starts every agent that is defined. An agent that cannot start is a
problem that `status` shows, not a reason for the others not to.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from lightagentd.agents.agent import Agent
from lightagentd.agents.builtin import Builtins
from lightagentd.agents.builtin.human import Human
from lightagentd.agents.builtin.memory import Memory
from lightagentd.agents.builtin.plan import PlanTool
from lightagentd.agents.builtin.tool_search import ToolSearch
from lightagentd.agents.definition import (
    AgentDefinition,
    AgentFrontMatter,
    Definitions,
    check_name,
    check_role,
    load_definitions,
    roles_in,
    write_definition,
)
from lightagentd.agents.model_calls.call import store_unwatched
from lightagentd.agents.model_calls.clients import ModelClients
from lightagentd.agents.model_calls.metering.ledger import Ledger
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.planning.plans import Plans
from lightagentd.agents.sessions.recovery import (
    agents_with_turns,
    end_interrupted_turns,
    end_stored_turns,
)
from lightagentd.agents.sessions.session import Session, session_not_found
from lightagentd.agents.system_prompt import SystemPrompts
from lightagentd.agents.tool_calls.run import Dispatcher
from lightagentd.agents.tool_calls.toolbox import Toolbox, toolbox_of
from lightagentd.agents.tool_choice.choice import Offers
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.agents.watches import Watches
from lightagentd.config.configuration import Config, Models
from lightagentd.errors import (
    AgentBroken,
    AgentExists,
    AgentNotFound,
    Conflict,
    InvalidArgument,
    LightagentError,
)
from lightagentd.events.history import History
from lightagentd.events.model import EventContext
from lightagentd.events.types.daemon import CircuitClosed, CircuitOpened
from lightagentd.events.types.event_type import Kind
from lightagentd.host.paths import Paths, content_folders
from lightagentd.llm.circuit import Circuits, CircuitState
from lightagentd.llm.metadata.facts import Metadata
from lightagentd.memory.memories import Memories
from lightagentd.memory.profiles import Profiles
from lightagentd.policy.decide import PERSON, Decision, Policy, PolicyCall
from lightagentd.policy.in_force import Actions, retake_rules, take_rules
from lightagentd.policy.panic import Panic
from lightagentd.policy.questions.asked import Asked
from lightagentd.policy.rulefiles import POLICY_FOLDER
from lightagentd.skills import SkillCatalog, load_skills
from lightagentd.tool import Effect
from lightagentd.worker.pool import Pool

_log = logging.getLogger(__name__)


class Registry:
    """Start with `start()`, end with `close()`."""

    def __init__(
        self, config: Config, paths: Paths, history: History, pool: Pool, panic: Panic | None = None
    ) -> None:
        self.config = config
        self.paths = paths
        self.history = history
        self.pool = pool
        self.policy = Policy(
            enforced=lambda: pool.backend.enforced,
            trusted_skill=lambda name: name in self.skills.skills and self.skills.skills[name].trusted(),
            disk_low=lambda: history.disk_low,
        )
        self.asked = Asked(history, config.limits, key_file=paths.state / "approvals.key")
        self.approvals, self.inputs = self.asked.approvals, self.asked.inputs
        self.plans = Plans(history)
        self.metadata = Metadata(config.models, paths.state / "models.json")
        self.model_clients = ModelClients(config.models, self.metadata, history.redactor, self._catalog_of)
        self.circuits = Circuits(self._tell_circuit)
        self.ledger = Ledger(history, config.budgets, self.metadata.price)
        self.memories = Memories(config.memory, history)
        self.profiles = Profiles(history)
        self.prompts = SystemPrompts(paths, self.memories, self.profiles)
        self.offers = Offers(history)
        search = ToolSearch(self.offers, lambda: self.toolbox, pool.has_change)
        self.builtins = Builtins([Human(self.inputs), PlanTool(self.plans), Memory(self.memories), search])
        self.panic = panic or Panic()
        self.watches = Watches(history, pool, self._may_watch)
        self.agents: dict[str, Agent] = {}
        self.definitions = Definitions()
        self.skills = SkillCatalog()
        self.toolbox = Toolbox()
        self.toolbox_problem = ""
        self.unused_files: list[str] = []
        """Tool files with the name of a built-in tool, as sentences."""
        self.ended_turns = 0
        """How many turns the last run left that no agent took up."""
        self._changing = asyncio.Lock()
        """Held while the set of agents changes."""
        self._unmade: dict[str, str] = {}
        """Agents whose models cannot be made as they are configured now, as sentences."""
        self._allowed_skills: dict[frozenset[str], tuple[SkillCatalog, SkillCatalog]] = {}

    async def start(self) -> None:
        """Read everything and start every agent. Raises StorageError; ConfigError for a broken policy.d, and
        for a memory store that cannot be used.
        """
        await self.asked.load()
        await self.memories.start()
        self.ledger.load()
        self.watches.start()
        await self.read_content()
        await take_rules(self.policy, self.paths.config / POLICY_FOLDER, self.history, self._actions())
        for name in self.definitions.agents:
            await self._try_start(name)
        for name in agents_with_turns(self.history) - self._running():
            self.ended_turns += await end_interrupted_turns(self.history, name)

    def _tell_circuit(self, circuit: CircuitState) -> None:
        """Store that an endpoint is left alone, or answers again; that concerns no turn more than others."""
        if circuit.state == "closed":
            message = f"The model endpoint {circuit.endpoint} answers again."
            told: Kind = CircuitClosed(endpoint=circuit.endpoint, message=message)
        else:
            message = (
                f"The model endpoint {circuit.endpoint} is left alone for {circuit.open_s:.0f} s: it failed"
                f" {circuit.failures} times in a row; the last time {circuit.why}."
            )
            told = CircuitOpened(
                endpoint=circuit.endpoint,
                failures=circuit.failures,
                open_s=round(circuit.open_s, 3),
                message=message,
            )
        store_unwatched(self.history, [told.event(context=EventContext())], [])

    def models_in_use(self) -> dict[str, list[str]]:
        """Each model that an agent or the configuration names, with the agents that may ask it."""
        found: dict[str, list[str]] = {self.config.models.default: []}
        for name, definition in self.definitions.agents.items():
            for model in self.model_clients.named_by(definition):
                found.setdefault(model, []).append(name)
        return found | {model: [] for model in self.config.models.fallback if model not in found}

    def _running(self) -> set[str]:
        return {name for name, agent in self.agents.items() if agent.state == "running"}

    async def close(self) -> None:
        """Stop every agent; one that cannot store its stop does not keep the others from theirs."""
        self.asked.suspend()
        await self.watches.close()
        agents = list(self.agents.values())
        stopped = await asyncio.gather(*(agent.stop() for agent in agents), return_exceptions=True)
        for agent, failure in zip(agents, stopped, strict=True):
            agent.end_watching()
            if failure is not None:
                _log.error("the agent %s did not stop as it should: %s", agent.name, failure)
        await self.memories.close()

    async def end_all_turns(self) -> None:
        """During an emergency stop: wait until no turn is left, running or queued. Raises StorageError."""
        ended = await asyncio.gather(
            *(agent.end_all_turns() for agent in list(self.agents.values())), return_exceptions=True
        )
        for failure in ended:
            if isinstance(failure, BaseException):
                raise failure
        for name in agents_with_turns(self.history) - self.agents.keys():  # removed, or its files are broken
            why = self.panic.error()
            await end_stored_turns(self.history, self.asked, why, agent=name, sessions={})

    async def drain(self) -> None:
        """Wait until no turn runs. Those that wait for an approval stay stored, for the next start."""
        self.asked.suspend()
        await asyncio.gather(*(agent.drain() for agent in self.agents.values()))

    async def read_content(self) -> None:
        """Read definitions, skills and tools again; running agents keep the definition they started with."""
        folders = content_folders("agent", self.paths)
        self.definitions, self.skills, *_ = await asyncio.gather(
            asyncio.to_thread(load_definitions, folders),
            asyncio.to_thread(load_skills, content_folders("skills", self.paths)),
            self._read_tools(),
            self.prompts.look(),
        )
        await asyncio.to_thread(self.metadata.load, sorted(self.models_in_use()))

    async def _read_tools(self) -> None:
        try:
            described, self.unused_files = self.builtins.beside(await self.pool.describe())
            # What is built in comes last: of two functions with one name it is the one that counts.
            self.toolbox = toolbox_of([*described, *self.builtins.described()])
            self.toolbox_problem = ""
        except LightagentError as err:
            self.toolbox_problem = f"The tools could not be described: {err.message}"
            _log.error("%s", self.toolbox_problem)

    def _actions(self) -> Actions:
        """The names of the arguments of every action, which rules are compared with."""
        known = self.toolbox.functions.values()
        return {(one.tool, one.name): set(one.schema.get("properties", {})) for one in known}

    def problems(self) -> list[str]:
        """What is wrong with the files that were read and with the agents, as sentences."""
        found = [f"The agent {name} is disabled: {why}" for name, why in self.definitions.broken.items()]
        found += [f"The skill {name} is disabled: {why}" for name, why in self.skills.broken.items()]
        found += [
            f"The tool {tool.name} is disabled: {tool.path}: {tool.problem}"
            for tool in self.toolbox.tools.values()
            if tool.problem
        ]
        found += [
            f"The agent {agent.name} does not run: {agent.problem}"
            for agent in self.agents.values()
            if agent.problem and agent.state != "running"
        ]
        found += self.unused_files
        found += self.prompts.problems()
        if self.memories.problem:
            found.append(self.memories.problem)
        if self.toolbox_problem:
            found.append(self.toolbox_problem)
        found += self._unmade.values()
        found += self.model_clients.problems()
        if self.config.models.record:
            parts = [agent.parts for agent in self.agents.values() if agent.parts is not None]
            found += dict.fromkeys(problem for one in parts for problem in one.recording_problems())
        found += self.circuits.problems()
        if self.metadata.problem:
            found.append(self.metadata.problem)
        if self.policy.problem:
            found.append(self.policy.problem)
        found += self.policy.doubts
        return found + self.watches.problems()

    def get(self, name: str) -> Agent:
        """Raises AgentNotFound, AgentBroken."""
        agent = self.agents.get(name)
        if agent is not None:
            return agent
        if name in self.definitions.broken:
            raise AgentBroken(f"The agent {name} is disabled: {self.definitions.broken[name]}")
        known = ", ".join(sorted(self.agents)) or "none"
        raise AgentNotFound(
            f"There is no agent {name[:60]!r}.", suggestion=f"The agents are: {known}.", field="agent"
        )

    def session(self, session_id: str) -> tuple[Agent, Session]:
        """Raises SessionNotFound."""
        for agent in self.agents.values():
            found = agent.sessions.get(session_id)
            if found is not None and not found.deleted:
                return agent, found
        raise session_not_found(session_id)

    def waiting_bytes(self, owner: int) -> int:
        """How large the prompts of one uid are that wait for their turns, with all agents."""
        return sum(agent.waiting_bytes(owner) for agent in self.agents.values())

    async def create(self, name: str, front: AgentFrontMatter, prompt: str) -> Agent:
        """Define an agent, keep the definition, and start it.

        Raises AgentExists, ConfigError, StorageError.
        """
        check_name(name)
        async with self._changing:
            return await uninterrupted(self._create(name, front, prompt))

    async def _create(self, name: str, front: AgentFrontMatter, prompt: str) -> Agent:
        if name in self.definitions.paths:
            raise AgentExists(f"There is an agent {name} already.", suggestion="Choose another name.")
        check_role(front.role, roles_in(content_folders("agent", self.paths)))
        said = {"prompt": prompt, **front.model_dump(mode="json")}
        if self.history.redactor.value(said) != said:
            raise InvalidArgument(
                f"The definition of {name} holds what looks like a key or a password.",
                suggestion="Take it out: it would lie in a file, and go to the model with every prompt.",
            )
        definition = await asyncio.to_thread(write_definition, self.paths.own_agents, name, front, prompt)
        try:
            made = self.model_clients.of(definition)
            for client in (*made.own, *made.last_resort):
                await client.close()
        except LightagentError:
            await asyncio.to_thread(shutil.rmtree, definition.path.parent)
            raise
        self.definitions.agents[name] = definition
        self.definitions.paths[name] = definition.path
        await self._try_start(name)
        return self.agents[name]

    async def delete(self, name: str) -> None:
        """Stop an agent that was made at run time and forget its definition."""
        async with self._changing:
            await uninterrupted(self._delete(name))

    async def _delete(self, name: str) -> None:
        agent = self.get(name)
        path = self.definitions.paths[name]
        if not path.is_relative_to(self.paths.own_agents):
            raise Conflict(
                f"The agent {name} is defined in {path}.", suggestion="Remove its folder there, and reload."
            )
        await agent.stop()
        await self.pool.end_agent(name)
        await asyncio.to_thread(shutil.rmtree, path.parent)
        self.agents.pop(name).end_watching()
        self.definitions.agents.pop(name)
        self.definitions.paths.pop(name)

    async def sync(self) -> list[str]:
        """After `read_content`: take the rules of policy.d, start new agents, stop those whose definition is
        gone, restart changed ones.

        Says what was done, in words for the administrator.
        """
        async with self._changing:
            return await self._sync()

    async def _sync(self) -> list[str]:
        folder = self.paths.config / POLICY_FOLDER
        done = await retake_rules(self.policy, folder, self.history, self._actions())
        self._unmade.clear()
        await asyncio.to_thread(self.metadata.load, sorted(self.models_in_use()))
        for name in [name for name in self.agents if name not in self.definitions.agents]:
            gone = self.agents.pop(name)
            await gone.stop()
            gone.end_watching()
            done.append(f"stopped agent {name}")
        for name, definition in self.definitions.agents.items():
            agent = self.agents.get(name)
            if agent is None or (agent.state == "stopped" and agent.problem):
                await self._try_start(name)
                done.append(f"started agent {name}")
            elif agent.parts is not None and (what := self._new_for(agent.parts.definition, definition)):
                if agent.turns_running:
                    done.append(f"agent {name} takes its new {what} when it is restarted (a turn runs)")
                    continue
                await agent.stop()
                await self._try_start(name)
                done.append(f"restarted agent {name}")
        return done

    def _new_for(self, before: AgentDefinition, now: AgentDefinition) -> str:
        """What a running agent does not have yet; empty for nothing. One whose models cannot be made any more
        keeps those that it has.
        """
        if before != now:
            return "definition"
        try:
            changed = self.model_clients.changed(now)
        except LightagentError as err:
            self._unmade[now.name] = f"The agent {now.name} keeps the models that it has: {err.message}"
            _log.error("%s %s", self._unmade[now.name], err.suggestion)
            return ""
        return "model settings" if changed else ""

    def take_models(self, models: Models) -> None:
        """Have other models from now on; agents that run take them at the next `sync`."""
        self.config = self.config.model_copy(update={"models": models})
        self.model_clients.take(models)

    async def _try_start(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is None:
            agent = Agent(
                name,
                self._parts_of(name),
                self.history,
                self.asked,
                self.plans,
                self.panic,
                self.waiting_bytes,
            )
            self.agents[name] = agent
            agent.watches = self.watches
        try:
            await agent.start()
        except LightagentError as err:
            agent.problem = err.message
            _log.error("the agent %s does not start: %s", name, err.message)

    def _may_watch(self, name: str, owner: int, args: Mapping[str, Any]) -> bool:
        """Whether a watch that was lost may be made again: as it might be made anew, without a question."""
        definition = self.definitions.agents.get(name)
        if definition is None:
            return False
        front = definition.front
        call = PolicyCall(
            agent=name,
            tool="inotify",
            action="watch",
            args=dict(args),
            effect=Effect.OBSERVE,
            agent_effects=tuple(front.effects),
            offered=definition.offers("inotify", "watch"),
            agent_skills=None if front.skills is None else tuple(front.skills),
            caller=owner,
            trigger=PERSON,
            tainted=False,
            host="",
            known_host=False,
            change_enabled=self.pool.has_change(name),
            plan="",
        )
        return self.policy.decide(call).decision is Decision.ALLOW

    def _parts_of(self, name: str) -> Callable[[], AgentParts]:
        def make() -> AgentParts:
            definition = self.definitions.agents.get(name)
            if definition is None:
                raise AgentBroken(f"The agent {name} has no definition that can be used any more.")
            clients = self.model_clients.of(definition)
            return AgentParts(
                definition=definition,
                clients=clients.own,
                last_resort=clients.last_resort,
                circuits=self.circuits,
                dispatcher=Dispatcher(
                    history=self.history,
                    policy=self.policy,
                    asked=self.asked,
                    pool=self.pool,
                    limits=self.config.limits,
                    builtins=self.builtins,
                    toolbox=lambda: self.toolbox,
                ),
                history=self.history,
                limits=self.config.limits,
                prompts=self.prompts,
                ledger=self.ledger,
                offers=self.offers,
            )

        return make

    def _catalog_of(self, definition: AgentDefinition) -> Callable[[], SkillCatalog]:
        front = definition.front
        allowed = None if front.skills is None else frozenset(front.skills)
        return lambda: self._skills_for(allowed)

    def _skills_for(self, allowed: frozenset[str] | None) -> SkillCatalog:
        """The skills of an agent; the same object as long as they did not change."""
        if allowed is None:
            return self.skills
        cached = self._allowed_skills.get(allowed)
        if cached is not None and cached[0] is self.skills:
            return cached[1]
        kept = SkillCatalog(
            skills={name: self.skills.skills[name] for name in allowed & self.skills.skills.keys()}
        )
        self._allowed_skills[allowed] = (self.skills, kept)
        return kept
