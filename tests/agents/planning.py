"""A scripted daemon with a session that plans: what the tests of plan mode are made of."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from lightagentd import api
from lightagentd.agents.sessions.session import Session
from tests.agents.scripted import ME, Scripted, until
from tests.scripted_model import Answer, call, say

TWO = {"title": "Two things", "tasks": [{"id": "a", "text": "do a"}, {"id": "b", "text": "do b"}]}
THREE = {"title": "Three", "tasks": [{"text": f"do {name}"} for name in ("a", "b", "c")]}


def checked(*commands: str) -> dict[str, Any]:
    """A plan whose tasks have these checks."""
    tasks = [{"text": f"task {n}", "check": command} for n, command in enumerate(commands, 1)]
    return {"title": "Checked", "tasks": tasks}


def propose(plan: dict[str, Any], call_id: str = "c1") -> Answer:
    return call("plan_propose", plan, call_id=call_id)


def answer(plan: dict[str, Any]) -> Answer:
    """A plan as a model without tools gives it."""
    return say(f"```json\n{json.dumps(plan)}\n```")


class Planning:
    """The operations of one session's plan, as its owner calls them."""

    def __init__(self, test: Scripted, session: Session) -> None:
        self.test = test
        self.session = session
        self.service = test.daemon.service

    async def get(self) -> api.Plan:
        return await self.service.plans.get(ME, self.session.id)

    async def begin(self) -> api.Plan:
        return await self.service.plans.begin(ME, self.session.id)

    async def set(self, plan: Any) -> api.Plan:
        return await self.service.plans.set(ME, self.session.id, plan)

    async def apply(self, choice: str = "") -> api.Plan:
        return await self.service.plans.apply(ME, self.session.id, choice, "")

    async def end(self) -> api.Plan:
        return await self.service.plans.end(ME, self.session.id)

    async def rests(self) -> api.Plan:
        """The plan once it is not being applied any more, or stopped, and nothing runs in the session."""
        await until(lambda: self.session.at_rest)
        return await self.get()

    def events(self) -> list[str]:
        """The stored events of plans; of tasks with the id and the state."""
        return [
            f"{event.data['task']} {event.data['state']}"
            if event.type == "task" and event.data
            else event.type
            for event in self.test.stored(topic="plan")
        ]

    def states(self) -> str:
        plan = self.session.plan
        return "" if plan is None else " ".join(task.state for task in plan.tasks)

    def refusals(self) -> list[tuple[str, str]]:
        """The function and the code of each call that was refused."""
        found = self.test.stored(topic="agent.tool_dispatch")
        return [
            (event.data["function"], event.data["result"])
            for event in found
            if event.type == "refused" and event.data
        ]

    def intents(self) -> list[str]:
        found = self.test.stored(topic="agent.tool_dispatch")
        return [event.data["function"] for event in found if event.type == "intent" and event.data]


async def planning(test: Scripted) -> Planning:
    return Planning(test, await test.session())


class Heard:
    """What whoever watches a session hears of its plan: the phase, then the tasks' states."""

    def __init__(self, session: Session) -> None:
        self.lines: list[str] = []
        self._session = session

    async def __aenter__(self) -> Heard:
        self._task = asyncio.create_task(self._listen())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self) -> None:
        async for event in self._session.stream.watch().events(of_session=True):
            if event["type"] == "plan":
                plan = event["plan"]
                states = " ".join(task["state"] for task in plan["tasks"])
                self.lines.append(f"{plan['phase']}: {states} [{event['task']}]")
