"""The OpenAI endpoints of the gateway, with OpenAI's own SDK."""

from __future__ import annotations

from lightagentd.host.paths import Paths
from tests.gateway.rig import gateway
from tests.scripted_model import say


async def test_a_conversation_goes_on_in_one_session(paths: Paths) -> None:
    async with gateway(paths, [say("Hello ", "there"), say("Still here")]) as it:
        client = it.openai(await it.token())
        assert [model.id async for model in client.models.list()] == ["ops", "test"]
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
        first = await client.chat.completions.create(model="test", messages=messages)  # type: ignore[arg-type]
        assert first.choices[0].message.content == "Hello there"
