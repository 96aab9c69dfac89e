"""The client library: `Client`, `aio.AsyncClient` for asyncio, and `FlowBuilder`, which writes flows."""

from lightagentd.client.blocking import Client as Client
from lightagentd.client.flow import FlowBuilder as FlowBuilder
