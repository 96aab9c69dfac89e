"""Keeps the answers of the last requests in memory, to be retrieved; the conversations are the daemon's."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from lightagentd.errors import NotFound

KEPT, KEPT_BYTES = 256, 256 << 10
"""How many answers are kept, and how long the text of one may be."""


class Kept:
    """The newest answers by their ids, each for whoever it was given to."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[str, dict[str, Any]]] = OrderedDict()

    def keep(self, key: str, answer: dict[str, Any]) -> None:
        self._answers[answer["id"]] = key, answer
        while len(self._answers) > KEPT:
            self._answers.popitem(last=False)

    def get(self, key: str, name: str) -> dict[str, Any]:
        """Raises NotFound."""
        owner, answer = self._answers.get(name, ("", {}))
        if owner != key:
            raise NotFound("The gateway keeps no response with this id.", field="response_id")
        return answer

    def remove(self, key: str, name: str) -> None:
        """Raises NotFound."""
        self.get(key, name)
        del self._answers[name]
