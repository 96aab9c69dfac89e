"""The client library: `Client` blocks, `aio.AsyncClient` is the same for asyncio."""
