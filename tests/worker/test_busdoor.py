"""The bus door: a command's one Unix socket leads to a real bus filter, and every other one nowhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from lightagentd.config import configuration
from lightagentd.tool import Effect
from lightagentd.worker import busdoor, sandbox, seccomp
from lightagentd.worker.leftovers import Ends
from lightagentd.worker.pool import Pool
from tests.fake_systemd import MANAGER, ROOT, SYSTEMD, FakeSystemd, FakeUnit, fake_systemd, private_bus
from tests.worker import running
from tests.worker.attacks import FAMILIES, UNIX, arrived
from tests.worker.conftest import ABI, CONFINED, KINDS
from tests.worker.running import PATIENCE_S, marked, marker, shell

REPOSITORY = Path(__file__).resolve().parents[2]
REFUSED = ("org.freedesktop.UDisks2", "org.example.Unlisted")
END_BY_THEMSELVES = {Effect.OBSERVE: "org.freedesktop.hostname1", Effect.REACH: "org.freedesktop.timedate1"}
"""One for each effect: the bus starts a service once, and then waits for it to answer."""
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not seccomp.supported(), reason="the filter does not know this machine"),
]

HELLO = """
import fcntl, os, socket, sys
def bus(path="/run/dbus/system_bus_socket"):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sock.sendall(b"\\\\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\\\\r\\\\n")
    return sock
""".replace("\\\\", "\\")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Pool, FakeSystemd]]:
    """A pool whose commands see a private bus with a fake systemd in the system bus' place."""
    if shutil.which("xdg-dbus-proxy") is None:
        if os.environ.get("CI"):
            pytest.fail("xdg-dbus-proxy is not installed, and CI must not skip the tests that need it")
        pytest.skip("xdg-dbus-proxy is not installed")
    with running.folders() as paths, private_bus(*REFUSED, *END_BY_THEMSELVES.values()) as address:
        bus = Path(address.removeprefix("unix:path=").partition(",")[0])
        bus.parent.chmod(0o755)
        bus.chmod(0o777)
        backend = await sandbox.choose("auto", paths, landlock_abi=ABI[request.param])
        if not backend.enforced:
            pytest.skip(f"no sandbox here: {backend.reason}")
        async with fake_systemd(address, FakeUnit(name="web.service")) as fake:
            pool = Pool(configuration.Worker(max_per_effect=1), paths)
            await pool.start()
            source = running.local(pool)
            await source.bus.close()
            await source.bus.start(sandbox.switch_user_argv(), bus)
            assert source.bus.path is not None, source.bus.problem
            source.backend = backend
            for effect in CONFINED:  # so that its processes do not count as left over
                assert await shell(pool, "echo ready", effect) == "ready\n"
            try:
                yield pool, fake
            finally:
                await pool.close()


@pytest.fixture
def pool(served: tuple[Pool, FakeSystemd]) -> Pool:
    return served[0]


@contextmanager
def services(folder: Path, name: str) -> Iterator[list[socket.socket]]:
    """Sockets of another service, of every kind, open to everybody."""
    with ExitStack() as stack:
        made = []
        for kind, address in (
            (socket.SOCK_STREAM, str(folder / f"{name}-stream")),
            (socket.SOCK_STREAM, str(folder / f"{name}-with-a-path-longer-than-28-bytes")),
            (socket.SOCK_SEQPACKET, str(folder / f"{name}-packets")),
            (socket.SOCK_DGRAM, str(folder / f"{name}-datagrams")),
            (socket.SOCK_STREAM, f"\0{folder.name}-{name}"),
            (socket.SOCK_STREAM, f"\0{folder.name}-{name}-longer-than-28-bytes"),
        ):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            sock.bind(address)
            if not address.startswith("\0"):
                Path(address).chmod(0o777)
            if kind != socket.SOCK_DGRAM:
                sock.listen()
            sock.setblocking(False)
            made.append(sock)
        yield made


ATTACK = """
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
folder, name = sys.argv[1:]
paths = [name + "-stream", name + "-with-a-path-longer-than-28-bytes", name + "-packets", name + "-datagrams"]
os.chdir(folder)
addresses = [folder + "/" + path for path in paths] + paths  # those are too short for the worker to be asked
short = "\\0" + folder.rpartition("/")[2] + "-" + name
addresses += [short, short + "-longer-than-28-bytes"]
def attempt(what, *arguments):
    try:
        what(*arguments)
    except OSError as err:
        print(err)
for address in addresses:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM, socket.SOCK_RAW):
        made = []
        attempt(lambda: made.append(socket.socket(socket.AF_UNIX, kind)))
        attempt(lambda: made.extend(socket.socketpair(socket.AF_UNIX, kind)))
        for sock in made:
            sock.settimeout(1)
            attempt(sock.connect, address)
            attempt(sock.sendto, b"x", address)
            attempt(sock.sendmsg, [b"x"], [], 0, address)
            libc.connect(sock.fileno(), struct.pack("=H14x", 0), 16)
            attempt(sock.shutdown, socket.SHUT_RDWR)
            attempt(sock.connect, address)
            raw = struct.pack("=H", 1) + address.encode() + b"\\0" * 110
            for length in (len(address) + 2, len(address) + 3, 110, 28, 128, -1):
                libc.connect(sock.fileno(), raw, length)
            sock.close()
"""


@pytest.mark.parametrize("effect", CONFINED)
async def test_no_socket_of_another_service_is_reached_beside_the_bus(
    pool: Pool, victims: Path, effect: Effect
) -> None:
    with services(victims, "before") as before:
        assert await shell(pool, "echo started", effect) == "started\n"
        with services(victims, "after") as after:
            for name in ("before", "after"):
                stream, datagram = victims / f"{name}-stream", victims / f"{name}-datagrams"
                abstract = f"{victims.name}-{name}"
                await shell(pool, f"python3 -c '{ATTACK}' {victims} {name}", effect)
                await shell(pool, f"python3 -c '{UNIX}' {stream} {datagram} {abstract}", effect)
                await shell(
                    pool,
                    f"curl -sm 2 --unix-socket {stream} http://x/; logger -u {datagram} x;"
                    f" curl -sm 2 --abstract-unix-socket {abstract} http://x/;"
                    f" nc -w 1 -U {stream} </dev/null; export DBUS_SYSTEM_BUS_ADDRESS=unix:path={stream};"
                    " timeout 2 busctl list",
                    effect,
                )
            assert [arrived(sock) for sock in (*before, *after)] == [False] * 12


@pytest.mark.parametrize("effect", CONFINED)
async def test_connecting_elsewhere_is_said_to_be_refused(pool: Pool, effect: Effect) -> None:
    """An address of the length of IPv4's or IPv6's answers EISCONN: the worker cannot be asked of each."""
    said = await shell(
        pool,
        """python3 -c '
import socket
found = set()
for size in {*range(2, 60)} - {13, 25}:  # with family and NUL as long as other addresses
    with socket.socket(socket.AF_UNIX) as sock:
        found.add(sock.connect_ex("/" + "x" * (size - 1)))
print(found)
'""",
        effect,
    )
    assert said == "{13}\n"


@pytest.mark.parametrize("effect", CONFINED)
async def test_a_socket_that_is_not_the_bus_cannot_listen(pool: Pool, effect: Effect) -> None:
    said = await shell(
        pool,
        """python3 -c '
import os, socket
sock = socket.socket(socket.AF_UNIX)
sock.bind(os.environ["TMPDIR"] + "/own")
try:
    sock.listen()
except OSError as err:
    print(err.errno)
'""",
        effect,
    )
    assert said == "13\n"


async def test_the_families_are_those_of_the_effect_and_the_bus(pool: Pool) -> None:
    assert (await shell(pool, f"python3 -c '{FAMILIES}'")).split() == ["UNIX", "NETLINK"]
    said = await shell(pool, f"python3 -c '{FAMILIES}'", Effect.REACH)
    assert said.split() == ["UNIX", "INET", "INET6", "NETLINK"]


@pytest.mark.parametrize("effect", CONFINED)
@pytest.mark.parametrize("path", ["/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket"])
async def test_the_bus_answers_at_its_usual_paths(pool: Pool, effect: Effect, path: str) -> None:
    said = await shell(pool, f"python3 -c '{HELLO}print(bus(\"{path}\").recv(3))'", effect)
    assert said == "b'OK '\n"


@pytest.mark.parametrize(
    "client",
    [
        f"gdbus call --system -d {SYSTEMD} -o {ROOT} -m {MANAGER}.ListUnits",
        f"dbus-send --system --print-reply --dest={SYSTEMD} {ROOT} {MANAGER}.ListUnits",
    ],
)
@pytest.mark.parametrize("effect", CONFINED)
async def test_clients_ask_the_bus_as_ever(
    served: tuple[Pool, FakeSystemd], effect: Effect, client: str
) -> None:
    if shutil.which(client.split()[0]) is None:
        pytest.skip(f"{client.split()[0]} is not installed")
    said = await shell(served[0], client, effect)
    assert "web.service" in said


async def test_another_path_is_refused(pool: Pool) -> None:
    said = await shell(
        pool,
        """python3 -c '
import socket
for path in ("/run/dbus/system_bus_socket.of-somebody-else", "\\0/run/dbus/system_bus_socket"):
    sock = socket.socket(socket.AF_UNIX)
    print(sock.connect_ex(path))
'""",
    )
    assert said.split() == ["13", "13"]


async def test_an_order_does_not_get_through(served: tuple[Pool, FakeSystemd]) -> None:
    pool, fake = served
    for client in (
        f"gdbus call --system -d {SYSTEMD} -o {ROOT} -m {MANAGER}.StartUnit web.service replace",
        f"dbus-send --system --print-reply --dest={SYSTEMD} {ROOT} {MANAGER}.StartUnit"
        " string:web.service string:replace",
    ):
        await shell(pool, client)
    assert "StartUnit" not in fake.called


@pytest.mark.parametrize("effect", CONFINED)
async def test_a_question_starts_no_service_but_those_that_end_by_themselves(
    served: tuple[Pool, FakeSystemd], effect: Effect
) -> None:
    pool, fake = served
    ends = END_BY_THEMSELVES[effect]

    def started() -> set[str]:
        return {path.name for path in fake.bus_folder.iterdir()} & {*REFUSED, ends}

    def asks(name: str) -> list[str]:
        return [
            f"gdbus call --system -d {name} -o / -m org.freedesktop.DBus.Properties.GetAll x",
            f"dbus-send --system --print-reply --dest={name} / org.freedesktop.DBus.Peer.Ping",
        ]

    orders = [
        order
        for name in (*REFUSED, ends)
        for order in (
            f"dbus-send --system --print-reply --dest={name} / org.freedesktop.hostname1.Ping",
            f"dbus-send --system --print-reply --dest=org.freedesktop.DBus /"
            f" org.freedesktop.DBus.StartServiceByName string:{name} uint32:0",
        )
    ]
    # One after another, for a command has two connections. Each is refused at once.
    clients = [*(ask for name in REFUSED for ask in asks(name)), *orders]
    said = await shell(
        pool, "; ".join(f"timeout 5 {client} 2>&1; echo status $?" for client in clients), effect
    )
    assert said.count("status 1") == len(clients)
    assert "temporarily unavailable" not in said
    assert not started()

    # A service that is started here never answers.
    begin = "".join(f"timeout 25 {ask} & " for ask in asks(ends))
    wait = f"for i in $(seq 400); do [ -e {fake.bus_folder / ends} ] && break; sleep 0.05; done"
    await shell(pool, f"{begin}{wait}", effect)
    assert started() == {ends}


async def test_any_thread_of_a_command_may_connect(pool: Pool) -> None:
    if pool.backend.ends is Ends.NAMESPACE and not _thread_pidfds():
        pytest.skip("this kernel (before Linux 6.9) cannot say which thread of a PID namespace it is")
    said = await shell(
        pool,
        f"""python3 -c '{HELLO}
import threading
thread = threading.Thread(target=lambda: print(bus().recv(3)))
thread.start()
thread.join()
'""",
    )
    assert said == "b'OK '\n"


def _thread_pidfds() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid(), os.O_EXCL))
    except OSError:
        return False
    return True


async def test_the_connection_has_the_flags_that_the_socket_had(pool: Pool) -> None:
    said = await shell(
        pool,
        f"""python3 -c '{HELLO}
for flags in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | flags)
    sock.set_inheritable(not flags & socket.SOCK_CLOEXEC)
    for _ in range(2):
        print(fcntl.fcntl(sock, fcntl.F_GETFL) & os.O_NONBLOCK, sock.get_inheritable(), end=" ")
        sock.connect("/run/dbus/system_bus_socket")
'""",
    )
    plain, nonblocking, cloexec = ["0", "True"], [str(os.O_NONBLOCK), "True"], ["0", "False"]
    assert said.split() == [*plain * 2, *nonblocking * 2, *cloexec * 2]


async def test_connections_are_limited_and_come_free(pool: Pool) -> None:
    said = await shell(
        pool,
        f"""python3 -c '{HELLO}
import errno
for _ in range(2):
    held = []
    try:
        while len(held) < 100:
            held.append(bus())
    except OSError as err:
        print(len(held), errno.errorcode[err.errno])
    for sock in held:
        sock.close()
'""",
    )
    assert said.split() == [str(busdoor.CONNECTIONS), "EAGAIN"] * 2


async def test_connections_that_one_call_holds_are_not_anothers_loss(pool: Pool) -> None:
    mark = marker()
    hold = f"""python3 -c '{HELLO}
for _ in range({busdoor.CONNECTIONS}):
    os.set_inheritable(bus().detach(), True)
os.execvp("sleep", ["sleep", "{mark}"])
'"""
    holder = asyncio.create_task(shell(pool, hold))
    async with asyncio.timeout(PATIENCE_S):
        while not (found := marked(mark)):
            await asyncio.sleep(0.05)
    said = await shell(pool, f"python3 -c '{HELLO}print(bus().recv(3))'", Effect.REACH)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    await holder
    assert said == "b'OK '\n"
    assert await shell(pool, f"python3 -c '{HELLO}print(bus().recv(3))'") == "b'OK '\n"


async def test_a_flood_of_sockets_stops_neither_its_worker_nor_others(pool: Pool) -> None:
    enough = pool._paths.config / "enough"
    flood = f"""python3 -c '{HELLO}
for _ in range(3):
    os.fork()
print("flood", flush=True)
while not os.path.exists("{enough}"):
    try:
        bus("/run/dbus/system_bus_socket" if os.getpid() % 2 else "/run/none-of-the-bus")
    except OSError:
        pass
'"""
    call = asyncio.create_task(shell(pool, flood))
    for _ in range(3):
        said = await shell(pool, f"python3 -c '{HELLO}print(bus().recv(3))'", Effect.REACH)
        assert said == "b'OK '\n"
    assert not call.done()
    enough.touch()
    assert "flood" in await call
    enough.unlink()
    assert await shell(pool, f"python3 -c '{HELLO}print(bus().recv(3))'") == "b'OK '\n"


async def test_a_command_gets_no_descriptor_of_its_workers(pool: Pool) -> None:
    said = await shell(pool, "ls -l /proc/$$/fd | awk '{print $NF}'")
    assert "socket" not in said
    assert "seccomp" not in said
    assert "anon_inode" not in said


async def test_nothing_of_a_door_is_left_in_the_worker(pool: Pool) -> None:
    use = f"python3 -c '{HELLO}held = [bus() for _ in range(5)]'; setsid -f sleep 0.2"
    await shell(pool, use)
    worker = _program(pool, Effect.OBSERVE)
    before = (worker.num_fds(), worker.num_threads())
    for _ in range(5):
        await shell(pool, use)
    async with asyncio.timeout(PATIENCE_S):
        while (now := (worker.num_fds(), worker.num_threads())) > before:
            await asyncio.sleep(0.05)
    assert now <= before


def _program(pool: Pool, effect: Effect) -> psutil.Process:
    """The worker's own process, below those that hold it."""
    (found,) = [one for one in pool.workers() if one.where is effect]
    one = psutil.Process(found.pid)
    while children := one.children():
        one = children[0]
    return one


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LISTEN = """
import errno, os, socket
from lightagentd.worker import busdoor, seccomp
code = seccomp.program(seccomp.REACH_FAMILIES, bus=True)
"""


async def test_where_another_listener_is_in_force_there_is_no_door() -> None:
    said = _run(f"{LISTEN}print(busdoor.possible()); held = seccomp.listen(code); print(busdoor.possible())")
    assert said.split() == ["True", "False"]


async def test_calls_fail_where_nobody_answers() -> None:
    said = _run(
        LISTEN
        + """
server = socket.create_server(("127.0.0.1", 0))
os.close(seccomp.listen(code))
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    try:
        socket.socket(socket.AF_UNIX, kind)
    except OSError as err:
        print(errno.errorcode[err.errno])
with server, socket.socket() as client:
    client.connect(server.getsockname())
    print("connected")
"""
    )
    assert said.split() == ["ENOSYS", "EAFNOSUPPORT", "EAFNOSUPPORT", "connected"]
