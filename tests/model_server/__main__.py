"""The server by hand: `python -m tests.model_server --port 8999 hello cut_in_body status_429`.

Each request takes the next of the named answers, and the last one is repeated: `hello`, `call` (of
file_stat), `think`, or a fault; `--list` prints their names. What was asked is printed, one line each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from tests.model_server import faults
from tests.model_server.said import Said, call, say
from tests.model_server.server import Asked, ModelServer, Scripted

_ANSWERS: dict[str, Said] = {
    "hello": say("Hello", " there."),
    "call": call("file_stat", {"path": "/etc/hostname"}),
    "think": say("Four.", thinking=("Two and ", "two.")),
}


def _scripted(name: str) -> Scripted:
    return _ANSWERS[name] if name in _ANSWERS else faults.FAULTS[name]()


async def _main(port: int, names: list[str]) -> None:
    def script(asked: Asked) -> Scripted:
        name = names[min(asked.number, len(names) - 1)]
        print(f"{asked.number}: {asked.path}, answered with {name}", flush=True)
        return _scripted(name)

    async with ModelServer(script, port, keep_asked=False) as server:
        print(server.base_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    known = [*_ANSWERS, *faults.FAULTS]
    parser = argparse.ArgumentParser(prog="python -m tests.model_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the names of the answers")
    parser.add_argument("names", nargs="*", choices=[*known, []], metavar="NAME")
    options = parser.parse_args()
    if options.list:
        print("\n".join(known))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_main(options.port, options.names or ["hello"]))
