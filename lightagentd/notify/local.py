"""Runs the command of a destination, or sendmail(8), as its user: `lightagent-away.service` starts it.

It becomes that user for good before anything else, and a command gets no more rights than they have.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import sys

from lightagentd.errors import LightagentError, NotFound, ToolError, Unavailable
from lightagentd.host import libc
from lightagentd.host.process import run
from lightagentd.unattended.owner import become


def main() -> None:
    """What is wrong is a sentence on standard error, with a status that is not 0."""
    parser = argparse.ArgumentParser(prog="lightagent-away-local", description="Run a command as a user.")
    parser.add_argument("--user", required=True)
    parser.add_argument("--timeout", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--id", required=True, help="the id of the message")
    parser.add_argument("--mail", action="store_true", help="it is sendmail, which may be a setgid program")
    parser.add_argument("argv", nargs="+")
    options = parser.parse_args()
    try:
        try:
            become(pwd.getpwnam(options.user))
        except KeyError:
            raise NotFound(f"There is no user {options.user[:60]!r}.") from None
        if not options.mail:
            libc.forbid_new_privileges()
        asyncio.run(_run(options.argv, options.timeout, options.id))
    except LightagentError as err:
        sys.stderr.write(f"{err} {err.suggestion}\n")
        sys.exit(err.exit_status)


async def _run(argv: list[str], timeout_s: float, number: str) -> None:
    """Raises Unavailable."""
    names = ("HOME", "USER", "LOGNAME")
    env = {"LIGHTAGENT_NOTIFY_ID": number, **{name: os.environ[name] for name in names if name in os.environ}}
    stdin = sys.stdin.buffer.read()
    try:
        done = await run(argv, timeout_s=timeout_s, env=env, stdin=stdin)
    except ToolError as err:
        raise Unavailable(f"{argv[0]} cannot be started: {err}") from err
    if done.timed_out or done.status != 0:
        said = " ".join(done.stderr.text().split())[:200]
        how = f"took longer than {timeout_s:g} s" if done.timed_out else f"ended with status {done.status}"
        raise Unavailable(f"{argv[0]} {how}{f': {said}' if said else ''}.")


if __name__ == "__main__":
    main()
