"""`lightagent-notify`: shows questions and finished prompts as desktop notifications.

It runs in the session of a person at a desktop, as a systemd user service or by hand. It has no rights of its
own: it asks the daemon as its user, so it shows and answers only what they could with `lactl`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import signal

from lightagentd import __version__
from lightagentd.desktop.board import Board
from lightagentd.desktop.daemon_link import DaemonLink
from lightagentd.desktop.screen import Screen
from lightagentd.host.systemd import notify

MIN_S = 30.0
"""Whoever waits for a shorter turn still looks at it."""


async def show(*, socket: str, min_s: float, everybody: bool) -> None:
    """Run until SIGTERM or SIGINT."""
    board = Board()
    link = DaemonLink(board, socket=socket, uid=os.getuid(), min_s=min_s, everybody=everybody)
    screen = Screen(board, link.answer)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(link.run()), group.create_task(screen.run())]
        tasks.append(group.create_task(_say_when_ready(link)))
        await stop.wait()
        for task in tasks:
            task.cancel()


async def _say_when_ready(link: DaemonLink) -> None:
    """Report readiness when no further event of a running daemon can be missed."""
    await link.tried.wait()
    notify("READY=1")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="lightagent-notify",
        description="Show questions and finished prompts of the agent daemon as desktop notifications.",
        epilog="It runs in the foreground until it is ended. As a service of your desktop session: "
        "systemctl --user enable --now lightagent-notify",
    )
    parser.add_argument("--version", action="version", version=f"lightagent-notify {__version__}")
    parser.add_argument(
        "--socket", metavar="PATH", default="", help="the daemon's socket (default: as lactl finds it)"
    )
    parser.add_argument(
        "--min-seconds",
        metavar="N",
        type=_seconds,
        default=MIN_S,
        help="tell of prompts that took at least N seconds (default: %(default)g). Those that ran "
        "unattended are always told of",
    )
    parser.add_argument(
        "--everybody",
        action="store_true",
        help="show other users' questions and prompts too, where you may see them",
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    asyncio.run(
        show(
            socket=options.socket,
            min_s=options.min_seconds,
            everybody=options.everybody,
        )
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 on")
    return value


if __name__ == "__main__":
    main()
