"""Keeps drafts of tools, and tries them in a worker's sandbox.

    drafts/NAME.json    one draft, its text and whose it is; of the daemon's user alone

No worker can read this folder, and no file in it is a Python file: nothing is loaded from here. To try a
draft, a copy is put for a moment where kits are checked, and a worker that is ended afterwards describes it
(`worker.own_tools`): observe's sandbox, no network, nothing to write, and a time limit. The operations own
the one `Drafts` of a daemon.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightagentd.agents.drafts.reading import uses
from lightagentd.agents.kits.believed import believed
from lightagentd.agents.kits.store import readable_folder
from lightagentd.agents.tool_calls.described import ToolInfo
from lightagentd.errors import Conflict, InvalidArgument, LimitExceeded, NotFound, StorageError
from lightagentd.host.atomic_file import write_whole
from lightagentd.text.reason import reason
from lightagentd.worker.pool import Pool

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
SOURCE_BYTES = 512 << 10
MOST_DRAFTS = 100
MOST_OF_ONE = 20


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One draft as it is kept. `by` is the uid who had it made, `origin` what it was made of."""

    name: str
    source: str
    by: int
    origin: str

    @property
    def digest(self) -> str:
        """SHA-256 of the source, in hex."""
        return hashlib.sha256(self.source.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A draft as a worker and its text describe it; `problem` says why it cannot be used."""

    draft: Draft
    tool: ToolInfo
    uses: tuple[str, ...]


class Drafts:
    """The drafts of a daemon."""

    def __init__(self, folder: Path, kits: Path, pool: Pool) -> None:
        """`kits` is the folder of kits, which workers can read."""
        self._folder, self._kits, self._pool = folder, kits, pool
        self._changing = asyncio.Lock()

    async def keep(self, draft: Draft) -> Tried:
        """Try a draft and keep it, also one with a problem, in the place of an older one of the same user.

        Raises InvalidArgument, Conflict, LimitExceeded, StorageError, WorkerUnavailable.
        """
        if not NAME.fullmatch(draft.name):
            raise InvalidArgument(
                f"{draft.name[:60]!r} is not a name for a tool.",
                suggestion="Use up to 32 of a-z, 0-9 and _, a letter first.",
                field="name",
            )
        try:
            size = len(draft.source.encode())
        except UnicodeEncodeError as err:
            raise InvalidArgument("The source is not Unicode.", field="source") from err
        if size > SOURCE_BYTES:
            raise InvalidArgument(f"The source is longer than {SOURCE_BYTES} bytes.", field="source")
        async with self._changing:
            there = await asyncio.to_thread(self._all)
            older = next((one for one in there if one.name == draft.name), None)
            if older is not None and older.by != draft.by:
                raise Conflict(f"There is a draft {draft.name} of another user.", field="name")
            mine = [one for one in there if one.by == draft.by]
            if older is None and (len(there) >= MOST_DRAFTS or len(mine) >= MOST_OF_ONE):
                raise LimitExceeded(
                    f"There are {len(mine)} drafts of yours and {len(there)} in all, and no more are kept.",
                    suggestion="Remove one: lactl tools discard DRAFT",
                )
            tried = await self.tried(draft)
            await asyncio.to_thread(self._write, draft)
        return tried

    def all(self) -> list[Draft]:
        """All drafts, by name. Blocks."""
        return self._all()

    def get(self, name: str, viewer: int | None) -> Draft:
        """A draft that this viewer may see; None sees all. Blocks. Raises NotFound."""
        found = self._read(self._folder / f"{name}.json") if NAME.fullmatch(name) else None
        if found is None or viewer not in (None, found.by):
            raise NotFound(
                f"There is no draft {name[:60]!r}.", suggestion="See: lactl tools drafts", field="name"
            )
        return found

    def remove(self, name: str, viewer: int | None) -> None:
        """Blocks. Raises NotFound, StorageError."""
        self.get(name, viewer)
        try:
            (self._folder / f"{name}.json").unlink(missing_ok=True)
        except OSError as err:
            raise StorageError(f"The draft {name} cannot be removed: {reason(err, at=True)}.") from err

    async def tried(self, draft: Draft) -> Tried:
        """What a worker says of a draft. It is loaded in a sandbox or nowhere. Raises StorageError,
        WorkerUnavailable.
        """
        if not (backend := self._pool.backend).enforced:
            why = f"It was not tried, because no sandbox works here: {backend.reason}"
            return Tried(draft=draft, tool=_broken(draft.name, why), uses=_uses(draft.source))
        try:
            with tempfile.TemporaryDirectory(dir=await asyncio.to_thread(self._trial_place)) as top:
                folder = Path(top)
                path = folder / "tools" / f"{draft.name}.py"
                await asyncio.to_thread(_lay, folder, path, draft.source)
                said = (await self._pool.own_tools.describe(top, [draft.name]))[0]
        except OSError as err:
            raise StorageError(f"The draft {draft.name} cannot be tried: {reason(err, at=True)}.") from err
        found = str(said["problem"]) if said.get("problem") else believed(said, draft.name, path)
        if isinstance(found, str):
            line = said.get("line")
            at = f", line {line}" if isinstance(line, int) and line > 0 else ""
            words = " ".join(found.replace(f"{path}", path.name)[:2000].split()).rstrip(".")
            found = _broken(draft.name, f"{path.name}{at}: {words}.")
        return Tried(draft=draft, tool=found, uses=_uses(draft.source))

    def _trial_place(self) -> Path:
        self._kits.parent.mkdir(parents=True, exist_ok=True)
        return readable_folder(readable_folder(self._kits) / ".new")

    def _all(self) -> list[Draft]:
        paths = sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
        return [one for path in paths if (one := self._read(path)) is not None]

    def _read(self, path: Path) -> Draft | None:
        """None for what is gone, or was not written here."""
        try:
            found: Any = json.loads(path.read_bytes())
            draft = Draft(**found)
        except (OSError, ValueError, TypeError):
            return None
        return draft if draft.name == path.stem else None

    def _write(self, draft: Draft) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._folder / f"{draft.name}.json", json.dumps(asdict(draft)).encode())
        except OSError as err:
            raise StorageError(f"The draft {draft.name} cannot be kept: {reason(err, at=True)}.") from err


def _lay(folder: Path, path: Path, source: str) -> None:
    """Put it where a worker can read it, whatever the umask."""
    folder.chmod(0o755)
    readable_folder(path.parent)
    path.write_text(source, encoding="utf-8")
    path.chmod(0o644)


def untried(draft: Draft) -> Tried:
    """A draft of which only the text was read."""
    return Tried(draft=draft, tool=_broken(draft.name, ""), uses=_uses(draft.source))


def _uses(source: str) -> tuple[str, ...]:
    try:
        return tuple(uses(source))
    except (SyntaxError, ValueError, RecursionError):
        return ()


def _broken(name: str, problem: str) -> ToolInfo:
    return ToolInfo(name=name, description="", path="", problem=problem, actions=())
