"""A change that cuts the line of the person who made it takes itself back, without any client."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .calls import call, shell
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json

pytestmark = pytest.mark.e2e

SOCKET = "lightagent-change@ops.socket"
RULES = "/etc/lightagentd/policy.d/60-e2e-confirming.toml"
PORT = 2222
CUT, MEND = "ip link set lo down", "ip link set lo up"
SERVER = f"""
import socket, threading
def echo(line):
    while data := line.recv(100):
        line.sendall(data)
with socket.create_server(("127.0.0.1", {PORT})) as server:
    while True:
        threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
"""
CLIENT = f"""
import socket
with socket.create_connection(("127.0.0.1", {PORT}), timeout=1) as line:
    line.sendall(b"there?")
    assert line.recv(100) == b"there?"
"""


@pytest.fixture(scope="module", autouse=True)
def line(service: Machine) -> Iterator[None]:
    """A service that the person reaches over the network of the machine, which has nothing but lo."""
    service.write("/srv/e2e-line.py", SERVER)
    service.run(["systemd-run", "--unit=e2e-line", "--collect", "python3", "/srv/e2e-line.py"])
    service.run(["systemctl", "enable", "--now", SOCKET])
    rules = (
        f'[[rule]]\nname = "e2e-cut"\ndecision = "allow"\ntool = "bash"\neffect = "change"\n'
        f'args = {{ command = "{CUT}" }}\nconfirm_within = "4s"\ninverse = "{MEND}"\n'
        f'[[rule]]\nname = "e2e-file"\ndecision = "allow"\ntool = "file"\nconfirm_within = "3s"\n'
    )
    service.write(RULES, rules)
    service.run(["systemctl", "reload", UNIT])
    eventually(lambda: _reached(service), "the line is there")
    yield
    service.run(["ip", "link", "set", "lo", "up"])
    service.run(["rm", RULES, "/srv/e2e-line.py"])
    service.run(["systemctl", "stop", "e2e-line.service"], check=False)
    service.run(["systemctl", "disable", "--now", SOCKET])
    service.run(["systemctl", "reload", UNIT])


def _reached(machine: Machine) -> bool:
    return machine.run(["python3", "-c", CLIENT], check=False).status == 0


def _states(machine: Machine) -> list[str]:
    return [each["state"] for each in lactl_json(machine, "confirm", "--all")]


def test_the_line_comes_back_by_itself(service: Machine) -> None:
    done = call(service, "bash.exec", command=CUT, effect="change")
    assert done["result"] == "ok", done
    assert not _reached(service)
    eventually(lambda: _reached(service), "the line is there again", 30)
    eventually(lambda: _states(service) == ["taken_back"], "it is on record", 10)
    journal = service.run(["journalctl", "--output=cat", "LIGHTAGENT_TYPE=taken_back"]).stdout
    assert "bash.exec" in journal


def test_it_comes_back_when_the_daemon_was_killed_and_its_time_is_over(service: Machine) -> None:
    call(service, "bash.exec", command=CUT, effect="change")
    service.run(["systemctl", "mask", "--runtime", "--now", "lightagentd.socket"])
    service.run(["systemctl", "kill", "--signal=KILL", UNIT])
    service.run(["systemctl", "stop", UNIT], check=False)
    assert not _reached(service)
    time.sleep(5)
    assert not _reached(service), "nobody is there to do it"
    service.run(["systemctl", "unmask", "--runtime", "lightagentd.socket"])
    service.run(["systemctl", "start", "lightagentd.socket", UNIT])
    eventually(lambda: _reached(service), "the line is there again", 30)
    eventually(lambda: _states(service)[-1] == "taken_back", "it is on record", 10)


def test_a_file_is_put_back_and_a_confirmed_one_stays(service: Machine) -> None:
    shell(service, "true")
    kept = call(service, "file.write", path="/srv/e2e-kept", content="new")
    lactl(service, "confirm", str(kept["call_id"]))
    call(service, "file.write", path="/srv/e2e-gone", content="new")
    gone = ["test", "!", "-e", "/srv/e2e-gone"]
    eventually(lambda: service.run(gone, check=False).status == 0, "the new file is gone", 20)
    assert service.run(["cat", "/srv/e2e-kept"]).stdout == "new"
    service.run(["rm", "/srv/e2e-kept"])
