"""Skills for the model: what there is, the text of one, and a run of its script.

Skills are found in the folders of the environment variable LIGHTAGENT_SKILLS (separated by colons), which the
worker sets. They are read again for each call, so that a new or repaired skill can be used at once.
"""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from lightagentd.errors import ConfigError, SkillNotFound
from lightagentd.host.process import OUTPUT_LIMIT_BYTES, TERM_GRACE_S, Completed, LiveText, run
from lightagentd.skills import Skill as LoadedSkill
from lightagentd.skills import SkillCatalog, load_skills
from lightagentd.tool import Args, Context, Effect, InvalidArgument, Result, TimedOut, Tool, ToolError, action

FOLDERS_VARIABLE = "LIGHTAGENT_SKILLS"
SURVEY_VARIABLE, SNAPSHOT_VARIABLE = "LIGHTAGENT_SURVEY", "LIGHTAGENT_SNAPSHOT"
"""Names the file with what a script may know of all processes, where its runbook says that it sees them."""
ERROR_TAIL_CHARS = 2000
"""How much of a failed script's standard error its error shows."""
NOTHING_FOUND = 4
"""The exit status of a script whose report says that what it was asked about by name is not there."""
STATE_LIMIT_BYTES = 1 << 20
"""How much of the output of a script counts that tells the state of the machine (`Runbook.compares`)."""
FILES_LIMIT = 200
"""How many files of a skill are listed."""
FILE_BYTES = 48 * 1024
"""How much of a file is read at once."""


class ListArgs(Args):
    pass


class LoadArgs(Args):
    name: str = Field(description="The skill's name.")
    file: str = Field(default="", description="One of its files, such as references/x.md, not its text.")
    offset: int = Field(default=0, ge=0, le=1 << 40, description="The first byte of the file to show.")


class RunArgs(Args):
    name: str = Field(description="The skill's name.")
    args: dict[str, str] = Field(default_factory=dict, description="The runbook's arguments by name.")
    script: str = Field(default="", description="A file of it to run, such as scripts/x.py, not its runbook.")
    arguments: list[str] = Field(default_factory=list, description="The words after that file's name.")
    effect: Effect = Field(default=Effect.OBSERVE, description="What the script may do; most only observe.")


class Skill(Tool):
    """Skills: written procedures, many with a script that carries them out."""

    name = "skill"

    @action(clean="texts of installed skills, which an administrator chose")
    async def list(self, ctx: Context, args: ListArgs) -> Result:
        """List the skills with their descriptions and the arguments of their scripts."""
        catalog = _catalog(ctx)
        found = {name: skill for name, skill in catalog.skills.items() if skill.for_models}
        lines = [_line(skill) for skill in found.values()]
        lines += [f"{name}: cannot be used: {reason}" for name, reason in catalog.broken.items()]
        return Result(
            output="\n".join(lines) + "\n" if lines else "There are no skills.\n",
            metadata={"skills": sorted(found), "broken": dict(catalog.broken)},
        )

    @action(clean="texts of installed skills, which an administrator chose")
    async def load(self, ctx: Context, args: LoadArgs) -> Result:
        """Read a skill: how to do what it is about, and which files it has; or one of these files."""
        skill = _find(ctx, args.name)
        metadata = {"skill": skill.name, "folder": str(skill.folder)}
        if args.file:
            return Result(output=_part(skill.file(args.file, field="file"), args.offset), metadata=metadata)
        files = skill.files()
        return Result(
            output=_text(skill, files),
            metadata={
                **metadata,
                "files": files[:FILES_LIMIT],
                "runbook": str(skill.runbook) if skill.runbook else None,
            },
        )

    @action(effect=None, taints=True, timeout_s=120)
    async def run(self, ctx: Context, args: RunArgs) -> Result:
        """Run a skill's runbook and give its report, or run another script of the skill."""
        skill = _find(ctx, args.name)
        bound_s = ctx.timeout_s - min(TERM_GRACE_S + 0.5, ctx.timeout_s / 10)
        if args.script:
            argv, folder = _script_argv(skill, args), skill.folder
        else:
            argv, folder = skill.command(args.args), ctx.scratch
            _check_effect(skill, args, ctx.effect)
            bound_s = min(skill.timeout_s, bound_s)
        live = LiveText(ctx.progress)
        env = {"HOME": str(ctx.scratch), "TMPDIR": str(ctx.scratch)}
        for given, variable in (("survey", SURVEY_VARIABLE), ("snapshot", SNAPSHOT_VARIABLE)):
            if text := ctx.expected.get(given):
                env[variable] = _handed_over(ctx.scratch / f"{given}.json", text)
        done = await run(
            argv,
            timeout_s=bound_s,
            cwd=folder,
            env=env,
            on_output=live.feed,
            limit_bytes=STATE_LIMIT_BYTES if skill.compares else OUTPUT_LIMIT_BYTES,
        )
        live.finish()
        what = f"The script {args.script}{' ' if args.script else ''}of the skill {skill.name}"
        if done.timed_out:
            raise TimedOut(
                f"{what} did not end within {bound_s:g} s.{_tail(done)}",
                suggestion="Narrow what it looks at, if it takes arguments for that.",
            )
        if done.status not in (0, NOTHING_FOUND):
            how = f"was ended by {done.signal}" if done.signal else f"failed with exit status {done.status}"
            raise ToolError(f"{what} {how}.{_tail(done)}", suggestion=_after_failure(args, ctx.effect))
        return Result(output=done.stdout.text() or "(no output)\n", metadata=_metadata(skill, done))


def _handed_over(path: Path, text: str) -> str:
    """A new file for the script; it follows no link that another command of the worker may have made."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return str(path)


def _folders(ctx: Context) -> list[Path]:
    """That of the agent's own skills, which win, and those of all agents."""
    shared = os.environ.get(FOLDERS_VARIABLE, "").split(":")
    return [Path(folder) for folder in (ctx.expected.get("own_skills"), *shared) if folder]


def _catalog(ctx: Context, only: str = "") -> SkillCatalog:
    """What the agent may use, or one of it."""
    catalog, allowed = load_skills(_folders(ctx), only=only), ctx.expected.get("skills")
    return catalog if allowed is None else catalog.only(allowed)


def _find(ctx: Context, name: str) -> LoadedSkill:
    catalog = _catalog(ctx, name)
    if name in catalog.skills:
        return catalog.skills[name]
    if name in catalog.broken:
        raise ConfigError(
            f"The skill {name} cannot be used: {catalog.broken[name]}", suggestion="Mend its files."
        )
    near = difflib.get_close_matches(name, _catalog(ctx).skills, n=3)
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


def _text(skill: LoadedSkill, files: Sequence[str]) -> str:
    """The text of a skill, its author's hints, and its files."""
    lines = [skill.body.rstrip(), ""]
    if skill.front.compatibility:
        lines.append(f"It needs: {skill.front.compatibility}")
    if skill.front.allowed_tools:
        lines.append(f"Its author thought of these tools: {skill.front.allowed_tools}")
    lines.append(f"Files of this skill, in {skill.folder}:")
    lines += [f"- {file}" for file in files[:FILES_LIMIT]]
    if len(files) > FILES_LIMIT:
        lines.append(f"- and {len(files) - FILES_LIMIT} more")
    return "\n".join(lines) + "\n"


def _part(path: Path, offset: int) -> str:
    """A part of a file, as text."""
    with path.open("rb") as file:
        file.seek(offset)
        data, size = file.read(FILE_BYTES), path.stat().st_size
    if b"\0" in data:
        return f"{path} is not text; it has {size} bytes.\n"
    rest = size - offset - len(data)
    more = f"\n({rest} more bytes: offset {offset + len(data)})\n" if rest > 0 else ""
    return data.decode(errors="replace") + more


def _script_argv(skill: LoadedSkill, args: RunArgs) -> list[str]:
    if args.args:
        raise InvalidArgument(
            "args are for the runbook.",
            field="args",
            suggestion="Give its words as arguments.",
        )
    return skill.script_command(args.script, args.arguments)


def _after_failure(args: RunArgs, effect: Effect) -> str:
    if not args.script:
        return "Look at the script, or load the skill and follow its text with the other tools."
    if effect is Effect.CHANGE:
        return "Load the skill and see how its text has the script called."
    kept_from = "write" if effect is Effect.REACH else "write or use the network"
    return f"With the effect {effect} it may not {kept_from}; another effect can be asked for."


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
    tails = [stream.text()[-ERROR_TAIL_CHARS:].strip() for stream in (done.stdout, done.stderr)]
    said = "\n".join(filter(None, tails))
    return f" It says:\n{said}" if said else ""
