"""Kits as files: packs a folder for the daemon, and looks at kits without one.

A kit is looked at as it would be added: packed, unpacked into a folder of its own, and its tools loaded in a
worker's sandbox, which this program starts itself.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightagentd.cli.output import warn
from lightagentd.errors import ConfigError, InvalidArgument, MessageTooLarge
from lightagentd.limits import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from lightagentd.agents.kits.checking import Around, Checked
    from lightagentd.host.paths import Paths
    from lightagentd.worker.pool import Pool

ARCHIVE_BYTES = MAX_MESSAGE_BYTES * 3 // 4 - (64 << 10)
"""The largest archive that fits into a message as base64, with the rest of that."""
_LEFT_OUT = (".git", "__pycache__", ".DS_Store")


def content_of(source: Path) -> bytes:
    """A folder as an archive, or the archive as it is. Raises InvalidArgument, MessageTooLarge, OSError."""
    if source.is_dir():
        return pack(source)
    if source.stat().st_size > ARCHIVE_BYTES:
        raise _too_large(source)
    return source.read_bytes()


def pack(folder: Path) -> bytes:
    """A folder as a tar.gz archive, under its own name. Raises InvalidArgument, MessageTooLarge, OSError."""
    top, content = folder.resolve(), io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path in _files(top):
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode):
                what = "is a link, and a kit has none" if stat.S_ISLNK(mode) else "is not a file or folder"
                raise InvalidArgument(f"{folder / path.relative_to(top)} {what}.", field="source")
            info = tarfile.TarInfo(str(Path(top.name, path.relative_to(top))))
            info.size, info.mode = path.stat().st_size, 0o755 if mode & 0o100 else 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)
            if content.tell() > ARCHIVE_BYTES:
                raise _too_large(folder)
    if len(content.getvalue()) > ARCHIVE_BYTES:
        raise _too_large(folder)
    return content.getvalue()


def _files(folder: Path) -> Iterable[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path


def _too_large(source: Path) -> MessageTooLarge:
    return MessageTooLarge(
        f"{source} is more than the {ARCHIVE_BYTES >> 20} MiB that can be sent packed.",
        suggestion="Put it where the daemon can read it, and: lactl agents create NAME --from DIR",
        field="source",
    )


@dataclass(frozen=True, kw_only=True)
class Source:
    """A kit to look at."""

    path: Path
    name: str = ""
    """The name that its agent would get, in place of that of the folder."""
    in_place: bool = False
    """An agent is made of this folder as it is, so it matters who can write it."""


def kits_in(paths: Paths) -> dict[str, Source]:
    """The kits in the folders of agents, as far as this user may see them."""
    from lightagentd.agents.kits.folder import is_kit
    from lightagentd.host.paths import content_folders

    found: dict[str, Source] = {}
    for origin in content_folders("agent", paths):
        for path in sorted(origin.glob("*/AGENT.md")):
            if is_kit(path.parent) or origin == paths.kits:
                name = path.parent.name
                one = Source(path=path.parent, name=name, in_place=origin != paths.kits)
                found.setdefault(name, one)
    return found


async def look(sources: Iterable[Source], paths: Paths) -> list[Checked]:
    """What is wrong with kits. Raises WorkerUnavailable, ConfigError for a configuration that is broken."""
    from dataclasses import replace

    from lightagentd.config import configuration
    from lightagentd.worker.pool import Pool

    config = configuration.load(paths.config)[0]
    settings = config.worker.model_copy(update={"sandbox": _sandbox(config.worker.sandbox)})
    with tempfile.TemporaryDirectory(prefix="lactl-") as folder:
        Path(folder).chmod(0o755)
        pool = Pool(settings, replace(paths, runtime=Path(folder, "run")))
        Path(folder, "run").mkdir()
        await pool.start()
        try:
            around = await _around(pool, paths)
            safe = pool.backend.enforced or os.geteuid() == 0  # as root, tools run as nobody
            if not safe:
                warn(f"The tools are not loaded, since no sandbox works here: {pool.backend.reason}")
            drafts, loading = Path(folder, "kits"), pool if safe else None
            return [await _looked_at(one, drafts, loading, around) for one in sources]
        finally:
            await pool.close()


def _sandbox(configured: str) -> str:
    return "auto" if configured == "systemd" else configured


async def _looked_at(source: Source, drafts: Path, pool: Pool | None, around: Around) -> Checked:
    from lightagentd.agents.kits.checking import Checked, check
    from lightagentd.agents.kits.folder import check_owned
    from lightagentd.agents.kits.store import terms, unpacked
    from lightagentd.config.configuration import Limits

    limits = Limits()
    try:
        if source.in_place:
            check_owned(source.path.resolve())
        opening = unpacked(
            content_of(source.path), source.name, drafts, terms(limits.max_kit_bytes, limits.max_kit_files)
        )
        with opening as draft:
            return (await check(draft, pool, around)).shown_as(draft, str(source.path))
    except (ConfigError, InvalidArgument) as err:
        return Checked(name=source.name or source.path.name, problems=[err.message])


async def _around(pool: Pool, paths: Paths) -> Around:
    from lightagentd.agents.definition import BUILT_IN, load_definitions, roles_in
    from lightagentd.agents.kits.checking import Around
    from lightagentd.agents.tool_calls.described import ToolInfo
    from lightagentd.agents.tool_calls.toolbox import Toolbox, toolbox_of
    from lightagentd.host.paths import content_folders
    from lightagentd.skills import load_skills

    builtins = {
        name: ToolInfo(name=name, description="", path="", problem="", actions=()) for name in BUILT_IN
    }
    folders = content_folders("agent", paths)
    return Around(
        toolbox=Toolbox({**toolbox_of(await pool.describe()).tools, **builtins}),
        skills=load_skills(content_folders("skills", paths)),
        definitions=load_definitions(folders),
        roles=roles_in(folders),
    )
