"""What the scripts must find: made files, sockets, processes, certificates and logs."""

from __future__ import annotations

import datetime
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.skills.library import module as library
from tests.skills.script import finding, report


def certificate(path: Path, name: str, days: int) -> bytes:
    """A self-signed certificate that expires in so many days; returns its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=100))
        .not_valid_after(now + datetime.timedelta(days=days, hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def test_disk_check_names_file_systems_that_df_shows() -> None:
    listed = subprocess.run(
        ["df", "-t", "ext4", "-t", "tmpfs", "--output=target"], capture_output=True, text=True
    )
    text = report("disk-check")
    for folder in listed.stdout.splitlines()[1:]:
        assert f"| {folder} |" in text


def test_disk_check_shows_what_is_large_below_a_path(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "large" / "deep").mkdir(parents=True)
    (tmp_path / "large" / "deep" / "file").write_bytes(os.urandom(3 << 20))
    (tmp_path / "small" / "file").write_bytes(b"x")
    lines = report("disk-check", path=str(tmp_path)).splitlines()
    first = lines.index(f"## Largest directly below {tmp_path}") + 4
    assert lines[first].startswith("| 3.0 MiB | 3 |")
    assert f"most of it in {tmp_path}/large/deep/file (3.0 MiB of 3.0 MiB)" in lines[0]
    assert "% of its inodes are used" in lines[0]
    assert f"in {tmp_path}/large/deep were written within the last hour" in lines[0]


def test_of_a_path_that_does_not_exist_the_nearest_folder_is_told(tmp_path: Path) -> None:
    absent = f"{tmp_path}/no/such"
    assert finding(report("disk-check", path=absent)).startswith(
        f"{absent} does not exist; {tmp_path} is on "
    )
    told = finding(report("mount-check", path=absent))
    assert told.startswith(f"{absent} does not exist; {tmp_path} is no mount point: it is on ")


def test_listening_ports_finds_a_listening_socket_and_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = report("listening-ports", port=str(port))
    assert f"Port {port} is open" in finding(text)
    assert f"(pid {os.getpid()})" in finding(text)
    assert "only this machine can reach it" in finding(text)
    assert f"Nothing listens on port {port}" in finding(report("listening-ports", port=str(port)))


def test_who_uses_finds_who_uses_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"(pid {os.getpid()})" in finding(report("who-uses", port=str(port)))
    assert "No process uses" in finding(report("who-uses", port=str(port)))


def test_who_uses_finds_who_holds_a_file_and_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "held"
    with file.open("w"):
        assert f"(pid {os.getpid()})" in finding(report("who-uses", path=str(file)))
        assert f"(pid {os.getpid()})" in finding(report("who-uses", path=str(tmp_path)))
    assert "No process" in finding(report("who-uses", path=str(file)))


def test_who_uses_describes_a_process_and_its_files(tmp_path: Path) -> None:
    with (tmp_path / "held").open("w") as held:
        waiting = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=held)
    try:
        text = report("who-uses", pid=str(waiting.pid))
    finally:
        waiting.kill()
        waiting.wait()
    assert f"Process {waiting.pid} is sleep" in finding(text)
    assert str(tmp_path / "held") in text
    assert "There is no process 4194303" in finding(report("who-uses", pid="4194303"))


def test_who_uses_takes_no_ended_connection_for_a_file_of_a_process(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        accepted.close()  # the end that closes first waits in TIME_WAIT
        caller.close()
    with (tmp_path / "held").open("w") as held:
        waiting = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=held)
    try:
        text = report("who-uses", pid=str(waiting.pid))
    finally:
        waiting.kill()
        waiting.wait()
    assert str(tmp_path / "held") in text
    assert "| 1 | tcp" not in text


def test_certificate_expiry_reads_a_file_and_a_folder(tmp_path: Path) -> None:
    certificate(tmp_path / "good.pem", "good.example", 200)
    assert "expires in 200 days" in finding(report("certificate-expiry", path=str(tmp_path / "good.pem")))
    certificate(tmp_path / "old.crt", "old.example", -3)
    (tmp_path / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    text = report("certificate-expiry", path=str(tmp_path))
    assert finding(text).startswith("The certificate of old.example in ")
    assert finding(text).endswith(" expired 2 days 23 h ago.")
    assert "in 200 days" in text
    both = finding(report("certificate-expiry", path=str(tmp_path), host="localhost:1"))
    assert both == finding(text)  # what lies here counts before a host
    assert "good.example" in text


def test_certificate_expiry_says_that_it_cannot_fetch(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        text = report("certificate-expiry", host=f"127.0.0.1:{unused.getsockname()[1]}")
    assert "could not be fetched" in finding(text)


def test_network_check_tells_an_open_port_from_a_closed_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"127.0.0.1 port {port} can be reached" in finding(
            report("network-check", host=f"127.0.0.1:{port}")
        )
    assert f"127.0.0.1 port {port} cannot be reached" in finding(
        report("network-check", host=f"127.0.0.1:{port}")
    )


def test_log_errors_groups_lines_that_differ_only_in_numbers(tmp_path: Path) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    lines = [f"{now}.12+00:00 host app[{pid}]: error: request {pid} failed" for pid in range(5)]
    lines += [f"{now} host app[1]: all is well", "2001-01-01T00:00:00 host app[1]: error: long ago"]
    (tmp_path / "syslog").write_text("\n".join(lines))
    text = report("log-errors", f"--root={tmp_path}")
    assert finding(text).startswith("5 errors")
    assert "(5 times, app)" in finding(text)
    assert "long ago" not in text
    assert "No errors of other.service" in finding(
        report("log-errors", f"--root={tmp_path}", unit="other.service")
    )


def test_log_errors_does_not_say_that_all_is_well_when_it_can_read_nothing(tmp_path: Path) -> None:
    assert "cannot be said" in finding(report("log-errors", f"--root={tmp_path}"))


DENIED = "No journal files were opened due to insufficient permissions."
PARTLY = "Hint: You are currently not seeing messages from other users and the system."
WARNED = json.dumps(
    {
        "MESSAGE": "the disk is slow",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "app",
        "__REALTIME_TIMESTAMP": f"{int(time.time())}000000",
    }
)


def journalctl(folder: Path, says: str, entries: str = "", *, is_searched: bool = False) -> None:
    """A journalctl that shows these entries and says this on stderr; for a --grep only if `is_searched`."""
    program = folder / "journalctl"
    searched = ":" if is_searched else "exit 1"
    program.write_text(
        f"#!/bin/sh\necho '{says}' >&2\ncase \"$*\" in *--grep*) {searched};; esac\necho '{entries}'\n"
    )
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "entries", "said"),
    [
        ("", WARNED, "No errors, but 1 warning in the journal"),
        (PARTLY, WARNED, "as not everything could be read; 1 warning in the journal"),
        (PARTLY, "", "cannot be said"),
        (DENIED, "", "cannot be said"),
        ("No journal files were found.", "", "cannot be said"),
    ],
)
def test_no_errors_is_said_of_a_journal_that_could_be_read_alone(
    tmp_path: Path, says: str, entries: str, said: str
) -> None:
    journalctl(tmp_path, says, entries)
    text = finding(report("log-errors", search_path=str(tmp_path)))
    assert said in text
    assert ("No errors" in text) is (not says)


READ_THE_JOURNAL = (
    "journal.access",
    "journal.dropped",
    "journal.errors",
    "memory.kills",
    "ports.conflict",
    "storage.services",
    "units.bus",
    "units.users",
)


@pytest.mark.parametrize("says", [DENIED, PARTLY])
def test_a_check_of_a_journal_that_could_not_be_read_was_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    checks = library("checks")
    for name in READ_THE_JOURNAL:
        library(f"areas.{name.partition('.')[0]}")
    journalctl(tmp_path, says, WARNED if says == PARTLY else "")
    monkeypatch.setenv("PATH", str(tmp_path))
    made = {one.check.name: one for one in checks.made(READ_THE_JOURNAL, timeout_s=30)}
    assert [name for name in READ_THE_JOURNAL if "needs the group" not in made[name].problem] == []


def test_how_a_unit_ended_is_not_known_without_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalctl(tmp_path, DENIED)
    monkeypatch.setenv("PATH", str(tmp_path))
    [unit] = library("systemd_units").parsed("Id=app.service")
    said, _ = library("areas.units").stopper(unit)
    assert said.startswith("does not run, and whether it did since boot is not known (The journal cannot be")


@pytest.mark.parametrize(
    ("line", "unit", "is_told"),
    [
        ("mkdir: cannot create directory '/srv/app/new': Permission denied", "app.service", True),
        ("open(/srv/app): EACCES", "app.service", True),
        ("/srv/app: Operation not permitted", "app.service", True),
        ("/srv/app2: Permission denied", "app.service", False),
        ("/mnt/srv/app: Permission denied", "app.service", False),
        ("/srv/app is fine", "app.service", False),
        ("/srv/app: Permission denied", "user@1000.service", False),
        ("/srv/app: Permission denied", "lightagent-worker@a.service", False),
        ("/srv/app: Permission denied", "", False),
    ],
)
def test_a_unit_that_was_refused_a_path_is_found(line: str, unit: str, is_told: bool) -> None:
    entry = {"MESSAGE": line, "_SYSTEMD_UNIT": unit, "__REALTIME_TIMESTAMP": "1700000000000000"}
    found = library("areas.permissions").refusals_in([entry], "/srv/app")
    assert [(one.unit, one.line) for one in found] == ([(unit, line)] if is_told else [])


def test_permissions_of_a_path_name_the_unit_that_was_refused_first(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o750)
    entries = [
        {"MESSAGE": f"{folder}: Permission denied", "_SYSTEMD_UNIT": "old.service"},
        {"MESSAGE": f"open {folder}/x: Permission denied", "_SYSTEMD_UNIT": "app.service"},
    ]
    shown = [
        json.dumps({**one, "__REALTIME_TIMESTAMP": f"{int(time.time()) - 9 + at}000000"})
        for at, one in enumerate(entries)
    ]
    journalctl(tmp_path, "", "\n".join(shown), is_searched=True)
    said = finding(report("permissions-check", search_path=str(tmp_path), path=str(folder)))
    assert said.startswith(f"app.service was refused {folder} ")
    assert f"{folder} belongs to root with mode 0750" in said
    assert f"{folder} (0750 root:root) is a folder" in said


def login_record(kind: int, user: str, host: str) -> bytes:
    fields = (kind, 1, b"pts/0", b"", user.encode(), host.encode(), 0, 0, 0, int(time.time()), 0, b"", b"")
    return struct.pack("=hxxi32s4s32s256shhiii16s20s", *fields)


def test_login_audit_counts_logins_and_failures(tmp_path: Path) -> None:
    log = tmp_path / "var" / "log"
    log.mkdir(parents=True)
    (log / "wtmp").write_bytes(login_record(7, "alice", "192.0.2.7"))
    (log / "btmp").write_bytes(login_record(6, "root", "203.0.113.9") * 3)
    text = report("login-audit", f"--root={tmp_path}")
    assert "1 login since" in finding(text)
    assert "the last by alice from 192.0.2.7" in finding(text)
    assert "3 failed logins, most from 203.0.113.9 (3) and most for root (3)" in finding(text)
    assert "no login of bob" in finding(report("login-audit", f"--root={tmp_path}", user="bob"))


def test_cpu_load_finds_a_busy_process() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        text = report("cpu-load")
    finally:
        busy.kill()
        busy.wait()
    assert f"| {busy.pid} |" in text


def test_service_triage_finds_a_process_of_that_name_without_systemd() -> None:
    if Path("/run/systemd/system").exists():
        pytest.skip("systemd runs here")
    assert "no process named like surely-absent" in finding(
        report("service-triage", unit="surely-absent.service")
    )


def test_service_triage_knows_a_unit_that_does_not_exist() -> None:
    if not Path("/run/systemd/system").exists():
        pytest.skip("systemd does not run here")
    assert "There is no unit surely-absent.service" in finding(
        report("service-triage", unit="surely-absent.service")
    )
