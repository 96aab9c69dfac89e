"""Copies of the history after each commit, and a daemon's folders as a kill right after one leaves them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from lightagentd.events.history import History
from lightagentd.host.paths import Paths

T = TypeVar("T")


@contextmanager
def copied(paths: Paths, monkeypatch: pytest.MonkeyPatch, look: Callable[[], T]) -> Iterator[list[T]]:
    """A block in which the history is copied after each commit; the list has what `look` gave then."""
    taken: list[T] = []
    commit: Callable[[History, Any], None] = History._commit

    def copying(self: History, batch: Any) -> None:
        commit(self, batch)
        folder = paths.state.parent / "copies" / f"{len(taken):03}"
        folder.mkdir(parents=True)
        self.environment.env.copy(str(folder))
        taken.append(look())

    with monkeypatch.context() as patched:
        patched.setattr(History, "_commit", copying)
        yield taken


@contextmanager
def killed_after(paths: Paths, number: int) -> Iterator[Paths]:
    """The folders as a kill after this commit leaves them."""
    state = replace(paths, state=paths.state.parent / f"state{number}")
    shutil.copytree(paths.state, state.state, ignore=shutil.ignore_patterns("history*", "*.sock"))
    state.history.mkdir(parents=True, exist_ok=True)
    shutil.copy(paths.state.parent / "copies" / f"{number:03}" / "data.mdb", state.history / "data.mdb")
    yield state
    shutil.rmtree(state.state)
