"""A running agent: its sessions and their prompts.

The registry owns the agents. An agent owns its sessions, its model clients and its `Supervision`, which runs
the turns and starts the agent again after a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from lightagentd.agents.choosing import NOTHING, Choice, admit
from lightagentd.agents.guarding import guard_prompt
from lightagentd.agents.parts import AgentParts, SharedParts
from lightagentd.agents.planning.plan import Plan
from lightagentd.agents.sessions.checks import check_room
from lightagentd.agents.sessions.recovery import Left, not_in_memory, resume, unfinished_turns
from lightagentd.agents.sessions.session import Session, SessionRecord
from lightagentd.agents.supervision import Supervision
from lightagentd.agents.turn import Asked, Step, Turn
from lightagentd.api import turn_events
from lightagentd.errors import AgentNotRunning, LightagentError
from lightagentd.llm.protocol import ModelClient
from lightagentd.quoted import Prompt
from lightagentd.redaction import off_loop

_STILL_QUEUED = AgentNotRunning(
    "The agent stopped before this prompt's turn came.",
    suggestion="The prompt stays queued for its next start.",
)


class Agent:
    """One agent. `state` is stopped, running or failed; a failed agent waits to be started again."""

    def __init__(
        self,
        name: str,
        make_parts: Callable[[], AgentParts],
        shared: SharedParts,
        waiting_bytes: Callable[[int], int],
    ) -> None:
        """`waiting_bytes` gives the total size of one uid's waiting prompts at all agents."""
        self.name = name
        self.panic = shared.panic
        self.sessions: dict[str, Session] = {}
        self.parts: AgentParts | None = None
        """What it works with while it runs."""
        self.calls: set[asyncio.Task[None]] = set()
        """The calls that people make just now, without a turn; each belongs to its caller."""
        self.supervision = Supervision(self, shared)
        self.left = Left()
        self.recovering = asyncio.Lock()
        """Held while the turns are ended or taken up that an earlier run left."""
        self._make_parts = make_parts
        self._shared = shared
        self._current: dict[int, Session] = {}
        """By owner: the session that was made the current one last; it may be deleted."""
        self.former_clients: list[ModelClient] = []
        """Those that `model_setting` replaced while a turn may have had them."""
        self._waiting_bytes = waiting_bytes

    @property
    def state(self) -> str:
        return self.supervision.state

    @property
    def problem(self) -> str:
        """Why the agent does not run, as a sentence."""
        return self.supervision.problem

    @property
    def restarts(self) -> int:
        return self.supervision.restarts

    @property
    def turns_running(self) -> int:
        return sum(1 for session in self.sessions.values() if session.running)

    @property
    def turns_waiting(self) -> int:
        """How many of the running turns wait for a person's answer."""
        return sum(1 for session in self.sessions.values() if session.waiting)

    @property
    def turns_queued(self) -> int:
        return sum(len(session.queue) for session in self.sessions.values())

    def waiting_bytes(self, owner: int) -> int:
        """The size of the prompts of one uid that wait for their turns."""
        busy = (one for one in self.sessions.values() if one.queue or one.storing)
        return sum(one.waiting_bytes for one in busy if one.record.owner == owner)

    def current_of(self, owner: int) -> Session | None:
        """The session for this uid's prompts that name none: the current one, else the latest."""
        current = self._current.get(owner)
        if current is not None and current.is_current and not current.deleted:
            return current
        every = self.sessions.values()
        of_person = (one for one in every if not (one.deleted or one.record.parent or one.record.run))
        own = [one for one in of_person if one.record.owner == owner]
        return max(own, key=lambda one: (one.is_current, one.record.updated_us), default=None)

    async def start(self) -> None:
        """As `Supervision.start`."""
        await self.supervision.start()

    async def stop(self) -> None:
        """As `Supervision.stop`."""
        await self.supervision.stop()

    async def prompt(
        self,
        session: Session,
        prompt: Prompt | str,
        correlation_id: str = "",
        *,
        unattended: bool = False,
        outside: bool = False,
        becomes_current: bool = False,
        choice: Choice = NOTHING,
    ) -> Turn:
        """Store a prompt (see `Asked`), and run its turn when those before it are done. Raises what
        `choosing.admit` does for a choice that the agent does not have.
        """
        asked = Asked(
            prompt=prompt if isinstance(prompt, Prompt) else Prompt(prompt),
            correlation_id=correlation_id,
            unattended=unattended,
            outside=outside,
            becomes_current=becomes_current,
            choice=choice,
        )
        return await self.ask(session, asked)

    async def run(self, session: Session, text: str) -> AsyncGenerator[Step, None]:
        """Prompt and drive the turn: each step begins only after the previous one was taken.

        Closing the generator cancels the turn. Raises the error that ended the turn, if any.
        """
        turn = await self.ask(session, Asked(prompt=Prompt(text), stepwise=True))
        async with aclosing(turn.driven()) as steps:
            async for step in steps:
                yield step

    async def ask(self, session: Session, asked: Asked) -> Turn:
        """As `prompt`. The turn of a child is asked by the turn above it."""
        clean = self._shared.history.redactor.text
        prompt = await off_loop(lambda whole: whole.cleaned(clean), asked.prompt)  # storing it finds it clean
        self.panic.check()
        parts = self.running_parts()
        admit(asked.choice, parts, session.record.model)
        check_room(session, prompt.text, self._waiting_bytes, parts.limits.max_prompt_bytes)
        if self._shared.policy.rules.guards:
            prompt = await guard_prompt(self._shared, session, asked, prompt)
        try:
            turn = await session.enqueue(replace(asked, prompt=prompt), max_queue=parts.max_queue)
        finally:
            self.supervision.run(session)  # also when the caller went away: what is stored is run
            if self.state == "stopped":
                self.release_queues()
        if turn in session.queue:
            ahead = session.queue.index(turn) + (session.running is not None)
            turn.stream.emit(turn_events.Queued(position=ahead))
        return turn

    def cancel(self, session: Session) -> int:
        """Cancel the running turn and the queue; returns the number of turns."""
        turns = _unfinished(session)
        for turn in turns:
            turn.cancel()
        self.supervision.run(session)
        return len(turns)

    def cancel_running(self, why: LightagentError) -> int:
        """Cancel the running turns and calls; the turns end with `why`. Returns their number without waiting
        for their end.
        """
        running = [session.running for session in self.sessions.values() if session.running]
        for turn in running:
            turn.cancel(why)
        for call in self.calls:
            call.cancel()
        return len(running) + len(self.calls)

    def adopt(self, session: Session) -> Session:
        """Take a session that was just stored into memory."""
        session.driver, session.take_current = self.run, self.take_current
        session.ended = None if session.record.parent else self._shared.ended_turns.add
        if session.record.parent and not session.record.of_turn:  # it handles one event
            session.ended = partial(_forget_of, self.sessions)
        return self.sessions.setdefault(session.id, session)

    def take_current(self, session: Session) -> None:
        """Take note that a session was stored as its owner's current one."""
        before = self._current.get(session.record.owner)
        if before is not None:
            before.is_current = False
        session.is_current = True
        self._current[session.record.owner] = session

    def go_on(self, session: Session) -> None:
        """Run the waiting turns of a session, if nothing blocks them any more."""
        session.stream.ring()
        self.supervision.run(session)

    async def end_turns(self, session: Session, why: LightagentError) -> None:
        """For a session that is being deleted: wait until none of its turns is left, running or queued.

        Raises StorageError.
        """
        if session.ends is not None:
            await session.ends()
        while True:
            for turn in _unfinished(session):
                turn.cancel(why)
            self.supervision.run(session)
            if task := self.supervision.tasks.get(session.id):
                await asyncio.wait([task])
            elif session.storing:
                await self._shared.history.append()  # appends keep their order
                await asyncio.sleep(0)
            else:
                break
        while session.queue:  # nothing runs them, since the agent does not run
            session.queue.popleft().finish(why, {"steps": 0, "duration_ms": 0})

    def end_watching(self) -> None:
        """End all watching of its sessions: the agent is gone, or the daemon stops."""
        for session in self.sessions.values():
            session.stream.end()

    def running_parts(self) -> AgentParts:
        """Raises AgentNotRunning."""
        if self.parts is None or self.state != "running":
            raise AgentNotRunning(
                f"The agent {self.name} is {self.state}{f': {self.problem}' if self.problem else ''}.",
                suggestion=f"Start it with: lactl agents start {self.name}",
            )
        return self.parts

    # What the supervision calls

    async def begin(self) -> None:
        """Make the parts, read the sessions, and end or queue the turns that the last run left. Raises."""
        parts = self._make_parts()
        history = self._shared.history
        plans, busy = history.queries.state("plans"), unfinished_turns(history).keys()
        for key, value in history.queries.state("sessions").items():
            record = SessionRecord.from_dict(value)
            if record.agent == self.name and (not record.parent or key in busy):
                session = self.adopt(Session(record, history))
                session.plan = Plan.from_dict(plans[key]) if key in plans else None
                session.forget_messages()
        for value in history.queries.state("current", f"{self.name}/").values():
            if current := self.sessions.get(str(value["session"])):
                self.take_current(current)
        async with self.recovering:
            for session_id, turns in unfinished_turns(history).items():
                found = self.sessions.get(session_id)
                if found is None or found.deleted:
                    continue
                if found.record.of_turn:
                    await self._shared.children.found(self, found, not_in_memory(found, turns))
                else:
                    self.left.count(await resume(found, turns))
        self.parts = parts

    async def let_go(self) -> None:
        """Close the model clients; no turn runs any more."""
        parts, self.parts = self.parts, None
        former, self.former_clients = self.former_clients, []
        for client in [*former, *(parts.all_clients if parts is not None else ())]:
            await client.close()

    def release_queues(self) -> None:
        """Tell the waiting callers that the agent stopped; the prompts stay stored."""
        for session in self.sessions.values():
            while session.queue:
                session.queue.popleft().finish(_STILL_QUEUED, {"steps": 0, "duration_ms": 0})


def _forget_of(sessions: dict[str, Session], turn: Turn) -> None:
    """An event was handled, and nothing else happens in its session."""
    if not turn.stays:
        sessions.pop(turn.session.id, None)


def _unfinished(session: Session) -> list[Turn]:
    return [*session.queue, *([session.running] if session.running else [])]
