"""A model over HTTP: connections (`http`), certificates (`tls`), events (`sse`), refusals (`refusals`)."""
