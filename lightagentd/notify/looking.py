"""Looks at what has no event: the health of the machine and of the daemon, and how much of budgets is used.

What was wrong is kept, so that no problem is told again until it had gone; a budget has one id in its period.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any

from lightagentd.client.aio import AsyncClient
from lightagentd.config.configuration import Budgets
from lightagentd.config.service_problem import SERVICES
from lightagentd.errors import LightagentError
from lightagentd.notify.notices import Notice, Reader, named
from lightagentd.text.readable import barred

_NUMBERS = re.compile(r"\d+")
_KEPT_MOST = 1000
_OWN = f"{SERVICES['lightagent-away']}: "
_SKILL = "health"
_WHOSE = {"owner": "user {}", "owner_day": "user {} today (UTC)", "day": "all users today (UTC)"}


async def health(
    client: AsyncClient, before: list[str] | None, reader: Reader
) -> tuple[list[str], Notice | None]:
    """What is wrong now, by stable keys, and a notice of what was not among those of the look before. Raises
    a client's errors.
    """
    found = {f"daemon {_NUMBERS.sub('#', text)}": text for text in await _problems(client)}
    try:
        found |= {f"machine {_NUMBERS.sub('#', one['text'])}": one["text"] for one in await _findings(client)}
    except (LightagentError, KeyError, TypeError, ValueError):
        # What cannot be looked at is neither better nor worse.
        found |= {key: "" for key in before or () if key not in found and not key.startswith("daemon ")}
    known = sorted(found)[:_KEPT_MOST]
    worse = [found[key] for key in sorted(found) if before is not None and key not in before and found[key]]
    if not worse:
        return known, None
    text = "\n".join(f"- {barred(one)}" for one in worse)
    title, number = "Something is wrong with this machine", f"health-{time.time_ns()}"
    return known, reader.made("health", title, text, number=number, hint="lactl health")


async def _problems(client: AsyncClient) -> list[str]:
    """What the daemon says is wrong, but for what this service itself told it."""
    status = (await client.call("Manager.GetStatus"))["status"]
    return [str(one) for one in status["problems"] if not str(one).startswith(_OWN)]


async def _findings(client: AsyncClient) -> list[dict[str, Any]]:
    """The problems that the checks of the skill health find, in the sandbox of an agent that may run it;
    warnings come and go too often to be told. Raises KeyError, TypeError, ValueError for an answer that is
    none.
    """
    agents = (await client.call("Agents.List"))["agents"]
    able = [
        one["name"]
        for one in sorted(agents, key=lambda one: bool(one["own_tools"] or one["own_skills"]))
        if one["state"] == "running" and _SKILL in one["skills"] and "skill" in one["tools"]
    ]
    if not able:
        return []
    agent, text = "ops" if "ops" in able else able[0], ""
    call = {"agent": agent, "tool": "skill", "action": "run"}
    replies = client.stream("Tools.Call", **call, args={"name": _SKILL, "args": {"json": "yes"}})
    async with contextlib.aclosing(replies):
        async for reply in replies:
            text = reply["event"].get("text") or "" if reply["event"]["type"] == "done" else text
    return [one for one in json.loads(text)["findings"] if one["severity"] == "problem"]


async def budgets(client: AsyncClient, limits: Budgets, percent: int, reader: Reader) -> list[Notice]:
    """A notice for each budget of which so much is used; its id is that of the budget and of its period.
    Raises the errors of a client.
    """
    today, made = time.strftime("%Y-%m-%d", time.gmtime()), []
    for scope, whose in _WHOSE.items():
        most = {what: one for what, one in getattr(limits, scope) if one}
        for row in (await client.call("Usage.Get", scope=scope))["usage"] if most else ():
            if scope != "owner" and not str(row["name"]).startswith(today):
                continue
            whom = whose.format(str(row["name"]).rpartition("/")[2])
            for what, one in most.items():
                if _used(row, what) * 100 < one * percent:
                    continue
                text = f"{_used(row, what):,.6g} of {one:,.6g} ({what}) are used by {whom}."
                title = f"A budget is used to {percent}% or more: {named(whom)}"
                number = f"budget-{scope}/{row['name']}/{what}/{one}"
                made.append(reader.made("budget", title, text, number=number, hint="lactl usage --budgets"))
    return made


def _used(row: dict[str, Any], what: str) -> float:
    """What a row counts of one field of `config.Budget`."""
    if what == "wall_s":
        return float(row["wall_ms"]) / 1000
    return float(row["total_tokens" if what == "tokens" else what])
