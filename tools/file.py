"""Reads, finds and changes files.

Reading never blocks on a special file and never takes more memory than a page (`worker/files/text.py`); a
search is a process of its own with a time bound (`worker/files/search.py`); a change is atomic, follows no
symbolic link (`worker/files/change.py`), and keeps the previous content in the folder that the environment
variable LIGHTAGENT_UNDO names, so that it can be taken back (`worker/files/undo.py`).
"""

import asyncio
import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from lightagentd.errors import Conflict, LightagentError, NotFound
from lightagentd.tool import Args, Context, Effect, InvalidArgument, Result, TimedOut, Tool, ToolError, action
from lightagentd.worker.files import change, edit, listing, search, text
from lightagentd.worker.files.change import Present
from lightagentd.worker.files.undo import Record, UndoStore, digest
from lightagentd.worker.process import run

UNDO_VARIABLE = "LIGHTAGENT_UNDO"
SEARCH_S = 20.0


class PathArgs(Args):
    path: str = Field(description="An absolute path.")


class ReadArgs(PathArgs):
    offset: int = Field(default=1, ge=1, description="The first line to show, from 1 on.")
    limit: int = Field(default=1000, ge=1, le=5000, description="How many lines to show.")
    encoding: str = Field(default="", description="The encoding, if it is not found by itself.")


class ListArgs(PathArgs):
    limit: int = Field(default=500, ge=1, le=5000, description="How many entries to show.")


class GlobArgs(Args):
    pattern: str = Field(
        min_length=1, description="Such as *.conf or **/*.service; ** stands for any number of folders."
    )
    path: str = Field(default="/", description="The folder to search, an absolute path.")
    limit: int = Field(default=500, ge=1, le=5000, description="How many paths to give.")


class GrepArgs(Args):
    pattern: str = Field(min_length=1, description="A Python regular expression, for one line.")
    path: str = Field(description="The file or folder to search, an absolute path.")
    glob: str = Field(default="**", description="Which files below the folder, such as **/*.conf.")
    ignore_case: bool = False
    limit: int = Field(default=200, ge=1, le=2000, description="How many lines to give.")


class WriteArgs(PathArgs):
    content: str = Field(description="The whole new content.")
    mode: str = Field(default="", pattern=r"^([0-7]{3,4})?$", description="Octal; kept if left out.")
    encoding: str = Field(default="utf-8", description="The encoding to write.")
    expect_sha256: str = Field(default="", description="Refuse unless the present content has this digest.")


class EditArgs(PathArgs):
    old: str = Field(min_length=1, description="The exact text to replace; unique, unless all is true.")
    new: str = Field(description="The text to put there.")
    all: bool = Field(default=False, description="Replace every occurrence.")


class UndoArgs(Args):
    call_id: str = Field(description="The call whose change is taken back.")


class File(Tool):
    """Reads, finds and changes files."""

    name = "file"

    @action(taints=True)
    async def read(self, ctx: Context, args: ReadArgs) -> Result:
        """Read a text file with line numbers, page by page; a binary file as a hexadecimal dump."""
        del ctx
        path = _absolute(args.path)
        if args.encoding and not text.known_encoding(args.encoding):
            raise InvalidArgument(f"There is no text encoding {args.encoding!r}.", field="encoding")
        page, size = await asyncio.to_thread(_read, path, args)
        notes = []
        if not page.lines:
            notes.append(f"(there is no line {args.offset})" if args.offset > 1 else "(empty)")
        if page.more:
            notes.append(f"(more follows: offset={args.offset + len(page.lines)})")
        if page.encoding not in ("utf-8", args.encoding):
            notes.append(f"(encoding: {page.encoding})")
        return Result(
            output=page.text() + "".join(note + "\n" for note in notes),
            metadata={
                "path": path,
                "encoding": page.encoding,
                "first_line": args.offset,
                "lines": len(page.lines),
                "total_lines": page.total,
                "next_offset": args.offset + len(page.lines) if page.more else None,
                "cut_lines": page.cut_lines,
                "size_bytes": size,
            },
        )

    @action()
    async def list(self, ctx: Context, args: ListArgs) -> Result:
        """List a folder: mode, owner, size, time and name of each entry, hidden ones too."""
        del ctx
        path = _absolute(args.path)
        lines, count = await asyncio.to_thread(_list, path, args.limit)
        if count > len(lines):
            lines.append(f"({count - len(lines)} more entries)")
        return Result(
            output="".join(line + "\n" for line in lines) or "(empty)\n",
            metadata={"path": path, "entries": count, "shown": min(count, args.limit)},
        )

    @action()
    async def stat(self, ctx: Context, args: PathArgs) -> Result:
        """Say what a path is: kind, size, mode, owner, times, link target and extended attributes."""
        del ctx
        facts = await asyncio.to_thread(_facts, _absolute(args.path))
        return Result(output="".join(f"{key}: {value}\n" for key, value in facts.items()), metadata=facts)

    @action()
    async def glob(self, ctx: Context, args: GlobArgs) -> Result:
        """Find paths by a pattern; hidden files count, symbolic links are not followed."""
        root, pattern = _absolute(args.path), args.pattern
        if pattern.startswith("/"):
            root = "/"
        found = await _search(ctx, {"mode": "glob", "root": root, "glob": pattern, "limit": args.limit})
        lines = [item["path"] + ("/" if item["kind"] == "folder" else "") for item in found.matches]
        return found.result(lines)

    @action(taints=True)
    async def grep(self, ctx: Context, args: GrepArgs) -> Result:
        """Find lines that match a regular expression, in a file or below a folder; not in binary files."""
        request = {
            "mode": "grep",
            "root": _absolute(args.path),
            "pattern": args.pattern,
            "glob": args.glob if "/" in args.glob or args.glob == "**" else f"**/{args.glob}",
            "ignore_case": args.ignore_case,
            "limit": args.limit,
        }
        found = await _search(ctx, request)
        return found.result([f"{item['path']}:{item['line']}:{item['text']}" for item in found.matches])

    @action(effect=Effect.CHANGE, taints=True)
    async def write(self, ctx: Context, args: WriteArgs) -> Result:
        """Write a whole file atomically; one that exists keeps its mode and owner. Gives the diff."""
        path = _changeable(args.path)
        data = _encoded(args.content, args.encoding)
        mode = int(args.mode, 8) if args.mode else None
        return await asyncio.to_thread(_write, ctx, path, data, mode, args.expect_sha256)

    @action(effect=Effect.CHANGE, taints=True)
    async def edit(self, ctx: Context, args: EditArgs) -> Result:
        """Replace exact text in a file, atomically; it must occur once unless all is true. Gives the diff."""
        return await asyncio.to_thread(_edit, ctx, _changeable(args.path), args)

    @action(effect=Effect.CHANGE, taints=True)
    async def delete(self, ctx: Context, args: PathArgs) -> Result:
        """Delete a file, or a symbolic link itself; not a folder. Gives the diff."""
        return await asyncio.to_thread(_delete, ctx, _changeable(args.path))

    @action(effect=Effect.CHANGE, taints=True)
    async def undo(self, ctx: Context, args: UndoArgs) -> Result:
        """Take back what an earlier write, edit or delete changed, unless the file was changed since."""
        return await asyncio.to_thread(_undo, ctx, args.call_id)


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgument(
            f"{path!r} is not an absolute path.", field="path", suggestion="Begin with /; ~ is not expanded."
        )
    return path


def _changeable(path: str) -> str:
    if _absolute(path).startswith(("/proc/", "/sys/")):
        raise InvalidArgument(
            f"{path} is a setting of the kernel, which cannot be replaced atomically.",
            field="path",
            suggestion="Write to it with the tool bash.",
        )
    return path


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn what the kernel says about a path into an error that a model can act on."""
    try:
        yield
    except FileNotFoundError as err:
        raise NotFound(f"{path} does not exist.", field="path", suggestion="List its folder.") from err
    except OSError as err:
        if err.errno == 0:
            hint = "List it." if err.strerror == "folder" else "Only regular files can be read."
            raise InvalidArgument(f"{path} is a {err.strerror}.", field="path", suggestion=hint) from err
        hint = "Check its mode and owner, or ask for the call with another effect."
        denied = err.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        raise ToolError(f"{path}: {err.strerror}.", field="path", suggestion=hint if denied else "") from err


def _read(path: str, args: ReadArgs) -> tuple[text.Page, int]:
    with _explained(path), os.fdopen(search.open_regular(path), "rb") as file:
        page = text.read_page(file, first=args.offset, limit=args.limit, encoding=args.encoding)
        return page, os.fstat(file.fileno()).st_size


def _list(path: str, limit: int) -> tuple[list[str], int]:
    with _explained(path):
        names, count = listing.first_names(path, limit)
        return [line for line in (listing.entry_line(path, name) for name in names) if line], count


def _facts(path: str) -> dict[str, Any]:
    with _explained(path):
        return listing.facts_of(path)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What a search gave: its matches and its summary."""

    root: str
    matches: list[dict[str, Any]]
    summary: dict[str, Any]

    def result(self, lines: list[str]) -> Result:
        notes = []
        if self.summary["stopped"] == "limit":
            notes.append(f"(stopped at the limit of {len(lines)}; narrow the search)")
        if self.summary["stopped"] == "time":
            notes.append("(stopped when the time was up: not everything was searched; narrow the search)")
        if self.summary.get("unreadable"):
            notes.append(f"({self.summary['unreadable']} could not be read)")
        return Result(
            output="".join(line + "\n" for line in [*(lines or ["(nothing found)"]), *notes]),
            metadata={"path": self.root, **self.summary},
        )


async def _search(ctx: Context, request: dict[str, Any]) -> _Found:
    root = request["root"]
    with _explained(root):
        kind = search.kind_of((await asyncio.to_thread(Path(root).stat)).st_mode)
        if kind != "folder" and not (kind == "file" and request["mode"] == "grep"):
            raise InvalidArgument(f"{root} is a {kind}, which cannot be searched.", field="path")
    if ".." in request["glob"].split("/") or "\0" in request["glob"]:
        raise InvalidArgument("The pattern must not contain '..'.", field="pattern")
    seconds = min(SEARCH_S, ctx.timeout_s * 0.7)
    done = await run(
        [sys.executable, "-I", "-S", str(search.__file__)],
        timeout_s=seconds + min(1.0, ctx.timeout_s * 0.1),
        stdin=json.dumps({**request, "seconds": seconds}).encode(),
        limit_bytes=4 * search.OUTPUT_LIMIT_BYTES,
    )
    lines = [json.loads(line) for line in done.stdout.text().splitlines() if line.endswith("}")]
    if lines and "error" in lines[-1]:
        raise InvalidArgument(
            f"The pattern is not a regular expression: {lines[-1]['error']}.", field="pattern"
        )
    if lines and "done" in lines[-1]:
        return _Found(root=root, matches=lines[:-1], summary=lines[-1])
    if not done.timed_out:
        raise ToolError(f"The search in {root} failed: {done.stderr.text()[-500:].strip()}")
    if not lines:
        raise TimedOut(
            f"The search in {root} took longer than {seconds:g} s and found nothing until then.",
            suggestion="Use a simpler expression or a smaller folder.",
        )
    return _Found(root=root, matches=lines, summary={"stopped": "time", "matches": len(lines)})


def _encoded(content: str, encoding: str) -> bytes:
    if not text.known_encoding(encoding):
        raise InvalidArgument(f"There is no text encoding {encoding!r}.", field="encoding")
    try:
        data = content.encode(encoding)
    except UnicodeEncodeError as err:
        raise InvalidArgument(
            f"{content[err.start]!r} cannot be written in {encoding}.",
            field="encoding",
            suggestion="Use utf-8.",
        ) from err
    if len(data) > change.CONTENT_LIMIT_BYTES:
        raise InvalidArgument(
            f"The content is larger than {change.CONTENT_LIMIT_BYTES} bytes.", field="content"
        )
    return data


def _present(folder: int, name: str, path: str) -> Present | None:
    """The file that is to be replaced, whose content is needed for the diff and for undo."""
    was = change.look(folder, name, path)
    if was is not None and was.kind == "link":
        raise change.link_refused(path, path, os.path.realpath(path))
    if was is not None and was.kind != "file":
        raise InvalidArgument(
            f"{path} has {was.info.st_size} bytes; up to {change.CONTENT_LIMIT_BYTES} can be changed.",
            field="path",
        )
    return was


def _write(ctx: Context, path: str, data: bytes, mode: int | None, expect_sha256: str) -> Result:
    with _explained(path), change.folder_of(path) as (folder, name):
        was = _present(folder, name, path)
        if expect_sha256 and digest(was.data if was else None) != expect_sha256.lower():
            raise Conflict(
                f"{path} does not have the content that was expected.", suggestion="Read it again."
            )
        return _replace(ctx, folder, name, path, was, data, mode)


def _edit(ctx: Context, path: str, args: EditArgs) -> Result:
    with _explained(path), change.folder_of(path) as (folder, name):
        was = _present(folder, name, path)
        if was is None:
            raise NotFound(f"{path} does not exist.", field="path", suggestion="Write it instead.")
        data, count = edit.edited(path, was.data, args.old, args.new, every=args.all)
        result = _replace(ctx, folder, name, path, was, data, None)
        return Result(output=result.output, metadata={**result.metadata, "replaced": count})


def _replace(
    ctx: Context, folder: int, name: str, path: str, was: Present | None, data: bytes, mode: int | None
) -> Result:
    before = was.data if was else None
    unchanged = before == data and (mode is None or (was is not None and was.mode == mode))
    metadata: dict[str, Any] = {
        "path": path,
        "created": was is None,
        "changed": not unchanged,
        "size_bytes": len(data),
        "sha256": digest(data),
    }
    if unchanged:
        return Result(output=f"{path} has this content already.\n", metadata=metadata)
    metadata |= _keep(ctx, path, was, data)
    with _forget_on_failure(ctx):
        lost = change.put(folder, name, path, data, was=was, mode=mode)
    if lost:
        metadata["lost_attributes"] = lost
    if was is not None and was.info.st_nlink > 1:
        metadata["note"] = "The other hard links of this file keep the old content."
    return Result(output=text.unified_diff(path, before, data), metadata=metadata)


def _delete(ctx: Context, path: str) -> Result:
    with _explained(path), change.folder_of(path) as (folder, name):
        was = change.look(folder, name, path)
        if was is None:
            raise NotFound(f"{path} does not exist.", field="path", suggestion="List its folder.")
        kept = _keep(ctx, path, was, None)
        with _forget_on_failure(ctx):
            change.remove(folder, name, path, was)
    if was.kind == "file":
        output = (
            text.unified_diff(path, was.data, None) if was.data else f"Deleted {path}, which was empty.\n"
        )
    else:
        output = f"Deleted {path}, a {was.kind}.\n"
    return Result(output=output, metadata={"path": path, "size_bytes": was.info.st_size, **kept})


def _undo(ctx: Context, call_id: str) -> Result:
    store = _store()
    if store is None:
        raise NotFound("This worker keeps no previous content.", suggestion="Restore it from a backup.")
    record, data = store.find(call_id)
    path = _changeable(record.path)
    with _explained(path), change.folder_of(path) as (folder, name):
        now = change.look(folder, name, path)
        if digest(now.data if now else None) != record.sha256_after:
            raise Conflict(f"{path} was changed since that call.", suggestion="Read it and edit it by hand.")
        kept = _keep(ctx, path, now, data if record.existed else None)
        with _forget_on_failure(ctx):
            if now is not None and not record.existed:
                change.remove(folder, name, path, now)
            elif record.kind == "link":
                change.put_link(folder, name, path, data)
            elif record.existed:
                owner = (record.uid, record.gid)
                change.put(folder, name, path, data, was=now, mode=record.mode, owner=owner)
    after = data if record.existed else None
    diff = text.unified_diff(path, now.data if now else None, after)
    return Result(output=diff, metadata={"path": path, "undone": call_id, **kept})


def _store() -> UndoStore | None:
    folder = os.environ.get(UNDO_VARIABLE)
    return UndoStore(Path(folder)) if folder else None


def _keep(ctx: Context, path: str, was: Present | None, after: bytes | None) -> dict[str, Any]:
    """Keep what is there before it is changed; says in the metadata whether that was possible."""
    store = _store()
    if store is None:
        return {"previous_kept": False, "previous_note": "No folder for previous content is set up."}
    if was is not None and was.kind == "large file":
        return {"previous_kept": False, "previous_note": "The file is too large to be kept."}
    record = Record(path=path, existed=False, sha256_after=digest(after))
    if was is not None:
        record = Record(
            path=path,
            existed=True,
            kind=was.kind,
            mode=was.mode,
            uid=was.info.st_uid,
            gid=was.info.st_gid,
            sha256_before=digest(was.data),
            sha256_after=digest(after),
        )
    kept = store.keep(ctx.call_id, record, was.data if was else None)
    return {"previous_kept": kept} if kept else {"previous_kept": False, "previous_note": "It is too large."}


@contextmanager
def _forget_on_failure(ctx: Context) -> Iterator[None]:
    """A change that failed leaves nothing to take back."""
    try:
        yield
    except (OSError, LightagentError):
        store = _store()
        if store is not None:
            store.drop(ctx.call_id)
        raise
