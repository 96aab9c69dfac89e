"""Kits for tests: as folders and as archives, whole and forged."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lightagentd.host.paths import Paths
from tests.worker.running import folders

NIGHTLY = 'description = "Look"\n[[step]]\nname = "look"\nprompt = "look"\n'
TOOL = '''"""What the database does."""

import os

from lightagentd.tool import Args, Context, Effect, Result, Tool, action


class ShowArgs(Args):
    what: str = "all"


class {title}(Tool):
    """Says what the database does."""

    name = "{name}"

    @action(clean="words of its own")
    async def show(self, ctx: Context, args: ShowArgs) -> Result:
        """Show what the database does."""
        return Result(output=f"{{args.what}} for {{ctx.agent}} in {{os.getpid()}}", metadata={{}})

    @action(effect=Effect.CHANGE, clean="words of its own")
    async def vacuum(self, ctx: Context, args: ShowArgs) -> Result:
        """Vacuum the database."""
        return Result(output="vacuumed")
'''
SKILL = "---\nname: {name}\ndescription: Looks at {name}.\n---\nLook.\n"


def tool(name: str) -> str:
    return TOOL.format(name=name, title=name.title().replace("_", ""))


def dba(**more: str) -> dict[str, str]:
    """The files of a kit that is whole; `more` are further ones, with `__` in place of a slash."""
    files = {
        "AGENT.md": "---\ndescription: Looks after databases.\nagents: [reader, ops]\n---\nYou are a DBA.\n",
        "tools/dbstat.py": tool("dbstat"),
        "skills/db-check/SKILL.md": SKILL.format(name="db-check"),
        "skills/db-check/runbook.yaml": "script: scripts/x.sh\n",
        "skills/db-check/examples.txt": "how is the database\n",
        "skills/db-check/scripts/x.sh": '#!/bin/sh\necho "**The database is fine.**"\n',
        "agents/reader/AGENT.md": "---\ndescription: Reads.\n---\nYou read.\n",
        "flows/nightly.toml": NIGHTLY,
        "references/tables.md": "a table\n",
    }
    return files | {name.replace("__", "/"): text for name, text in more.items()}


def folder(where: Path, files: Mapping[str, str], name: str = "dba") -> Path:
    """A kit as a folder that nobody else can write."""
    top = where / name
    for inside, text in files.items():
        target = top / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for path in (top, *top.rglob("*")):
        path_mode(path)
    return top


def path_mode(path: Path) -> None:
    path.chmod(0o755 if path.is_dir() or path.suffix == ".sh" else 0o644)


def tarred(
    files: Mapping[str, str | bytes], *more: tarfile.TarInfo, name: str = "dba", mode: str = "w:gz"
) -> bytes:
    """A kit as a tar archive; `more` are members without content."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:  # type: ignore[call-overload]
        for path, text in files.items():
            data = text if isinstance(text, bytes) else text.encode()
            info = tarfile.TarInfo(f"{name}/{path}" if name else path)
            info.size, info.mode = len(data), 0o755 if path.endswith(".sh") else 0o644
            archive.addfile(info, io.BytesIO(data))
        for info in more:
            archive.addfile(info)
    return content.getvalue()


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(files: Mapping[str, str | bytes], *more: tuple[str, int, bytes], method: int = 8) -> bytes:
    """A kit as a zip archive; `more` are members with a mode."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for path, text in files.items():
            archive.writestr(f"dba/{path}", text)
        for name, mode, data in more:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, data)
    return content.getvalue()


@contextmanager
def open_paths() -> Iterator[Paths]:
    """The folders of a daemon whose workers may be another user's."""
    with folders() as paths:
        yield paths


def everything(folder: Path) -> list[str]:
    """All that is below a folder, by name."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
