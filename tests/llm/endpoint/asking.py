"""Asks a server with the client for chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lightagentd.errors import ModelError
from lightagentd.llm.dialects.chat_completions import ChatCompletions
from lightagentd.llm.http_client import HttpClient
from lightagentd.llm.protocol import Message, ModelSettings, Part, Request, TextDelta

ASK = Request(system="Be brief.", messages=[Message(role="user", content="hello")])


def client_of(**settings: Any) -> HttpClient:
    made = ModelSettings(provider="openai", model="x", **settings)
    return HttpClient(made, ChatCompletions(made))


async def asked(request: Request = ASK, **settings: Any) -> list[Part]:
    """All parts of one answer."""
    client = client_of(**settings)
    try:
        return [part async for part in client.stream(request)]
    finally:
        await client.close()


async def failed(**settings: Any) -> ModelError:
    """The error that a call ends with."""
    with pytest.raises(ModelError) as caught:
        await asked(**settings)
    assert "Traceback" not in caught.value.message
    return caught.value


def said(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta))
