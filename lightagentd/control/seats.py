"""Tells where the programs of callers run, and so a person from a program that an agent's command started.

The daemon owns the `Seats`. As a unit of systemd it sees no process of others (ProtectProc= of
systemd.exec(5)), and asks systemd and logind, who know a process by its descriptor; elsewhere it reads /proc
(`host/seat.py`). Interfaces: org.freedesktop.systemd1(5), org.freedesktop.login1(5).
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import replace

from lightagentd.bus.connection import Bus
from lightagentd.control.authz import Caller
from lightagentd.control.bus_link import BusLink
from lightagentd.errors import LightagentError, NotFound, PermissionDenied, Unavailable
from lightagentd.host.seat import Seat, seat_of, unit_in
from lightagentd.text.reason import reason

BUS_PATIENCE_S = 5.0
_SYSTEMD = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_LOGIND, _LOGINS = "org.freedesktop.login1", "/org/freedesktop/login1"
_SESSION = re.compile(r"session-(.+)\.scope")
_USER = re.compile(r"user@(\d+)\.service")


class Seats:
    def __init__(self, link: BusLink | None) -> None:
        """`link` leads to the systemd that this daemon is a unit of; with None it reads /proc."""
        self._link = link

    async def person(self, caller: Caller) -> Seat:
        """The seat of a caller that no command of an agent started. Raises PermissionDenied.

        A command of root's can leave its unit first; then the seat says which unit it was in instead. Who
        has a token speaks for the person who made it.
        """
        if caller.grant is not None and caller.grant.name:
            return Seat(unit=caller.grant.origin)
        try:
            seat = await self._seat(caller)
        except (OSError, LightagentError) as err:
            raise PermissionDenied(
                f"It cannot be told where the program that asks for this runs: {reason(err)}.",
                suggestion="It must stay until the answer comes, and systemd must answer on the bus.",
            ) from err
        if seat.is_own:
            raise PermissionDenied(
                f"This needs a person, and it was asked from within {seat.unit}, where agents' commands run.",
                suggestion="Tell the user what to do; they do it themselves.",
            )
        return seat

    async def _seat(self, caller: Caller) -> Seat:
        """Raises OSError and LightagentError."""
        pidfd = caller.process.open_pidfd() if caller.process is not None else os.pidfd_open(caller.pid)
        try:
            if self._link is None:
                return seat_of(pidfd)
            bus = await self._link.settled(BUS_PATIENCE_S)
            if bus is None:
                raise Unavailable(self._link.problem or "the bus does not answer")
            unit = await _unit_of(bus, pidfd)
        finally:
            os.close(pidfd)
        seat = Seat(unit=unit_in(f"0::/{unit}"))
        with contextlib.suppress(
            LightagentError
        ):  # the rest is for the history; a machine may have no logind
            return await _with_login(bus, seat)
        return seat


async def _unit_of(bus: Bus, pidfd: int) -> str:
    """Empty for a process outside of systemd's tree. Raises LightagentError, also when it has ended."""
    try:
        _, unit, _ = await bus.call(*_SYSTEMD, "GetUnitByPIDFD", "h", [0], fds=[pidfd])
    except NotFound:
        return ""
    return str(unit)


async def _with_login(bus: Bus, seat: Seat) -> Seat:
    """The seat with the login that its unit belongs to, if it does. Raises LightagentError."""
    if user := _USER.fullmatch(seat.unit):
        return replace(seat, login_uid=int(user[1]))
    if session := _SESSION.fullmatch(seat.unit):
        manager = (_LOGIND, _LOGINS, f"{_LOGIND}.Manager")
        [path] = await bus.call(*manager, "GetSession", "s", [session[1]])
        found = await bus.properties(_LOGIND, path, f"{_LOGIND}.Session")
        return replace(
            seat, tty=found["TTY"], login_uid=found["User"][0], login_session=found["Audit"] or None
        )
    return seat
