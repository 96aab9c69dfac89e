"""Writes, edits and deletes one file, previews such a change, and undoes it.

The previous content is kept in the folder named by the environment variable LIGHTAGENT_UNDO (`undo`). For an
approved call the preview must still be true (`preview`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

from lightagentd.config.terms import LONGEST_S
from lightagentd.errors import Conflict, InvalidArgument, LightagentError, NotFound
from lightagentd.tool import Context, Preview, Result
from lightagentd.toolkit.files import change, edit, preview, text
from lightagentd.toolkit.files.change import Present
from lightagentd.toolkit.files.paths import changeable, explained
from lightagentd.toolkit.files.search import shown
from lightagentd.toolkit.files.undo import Record, UndoStore, digest

UNDO_VARIABLE = "LIGHTAGENT_UNDO"
UNDOES = "undoes"
"""Beside the facts of the file that an undo rests on: what it puts back, and where."""


def encoded(content: str, encoding: str) -> bytes:
    """The bytes of a new content. Raises InvalidArgument."""
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
    _check_present(path, was)
    return was


def _absent(path: str) -> NotFound:
    return NotFound(f"{path} does not exist.", field="path", suggestion="List its folder, or write it.")


def _check_present(path: str, was: Present | None) -> None:
    """Raise for what cannot be replaced by new content."""
    if was is not None and was.kind == "link":
        raise change.link_refused(path, path, os.path.realpath(path))
    if was is not None and was.kind != "file":
        raise InvalidArgument(
            f"{path} has {was.info.st_size} bytes; up to {change.CONTENT_LIMIT_BYTES} can be changed.",
            field="path",
        )


def preview_write(path: str, data: bytes, mode: int | None, *, parents: bool = False) -> Preview:
    """What `write` would do. Raises what it would raise."""
    changeable(path)
    note = "" if mode is None else f"Its mode becomes {mode:04o}.\n"
    if parents and (missing := _missing(path)):
        made = f"Makes {', '.join(map(shown, missing))}.\n"
        expected = {"kind": "nothing", "folders": missing}
        return Preview(text=made + text.unified_diff(path, None, data) + note, expected=expected)

    def diff(was: Present | None) -> str:
        _check_present(path, was)
        return text.unified_diff(path, was.data if was else None, data) + note

    with explained(path):
        return preview.preview(path, diff, preview.new_content(path, data) + note)


def _missing(path: str) -> list[str]:
    """The folders that would be made, as far as this worker sees."""
    with explained(path):
        try:
            return [] if preview.is_partly_seen(path) else change.missing_folders(path)
        except PermissionError:
            return []


def preview_edit(path: str, old: str, new: str, *, every: bool) -> Preview:
    """What `replace` would do. Raises what it would raise."""
    changeable(path)

    def diff(was: Present | None) -> str:
        _check_present(path, was)
        if was is None:
            raise _absent(path)
        data, _ = edit.edited(path, was.data, old, new, every=every)
        return text.unified_diff(path, was.data, data)

    how = "Every occurrence of a text" if every else "A text that must occur once"
    with explained(path):
        texts = text.unified_diff(path, old.encode(errors="replace"), new.encode(errors="replace"))
        return preview.preview(path, diff, f"{how} in it would be replaced:\n{texts}")


def preview_delete(path: str) -> Preview:
    """What `delete` would do. Raises what it would raise."""
    changeable(path)

    def diff(was: Present | None) -> str:
        if was is None:
            raise _absent(path)
        if was.kind == "file" and was.data:
            return text.unified_diff(path, was.data, None)
        return f"{path}, a {was.kind} of {was.info.st_size} bytes, would be deleted.\n"

    with explained(path):
        return preview.preview(path, diff, f"{path} would be deleted.\n")


def preview_undo(ctx: Context, call_id: str) -> Preview:
    """What `undo` would do. Raises what it would raise; says so where this worker has no previous content."""
    store = _store()
    if store is None:
        kept = "What was kept cannot be read with the effect observe."
        return Preview(text=f"Takes back what the call {call_id} changed, unless it changed since. {kept}\n")
    record, data = store.find(call_id, ctx.owner)
    path = changeable(record.path)
    undoes = {UNDOES: _content_of(record)}
    what = f"Takes back the {record.action or 'change'} of {shown(path)} by the call {call_id}.\n"
    if record.folders:
        verb = "Makes" if record.existed else "Removes, unless something else is in them:"
        what += f"{verb} {', '.join(map(shown, record.folders))}.\n"

    def diff(was: Present | None) -> str:
        _check_stands(record, path, was)
        if record.kind == "link":
            return f"{what}It becomes a symbolic link to {os.fsdecode(data)!r} again.\n"
        after = data if record.existed else None
        return what + text.unified_diff(path, was.data if was else None, after) + _rights(record, was)

    with explained(path):
        if record.existed and record.folders and change.missing_folders(path):
            return Preview(text=diff(None), expected=preview.facts_of(None) | undoes)
        seen = preview.preview(path, diff, what)
        return with_fields(seen, expected=seen.expected | undoes)


def _rights(record: Record, was: Present | None) -> str:
    """The mode and the owner that an undo brings back, where they are others than now."""
    before = (record.mode, record.uid, record.gid)
    if not record.existed or (was and before == (was.mode, was.info.st_uid, was.info.st_gid)):
        return ""
    return f"Its mode becomes {record.mode:04o}, its owner {record.uid}:{record.gid}.\n"


def write(
    ctx: Context, path: str, data: bytes, mode: int | None, expect_sha256: str, *, parents: bool = False
) -> Result:
    """Give a file this content; an `expect_sha256` that is not empty must be that of the present one. With
    `parents`, make the folders that are missing.
    """
    changeable(path)
    made: list[str] = []
    with explained(path), change.folder_of(path, made if parents else None) as (folder, name):
        was = _present(folder, name, path)
        preview.check(ctx.expected, path, was, made)
        if expect_sha256 and digest(was.data if was else None) != expect_sha256.lower():
            raise Conflict(
                f"{path} does not have the content that was expected.", suggestion="Read it again."
            )
        return _replace(ctx, "write", folder, name, path, was, data, mode, made)


def replace(ctx: Context, path: str, old: str, new: str, *, every: bool) -> Result:
    """Replace exact text in a file."""
    changeable(path)
    with explained(path), change.folder_of(path) as (folder, name):
        was = _present(folder, name, path)
        preview.check(ctx.expected, path, was)
        if was is None:
            raise _absent(path)
        data, count = edit.edited(path, was.data, old, new, every=every)
        result = _replace(ctx, "edit", folder, name, path, was, data, None)
        return Result(output=result.output, metadata={**result.metadata, "replaced": count})


def _replace(
    ctx: Context,
    action: str,
    folder: int,
    name: str,
    path: str,
    was: Present | None,
    data: bytes,
    mode: int | None,
    made: Sequence[str] = (),
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
    metadata |= _keep(ctx, action, path, was, data, made)
    with _forget_on_failure(ctx):
        lost = change.put(folder, name, path, data, was=was, mode=mode)
    if lost:
        metadata["lost_attributes"] = lost
    if was is not None and was.info.st_nlink > 1:
        metadata["note"] = "The other hard links of this file keep the old content."
    return Result(output=text.unified_diff(path, before, data), metadata=metadata)


def delete(ctx: Context, path: str) -> Result:
    """Delete a file or a symbolic link."""
    changeable(path)
    with explained(path), change.folder_of(path) as (folder, name):
        was = change.look(folder, name, path)
        preview.check(ctx.expected, path, was)
        if was is None:
            raise _absent(path)
        kept = _keep(ctx, "delete", path, was, None)
        with _forget_on_failure(ctx):
            change.remove(folder, name, path, was)
    if was.kind == "file":
        output = (
            text.unified_diff(path, was.data, None) if was.data else f"Deleted {path}, which was empty.\n"
        )
    else:
        output = f"Deleted {path}, a {was.kind}.\n"
    return Result(output=output, metadata={"path": path, "size_bytes": was.info.st_size, **kept})


def undo(ctx: Context, call_id: str) -> Result:
    """Take back what an earlier call changed."""
    store = _store()
    if store is None:
        raise NotFound("This worker keeps no previous content.", suggestion="Restore it from a backup.")
    record, data = store.find(call_id, ctx.owner)
    path = changeable(record.path)
    again: list[str] | None = [] if record.existed and record.folders else None
    with explained(path), change.folder_of(path, again) as (folder, name):
        now = change.look(folder, name, path)
        expected = dict(ctx.expected)
        if (undoes := expected.pop(UNDOES, None)) is not None and undoes != _content_of(record):
            raise Conflict(f"What is kept for the call {call_id} is not what was approved to be put back.")
        preview.check(expected, path, now)
        if (now is None) != record.existed and digest(now.data if now else None) == record.sha256_before:
            return Result(output=f"{path} is as it was before that call.\n", metadata={"path": path})
        _check_stands(record, path, now)
        kept = _keep(ctx, "undo", path, now, data if record.existed else None, again or record.folders)
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
    if not record.existed and (left := change.remove_folders(record.folders)):
        diff += f"{', '.join(map(shown, left))} stays: something else is in there.\n"
    return Result(output=diff, metadata={"path": path, "undone": call_id, **kept})


def _content_of(record: Record) -> dict[str, Any]:
    """What undoing it puts back, and where."""
    return {"path": record.path, "sha256": record.sha256_before}


def _check_stands(record: Record, path: str, now: Present | None) -> None:
    """Raise Conflict when the file is not as the call left it."""
    if digest(now.data if now else None) != record.sha256_after or (now and now.kind == "large file"):
        raise Conflict(
            f"{path} was changed since that call: {_described(now)}.",
            suggestion="It is left as it is. Read it and edit it by hand.",
        )


def _described(now: Present | None) -> str:
    """What is there, for somebody who expected something else."""
    if now is None:
        return "nothing is there now"
    if now.kind == "link":
        return f"now it is a symbolic link to {os.fsdecode(now.data)!r}"
    changed = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now.info.st_mtime))
    return f"now it is a {now.kind} of {now.info.st_size} bytes, written at {changed}"


def _store() -> UndoStore | None:
    folder = os.environ.get(UNDO_VARIABLE)
    return UndoStore(Path(folder)) if folder else None


def _keep(
    ctx: Context,
    action: str,
    path: str,
    was: Present | None,
    after: bytes | None,
    folders: Sequence[str] = (),
) -> dict[str, Any]:
    """Keep what is there before it is changed; says in the metadata whether that was possible."""
    kept = _try_to_keep(ctx, action, path, was, after, folders)
    if not kept["previous_kept"] and ctx.expected.get(preview.MUST_KEEP):
        raise Conflict(
            f"{path} cannot be kept as it is, so the change could not be taken back: {kept['previous_note']}",
            suggestion="Nothing was changed. Name a command that takes it back: --inverse 'COMMAND'",
        )
    return kept


def _try_to_keep(
    ctx: Context, action: str, path: str, was: Present | None, after: bytes | None, folders: Sequence[str]
) -> dict[str, Any]:
    store = _store()
    if store is None:
        return {"previous_kept": False, "previous_note": "No folder for previous content is set up."}
    if was is not None and was.kind == "large file":
        return {"previous_kept": False, "previous_note": "The file is too large to be kept."}
    record = Record(
        path=path,
        existed=was is not None,
        sha256_after=digest(after),
        owner=ctx.owner,
        session=ctx.session,
        action=action,
        folders=[*folders],
    )
    if was is not None:
        there = {
            "kind": was.kind,
            "mode": was.mode,
            "uid": was.info.st_uid,
            "gid": was.info.st_gid,
            "sha256_before": digest(was.data),
        }
        record = record.model_copy(update=there)
    for_s = LONGEST_S if ctx.expected.get(preview.MUST_KEEP) else 0
    if store.keep(ctx.call_id, record, was.data if was else None, for_s=for_s):
        return {"previous_kept": True}
    return {"previous_kept": False, "previous_note": "There is no room to keep it."}


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
