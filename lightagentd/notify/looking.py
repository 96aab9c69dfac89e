"""Looks at what has no event: the health of the machine and of the daemon, and how much of budgets is used.

What was found is kept, so that nothing is told twice: a problem again only once it had gone, a budget once in
its period.
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

_NUMBERS = re.compile(r"\d+")
_KEPT_MOST = 1000
_OWN = f"{SERVICES['lightagent-away']}: "
_SKILL = "health"
_WHOSE = {"owner": "user {}", "owner_day": "user {} today (UTC)", "day": "all users today (UTC)"}


async def health(client: AsyncClient, told: dict[str, Any], reader: Reader) -> Notice | None:
    """What got worse since the last look; None for nothing. `told` keeps it. Raises a client's errors."""
    found = {f"daemon {_NUMBERS.sub('#', text)}": text for text in await _problems(client)}
    try:
        found |= {f"machine {_NUMBERS.sub('#', one['text'])}": one["text"] for one in await _findings(client)}
    except (LightagentError, KeyError, TypeError, ValueError):
        kept = told.get("health", [])  # what cannot be looked at is neither better nor worse
        found |= {key: "" for key in kept if key not in found and not key.startswith("daemon ")}
    before, told["health"] = told.get("health"), sorted(found)[:_KEPT_MOST]
    if before is None:
        return None
    worse = [found[key] for key in sorted(found) if key not in before and found[key]]
    if not worse:
        return None
    text = "\n".join(f"- {one}" for one in worse)
    number = f"health-{time.time_ns()}"
    return reader.made("health", number, "Something is wrong with this machine", text, hint="lactl health")


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


async def budgets(
    client: AsyncClient, limits: Budgets, percent: int, told: dict[str, Any], reader: Reader
) -> list[Notice]:
    """A notice for each budget of which so much is used, once in its period. `told` keeps for which. Raises
    the errors of a client.
    """
    today, made, near = time.strftime("%Y-%m-%d", time.gmtime()), [], []
    for scope, whose in _WHOSE.items():
        most = {what: one for what, one in getattr(limits, scope) if one}
        if not most:
            continue
        for row in (await client.call("Usage.Get", scope=scope))["usage"]:
            if scope != "owner" and not str(row["name"]).startswith(today):
                continue
            user = str(row["name"]).rpartition("/")[2]
            for what, one in most.items():
                if _used(row, what) * 100 < one * percent:
                    continue
                key = f"{scope}/{row['name']}/{what}/{one}"
                near.append(key)
                if key in told.get("budgets", ()):
                    continue
                text = f"{_used(row, what):,.6g} of {one:,.6g} ({what}) are used by {whose.format(user)}."
                title = f"A budget is used to {percent}% or more: {named(whose.format(user))}"
                number = f"budget-{key}"
                made.append(reader.made("budget", number, title, text, hint="lactl usage --budgets"))
    told["budgets"] = near[:_KEPT_MOST]
    return made


def _used(row: dict[str, Any], what: str) -> float:
    """What a row counts of one field of `config.Budget`."""
    if what == "wall_s":
        return float(row["wall_ms"]) / 1000
    return float(row["total_tokens" if what == "tokens" else what])
