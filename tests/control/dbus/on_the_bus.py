"""A daemon on a private bus that every user may use: what the tests of the objects on D-Bus are made of."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from lightagentd.control.dbus.objects import Objects
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.conftest import write
from tests.fake_systemd import private_bus
from tests.scripted_model import Script, ScriptedModel
from tests.talker import talker

ROOT = "/org/lightagent1"
AGENT = "org.lightagent1.Agent"
SESSION = "org.lightagent1.Session"
APPROVAL = "org.lightagent1.Approval"
MANAGER = "org.lightagent1.Manager"
TURN = "org.lightagent1.Turn"
MANAGED = "org.freedesktop.DBus.ObjectManager.GetManagedObjects"
GET, GET_ALL, SET = (f"org.freedesktop.DBus.Properties.{name}" for name in ("Get", "GetAll", "Set"))
INTROSPECT = "org.freedesktop.DBus.Introspectable.Introspect"
UNKNOWN_OBJECT = "org.freedesktop.DBus.Error.UnknownObject"


@contextlib.contextmanager
def open_bus() -> Iterator[str]:
    """As `private_bus`, on a socket that every user may connect to."""
    with private_bus() as address:
        path = Path(address.removeprefix("unix:path=").partition(",")[0])
        path.parent.chmod(0o755)
        yield address


@contextlib.asynccontextmanager
async def serving(
    paths: Paths, script: Script, *, toml: str = "", extra: str = ""
) -> AsyncIterator[tuple[Daemon, str]]:
    """A daemon with the agent `talker`, and the address of its bus."""
    with open_bus() as address:
        write(paths.config / "lightagentd.toml.d" / "50-bus.toml", f'[daemon]\nbus = "{address}"\n')
        if toml:
            write(paths.config / "lightagentd.toml", toml)
        async with ScriptedModel(script) as model:
            talker(paths, model, extra=extra)
            async with Daemon(paths) as daemon:
                yield daemon, address


def objects_of(daemon: Daemon) -> Objects:
    return daemon.dbus._objects


def session_path(session: str) -> str:
    """As sd_bus_path_encode(3) makes it: an underscore is `_5f`."""
    return f"{ROOT}/sessions/{session.replace('_', '_5f')}"
