"""A daemon whose agent `test` asks models of providers in the configuration, as administrators have them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.scripted import Scripted
from tests.conftest import write
from tests.scripted_model import ScriptedModel

NOWHERE = "http://127.0.0.1:9/v1"
"""Where nothing listens."""


@contextlib.asynccontextmanager
async def asking_providers(
    paths: Paths,
    providers: Mapping[str, Mapping[str, Any]],
    *,
    models: Sequence[str] = ("main/x",),
    model: ScriptedModel | None = None,
    toml: str = "",
    front: str = "",
) -> AsyncIterator[Scripted]:
    """A running daemon. `providers` are the tables by name, `models` the agent's model and its fallbacks;
    `model` is what `Scripted.model` is to be. Waits between tries are short where a table does not say.
    """
    tables = [toml]
    for name, table in providers.items():
        lines = [
            f"{key} = {json.dumps(value)}" for key, value in ({"max_retry_s": 0.05} | dict(table)).items()
        ]
        tables.append("\n".join([f"[models.providers.{name}]", *lines]))
    write(paths.config / "lightagentd.toml", "\n".join(tables) + "\n")
    own = f"model: {models[0]}\nfallback: {json.dumps(list(models[1:]))}\n{front}"
    write(paths.config / "agent" / "test" / "AGENT.md", f"---\n{own}\n---\nBe brief.\n")
    async with Daemon(paths) as daemon:
        yield Scripted(daemon=daemon, model=model or ScriptedModel([]))
