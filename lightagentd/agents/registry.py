"""All agents of the daemon: starts and stops them, and adds and removes agents at run time.

The daemon gives the registry the parts that all agents share, and starts and closes it. The registry starts
every agent that is defined. An agent that cannot start is a problem that `status` shows; the others start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
from collections.abc import Callable, Iterable
from functools import partial

from lightagentd.agents import model_setting
from lightagentd.agents.agent import Agent
from lightagentd.agents.definition import (
    AgentDefinition,
    AgentFrontMatter,
    check_name,
    check_role,
    roles_in,
    write_definition,
)
from lightagentd.agents.parts import AgentParts, SharedParts
from lightagentd.agents.sessions.recovery import (
    agents_with_turns,
    end_interrupted_turns,
    end_stored_turns,
)
from lightagentd.agents.sessions.session import Session, SessionRecord, session_not_found
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.errors import (
    AgentBroken,
    AgentExists,
    AgentNotFound,
    ConfigError,
    Conflict,
    InvalidArgument,
    LightagentError,
    NotFound,
    StorageError,
)
from lightagentd.host.paths import content_folders
from lightagentd.policy.in_force import retake_rules, take_rules
from lightagentd.policy.rulefiles import POLICY_FOLDER

_log = logging.getLogger(__name__)

LOOK_S = 60.0
"""How long after tools were taken as they were kept a worker describes them: a start has enough to do."""
_SESSION_ID = re.compile(r"ses_[0-9a-f]{16}")

_WAITS = "Agents start as soon as the disk takes writes: 'lactl history prune' removes old events."


class Registry:
    """All agents. Start with `start()`, end with `close()`."""

    def __init__(self, shared: SharedParts) -> None:
        self.shared = shared
        self.agents: dict[str, Agent] = {}
        self.ended_turns = 0
        """How many turns the last run left that no agent took up."""
        self._history, self._content = shared.history, shared.content
        shared.children.bind(self.get)
        shared.mail.bind(self.session, self.get)
        shared.confirmations.bind(self.get)
        self.waits = ""
        """Why no agent is started yet, as a sentence: nothing can be stored."""
        self.changing = asyncio.Lock()
        """Held while the set of agents changes."""
        self._looking: asyncio.Task[None] | None = None
        """Waits until it has the tools described, where their description was kept."""
        self._unmade: dict[str, str] = {}
        """Agents whose models cannot be made as they are configured now, as sentences."""

    async def start(self) -> None:
        """Read everything and start every agent. Raises StorageError; ConfigError for a broken policy.d, and
        for a memory store that cannot be used.
        """
        await self.shared.asked.load()
        await self.shared.memories.start()
        self.shared.ledger.load()
        model_setting.load(self.shared.model_clients, self._history)
        self.shared.watches.start()
        await self.read_content(first=True)
        folder = self.shared.paths.config / POLICY_FOLDER
        await take_rules(self.shared.policy, folder, self._history, self._content.actions())
        for name in self._content.definitions.agents:
            await self.try_start(name)
        for name in agents_with_turns(self._history) - self._running():
            self.ended_turns += await end_interrupted_turns(self._history, name)
        await self.shared.children.open()
        await self.shared.confirmations.start()

    def models_in_use(self) -> dict[str, list[str]]:
        """Each model named by an agent or the configuration, with the agents that may ask it."""
        models = self.shared.model_clients.models
        found: dict[str, list[str]] = {models.default: []}
        for name, definition in self._content.definitions.agents.items():
            named = self.shared.model_clients.named_by(definition)
            for model in dict.fromkeys([*named, *definition.front.judge_models]):
                found.setdefault(model, []).append(name)
        return found | {model: [] for model in models.fallback if model not in found}

    def _running(self) -> set[str]:
        return {name for name, agent in self.agents.items() if agent.state == "running"}

    async def close(self) -> None:
        """Stop every agent; if one cannot store its stop, the others stop all the same."""
        self._end_looking()
        self.shared.asked.suspend()
        await self.shared.confirmations.close()
        await self.shared.watches.close()
        agents = list(self.agents.values())
        stopped = await asyncio.gather(*(agent.stop() for agent in agents), return_exceptions=True)
        for agent, failure in zip(agents, stopped, strict=True):
            agent.end_watching()
            if failure is not None:
                _log.error("the agent %s did not stop as it should: %s", agent.name, failure)
        await self.shared.memories.close()

    async def end_all_turns(self) -> None:
        """During an emergency stop: wait until no turn is left, running or queued. Raises StorageError."""
        ended = await asyncio.gather(
            *(agent.supervision.end_all_turns() for agent in list(self.agents.values())),
            return_exceptions=True,
        )
        for failure in ended:
            if isinstance(failure, BaseException):
                raise failure
        for name in agents_with_turns(self._history) - self.agents.keys():  # removed, or its files are broken
            why = self.shared.panic.error()
            await end_stored_turns(self._history, self.shared.asked, why, agent=name, sessions={})

    async def drain(self) -> None:
        """Wait until no turn runs. Those that wait for an approval stay stored, for the next start."""
        self.shared.asked.suspend()
        await asyncio.gather(*(agent.supervision.drain() for agent in self.agents.values()))

    async def read_content(self, *, first: bool = False) -> None:
        """Read definitions, skills and tools again; running agents keep the definition they started with."""
        shared = self.shared
        self._end_looking()
        await asyncio.gather(
            self._content.read(shared.pool, shared.builtins, first=first), shared.prompts.look()
        )
        if self._content.from_memory:
            self._looking = asyncio.create_task(self.look_at_remembered_tools(LOOK_S), name="look at tools")
        await self.shared.hooks.read(self._content.kit_folders())
        await asyncio.to_thread(self.shared.metadata.load, sorted(self.models_in_use()))

    async def look_at_remembered_tools(self, after_s: float = 0.0) -> None:
        """Have tools described whose description was kept: what their files import may have changed."""
        await asyncio.sleep(after_s)
        if self._content.from_memory and not self.shared.panic.on:
            await self._content.read_tools(self.shared.pool, self.shared.builtins, anew=True)

    def _end_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def problems(self) -> list[str]:
        """The problems of the files and of the agents, as sentences."""
        if self.waits:
            return [f"No agent runs. {self.waits} {_WAITS}"]
        found = self._content.problems()
        found += [
            f"The agent {agent.name} does not run: {agent.problem}"
            for agent in self.agents.values()
            if agent.problem and agent.state != "running"
        ]
        found += [*self.shared.prompts.problems(), *self.shared.hooks.problems()]
        found += [*self.shared.memories.problems, self._content.toolbox_problem, *self._unmade.values()]
        found += [*self.shared.pool.servers.problems(), *self.shared.model_clients.problems()]
        if self.shared.model_clients.models.record:
            parts = [agent.parts for agent in self.agents.values() if agent.parts is not None]
            found += dict.fromkeys(problem for one in parts for problem in one.recording_problems())
        found += [*self.shared.circuits.problems(), self.shared.metadata.problem]
        found += [self.shared.policy.problem, *self.shared.policy.lint, *self.shared.watches.problems()]
        found += self.shared.confirmations.problems()
        return [problem for problem in found if problem]

    def get(self, name: str) -> Agent:
        """Raises AgentNotFound, AgentBroken; StorageError while no agent is started."""
        if self.waits:
            raise StorageError(f"No agent runs. {self.waits}", suggestion=_WAITS)
        agent = self.agents.get(name)
        if agent is not None:
            return agent
        if name in self._content.definitions.broken:
            raise AgentBroken(f"The agent {name} is disabled: {self._content.definitions.broken[name]}")
        if (mask := self._content.definitions.masked.get(name)) is not None:
            raise AgentNotFound(
                f"The agent {name} is masked: {mask} keeps it off.",
                suggestion="To have it again, remove that, then: lactl reload",
                field="agent",
            )
        known = ", ".join(sorted(self.agents)) or "none"
        raise AgentNotFound(
            f"There is no agent {name[:60]!r}.", suggestion=f"The agents are: {known}.", field="agent"
        )

    def session(self, session_id: str) -> tuple[Agent, Session]:
        """Raises SessionNotFound; StorageError while no agent is started."""
        if self.waits:
            raise StorageError(f"No agent runs. {self.waits}", suggestion=_WAITS)
        for agent in self.agents.values():
            found = agent.sessions.get(session_id)
            if found is not None and not found.deleted:
                return agent, found
        if _SESSION_ID.fullmatch(session_id):
            with contextlib.suppress(NotFound):
                record = SessionRecord.from_dict(self._history.queries.state_of("sessions", session_id))
                if record.parent and record.agent in self.agents:  # it is over, so it is not in memory
                    return self.agents[record.agent], Session(record, self._history)
        raise session_not_found(session_id)

    def children_of(self, session_id: str) -> list[tuple[Agent | None, Session]]:
        """The child sessions of a session, with their agents; None for one that is gone. Reads a lot. Raises
        StorageError.
        """
        found: list[tuple[Agent | None, Session]] = []
        for key, value in self._history.queries.state("sessions").items():
            if value.get("parent") == session_id:
                agent = self.agents.get(str(value["agent"]))
                session = agent.sessions.get(key) if agent is not None else None
                found.append((agent, session or Session(SessionRecord.from_dict(value), self._history)))
        return found

    def waiting_bytes(self, owner: int) -> int:
        """The total size of one uid's waiting prompts at all agents."""
        return sum(agent.waiting_bytes(owner) for agent in self.agents.values())

    async def create(self, name: str, front: AgentFrontMatter, prompt: str) -> Agent:
        """Define an agent, keep the definition, and start it.

        Raises AgentExists, ConfigError, StorageError.
        """
        check_name(name)
        async with self.changing:
            return await uninterrupted(self._create(name, front, prompt))

    async def _create(self, name: str, front: AgentFrontMatter, prompt: str) -> Agent:
        if name in self._content.definitions.masked:
            self.get(name)
        if name in self._content.definitions.paths:
            raise AgentExists(f"There is an agent {name} already.", suggestion="Choose another name.")
        check_role(front.role, roles_in(content_folders("agent", self.shared.paths)))
        said = {"prompt": prompt, **front.model_dump(mode="json")}
        if self._history.redactor.value(said) != said:
            raise InvalidArgument(
                f"The definition of {name} holds what looks like a key or a password.",
                suggestion="Take it out: it would lie in a file, and go to the model with every prompt.",
            )
        definition = await asyncio.to_thread(
            write_definition, self.shared.paths.own_agents, name, front, prompt
        )
        try:
            made = self.shared.model_clients.of(definition)
            for client in made.all:
                await client.close()
        except LightagentError:
            await asyncio.to_thread(shutil.rmtree, definition.path.parent)
            raise
        self._content.definitions.agents[name] = definition
        self._content.definitions.paths[name] = definition.path
        await self.try_start(name)
        return self.agents[name]

    async def delete(self, name: str) -> None:
        """Stop an agent that was made at run time and forget its definition."""
        async with self.changing:
            await uninterrupted(self._delete(name))

    async def _delete(self, name: str) -> None:
        if name not in self._content.definitions.paths:
            self.get(name)
        path = self._content.definitions.paths[name]
        if (kit := name.partition(".")[0]) != name or path.is_relative_to(self.shared.paths.kits):
            hint = f"Remove the whole kit: lactl kits remove {kit}"
            raise Conflict(f"The agent {name} belongs to the kit {kit}.", suggestion=hint)
        if not path.is_relative_to(self.shared.paths.own_agents):
            own = self.shared.paths.config / "agent"
            hint = "Remove its folder there, then: lactl reload"
            if not path.is_relative_to(own):  # the package would bring it again
                hint = f"It is shipped. To keep it off: ln -s /dev/null {own / name}; then: lactl reload"
            raise Conflict(f"The agent {name} is defined in {path}.", suggestion=hint)
        names = [name, *self._content.definitions.members(name)]
        for one in names:
            if one in self.agents:
                await self.agents[one].stop()
            await self.shared.pool.end_agent(one)
        await model_setting.forget(self.shared.model_clients, self._history, names)
        folder = path.parent  # or a link to one, whose agent was made of a folder that stays where it is
        await asyncio.to_thread(folder.unlink if folder.is_symlink() else partial(shutil.rmtree, folder))
        self.forget(names)

    async def sync(self) -> list[str]:
        """After `read_content`: take the rules of policy.d, start new agents, stop those whose definition is
        gone, restart changed ones.

        Returns a description for the administrator.
        """
        async with self.changing:
            return await self._sync()

    async def _sync(self) -> list[str]:
        folder = self.shared.paths.config / POLICY_FOLDER
        done = await retake_rules(self.shared.policy, folder, self._history, self._content.actions())
        self._unmade.clear()
        await asyncio.to_thread(self.shared.metadata.load, sorted(self.models_in_use()))
        for name in [name for name in self.agents if name not in self._content.definitions.agents]:
            gone = self.agents.pop(name)
            await gone.stop()
            gone.end_watching()
            done.append(f"stopped agent {name}")
        for name, definition in self._content.definitions.agents.items():
            agent = self.agents.get(name)
            if agent is None or (agent.state == "stopped" and agent.problem):
                await self.try_start(name)
                done.append(f"started agent {name}")
            elif agent.parts is not None and (what := self._new_for(agent.parts.definition, definition)):
                if agent.turns_running:
                    done.append(f"agent {name} takes its new {what} when it is restarted (a turn runs)")
                    continue
                await agent.stop()
                await self.try_start(name)
                done.append(f"restarted agent {name}")
        return done

    def _new_for(self, before: AgentDefinition, now: AgentDefinition) -> str:
        """The parts of a running agent that changed; empty for none. If its models cannot be made any more,
        it keeps its present ones.
        """
        if before != now:
            return "definition"
        try:
            changed = self.shared.model_clients.changed(now)
        except LightagentError as err:
            self._unmade[now.name] = f"The agent {now.name} keeps the models that it has: {err.message}"
            _log.error("%s %s", self._unmade[now.name], err.suggestion)
            return ""
        return "model settings" if changed else ""

    def forget(self, names: Iterable[str]) -> None:
        """Agents that were stopped, and whose definitions are gone."""
        gone = list(names)
        for name in gone:
            if (agent := self.agents.pop(name, None)) is not None:
                agent.end_watching()
        self._content.forget(gone, self.shared.pool)

    async def try_start(self, name: str) -> None:
        """Start a defined agent; why it does not start is its `problem`."""
        agent = self.agents.get(name)
        if agent is None:
            agent = Agent(name, self._parts_of(name), self.shared, self.waiting_bytes)
            self.agents[name] = agent
        try:
            await agent.start()
        except LightagentError as err:
            agent.supervision.problem = err.message
            if isinstance(err, ConfigError) and name in self.shared.model_clients.chosen:
                agent.supervision.problem += (
                    f" Take back what was set: lactl agents set {name} --model default"
                )
            _log.error("the agent %s does not start: %s", name, err.message)

    def _parts_of(self, name: str) -> Callable[[], AgentParts]:
        def make() -> AgentParts:
            definition = self._content.definitions.agents.get(name)
            if definition is None:
                raise AgentBroken(f"The agent {name} has no definition that can be used any more.")
            clients = self.shared.model_clients.of(definition)
            return AgentParts(
                definition=definition,
                clients=clients.own,
                last_resort=clients.last_resort,
                judge=clients.judge,
                shared=self.shared,
            )

        return make
