"""Asks an administrator's hooks at the phases of a turn and of a flow (`toolkit.hook` has the phases).

The daemon makes one `Hooks` and reads the files with the other content. A phase for which no file has a
function costs one look into a set. Hooks narrow: what they replace is checked and decided again, and nothing
that policy denies runs. A hook that fails blocks, unless its file says otherwise; a file that cannot be used
blocks each turn and each call of its agents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd.errors import HookBlocked, LightagentError, StorageError
from lightagentd.events.history import History, NewEvent
from lightagentd.events.types import hook as kinds
from lightagentd.worker.pool import Pool
from lightagentd.worker.source import HOOKS

_log = logging.getLogger(__name__)

HOOKS_FOLDER = "hooks"
"""The folder below that of the configuration, and below that of a kit."""
_BROKEN_BLOCKS = ("before_turn", "before_tool_call")


@dataclass(frozen=True, kw_only=True)
class HookFile:
    """One file, as a worker described it. `kit` is empty for those of the configuration."""

    kit: str
    name: str
    path: str
    phases: tuple[str, ...] = ()
    on_error: str = "block"
    timeout_s: float = 0.0
    agents: tuple[str, ...] = ()
    sha256: str = ""
    problem: str = ""

    def is_for(self, agent: str) -> bool:
        """Whether it is asked for this agent. Those of a kit are for it and its members."""
        own = not self.kit or agent == self.kit or agent.startswith(f"{self.kit}.")
        return own and (not self.agents or agent in self.agents)


@dataclass(kw_only=True)
class Tried:
    """What hooks made of a payload: it as it is now, what they decided, and which of these blocked it."""

    payload: dict[str, Any]
    decided: list[dict[str, Any]] = field(default_factory=list)
    blocked: dict[str, Any] | None = None
    asked: list[str] = field(default_factory=list)


class Hooks:
    """The hooks of all agents."""

    def __init__(self, history: History, pool: Pool, folder: Path) -> None:
        self._history, self._pool, self._folder = history, pool, folder
        self.files: tuple[HookFile, ...] = ()
        self._named: dict[str, Path] = {}
        """The folders where hooks may be, by kit."""
        self._phases: frozenset[str] = frozenset()

    async def read(self, kits: Mapping[str, Path]) -> None:
        """Read the files of the configuration, and those of kits (their folders by their agents) again."""
        known = self._pool.hooks.folders
        await asyncio.gather(*(self._pool.end_agent(f"{HOOKS}{kit}") for kit in known))
        self._named = {"": self._folder, **{kit: folder / HOOKS_FOLDER for kit, folder in kits.items()}}
        self.files = await self._described(anew=False)
        broken = _BROKEN_BLOCKS if any(one.problem for one in self.files) else ()
        self._phases = frozenset({*broken, *(phase for one in self.files for phase in one.phases)})

    async def look(self) -> tuple[HookFile, ...]:
        """The files as they are now. Those in force stay."""
        return await self._described(anew=True)

    async def _described(self, *, anew: bool) -> tuple[HookFile, ...]:
        named = self._named.items()
        there = await asyncio.to_thread(
            lambda: {kit: str(folder) for kit, folder in named if any(folder.glob("*.py"))}
        )
        self._pool.hooks.folders = there
        found = await asyncio.gather(
            *(self._describe(kit, folder, anew=anew) for kit, folder in there.items())
        )
        return tuple(file for files in found for file in files)

    async def _describe(self, kit: str, folder: str, *, anew: bool) -> list[HookFile]:
        try:
            described = await self._pool.hooks.describe(kit, anew=anew)
        except LightagentError as err:
            return [HookFile(kit=kit, name="", path=folder, problem=f"{folder}: {err.message}")]
        return [_file(kit, folder, one) for one in described]

    def problems(self) -> list[str]:
        """The files that cannot be used, as sentences."""
        return [f"A hook file cannot be used, so agents are blocked: {one.problem}" for one in self.broken()]

    def broken(self) -> list[HookFile]:
        return [one for one in self.files if one.problem]

    def has(self, phase: str, agent: str) -> bool:
        """Whether an agent's hooks are to be asked in a phase."""
        if phase not in self._phases:
            return False
        blocked = phase in _BROKEN_BLOCKS
        return any(
            one.is_for(agent) and (phase in one.phases or (blocked and one.problem)) for one in self.files
        )

    async def ask(self, phase: str, agent: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Ask the hooks in a phase; gives the payload to go on with. What they decided is stored.

        Raises HookBlocked, StorageError.
        """
        for one in self.files:
            if one.problem and phase in _BROKEN_BLOCKS and one.is_for(agent):
                raise HookBlocked(
                    f"A hook file cannot be used: {one.problem}", suggestion="Mend it, then: lactl reload"
                )
        tried = await self.attempt(phase, agent, payload)
        if tried.decided:
            await self._history.append(*(self._event(phase, one) for one in tried.decided))
        if tried.blocked is not None:
            raise HookBlocked(self._said(tried.blocked), suggestion="See: lactl hooks list")
        return tried.payload

    async def tell(self, phase: str, agent: str, payload: dict[str, Any]) -> None:
        """Tell the hooks of something that is done and stored: whatever comes of it, that stays so."""
        try:
            await self.ask(phase, agent, payload)
        except (HookBlocked, StorageError) as err:
            _log.info("%s of %s: %s", phase, agent, err.message)

    async def attempt(self, phase: str, agent: str, payload: dict[str, Any]) -> Tried:
        """Ask the hooks in a phase, until one blocks; nothing is stored."""
        tried = Tried(payload=payload)
        for kit, asked in self._asked(phase, agent).items():
            if tried.blocked is None:
                await self._attempt(kit, asked, phase, agent, tried)
        return tried

    def _asked(self, phase: str, agent: str) -> dict[str, list[HookFile]]:
        """The files to ask by their kits, both in their order."""
        found: dict[str, list[HookFile]] = {}
        for one in self.files:
            if phase in one.phases and one.is_for(agent):
                found.setdefault(one.kit, []).append(one)
        return found

    async def _attempt(
        self, kit: str, asked: Sequence[HookFile], phase: str, agent: str, tried: Tried
    ) -> None:
        tried.asked += [_name(kit, one.name) for one in asked]
        limit_s = sum(one.timeout_s for one in asked)
        try:
            answer = await self._pool.hooks.run(kit, phase, tried.payload, agent, limit_s=limit_s)
            changed, decided = answer["payload"], answer["decided"]
        except LightagentError as err:
            goes_on = all(one.on_error == "go on" for one in asked)
            lost = {"decision": "failed", "hook": "", "reason": err.message, "goes_on": goes_on, "keys": []}
            changed, decided = None, [lost]
        tried.payload = tried.payload if changed is None else changed
        for one in decided:
            one["hook"] = _name(kit, one["hook"])
            if one["decision"] == "blocked" or (one["decision"] == "failed" and not one["goes_on"]):
                tried.blocked = one
        tried.decided += decided

    def _said(self, one: dict[str, Any]) -> str:
        reason = self._history.redactor.text(str(one["reason"])).rstrip(".")
        if one["decision"] == "failed":
            return f"A hook failed: {reason}."
        did = "remarks" if one["decision"] == "told" else "blocks it"
        return f"The hook {one['hook']} {did}: {reason}."

    def _event(self, phase: str, one: dict[str, Any]) -> NewEvent:
        said = {"hook": one["hook"], "phase": phase, "message": self._said(one)}
        if one["decision"] == "replaced":
            said["message"] = f"The hook {said['hook']} replaced {', '.join(one['keys'])} at {phase}."
            keys = [str(key) for key in one["keys"]]
            return kinds.HookReplaced(keys=keys, before=one["before"], after=one["after"], **said).event()
        if one["decision"] == "failed":
            return kinds.HookFailed(goes_on=bool(one["goes_on"]), **said).event()
        return (kinds.HookTold if one["decision"] == "told" else kinds.HookBlockedIt)(**said).event()


def _name(kit: str, name: str) -> str:
    return f"{kit}/{name}" if kit and name else name


def _file(kit: str, folder: str, said: dict[str, Any]) -> HookFile:
    path = f"{folder}/{said['name']}"
    if said["problem"]:
        where = f"{path}, line {said['line']}" if said["line"] else path
        problem = f"{where}: {' '.join(str(said['problem'])[:1000].split()).rstrip('.')}."
        return HookFile(kit=kit, name=said["name"], path=path, problem=problem)
    return HookFile(
        kit=kit,
        name=said["name"],
        path=path,
        phases=tuple(said["phases"]),
        on_error=said["on_error"],
        timeout_s=float(said["timeout_s"]),
        agents=tuple(said["agents"]),
        sha256=said["sha256"],
    )
