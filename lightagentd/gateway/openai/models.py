"""`/v1/models`: the agents that a client may use, each as a model."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from lightagentd.gateway.asked import Asked, Endpoint


async def listed(asked: Asked) -> Response:
    """GET /v1/models."""
    async with asked.caller() as caller:
        agents = (await caller.client.call("Agents.List"))["agents"]
    return JSONResponse({"object": "list", "data": [_model(agent) for agent in agents]})


async def one(asked: Asked) -> Response:
    """GET /v1/models/{model}."""
    async with asked.caller() as caller:
        agent = (await caller.client.call("Agents.Get", name=asked.parameters["model"]))["agent"]
    return JSONResponse(_model(agent))


def _model(agent: dict[str, Any]) -> dict[str, Any]:
    return {"id": agent["name"], "object": "model", "created": 0, "owned_by": "lightagentd"}


ENDPOINTS = (
    Endpoint(path="/v1/models", methods={"GET": listed}),
    Endpoint(path="/v1/models/{model}", methods={"GET": one}),
)
