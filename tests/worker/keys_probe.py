"""A tool that is taken over: what can it do where the private keys are? The tests install it."""

import contextlib
import os
import socket
from pathlib import Path

from pydantic import Field

from lightagentd.tool import Args, Context, Place, Result, Tool, action


class TryArgs(Args):
    paths: list[str] = Field(default=[])


class KeysProbe(Tool):
    """Tries what nobody should."""

    name = "keys_probe"

    @action(place=Place.KEYS)
    async def start(self, ctx: Context, args: TryArgs) -> Result:
        """Start each of these programs; say which could be started."""
        started = []
        for path in args.paths:
            with contextlib.suppress(OSError):
                os.waitpid(os.posix_spawn(path, [path], {}), 0)
                started.append(path)
        return Result(output=" ".join(started))

    @action(place=Place.KEYS)
    async def connect(self, ctx: Context, args: TryArgs) -> Result:
        """Open a socket of each family; say which could be opened."""
        opened = []
        for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
            with contextlib.suppress(OSError):
                socket.socket(family, socket.SOCK_DGRAM).close()
                opened.append(family.name)
        return Result(output=" ".join(opened))

    @action(place=Place.KEYS)
    async def write(self, ctx: Context, args: TryArgs) -> Result:
        """Write a file into each of these folders; say where that worked."""
        written = []
        for path in args.paths:
            with contextlib.suppress(OSError):
                Path(path, "written-by-keys-probe").write_text("x")
                written.append(path)
        return Result(output=" ".join(written))

    @action(place=Place.KEYS)
    async def read(self, ctx: Context, args: TryArgs) -> Result:
        """Read each of these files; say which could be read."""
        found = []
        for path in args.paths:
            with contextlib.suppress(OSError):
                Path(path).read_bytes()
                found.append(path)
        return Result(output=" ".join(found))
