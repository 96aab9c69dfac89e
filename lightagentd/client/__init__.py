"""The client library: `Client` blocks, `aio.AsyncClient` is the same for asyncio."""

from lightagentd.client.blocking import Client as Client
