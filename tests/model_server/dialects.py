"""The dialects that the server speaks: by path, what a model says in each, and errors in each."""

from __future__ import annotations

from types import ModuleType
from typing import Literal

from tests.model_server import chat, messages, responses
from tests.model_server.wire import Answer

Dialect = Literal["chat", "responses", "messages"]
DIALECTS: tuple[Dialect, ...] = ("chat", "responses", "messages")
_PATHS: dict[str, Dialect] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
}
_WRITTEN: dict[Dialect, ModuleType] = {"chat": chat, "responses": responses, "messages": messages}
"""Each has `pieces`, `error_event` and `error_body`."""


def of_path(path: str) -> Dialect | None:
    """The dialect of a request; None where no model answers."""
    place = path.partition("?")[0]
    return next((dialect for end, dialect in _PATHS.items() if place.endswith(end)), None)


def pieces(answer: Answer, dialect: Dialect | None) -> list[bytes]:
    """The body of an answer, cut where the server would cut it."""
    found: list[bytes] = []
    if dialect is not None and answer.said is not None:
        said = _WRITTEN[dialect].pieces(answer.said)
        found += said[: len(said) - answer.drop]
    if dialect is not None and answer.complaint is not None:
        module, what = _WRITTEN[dialect], answer.complaint
        plain = answer.wire.content_type == "application/json"
        write = module.error_body if plain else module.error_event
        found.append(write(what.message, what.kind, what.code))
    return [*found, *answer.body]
