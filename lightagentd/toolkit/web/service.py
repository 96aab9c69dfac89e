"""One question to a service on the web whose address the administrator can choose, answered in JSON.

The addresses are those of `[worker]` in the configuration: the pool hands them to its workers, and a worker
unit reads them itself when a tool that needs one is loaded.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from lightagentd.errors import ConfigError, NotFound, TimedOut, ToolError
from lightagentd.host.paths import default_paths
from lightagentd.tool import Context
from lightagentd.toolkit.web import fetch
from lightagentd.toolkit.web.guard import Guard, parse_url, rules_in_force

_log = logging.getLogger(__name__)
_ANSWER_BYTES = 256 << 10


def address_of(service: str) -> str:
    """The URL of `weather`, `places` or `location`."""
    if given := os.environ.get(f"LIGHTAGENT_{service.upper()}_URL"):
        return given
    from lightagentd.config import configuration  # only here: it takes long to import

    settings = configuration.Worker()
    try:
        settings = configuration.load(default_paths().config)[0].worker
    except (ConfigError, OSError) as err:
        _log.warning("the usual address of %s is used: the configuration cannot be read: %s", service, err)
    return str(getattr(settings, f"{service}_url"))


async def ask(ctx: Context, url: str, params: Mapping[str, str | int | float]) -> dict[str, Any]:
    """The object that a service answers. Raises ToolError, in words for somebody without a network."""
    target = parse_url(f"{url}{'&' if '?' in url else '?'}{urlencode(params)}" if params else url)
    request = fetch.Request(
        method="GET",
        target=target,
        headers={"accept": "application/json"},
        redirects=0,
        timeout_s=ctx.timeout_s,
        limit_bytes=_ANSWER_BYTES,
    )
    try:
        answer = await fetch.fetch(request, Guard(rules_in_force()))
    except (NotFound, TimedOut, ToolError) as err:
        raise ToolError(
            f"{target.host} cannot be reached, maybe because this machine has no network: {err.message}",
            suggestion="Look at the network with the tool net. [worker] in lightagentd.toml can name another"
            " service.",
        ) from err
    try:
        found = json.loads(answer.body)
    except ValueError as err:
        raise ToolError(f"{target.host} answered {answer.status} and no JSON.") from err
    if answer.status == 429:
        raise ToolError(f"{target.host} takes no more questions now (429).", suggestion="Ask again later.")
    if answer.status != 200 or not isinstance(found, dict):
        said = str(found.get("reason") or found.get("error") or "") if isinstance(found, dict) else ""
        raise ToolError(f"{target.host} answered {answer.status}{f': {said[:200]}' if said else ''}.")
    return found
