"""`Agents`: the agents of a program, and what it is told of their turns."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lightagentd.agents.agent import Agent
from lightagentd.agents.choosing import Choice, admit, chosen
from lightagentd.agents.sessions.checks import check_prompt
from lightagentd.agents.sessions.session import Session, new_record, title_from
from lightagentd.agents.stream import Watcher
from lightagentd.agents.turn import Asked, Step, Turn
from lightagentd.api import Answer, answer_of
from lightagentd.embed.assembly import Assembly
from lightagentd.embed.sinks import Sink, sink_of
from lightagentd.errors import CallbackFailed, Conflict, LightagentError, TimedOut
from lightagentd.events.types.session import SessionCreated
from lightagentd.quoted import Prompt

_log = logging.getLogger("lightagentd.embed")


@dataclass(frozen=True, kw_only=True)
class PromptContext:
    """The turn for which `system_prompt` is asked."""

    agent: str
    session: str
    trace_id: str
    prompt: str
    tainted: bool
    """Whether text from outside is in the conversation."""


SystemPrompt = Callable[[PromptContext], str | Awaitable[str]]
OnStep = Callable[[Step], object]
OnError = Callable[[LightagentError], object]


class Agents:
    """`async with Agents(state) as agents`. The callbacks are functions or coroutine functions; what one of
    them raises ends the turn with CallbackFailed.
    """

    def __init__(
        self,
        state: str | os.PathLike[str],
        *,
        config: str | os.PathLike[str] | None = None,
        system_prompt: SystemPrompt | None = None,
        on_step: OnStep | None = None,
        on_error: OnError | None = None,
        sinks: Sequence[Any] = (),
    ) -> None:
        """`state` is the folder of the program's agents, which one program uses at a time. `config` has
        lightagentd.toml, agents, tools and skills; it is the folder `config` in `state` otherwise.
        `system_prompt(ctx)` gives more text for the system prompt of a turn. `on_step(step)` is told of each
        step before the next begins. `on_error(err)` is told of each error that ends a turn, and of sinks that
        failed. `sinks` get every event: functions, queues, paths of files, or what `embed.sinks` makes.
        """
        self._assembly = Assembly(Path(state), None if config is None else Path(config))
        self._system_prompt, self._on_step, self._on_error = system_prompt, on_step, on_error
        self._given = sinks
        self._sinks: list[Sink] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: set[asyncio.Task[None]] = set()
        """Errors of sinks that `on_error` is being told of."""
        self.weaker: tuple[str, ...] = ()
        """What is weaker than with the daemon, as sentences."""

    async def __aenter__(self) -> Self:
        self._sinks = [sink_of(one) for one in self._given]
        self._loop = asyncio.get_running_loop()
        await self._assembly.start(None if self._system_prompt is None else self._more_prompt)
        for sink in self._sinks:
            sink.start(self._sink_failed)
        self.weaker = tuple(self._assembly.weaker())
        for sentence in self.weaker:
            _log.warning("%s", sentence)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._assembly.close()
        for sink, whole in zip(
            self._sinks, await asyncio.gather(*(one.close() for one in self._sinks)), strict=True
        ):
            if not whole:
                await self._tell(CallbackFailed(f"The sink {sink.name} is blocked; it did not take all."))
        if self._told:
            await asyncio.wait(self._told)

    @property
    def names(self) -> list[str]:
        """The agents there are."""
        return sorted(self._assembly.registry.agents)

    def problems(self) -> list[str]:
        """What is wrong with agents, tools, skills and models, as sentences."""
        return self._assembly.registry.problems()

    async def ask(
        self,
        agent: str,
        text: str,
        *,
        session: str = "",
        outside: bool = False,
        timeout_s: float | None = None,
        **choice: Any,
    ) -> Answer:
        """Prompt an agent and wait for the answer. `session` goes on with the conversation of an earlier
        answer. `outside`: the text holds some that the program's user did not write, which taints. `choice`
        is what `choosing.chosen` takes: model, tools, effects, max_steps and schema.

        Raises LightagentError, of which `on_error` is told first. When the time is over, or the caller is
        cancelled, the turn ends.
        """
        try:
            wanted = await chosen(**choice)
            check_prompt(text, self._assembly.config.limits.max_prompt_bytes)
            running, found = await self._session(agent, session, wanted)
            asked = Asked(
                prompt=Prompt(text),
                stepwise=self._on_step is not None,
                unattended=True,
                outside=outside,
                choice=wanted,
            )
            try:
                async with asyncio.timeout(timeout_s) as timer:
                    return await self._drive(await running.ask(found, asked))
            except TimeoutError:
                if not timer.expired():
                    raise
                raise TimedOut(f"There was no answer within {timeout_s:g} seconds.") from None
        except LightagentError as err:
            await self._tell(err)
            raise

    async def _session(self, agent: str, session: str, choice: Choice) -> tuple[Agent, Session]:
        """Raises SessionNotFound, AgentNotFound, AgentNotRunning, and what `admit` does."""
        registry = self._assembly.registry
        if session:
            running, found = registry.session(session)
            if agent and running.name != agent:
                raise Conflict(f"The session {session} is with the agent {running.name}.", field="session")
            return running, found
        running = registry.get(agent)
        admit(choice, running.running_parts())
        history = registry.shared.history
        made = Session(new_record(agent, os.getuid(), title_from("")), history)
        with made.context():
            created = SessionCreated(title="").event()
            await history.append(created, changes=[made.record.change()])
        return running, running.adopt(made)

    async def _drive(self, turn: Turn) -> Answer:
        """Run a turn to its end. Raises the error that ended it."""
        events = asyncio.create_task(self._pump(turn.stream.watch()), name=f"embed-{turn.trace_id}")
        try:
            if self._on_step is not None:
                async with contextlib.aclosing(turn.driven()) as steps:
                    async for step in steps:
                        await _called("on_step", self._on_step, step)
            last = await events
        finally:
            turn.cancel()
            if turn.begun:
                await turn.over.wait()
            events.cancel()
            await asyncio.gather(events, return_exceptions=True)
        if turn.failure is not None:
            raise turn.failure
        return answer_of(last)

    async def _pump(self, watcher: Watcher) -> dict[str, Any]:
        """Hand the events of a turn to the sinks; gives the last one."""
        last: dict[str, Any] = {}
        async for event in watcher.events():
            last = event
            for sink in self._sinks:
                sink.put(event)
        return last

    async def _more_prompt(self, turn: Turn) -> str:
        assert self._system_prompt is not None
        record = turn.session.record
        context = PromptContext(
            agent=record.agent,
            session=record.id,
            trace_id=turn.trace_id,
            prompt=turn.prompt.text,
            tainted=record.tainted,
        )
        text = await _called("system_prompt", self._system_prompt, context)
        if not isinstance(text, str):
            raise CallbackFailed(f"system_prompt gave {type(text).__name__}, and not text.")
        return text

    async def _tell(self, err: LightagentError) -> None:
        """Tell `on_error`; what it raises itself is logged, and hides nothing."""
        if self._on_error is None:
            return
        try:
            await _called("on_error", self._on_error, err)
        except CallbackFailed as failed:
            _log.error("%s It was told of: %s", failed.message, err.message, exc_info=failed.__cause__)

    def _sink_failed(self, err: CallbackFailed) -> None:
        """In the sink's thread."""
        _log.error("%s", err.message)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell_later, err)

    def _tell_later(self, err: CallbackFailed) -> None:
        task = asyncio.ensure_future(self._tell(err))
        self._told.add(task)
        task.add_done_callback(self._told.discard)


async def _called(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the program's. Raises CallbackFailed for whatever it raises."""
    try:
        found = function(*args)
        return await found if inspect.isawaitable(found) else found
    except Exception as err:
        message = f"{name} of the program raised {type(err).__name__}: {err}"
        raise CallbackFailed(message, suggestion="Mend the function that was given for it.") from err


def ask(agent: str, text: str, *, state: str | os.PathLike[str], **options: Any) -> Answer:
    """Open the agents of a folder, ask one of them, and close them. `options` are those of `Agents` and of
    `Agents.ask`. Not from within an event loop.
    """
    opening = {"config", "system_prompt", "on_step", "on_error", "sinks"} & options.keys()

    async def run() -> Answer:
        async with Agents(state, **{name: options.pop(name) for name in opening}) as agents:
            return await agents.ask(agent, text, **options)

    return asyncio.run(run())
