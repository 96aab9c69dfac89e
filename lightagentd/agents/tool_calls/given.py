"""What a call is given beside its arguments, as `Context.expected`.

A tool of all agents gets the daemon's credentials that are named for it, `tool.TOOL.NAME` (systemd.exec(5),
LoadCredential=), as `credentials`, by NAME. They are in no argument and no event, and lie in the memory of
the worker that makes the call.

The tool `skill` gets the skills that the agent may use, and the folder of the agent's own ones. `skill.run`
also gets, where the skill's `runbook.yaml` says so, a survey of all processes, and the last snapshot of the
machine's state before the time that it asks about. The survey tells what `proc.info` and `net.connections`
would, so policy must allow both to that agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from lightagentd.agents.kits.folder import SKILLS
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.policy.decide import Decision, Policy, PolicyCall
from lightagentd.skills import Skill
from lightagentd.tool import Effect
from lightagentd.worker.pool import Pool

_CREDENTIAL_BYTES = 16 << 10
_TELLS = (("proc", "info"), ("net", "connections"))


class Known(Protocol):
    """What is known of skills and tools (`agents.content`)."""

    toolbox: Toolbox

    def trusted_skill(self, agent: str, name: str) -> Skill | None:
        """A skill of an agent, if nobody but root and the daemon's user can write it."""


async def given(
    content: Known,
    policy: Policy,
    pool: Pool,
    snapshot_before: Callable[[str], str],
    calls: Sequence[PolicyCall],
    *,
    owner: int,
) -> dict[str, Any]:
    """`calls` are the call as it is judged for its agent, and for each agent above it; `owner` is on whose
    behalf the call runs.
    """
    call = calls[0]
    if call.tool != "skill":
        if call.tool not in content.toolbox.tools:
            return {}
        kept = await credentials_of(call.tool)
        return {"credentials": kept} if kept else {}
    skills = [set(one.agent_skills) for one in calls if one.agent_skills is not None]
    found: dict[str, Any] = {"skills": sorted(set.intersection(*skills))} if skills else {}
    if kit := pool.own_tools.kits.get(call.agent):
        found["own_skills"] = f"{kit}/{SKILLS}"
    skill = content.trusted_skill(call.agent, str(call.args.get("name", "")))
    if call.action != "run" or call.effect is Effect.CHANGE or skill is None:
        return found
    if skill.sees and all(_may(one, policy, tool, action) for one in calls for tool, action in _TELLS):
        found["survey"] = await pool.survey(owner, files=skill.sees == "files")
    if skill.compares:
        args = call.args.get("args")
        since = args.get("since") if isinstance(args, dict) else None
        found["snapshot"] = snapshot_before(since if isinstance(since, str) else "yesterday")
    return found


async def credentials_of(tool: str) -> dict[str, str]:
    """The credentials of the daemon that are named for a tool of all agents."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return await asyncio.to_thread(_credentials, Path(folder), tool) if folder else {}


def _credentials(folder: Path, tool: str) -> dict[str, str]:
    """Those of the daemon that are for this tool. Blocks."""
    found: dict[str, str] = {}
    start = f"tool.{tool}."
    for path in folder.glob(f"{start}*"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.is_file() and path.stat().st_size <= _CREDENTIAL_BYTES:
                found[path.name.removeprefix(start)] = path.read_text().strip()
    return found


def _may(call: PolicyCall, policy: Policy, tool: str, action: str) -> bool:
    asked = replace(call, tool=tool, action=action, args={}, effect=Effect.OBSERVE, offered=True, host="")
    return policy.decide(asked).decision is Decision.ALLOW
