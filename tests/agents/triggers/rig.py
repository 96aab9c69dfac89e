"""A daemon with triggers, told by the test what happened."""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from lightagentd.agents.triggers.records import Firing, Happening
from lightagentd.agents.triggers.triggers import Triggers
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.filter import Filter
from lightagentd.events.model import Event
from lightagentd.host.paths import Paths
from tests.agents.asking import add
from tests.agents.scripted import until
from tests.agents.team.rig import Says, by_agent, define_team
from tests.conftest import write
from tests.scripted_model import Answer, ScriptedModel, call, say

CHANGE = '[worker]\nchange_agents = ["ops"]\n'
OWNER = pwd.getpwuid(os.geteuid()).pw_name


def trigger(paths: Paths, name: str = "disk", **keys: Any) -> None:
    """Write the file of a trigger; a webhook, unless `on` says otherwise: nobody but the test fires it."""
    known = {"on": "webhook", "agent": "ops", "owner": OWNER, "prompt": "look at {what}", "coalesce_s": 0}
    lines = [f"{key} = {_toml(value)}\n" for key, value in (known | keys).items() if value is not None]
    write(paths.config / "triggers" / f"{name}.toml", "".join(lines))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {_toml(one)}' for key, one in value.items()) + "}"
    return repr(value) if isinstance(value, int | float) else '"' + str(value).replace('"', '\\"') + '"'


def happened(what: str = "it", *, missed: bool = False, **data: Any) -> Happening:
    return Happening(data={"what": what, **data}, at_us=time.time_ns() // 1000, missed=missed)


@contextlib.asynccontextmanager
async def running(
    paths: Paths,
    scripts: Mapping[str, Sequence[Answer] | Says],
    *,
    fronts: Mapping[str, str] | None = None,
    toml: str = "",
) -> AsyncIterator[tuple[Daemon, ScriptedModel]]:
    """A daemon with an agent for each script, and the triggers that the test wrote before."""
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, fronts or {}, toml)
        async with Daemon(paths) as daemon:
            yield daemon, model


async def at_rest(triggers: Triggers) -> None:
    """Wait until no question waits or is asked."""
    await until(lambda: all(task.done() for task in triggers._tasks.values()))


def counts(triggers: Triggers, name: str = "disk") -> dict[str, int]:
    """The counts that are not 0, with what waits."""
    found = {**triggers.standing(name).counts, "waiting": triggers.waits(name)}
    return {key: value for key, value in found.items() if value}


def told(daemon: Daemon, event_type: str = "") -> list[Event]:
    """The events of triggers."""
    return daemon.history.queries.select(Filter(topic="trigger", type=event_type), limit=10_000)


async def taken(triggers: Triggers) -> list[Firing]:
    """The answers that wait for delivery, as a follower gets them."""
    found: list[Firing] = []
    follower = triggers.outbox.follow()
    async with aclosing(follower):
        while len(found) < len(triggers.outbox._waiting):
            if (item := await anext(follower)) is not None:
                found.append(item)
    return found


def changing(out: Path) -> list[Answer]:
    return [call("probe_add", add(out)), say("done")]
