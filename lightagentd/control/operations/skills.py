"""The operations on skills."""

from __future__ import annotations

import difflib

from lightagentd import api
from lightagentd.agents.content import Content
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import SkillNotFound
from lightagentd.policy.operation import Operation
from lightagentd.skills import Skill, SkillCatalog


class Skills(Operations, interface="org.lightagent1.Skills"):
    """The skills."""

    def __init__(self, access: Access, content: Content) -> None:
        self._access, self._content = access, content

    @method("List", returns="skills")
    async def listed(self, caller: Caller) -> list[api.Skill]:
        """All skills, broken ones too, without their bodies."""
        await self._access.admit(caller, Operation.INSPECT)
        return listed(self._content.skills)

    @method("Get", returns="skill")
    async def get(self, caller: Caller, name: str) -> api.Skill:
        """One skill with its body."""
        await self._access.admit(caller, Operation.INSPECT)
        catalog = self._content.skills
        if name in catalog.broken:
            return _broken(name, catalog.broken[name])
        if name not in catalog.skills:
            near = difflib.get_close_matches(name[:100], catalog.skills, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise SkillNotFound(
                f"There is no skill {name[:60]!r}.", suggestion=f"{meant}Run: lactl skills list"
            )
        return _info(catalog.skills[name], body=catalog.skills[name].body)


def listed(catalog: SkillCatalog) -> list[api.Skill]:
    """All skills of a catalog, without their bodies."""
    found = [_info(skill, body="") for skill in catalog.skills.values()]
    found += [_broken(name, why) for name, why in catalog.broken.items()]
    return sorted(found, key=lambda skill: skill.name)


def _info(skill: Skill, *, body: str) -> api.Skill:
    return shown(
        api.Skill,
        skill,
        args=list(skill.args),
        runbook=skill.runbook is not None,
        origin=str(skill.folder),
        problem="",
        body=body,
    )


def _broken(name: str, why: str) -> api.Skill:
    return api.Skill(
        name=name,
        description="",
        prompts=[],
        args=[],
        effect="",
        runbook=False,
        origin="",
        problem=why,
        body="",
    )
