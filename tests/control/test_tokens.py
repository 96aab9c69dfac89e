"""Tokens and clients of the gateway: who they speak for, what they may do, and what nobody can forge."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lightagentd.daemon.daemon import Daemon
from tests.raw_varlink import Raw, code


async def made(daemon: Daemon, name: str = "web", **more: Any) -> str:
    """The text of a new token."""
    async with Raw(daemon.paths.socket) as raw:
        given = {"scopes": ["inspect", "prompt", "approve"], **more}
        reply = await raw.call("Tokens.Create", name=name, **given)
        assert code(reply) == "ok", reply
        return str(reply["parameters"]["created"]["secret"])


async def test_a_token_makes_the_connection_its_owners(daemon: Daemon) -> None:
    token = await made(daemon, scopes=["inspect"], expires_s=60)
    async with Raw(daemon.paths.socket) as raw:
        reply = await raw.call("Manager.Authenticate", token=token)
        identity = reply["parameters"]["identity"]
        assert identity | {"expires_us": 0} == {
            "uid": os.geteuid(),
            "user": "root",
            "name": "web",
            "scopes": ["inspect"],
            "agents": [],
            "expires_us": 0,
            "limits": {"requests_per_minute": 0, "streams": 0, "request_bytes": 0, "tokens_per_day": 0},
        }
        assert code(await raw.call("Manager.GetStatus")) == "ok"
        assert code(await raw.call("Sessions.Create", agent="ops")) == "permission_denied"
        assert code(await raw.call("Manager.Authenticate", token=token)) == "conflict"
        assert code(await raw.call("Tokens.List")) == "permission_denied"
