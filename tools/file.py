"""Reads, finds and changes files.

Reading never blocks on a special file and never takes more memory than a page (`toolkit/files/text.py`); a
search is a process of its own with a time bound (`toolkit/files/search.py`); a change is atomic, follows no
symbolic link (`toolkit/files/change.py`), and keeps the previous content in the folder that the environment
variable LIGHTAGENT_UNDO names, so that it can be taken back (`toolkit/files/undo.py`).
"""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from lightagentd.host.process import run
from lightagentd.tool import (
    Args,
    Context,
    Effect,
    InvalidArgument,
    Place,
    Preview,
    Result,
    TimedOut,
    Tool,
    ToolError,
    action,
)
from lightagentd.toolkit.files import changes, listing, search, text, usage
from lightagentd.toolkit.files.paths import absolute, explained

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
    parents: bool = Field(default=False, description="Make the folders that are missing.")


class EditArgs(PathArgs):
    old: str = Field(min_length=1, description="The exact text to replace; unique, unless all is true.")
    new: str = Field(description="The text to put there.")
    all: bool = Field(default=False, description="Replace every occurrence.")


class UsageArgs(PathArgs):
    depth: int = Field(default=1, ge=1, le=5, description="How many levels of folders are shown.")
    top: int = Field(default=20, ge=1, le=200, description="How many folders are shown, the largest.")


class UndoArgs(Args):
    call_id: str = Field(description="The call whose change is taken back.")


class File(Tool):
    """Reads, finds and changes files."""

    name = "file"

    @action(taints=True)
    async def read(self, ctx: Context, args: ReadArgs) -> Result:
        """Read a text file with line numbers, page by page; a binary file as a hexadecimal dump."""
        path = absolute(args.path)
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

    @action(taints=True)
    async def list(self, ctx: Context, args: ListArgs) -> Result:
        """List a folder: mode, owner, size, time and name of each entry, hidden ones too."""
        path = absolute(args.path)
        lines, count = await asyncio.to_thread(_list, path, args.limit)
        if count > len(lines):
            lines.append(f"({count - len(lines)} more entries)")
        return Result(
            output="".join(line + "\n" for line in lines) or "(empty)\n",
            metadata={"path": path, "entries": count, "shown": min(count, args.limit)},
        )

    @action(taints=True)
    async def stat(self, ctx: Context, args: PathArgs) -> Result:
        """Say what a path is: kind, size, mode, owner, times, link target and extended attributes."""
        facts = await asyncio.to_thread(_facts, absolute(args.path))
        return Result(output="".join(f"{key}: {value}\n" for key, value in facts.items()), metadata=facts)

    @action(taints=True)
    async def glob(self, ctx: Context, args: GlobArgs) -> Result:
        """Find paths by a pattern; hidden files count, symbolic links are not followed."""
        root, pattern = absolute(args.path), args.pattern
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
            "root": absolute(args.path),
            "pattern": args.pattern,
            "glob": args.glob if "/" in args.glob or args.glob == "**" else f"**/{args.glob}",
            "ignore_case": args.ignore_case,
            "limit": args.limit,
        }
        found = await _search(ctx, request)
        return found.result([f"{item['path']}:{item['line']}:{item['text']}" for item in found.matches])

    @action(timeout_s=60.0, place=Place.INSPECT, taints=True)
    async def usage(self, ctx: Context, args: UsageArgs) -> Result:
        """Say which folders below a folder take the most space; stays on its file system, names no files."""
        path = absolute(args.path)
        walk = usage.Walk(path, owner=ctx.owner, depth=args.depth, seconds=ctx.timeout_s * 0.7)
        with explained(path):
            found = await asyncio.to_thread(walk.measure)
        output, metadata = usage.report(found, args.top)
        return Result(output=output, metadata=metadata)

    @action(effect=Effect.CHANGE, taints=True)
    async def write(self, ctx: Context, args: WriteArgs) -> Result:
        """Write a whole file atomically; one that exists keeps its mode and owner. Gives the diff."""
        data, mode = changes.encoded(args.content, args.encoding), _mode(args)
        more = data, mode, args.expect_sha256
        return await asyncio.to_thread(changes.write, ctx, args.path, *more, parents=args.parents)

    @action(effect=Effect.CHANGE, taints=True)
    async def edit(self, ctx: Context, args: EditArgs) -> Result:
        """Replace exact text in a file, atomically; it must occur once unless all is true. Gives the diff."""
        return await asyncio.to_thread(changes.replace, ctx, args.path, args.old, args.new, every=args.all)

    @action(effect=Effect.CHANGE, taints=True)
    async def delete(self, ctx: Context, args: PathArgs) -> Result:
        """Delete a file, or a symbolic link itself; not a folder. Gives the diff."""
        return await asyncio.to_thread(changes.delete, ctx, args.path)

    @action(effect=Effect.CHANGE, taints=True)
    async def undo(self, ctx: Context, args: UndoArgs) -> Result:
        """Take back what an earlier write, edit or delete changed, unless the file was changed since."""
        return await asyncio.to_thread(changes.undo, ctx, args.call_id)

    async def preview(self, ctx: Context, action: str, args: Any) -> Preview | None:
        """The unified diff of a change, as far as this worker may read what it rests on."""
        match action, args:
            case "write", WriteArgs():
                data, mode = changes.encoded(args.content, args.encoding), _mode(args)
                parents = args.parents
                return await asyncio.to_thread(changes.preview_write, args.path, data, mode, parents=parents)
            case "edit", EditArgs():
                texts = args.path, args.old, args.new
                return await asyncio.to_thread(changes.preview_edit, *texts, every=args.all)
            case "delete", PathArgs():
                return await asyncio.to_thread(changes.preview_delete, args.path)
            case "undo", UndoArgs():
                return await asyncio.to_thread(changes.preview_undo, ctx, args.call_id)
        return None


def _mode(args: WriteArgs) -> int | None:
    return int(args.mode, 8) if args.mode else None


def _read(path: str, args: ReadArgs) -> tuple[text.Page, int]:
    with explained(path), os.fdopen(search.open_regular(path), "rb") as file:
        page = text.read_page(file, first=args.offset, limit=args.limit, encoding=args.encoding)
        return page, os.fstat(file.fileno()).st_size


def _list(path: str, limit: int) -> tuple[list[str], int]:
    with explained(path):
        names, count = listing.first_names(path, limit)
        return [line for line in (listing.entry_line(path, name) for name in names) if line], count


def _facts(path: str) -> dict[str, Any]:
    with explained(path):
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
    with explained(root):
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
