"""Completes with Tab: commands and their arguments; in a prompt, paths and names of tools, skills and agents.

The names are fetched from the daemon now and then, so that Tab itself does not wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightagentd.cli.chatting.commands import COMMANDS, find
from lightagentd.cli.chatting.daemon import Daemon
from lightagentd.errors import LightagentError

PLAN_WORDS = ("on", "off", "progress", "show", "apply", "retry", "skip", "abort", "set")
_FILES_MAX = 200
_PATH_BEGINS = ("/", "./", "../", "~/")


class Completions:
    """The names that the daemon knew when it was last asked."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._names: dict[str, list[str]] = {}

    async def refresh(self) -> None:
        """Ask again; names that cannot be fetched now stay as they are."""
        for kind, method, field in (
            ("agent", "Agents.List", "name"),
            ("session", "Sessions.List", "id"),
            ("model", "Models.List", "model"),
            ("tool", "Tools.List", "name"),
            ("skill", "Skills.List", "name"),
        ):
            try:
                async with self._daemon.client(timeout_s=5.0) as client:
                    found: list[dict[str, Any]] = next(iter((await client.call(method)).values()))
            except LightagentError:
                continue
            self._names[kind] = sorted(each[field] for each in found if str(each[field]).isprintable())

    def of(self, before: str) -> Iterable[tuple[str, str]]:
        """The completions of this text: the word to be replaced, and the replacements."""
        line = before.rpartition("\n")[2]
        if before.startswith("/") and not before.startswith("//"):
            name, space, argument = before[1:].partition(" ")
            if not space:
                yield from _matching(f"/{name}", [f"/{command.name}" for command in COMMANDS])
                return
            yield from self._of_command(name, argument)
            return
        word = line.rpartition(" ")[2].removeprefix("/" if line.startswith("//") else "")
        if word.startswith("@"):
            yield from ((f"@{path}", _named(found)) for path, found in files(word[1:]))
        elif word.startswith(_PATH_BEGINS):
            yield from files(word)
        elif len(word) > 1:
            known = [name for kind in ("agent", "tool", "skill") for name in self._names.get(kind, [])]
            yield from _matching(word, sorted(set(known)))

    def _of_command(self, name: str, argument: str) -> Iterable[tuple[str, str]]:
        try:
            kind = find(name).completes
        except LightagentError:
            return
        if kind == "plan":
            verb, space, rest = argument.partition(" ")
            yield from files(rest) if space and verb == "set" else _matching(argument, PLAN_WORDS)
        elif kind == "file":
            yield from files(argument)
        elif kind == "command":
            yield from _matching(argument, [command.name for command in COMMANDS])
        else:
            yield from _matching(argument, self._names.get(kind, []))


def _matching(word: str, names: Iterable[str]) -> Iterable[tuple[str, str]]:
    return ((word, name) for name in names if name.startswith(word) and name != word)


def _named(path: str) -> str:
    """A path as it stands after the @ of a prompt."""
    return f'@"{path}"' if " " in path else f"@{path}"


def files(word: str) -> Iterable[tuple[str, str]]:
    """The files and folders that a path may go on with; those that cannot be shown are left out."""
    folder, slash, begin = word.rpartition("/")
    try:
        where = Path(f"{folder}{slash}" or ".").expanduser()
        with os.scandir(where) as entries:
            found = [
                (entry.name, entry.is_dir())
                for entry, _ in zip(entries, range(_FILES_MAX * 10), strict=False)
                if entry.name.startswith(begin) and (begin or not entry.name.startswith("."))
            ]
    except (OSError, RuntimeError, ValueError):
        return
    for name, is_folder in sorted(found)[:_FILES_MAX]:
        if name.isprintable():
            yield word, f"{folder}{slash}{name}{'/' if is_folder else ''}"
