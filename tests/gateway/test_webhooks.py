"""Requests to /hooks/NAME: what senders get."""

from __future__ import annotations

import json
import os
import pwd

from lightagentd.host.paths import Paths
from tests.agents.scripted import until
from tests.conftest import write
from tests.gateway.rig import gateway
from tests.scripted_model import say

SECRET = "a-secret-of-this-webhook"
JSON = {"content-type": "application/json"}
TRIGGER = f"""on = "webhook"
signed = "token"
secret_file = "SECRET"
template = "alertmanager"
agent = "test"
owner = "{pwd.getpwuid(os.geteuid()).pw_name}"
prompt = "why {{alertname}}"
session = "new"
"""


async def test_an_alert_has_an_agent_asked_and_others_get_the_right_status(paths: Paths) -> None:
    secret = write(paths.config / "hook.secret", SECRET)
    write(paths.config / "triggers" / "alerts.toml", TRIGGER.replace("SECRET", str(secret)))
    alert = {"status": "firing", "alerts": [{"labels": {"alertname": "DiskFull"}}]}
    with_token = {**JSON, "authorization": f"Bearer {SECRET}"}
    async with gateway(paths, [say("it is full")]) as it:
        http = it.over_tcp()

        async def status(name: str = "alerts", *, headers: dict[str, str], body: bytes = b"{}") -> int:
            answer = await http.post(f"/hooks/{name}", content=body, headers=headers)
            return answer.status_code

        taken = await http.post("/hooks/alerts", json=alert, headers={"x-webhook-token": SECRET})
        assert taken.status_code == 202
        await until(lambda: "why DiskFull" in str(it.daemon.model.requests))
        [stored] = it.daemon.stored(topic="trigger.webhook")
        assert stored.request_id == taken.json()["number"]
        assert stored.data is not None
        assert json.loads(stored.data["body"]) == alert
        assert await status(headers=JSON) == 401
        assert await status("nothing", headers=with_token) == 404
        assert await status(headers=with_token, body=b"{") == 400
        assert await status(headers=with_token, body=b"\xff") == 400
        assert await status(headers=with_token, body=b"[" * 1000 + b"]" * 1000) == 400
        assert await status(headers={**with_token, "content-type": "text/plain"}) == 415
        assert await status(headers=with_token, body=b'"' + b"x" * (1 << 20) + b'"') == 413
        assert (await http.get("/hooks/alerts")).status_code == 405
        assert await status(headers={**with_token, "origin": "http://evil.example"}) == 403
        assert await status(headers=with_token) == 202
