"""Skills for the model: what there is, the text of one, and a run of its script.

Skills are found in the folders of the environment variable LIGHTAGENT_SKILLS (separated by colons), which the
worker sets. They are read again for each call, so that a new or repaired skill can be used at once.
"""

import difflib
import os
from pathlib import Path
from typing import Any

from pydantic import Field

from lightagentd.errors import ConfigError, SkillNotFound
from lightagentd.host.process import TERM_GRACE_S, Completed, LiveText, run
from lightagentd.skills import Skill as LoadedSkill
from lightagentd.skills import SkillCatalog, load_skills
from lightagentd.tool import Args, Context, Effect, InvalidArgument, Result, TimedOut, Tool, ToolError, action

FOLDERS_VARIABLE = "LIGHTAGENT_SKILLS"
ERROR_TAIL_CHARS = 2000
"""How much of a failed script's standard error its error shows."""
NOTHING_FOUND = 4
"""The exit status of a script whose report says that what it was asked about by name is not there."""
OUTPUT_LIMIT_BYTES = 512 * 1024
"""How much of a script's output counts: a state of the machine is longer than a report."""
FILES_LIMIT = 200
"""How many files of a skill are listed."""


class ListArgs(Args):
    pass


class LoadArgs(Args):
    name: str = Field(description="The skill's name.")


class RunArgs(Args):
    name: str = Field(description="The skill's name.")
    args: dict[str, str] = Field(default_factory=dict, description="The script's arguments by name.")
    effect: Effect = Field(default=Effect.OBSERVE, description="What the script may do; most only observe.")


class Skill(Tool):
    """Skills: written procedures, many with a script that carries them out."""

    name = "skill"

    @action(clean="texts of installed skills, which an administrator chose")
    async def list(self, ctx: Context, args: ListArgs) -> Result:
        """List the skills with their descriptions and the arguments of their scripts."""
        catalog = load_skills(_folders())
        if (allowed := ctx.expected.get("skills")) is not None:
            catalog = catalog.only(allowed)
        lines = [_line(skill) for skill in catalog.skills.values()]
        lines += [f"{name}: cannot be used: {reason}" for name, reason in catalog.broken.items()]
        return Result(
            output="\n".join(lines) + "\n" if lines else "There are no skills.\n",
            metadata={"skills": sorted(catalog.skills), "broken": dict(catalog.broken)},
        )

    @action(clean="texts of installed skills, which an administrator chose")
    async def load(self, ctx: Context, args: LoadArgs) -> Result:
        """Read a skill: how to do what it is about, and which files it has."""
        skill = _find(load_skills(_folders()), args.name)
        files, more = _files(skill.folder)
        output = skill.body.rstrip() + f"\n\nFiles of this skill, in {skill.folder}:\n"
        output += "".join(f"- {file}\n" for file in files)
        if more:
            output += f"- and {more} more\n"
        return Result(
            output=output,
            metadata={
                "skill": skill.name,
                "folder": str(skill.folder),
                "files": files,
                "runbook": str(skill.runbook) if skill.runbook else None,
            },
        )

    @action(effect=None, taints=True, timeout_s=120)
    async def run(self, ctx: Context, args: RunArgs) -> Result:
        """Run a skill's script and give its report."""
        skill = _find(load_skills(_folders()), args.name)
        argv = skill.command(args.args)
        _check_effect(skill, args, ctx.effect)
        bound_s = min(skill.timeout_s, ctx.timeout_s - min(TERM_GRACE_S + 0.5, ctx.timeout_s / 10))
        live = LiveText(ctx.progress)
        done = await run(
            argv,
            timeout_s=bound_s,
            cwd=ctx.scratch,
            env={"HOME": str(ctx.scratch), "TMPDIR": str(ctx.scratch)},
            on_output=live.feed,
            limit_bytes=OUTPUT_LIMIT_BYTES,
        )
        live.finish()
        if done.timed_out:
            raise TimedOut(
                f"The script of the skill {skill.name} did not end within {bound_s:g} s.{_tail(done)}",
                suggestion="Narrow what it looks at, if it takes arguments for that.",
            )
        if done.status not in (0, NOTHING_FOUND):
            how = f"was ended by {done.signal}" if done.signal else f"failed with exit status {done.status}"
            raise ToolError(
                f"The script of the skill {skill.name} {how}.{_tail(done)}",
                suggestion="Load the skill and follow its text with the other tools.",
            )
        return Result(output=done.stdout.text() or "(no output)\n", metadata=_metadata(skill, done))


def _folders() -> list[Path]:
    return [Path(folder) for folder in os.environ.get(FOLDERS_VARIABLE, "").split(":") if folder]


def _find(catalog: SkillCatalog, name: str) -> LoadedSkill:
    if name in catalog.skills:
        return catalog.skills[name]
    if name in catalog.broken:
        raise ConfigError(
            f"The skill {name} cannot be used: {catalog.broken[name]}", suggestion="Mend its SKILL.md."
        )
    near = difflib.get_close_matches(name, catalog.skills, n=3)
    raise SkillNotFound(
        f"There is no skill {name!r}.",
        field="name",
        suggestion=f"Did you mean {' or '.join(near)}?" if near else "List the skills first.",
    )


def _check_effect(skill: LoadedSkill, args: RunArgs, effect: Effect) -> None:
    if effect is Effect.OBSERVE and skill.effect_of(args.args) != Effect.OBSERVE:
        raise InvalidArgument(
            f"The skill {skill.name} with these arguments needs the network.",
            field="effect",
            suggestion="Ask for it again with the effect 'reach'.",
        )


def _line(skill: LoadedSkill) -> str:
    arguments = f" (arguments: {', '.join(skill.args)})" if skill.args else ""
    return f"{skill.name}: {skill.description}{arguments}{'' if skill.runbook else ' (text only)'}"


def _files(folder: Path) -> tuple[list[str], int]:
    """The paths of a skill's files below its folder, and how many are not among them."""
    found = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    return found[:FILES_LIMIT], max(0, len(found) - FILES_LIMIT)


def _metadata(skill: LoadedSkill, done: Completed) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "skill": skill.name,
        "exit_status": done.status,
        "found": done.status != NOTHING_FOUND,
        "duration_ms": round(done.duration_s * 1000),
        "stdout_omitted_bytes": done.stdout.omitted_bytes,
    }
    if done.stderr.total_bytes:
        metadata["stderr"] = done.stderr.text()[-ERROR_TAIL_CHARS:]
    return metadata


def _tail(done: Completed) -> str:
    tail = done.stderr.text()[-ERROR_TAIL_CHARS:].strip()
    return f" It says:\n{tail}" if tail else ""
