"""The table of all endpoints."""

from __future__ import annotations

from lightagentd.gateway import answers, webhooks
from lightagentd.gateway.ai_sdk import chat as ai_sdk
from lightagentd.gateway.asked import Endpoint
from lightagentd.gateway.mcp import endpoint as mcp
from lightagentd.gateway.metrics import health, metrics
from lightagentd.gateway.openai import chat, models, responses

ENDPOINTS = (
    Endpoint(path="/healthz", methods={"GET": health}),
    Endpoint(path="/metrics", methods={"GET": metrics}),
    webhooks.ENDPOINT,
    answers.ENDPOINT,
    *models.ENDPOINTS,
    *chat.ENDPOINTS,
    *responses.ENDPOINTS,
    *ai_sdk.ENDPOINTS,
    *mcp.ENDPOINTS,
)
