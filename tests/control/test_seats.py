"""Where callers run, as systemd and logind tell it, and who of them is a person."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from lightagentd.bus.connection import Call, Reply, Variant, connect
from lightagentd.control.authz import Caller
from lightagentd.control.bus_link import BusLink
from lightagentd.control.seats import Seats
from lightagentd.errors import PermissionDenied
from lightagentd.host.seat import Seat
from tests.fake_systemd import private_bus

ME = Caller(uid=os.getuid(), gid=os.getgid(), pid=os.getpid())
NOWHERE = "outside of systemd's tree"
PEOPLE = {
    "session-3.scope": Seat(unit="session-3.scope", tty="pts/4", login_uid=1000, login_session=7),
    "session-gone.scope": Seat(unit="session-gone.scope"),
    "user@1000.service": Seat(unit="user@1000.service", login_uid=1000),
    "ssh.service": Seat(unit="ssh.service"),
    "-.slice": Seat(),
    NOWHERE: Seat(),
}
OWN = ("lightagent-change@ops.service", "lightagent-observe@07.service")
SESSION = {"TTY": Variant("s", "pts/4"), "User": Variant("(uo)", [1000, "/"]), "Audit": Variant("u", 7)}


class Machine:
    """What systemd and logind say of the one process that is asked about."""

    unit = ""

    async def answer(self, call: Call) -> Reply:
        match call.member, call.args:
            case "GetUnitByPIDFD", _ if self.unit == NOWHERE:
                return Reply(error="org.freedesktop.systemd1.NoUnitForPID", args=["PID 7 belongs to none."])
            case "GetUnitByPIDFD", _ if self.unit:
                return Reply(signature="osay", args=["/unit", self.unit, b""])
            case "GetSession", ["3"]:
                return Reply(signature="o", args=["/session"])
            case "GetAll", _:
                return Reply(signature="a{sv}", args=[SESSION])
        return Reply(error="org.freedesktop.DBus.Error.Failed", args=["No such thing."])


@contextlib.asynccontextmanager
async def seats_on(machine: Machine) -> AsyncIterator[Seats]:
    with private_bus() as address:
        async with connect(address) as bus:
            bus.serve(machine.answer)
            for name in ("org.freedesktop.systemd1", "org.freedesktop.login1"):
                await bus.request_name(name)
            link = BusLink(address)
            await link.start()
            yield Seats(link)
            await link.close()


async def test_systemd_and_logind_tell_people_from_commands_of_agents() -> None:
    machine = Machine()
    async with seats_on(machine) as seats:
        for machine.unit, seat in PEOPLE.items():
            assert await seats.person(ME) == seat
        for machine.unit in OWN:
            with pytest.raises(PermissionDenied, match=f"needs a person.*{machine.unit}"):
                await seats.person(ME)
        machine.unit = ""
        with pytest.raises(PermissionDenied, match="cannot be told"):
            await seats.person(ME)


async def test_without_a_bus_nobody_counts_as_a_person_of_a_unit_and_proc_tells_it_elsewhere() -> None:
    link = BusLink("unix:path=/nonexistent")
    await link.start()
    with pytest.raises(PermissionDenied, match="cannot be told"):
        await Seats(link).person(ME)
    await link.close()
    assert await Seats(None).person(ME)
