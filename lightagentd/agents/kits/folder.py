"""What an agent's folder holds beside its definition, and whether others could have written it.

    AGENT.md
    skills/NAME/         skills, as in the folders that all agents share
    tools/NAME.py        tools, which only this agent's workers load
    mcp/NAME.toml        MCP servers, which are tools as well
    agents/NAME/         members: agents with folders of the same kind, but without agents of their own
    flows/, evals/       flows, and cases of assessments
    hooks/               functions around its turns (`hooks`)
    references/          files that are carried along

Nothing here stays open. An agent's folder with none of these is no kit, and nothing of it is looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightagentd.errors import ConfigError
from lightagentd.host.paths import share_folder
from lightagentd.host.users import called
from lightagentd.text.reason import reason

SKILLS, TOOLS, SERVERS, AGENTS = "skills", "tools", "mcp", "agents"
_CARRIED = ("flows", "evals", "hooks", "references")
PARTS = (SKILLS, TOOLS, SERVERS, AGENTS, *_CARRIED)
MOST_ENTRIES = 10_000
"""How many files and folders a kit may have; one that is added at run time also has the limits of the
configuration."""


@dataclass(frozen=True, kw_only=True)
class KitFolder:
    """The names of what is in it."""

    skills: tuple[str, ...]
    tools: tuple[str, ...]
    agents: tuple[str, ...]
    flows: tuple[str, ...]
    evals: tuple[str, ...]
    hooks: tuple[str, ...]
    references: tuple[str, ...]
    files: int
    size_bytes: int


def is_kit(folder: Path) -> bool:
    """Whether an agent's folder holds more than its definition."""
    return any(os.path.lexists(folder / part) for part in PARTS)


def look(folder: Path) -> KitFolder:
    """The names of what a folder holds. Raises ConfigError, which names the file, as `check_owned` does."""
    found = list(_entries(folder))
    files = [(path, info) for path, info in found if stat.S_ISREG(info.st_mode)]
    names = {part: _files_of(part, folder, [path for path, _ in files]) for part in _CARRIED}
    return KitFolder(
        skills=folders_in(folder / SKILLS),
        tools=tuple(path.stem for path in tool_files(folder)),
        agents=folders_in(folder / AGENTS),
        **names,
        files=len(files),
        size_bytes=sum(info.st_size for _, info in files),
    )


def tool_files(folder: Path) -> list[Path]:
    """The files of its tools."""
    there = [*(folder / TOOLS).glob("*.py"), *(folder / SERVERS).glob("*.toml")]
    return sorted(path for path in there if not path.name.startswith(("_", ".")))


def folders_in(folder: Path) -> tuple[str, ...]:
    """The names of the folders in a folder, but hidden ones and those that begin with `_`."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(one.name for one in folder.iterdir() if one.is_dir() and one.name[0] not in "_."))


def check_owned(folder: Path) -> None:
    """Raises ConfigError for a file that is neither root's nor this process's user's, that group or others
    can write, and for a link, a device, a FIFO and a socket: it says which. What the product brings may also
    be written by whoever may write the product's own folder, such as a checkout.
    """
    for _ in _entries(folder):
        pass


def check_above(folder: Path) -> None:
    """Raises ConfigError when others could put another folder in the place of this one."""
    for place in folder.parents:
        info = place.stat()
        sticky = info.st_mode & stat.S_ISVTX
        if info.st_uid not in _owners() or (stat.S_IMODE(info.st_mode) & 0o022 and not sticky):
            raise ConfigError(
                f"{place}: others can write it, so they could exchange {folder}.",
                suggestion="Put the kit into a folder that is root's, or add it with: lactl kits add",
            )


def _owners() -> tuple[int, ...]:
    return (0, os.geteuid())


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The folder and all that is in it, checked."""
    waiting, seen = [folder], 0
    while waiting:
        path = waiting.pop()
        seen += 1
        if seen > MOST_ENTRIES:
            raise ConfigError(f"{folder} has more than {MOST_ENTRIES} files; {path} is beyond that.")
        try:
            info = path.lstat()
            _check(path, info)
            if stat.S_ISDIR(info.st_mode):
                waiting += sorted(path.iterdir())
        except OSError as err:
            raise ConfigError(f"{path} cannot be read: {reason(err)}.") from err
        yield path, info


def _check(path: Path, info: os.stat_result) -> None:
    """Raises ConfigError."""
    if stat.S_ISLNK(info.st_mode):
        raise ConfigError(f"{path} is a link, and a kit has none.", suggestion="Put the file in its place.")
    if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
        raise ConfigError(f"{path} is not a file or folder.", suggestion="Remove it.")
    if not path.name.isprintable():
        raise ConfigError(f"{str(path)!r} has a name that cannot be shown.", suggestion="Rename it.")
    owners, others = _owners(), 0o022
    if path.is_relative_to(share_folder()):
        product = share_folder().stat()
        owners, others = (*owners, product.st_uid), others & ~product.st_mode
    if info.st_uid not in owners:
        raise ConfigError(
            f"{path} belongs to {called(info.st_uid)}, not to root or to the daemon's user.",
            suggestion=f"Read it, and then: chown root {path}",
        )
    if stat.S_IMODE(info.st_mode) & others:
        raise ConfigError(f"{path} can be written by others than its owner.", suggestion=f"chmod go-w {path}")


def _files_of(part: str, folder: Path, files: list[Path]) -> tuple[str, ...]:
    return tuple(
        sorted(str(one.relative_to(folder / part)) for one in files if one.is_relative_to(folder / part))
    )
