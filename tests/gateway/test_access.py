"""Who gets at what through the gateway, where it listens, and what becomes of a turn that nobody reads."""

from __future__ import annotations

import asyncio
import os
import pwd
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from lightagentd.config.gateway import Gateway, addresses, allowed_hosts
from lightagentd.errors import ConfigError
from lightagentd.host.paths import Paths
from tests.gateway.rig import gateway
from tests.llm.endpoint.certificates import Authority
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import say

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def asks(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "test", "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes tokens for others")
async def test_users_cannot_get_at_each_others_conversations(paths: Paths) -> None:
    uids = sorted(one.pw_uid for one in pwd.getpwall() if one.pw_gid == OUTSIDERS_GID and one.pw_uid)[:2]
    async with gateway(paths, [say("the secret")]) as it:
        one, other = [it.over_tcp(await it.token(user=str(uid))) for uid in uids]
        answer = await one.post(RESPONSES, json={"model": "test", "input": "hi"})
        response, session = answer.json()["id"], answer.headers["x-lightagent-session"]
        assert (await it.call("Sessions.Get", session=session))["session"]["owner"] == uids[0]
        goes_on: dict[str, Any] = {"metadata": {"session": session}}
        tries = [
            await other.post(CHAT, json=asks(**goes_on)),
            await other.post(CHAT, json=asks(stream=True, **goes_on)),
            await other.post(
                RESPONSES, json={"model": "test", "input": "x", "previous_response_id": response}
            ),
            await other.get(f"{RESPONSES}/{response}"),
            await other.delete(f"{RESPONSES}/{response}"),
        ]
        assert [one.status_code for one in tries] == [404] * 5
        # The same words as those of the other user's conversation do not lead into it.
        said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the secret"}]
        again = await other.post(
            CHAT, json={**asks(), "messages": [*said, {"role": "user", "content": "go on"}]}
        )
        assert again.headers["x-lightagent-session"] != session
        assert "lightagent_sessions 1.0" in (await other.get("/metrics")).text
        assert (await one.get(f"{RESPONSES}/{response}")).json()["output"][0]["content"][0][
            "text"
        ] == "the secret"


async def test_a_turn_goes_on_without_its_client_where_that_is_wanted(paths: Paths) -> None:
    slow = say(*(f"word{number} " for number in range(60)), pause_s=0.01)
    async with gateway(paths, [slow], toml='on_disconnect = "continue"') as it:
        with pytest.raises(httpx.ReadTimeout):
            await it.http.post(CHAT, json=asks(), timeout=0.3)
        (session,) = (await it.call("Sessions.List"))["sessions"]
        await it.call("Sessions.Wait", session=session["id"], timeout_s=60)
        (*_, last) = (await it.call("Sessions.Messages", session=session["id"]))["messages"]
        assert last["content"].endswith("word59 ")


async def test_tls(paths: Paths, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("127.0.0.1")
    async with gateway(paths, [say("ok")], toml=f'tls_certificate = "{pem}"\ntls_key = "{pem}"') as it:
        context = ssl.create_default_context(cafile=str(authority.file))
        async with httpx.AsyncClient(verify=context, base_url=f"https://127.0.0.1:{it.port}") as client:
            assert (await client.get("/healthz")).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in await reader.read()
        writer.close()
        assert (await it.http.get("/healthz")).status_code == 200


def test_other_machines_need_a_certificate() -> None:
    for address in ("0.0.0.0:80", "[::]:80", "192.0.2.1:80", "agents.example.org:80"):
        with pytest.raises(ConfigError, match="certificate"):
            addresses(Gateway(listen=[address]))
    given = Gateway(listen=["127.0.0.2:80", "[::1]:81", "localhost:82"], hosts=["Agents.example.org"])
    assert addresses(given) == [("127.0.0.2", 80), ("::1", 81), ("localhost", 82)]
    assert {"127.0.0.2", "[::1]", "localhost", "agents.example.org"} <= allowed_hosts(given)
    for given_as, said in (
        ({"listen": ["8330"]}, "HOST:PORT, such as"),
        ({"listen": ["127.0.0.1:65536"]}, "HOST:PORT, such as"),
        ({"origins": ["*"]}, "https://chat.example.org"),
        ({"hosts": ["https://a.example"]}, "without scheme"),
    ):
        with pytest.raises(ValidationError, match=said):
            Gateway.model_validate(given_as)
    with pytest.raises(ConfigError, match="both"):
        addresses(Gateway(tls_certificate=Path("a")))
