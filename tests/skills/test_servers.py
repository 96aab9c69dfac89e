"""What the areas of databases, web servers and backups find: made units, real sockets, cron's tables."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.skills.library import module
from tests.skills.test_network import unit

servers, backups = module("areas.servers"), module("areas.backups")
NGINX, POSTGRES = servers.WEB_SERVERS[0], servers.DATABASES[0]


def server(kind: Any, name: str, **more: Any) -> Any:
    return servers.Server(kind, unit(name, **more), expected=(80,), should_listen=True)


def test_a_server_that_runs_has_to_listen_and_to_take_connections() -> None:
    def told(one: Any) -> list[str]:
        return [each.text for each in servers.faults([one])]

    one = server(NGINX, "nginx-made-up.service")
    assert len(told(one)) == 1
    assert "but nothing listens on port 80" in told(one)[0]
    one.unit = dataclasses.replace(one.unit, started=time.time())
    assert told(one) == []  # it may still be starting
    one.listeners = [servers.Listener("0.0.0.0:80", 80, 0, 511)]
    assert told(one) == []
    one.listeners = [servers.Listener("0.0.0.0:80", 80, 512, 511)]
    assert told(one) == [
        "nginx takes no connection: 512 wait at 0.0.0.0:80, with room for 511 (nginx-made-up.service)."
    ]
    assert told(server(POSTGRES, "postgresql.service", sub="exited")) == []  # it groups clusters


def test_a_server_that_should_run_is_told_as_down() -> None:
    assert list(servers.down([server(NGINX, "nginx.service")])) == []
    (failed,) = servers.down([server(NGINX, "nginx.service", active="failed")])
    assert failed.text.startswith("nginx does not run: nginx.service failed since")


def test_a_listening_socket_of_this_machine_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
        found, _ = servers.listeners()
        assert f"127.0.0.1:{port}" in [one.where for one in found]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("17 3 * * * root /usr/local/bin/backup-db.sh\n", [("/usr/local/bin/backup-db.sh", 86400.0)]),
        ("@weekly root borg create /srv::x /etc\n", [("borg create /srv::x /etc", 7 * 86400.0)]),
        ("0 * * * * root rsnapshot hourly\n", [("rsnapshot hourly", 3600.0)]),
        ("0 4 * * 0 root pg_dump -Fc shop\n", [("pg_dump -Fc shop", 7 * 86400.0)]),
        ("0 4 1 * * root restic check\n", [("restic check", 31 * 86400.0)]),
        ("# 0 4 1 * * root restic check\nMAILTO=backup\n0 4 * * * root /bin/true\n", []),
    ],
)
def test_backups_in_tables_of_cron(text: str, said: list[tuple[str, float]]) -> None:
    assert [(job.name, job.period_s) for job in backups.cron_jobs(text, "/etc/cron.d/x")] == said


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"last": 3600.0}, ""),
        ({"last": 3 * 86400.0}, "The backup b.timer ran last 3 days ago"),
        ({"last": 3 * 86400.0, "is_running": True}, ""),
        ({"waits_since": 3 * 86400.0}, "The backup b.timer never ran, though it is due every 1 day."),
        ({"waits_since": 3600.0}, ""),
        (
            {"last": 60.0, "failed": "failed (status 3): no space left"},
            "The backup b.service failed 1 min ago (status 3): no space left.",
        ),
        ({"last": 60.0, "is_on": False}, "will not run again: its timer is off."),
        ({"is_on": False}, ""),
    ],
)
def test_backups_that_failed_are_late_or_never_ran(job: dict[str, Any], said: str) -> None:
    """Times are given as seconds before now."""
    now = time.time()
    values = {key: now - value if key in ("last", "waits_since") else value for key, value in job.items()}
    found = [
        one.text for one in backups.faults([backups.Job("b.timer", "timer", "", period_s=86400.0, **values)])
    ]
    assert (len(found) == 1 and said in found[0]) if said else found == []


def test_ports_are_those_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "site").write_text("server {\n  listen 8080;\n  listen [::]:8443 ssl;\n # listen 1;\n}\n")
    kind = dataclasses.replace(NGINX, files=(f"{tmp_path}/*",))
    assert servers.configured_ports(kind, "nginx.service") == ((8080, 8443), True)
    assert servers.configured_ports(dataclasses.replace(kind, files=()), "nginx.service") == (
        (80, 443),
        False,
    )
    (tmp_path / "site").write_text("server {\n  listen unix:/run/shop.sock;\n}\n")
    assert servers.configured_ports(kind, "nginx.service") == ((80, 443), False)


def test_connections_that_nobody_takes_show_that_a_server_hangs() -> None:
    idle = subprocess.Popen(["sleep", "60"])
    try:
        with socket.create_server(("127.0.0.1", 0)) as here, socket.create_connection(here.getsockname()):
            where = f"127.0.0.1:{here.getsockname()[1]}"
            one = server(POSTGRES, "postgresql-made-up.service", pid=idle.pid)
            one.listeners = [row for row in servers.listeners()[0] if row.where == where]
            assert one.listeners[0].waiting == 1
            (text,) = [each.text for each in servers.faults([one])]
            assert f"does not answer: 1 connection at {where} waits and nobody takes it" in text
            here.accept()[0].close()
            one.listeners = [row for row in servers.listeners()[0] if row.where == where]
            assert list(servers.faults([one])) == []
    finally:
        idle.kill()
        idle.wait()
