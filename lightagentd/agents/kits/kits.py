"""Adds, checks and removes kits at run time, and makes agents of folders that stay where they are.

The `Service` has one `Kits` over the registry, whose lock it holds while the set of agents changes.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from lightagentd.agents import model_setting
from lightagentd.agents.definition import AgentDefinition, check_name, roles_in
from lightagentd.agents.kits import store
from lightagentd.agents.kits.checking import Around, Checked, check
from lightagentd.agents.kits.folder import check_above, check_owned, is_kit
from lightagentd.agents.registry import Registry
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.errors import (
    AgentExists,
    AgentNotFound,
    ConfigError,
    Conflict,
    InvalidArgument,
    LightagentError,
    StorageError,
)
from lightagentd.host.paths import content_folders
from lightagentd.host.renaming import sync_folder
from lightagentd.text.reason import reason

_SHOWN = 20
"""How many problems one message holds."""


class Kits:
    """The kits of a daemon."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self._shared = registry, registry.shared
        self._content, self._pool = registry.shared.content, registry.shared.pool
        self._folder = registry.shared.paths.kits

    def names(self) -> list[str]:
        """The agents with a kit, and those that were added as one; without the members."""
        definitions = self._content.definitions
        return sorted(
            name
            for name, path in definitions.paths.items()
            if "." not in name and (is_kit(path.parent) or self.was_added(name))
        )

    def was_added(self, name: str) -> bool:
        """Whether a kit was added at run time, so that it can be removed."""
        path = self._content.definitions.paths.get(name)
        return path is not None and path.parent == self._folder / name

    def path_of(self, name: str) -> Path:
        """The folder of a kit that is there. Raises AgentNotFound."""
        if name not in (known := self.names()):
            near = difflib.get_close_matches(name[:100], known, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise AgentNotFound(
                f"There is no kit {name[:60]!r}.", suggestion=f"{meant}See: lactl kits list", field="name"
            )
        return self._content.definitions.paths[name].parent.resolve()

    async def check(self, archive: bytes, name: str) -> Checked:
        """Look at a kit in an archive, and leave nothing. Raises what `store.unpacked` raises."""
        async with self._draft(archive, name) as draft:
            return (await check(draft, self._pool, self._around())).shown_as(draft, "")

    async def add(self, archive: bytes, name: str, *, replace: bool = False) -> Checked:
        """Add the kit in an archive, and start its agents. With `replace`, in place of one that was added.

        Raises ConfigError, which names what is wrong, AgentExists, and what `store.unpacked` raises.
        """
        async with self._registry.changing:
            return await uninterrupted(self._add(archive, name, replace=replace))

    async def _add(self, archive: bytes, name: str, *, replace: bool) -> Checked:
        async with self._draft(archive, name) as draft:
            name = draft.name
            self._check_free(name, replace=replace)
            found = (await check(draft, self._pool, self._around())).shown_as(draft, "")
            await self._check_usable(found)
            members = [name, *self._content.definitions.members(name)]
            await self._retire(members)
            try:
                target = await asyncio.to_thread(store.place, draft, self._folder, replace=replace)
            except LightagentError:
                for one in members:
                    await self._start(one)
                raise
        await self._take(target / "AGENT.md")
        return found

    async def remove(self, name: str) -> None:
        """Stop the agents of a kit that was added, and forget them. Raises AgentNotFound, Conflict."""
        async with self._registry.changing:
            await uninterrupted(self._remove(name))

    async def _remove(self, name: str) -> None:
        self.path_of(name)
        if not self.was_added(name):
            path = self._content.definitions.paths[name].parent
            own = path.is_relative_to(self._shared.paths.own_agents)
            hint = f"lactl agents delete {name}" if own else "Remove its folder there, then: lactl reload"
            raise Conflict(f"The kit {name} was not added; it is in {path}.", suggestion=hint)
        members = [name, *self._content.definitions.members(name)]
        await self._retire(members)
        await model_setting.forget(self._shared.model_clients, self._shared.history, members)
        await asyncio.to_thread(store.remove, name, self._folder)
        self._registry.forget(members)

    async def create_from(self, name: str, folder: str) -> None:
        """Define an agent by a folder that stays where it is, and start it.

        Raises InvalidArgument, ConfigError, AgentExists, StorageError.
        """
        check_name(name)
        async with self._registry.changing:
            await uninterrupted(self._create_from(name, folder))

    async def _create_from(self, name: str, folder: str) -> None:
        self._check_free(name, replace=False)
        real = await asyncio.to_thread(_real_folder, folder)
        await asyncio.to_thread(check_owned, real)
        await asyncio.to_thread(check_above, real)
        await self._check_usable(await check(real, self._pool, self._around(), name=name))
        link = self._shared.paths.own_agents / name
        try:
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.symlink_to(real)
            sync_folder(link.parent)
        except OSError as err:
            raise StorageError(f"{link} cannot be written: {reason(err)}.") from err
        await self._take(link / "AGENT.md")

    def _check_free(self, name: str, *, replace: bool) -> None:
        """Raises AgentExists, AgentNotFound for a masked name."""
        definitions = self._content.definitions
        if name in definitions.masked:
            self._registry.get(name)
        if name not in definitions.paths:
            return
        if not self.was_added(name):
            where = definitions.paths[name]
            raise AgentExists(
                f"There is an agent {name} already, in {where}.", suggestion="Take another name."
            )
        if not replace:
            raise AgentExists(
                f"There is a kit {name} already.", suggestion="Replace it with --replace.", field="name"
            )

    async def _check_usable(self, found: Checked) -> None:
        """Raises ConfigError, WorkerUnavailable."""
        problems = list(found.problems)
        for definition in found.definitions.agents.values():
            problems += await self._wrong(definition)
        if found.unknown:
            problems.append(found.unknown)
        if problems:
            more = f" And {len(problems) - _SHOWN} more." if len(problems) > _SHOWN else ""
            raise ConfigError(
                f"The kit {found.name} cannot be used: {' '.join(problems[:_SHOWN])}{more}",
                suggestion="Mend what is named, and look with: lactl kits check DIR",
            )

    async def _wrong(self, definition: AgentDefinition) -> list[str]:
        """Why the models of an agent cannot be asked, or its definition cannot be kept."""
        said = {"prompt": definition.prompt, **definition.front.model_dump(mode="json")}
        if self._shared.history.redactor.value(said) != said:
            return [f"The definition of {definition.name} holds what looks like a key or a password."]
        try:
            made = self._shared.model_clients.of(definition)
        except LightagentError as err:
            return [f"The agent {definition.name}: {err.message}"]
        for client in made.all:
            await client.close()
        return []

    async def _retire(self, names: Iterable[str]) -> None:
        for name in names:
            if (agent := self._registry.agents.get(name)) is not None:
                await agent.stop()
            await self._pool.end_agent(name)

    async def _take(self, path: Path) -> None:
        """Read an agent and the members of its kit, start them, and forget members that are gone."""
        name, definitions = path.parent.name, self._content.definitions
        before = {name, *definitions.members(name)}
        await self._content.read_agent(self._pool, path)
        now = {name, *definitions.members(name)}
        self._registry.forget(before - now)
        await self._shared.hooks.read(self._content.kit_folders())
        for one in sorted(now):
            await self._start(one)

    async def _start(self, name: str) -> None:
        if name in self._content.definitions.agents:
            await self._registry.try_start(name)

    @asynccontextmanager
    async def _draft(self, archive: bytes, name: str) -> AsyncIterator[Path]:
        limits = store.terms(self._shared.limits.max_kit_bytes, self._shared.limits.max_kit_files)
        with ExitStack() as stack:
            opening = store.unpacked(archive, name, self._folder, limits)
            yield await asyncio.to_thread(stack.enter_context, opening)

    def _around(self) -> Around:
        return Around(
            toolbox=self._content.toolbox,
            skills=self._content.skills,
            definitions=self._content.definitions,
            roles=roles_in(content_folders("agent", self._shared.paths)),
        )


def _real_folder(folder: str) -> Path:
    """Raises InvalidArgument."""
    path = Path(folder)
    try:
        real = path.resolve(strict=True) if path.is_absolute() else None
    except (OSError, ValueError, RuntimeError):
        real = None
    if real is None or not real.is_dir():
        raise InvalidArgument(
            f"The daemon finds no folder {folder[:200]!r}.",
            field="folder",
            suggestion="Give an absolute path. A service sees neither /home nor /tmp: use lactl kits add.",
        )
    return real
