"""A further store of memories with mem0 (the package mem0ai, which the extra `mem0` of lightagentd installs).

    [memory.stores.vectors]
    kind = "mem0"
    settings.config = { llm = …, embedder = …, vector_store = … }    # as in mem0's documentation

A text is stored as it is, which asks the embedder alone; with `infer` mem0 has its model make facts of it.
Either way what it finds stands for the daemon's own entry, by the id in the metadata.
"""

from __future__ import annotations

import os
from typing import Any

_MOST = 50


class Mem0:
    """See `lightagentd.memory.stores`."""

    def __init__(self, config: dict[str, Any], *, infer: bool = False) -> None:
        os.environ.setdefault("MEM0_TELEMETRY", "False")  # it would tell its makers of each use
        from mem0 import Memory  # type: ignore[import-not-found,unused-ignore]

        self._memory = Memory.from_config(config)
        self._infer = infer

    def store(self, data: str, user_id: str, memory_id: str) -> None:
        self._memory.add(data, user_id=user_id, metadata={"memory_id": memory_id}, infer=self._infer)

    def retrieve(self, query: str, user_id: str) -> list[str]:
        """The ids of what fits, the best first."""
        found = self._memory.search(query, filters={"user_id": user_id}, top_k=_MOST)["results"]
        return list(dict.fromkeys(str((one.get("metadata") or {}).get("memory_id")) for one in found))

    def forget(self, memory_id: str, user_id: str) -> None:
        filters = {"user_id": user_id, "memory_id": memory_id}
        for one in self._memory.get_all(filters=filters, top_k=_MOST)["results"]:
            self._memory.delete(one["id"])
