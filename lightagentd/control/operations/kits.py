"""The operations on kits: list, check, add and remove them.

An archive comes as text (base64), as JSON has no bytes. To take one is to take programs, so it needs the
right to administer, beside that to manage the agent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.agents.kits.checking import Checked
from lightagentd.agents.kits.folder import KitFolder, look
from lightagentd.agents.kits.kits import Kits as AllKits
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.errors import ConfigError, InvalidArgument
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime


class Kits(Operations, interface="org.lightagent1.Kits"):
    """Agents with skills, tools, agents, flows, evals, hooks and references of their own."""

    def __init__(self, access: Access, runtime: Runtime, managing: asyncio.Lock) -> None:
        """`managing` is held while agents are made, removed, started, stopped or read again."""
        self._access, self._managing = access, managing
        self._registry, self._panic = runtime.registry, runtime.panic
        self._content = runtime.registry.shared.content
        self._kits = AllKits(runtime.registry)

    @method("List", returns="kits")
    async def listed(self, caller: Caller) -> list[api.Kit]:
        """All kits, broken ones too."""
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        seen = await self._access.inspectable(caller, self._kits.names())
        return [await self._kit(name) for name in sorted(seen)]

    @method("Get", returns="kit")
    async def get(self, caller: Caller, name: str) -> api.Kit:
        """One kit, as it is there."""
        await self._access.admit(caller, Operation.INSPECT, agent=name)
        return await self._kit(name)

    @method("Check", returns="kit")
    async def check(self, caller: Caller, *, archive: str, name: str = "") -> api.Kit:
        """Look at the kit in an archive as Add does, and leave nothing. What would keep it from being added
        is in its problems. archive is a tar, tar.gz, tar.xz or zip file in base64; name is that of the agent,
        by default that of the folder in it.
        """
        await self._admit(caller, name)
        content = _decoded(archive)
        self._panic.check()
        async with self._managing:
            found = await self._kits.check(content, name)
        problems = [*found.problems, *([found.unknown] if found.unknown else [])]
        return _shown(found, "", added=False, problems=problems)

    @method("Add", returns="kit")
    async def add(self, caller: Caller, *, archive: str, name: str = "", replace: bool = False) -> api.Kit:
        """Check the kit in an archive, keep it across restarts, and start its agent and members. replace puts
        it in the place of one that was added before. The parameters are those of Check.
        """
        caller = await self._admit(caller, name)
        content = _decoded(archive)
        self._panic.check()
        await self._access.check_open(caller)
        async with self._managing:
            found = await self._kits.add(content, name, replace=replace)
        return _shown(found, str(self._kits.path_of(found.name)), added=True, problems=[])

    @method("Remove")
    async def remove(self, caller: Caller, name: str) -> None:
        """Stop the agents of a kit that was added, and forget them; their history stays."""
        await self._admit(caller, name)
        async with self._managing:
            await self._kits.remove(name)

    async def _admit(self, caller: Caller, name: str) -> Caller:
        caller = await self._access.admit(caller, Operation.MANAGE_AGENTS, agent=name)
        return await self._access.admit(caller, Operation.ADMINISTER)

    async def _kit(self, name: str) -> api.Kit:
        folder, definitions = self._kits.path_of(name), self._content.definitions
        members = [name, *definitions.members(name)]
        problems = [definitions.broken[one] for one in members if one in definitions.broken]
        for one in members:
            problems += self._content.own_of(one).skills.broken.values()
            if (definition := definitions.agents.get(one)) is not None:
                problems += self._content.problems_of(definition)
        contents = None
        try:
            contents = await asyncio.to_thread(look, folder)
        except ConfigError as err:
            problems += [err.message] if err.message not in problems else []
        skills = [skill for one in members for skill in self._content.own_of(one).skills.skills.values()]
        found = Checked(
            name=name,
            contents=contents,
            definitions=definitions,
            warnings=[warning for skill in skills for warning in skill.warnings],
        )
        return _shown(found, str(folder), added=self._kits.was_added(name), problems=problems)


def _shown(found: Checked, folder: str, *, added: bool, problems: list[str]) -> api.Kit:
    nothing = KitFolder(
        skills=(), tools=(), agents=(), flows=(), evals=(), hooks=(), references=(), files=0, size_bytes=0
    )
    contents, definition = found.contents or nothing, found.definitions.agents.get(found.name)
    return api.Kit(
        name=found.name,
        description=definition.front.description if definition else "",
        folder=folder,
        added=added,
        skills=list(contents.skills),
        tools=list(contents.tools),
        agents=list(contents.agents),
        flows=list(contents.flows),
        evals=list(contents.evals),
        hooks=list(contents.hooks),
        references=list(contents.references),
        files=contents.files,
        size_bytes=contents.size_bytes,
        problems=problems,
        warnings=found.warnings,
    )


def _decoded(archive: str) -> bytes:
    try:
        return base64.b64decode(archive, validate=True)
    except (binascii.Error, ValueError) as err:
        raise InvalidArgument("archive is not base64.", field="archive") from err
