"""What the areas of access, accounts, certificates and packages find, from made lines and files."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lightagentd.toolkit.proc.survey import survey, without_hashes
from tests.skills.library import module
from tests.skills.script import finding, report
from tests.skills.test_findings import certificate

access, accounts, certificates, packages = (
    module(f"areas.{name}") for name in ("access", "accounts", "certificates", "packages")
)


def lines(program: str, *texts: str) -> list[object]:
    return [access.Line(time.time(), program, text) for text in texts]


def test_failures_are_counted_by_source_and_once() -> None:
    one = [
        "Invalid user bob from 203.0.113.9 port 4",
        "pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost=203.0.113.9",
        "Failed password for invalid user bob from 203.0.113.9 port 4 ssh2",
        "Failed none for invalid user bob from 203.0.113.9 port 4 ssh2",
    ]
    keys_only = ["Connection closed by authenticating user root 203.0.113.8 port 5 [preauth]"]
    repeated = ["message repeated 3 times: [ Failed password for root from 203.0.113.7 port 6 ssh2]"]
    accepted, failed, _ = access.parsed(
        lines(
            "sshd-session",
            *one,
            *keys_only,
            *repeated,
            "Accepted publickey for ann from 192.0.2.1 port 7 ssh2",
        )
    )
    assert sorted((row.source, row.user) for row in failed) == [
        *[("203.0.113.7", "root")] * 3,
        ("203.0.113.8", "root"),
        ("203.0.113.9", "bob"),
    ]
    assert [(row.user, row.source) for row in accepted] == [("ann", "192.0.2.1")]


def test_brute_force_begins_at_a_threshold_and_is_worse_when_somebody_came_in() -> None:
    many = lines("sshd", *["Failed password for root from 203.0.113.9 port 4 ssh2"] * access.MANY_FAILURES)
    _, failed, _ = access.parsed(many)
    assert [one.text for one in access.brute_force(failed, [])] == [
        "20 failed logins from 203.0.113.9 in the last hour, for root."
    ]
    assert list(access.brute_force(failed[1:], [])) == []
    came = [access.Login("root", "sshd", "203.0.113.9", time.time() + 1)]
    (worse,) = access.brute_force(failed, came)
    assert worse.severity == "problem"
    assert "then root came in from there" in worse.text


def test_a_file_that_keeps_everybody_out_is_named(tmp_path: Path) -> None:
    assert list(access.nologin(str(tmp_path))) == []
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nologin").write_text("back at five\n")
    assert [one.text for one in access.nologin(str(tmp_path))] == [
        'Nobody but root can log in while there is /etc/nologin, and is told "back at five".'
    ]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"root": 3}, "root (3)"),
        ({"root": 3, "admin": 2}, "root (3)"),
        ({"root": 3, "admin": 3}, "admin and root (3 each)"),
        ({"a": 1, "b": 1, "c": 1}, "a, b and 1 more (1 each)"),
    ],
)
def test_a_tie_is_said_as_a_tie(counts: dict[str, int], words: str) -> None:
    assert access.most(access.Counter(counts)) == words


@pytest.mark.parametrize(
    ("program", "text", "use", "refused"),
    [
        ("sudo", " ann : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND=/bin/ls", ("ann", "root", "/bin/ls"), ""),
        (
            "sudo",
            "bob : user NOT in sudoers ; TTY=x ; PWD=/ ; USER=root ; COMMAND=/bin/id",
            ("bob", "root", "/bin/id"),
            "user NOT in sudoers",
        ),
        (
            "sudo",
            "bob : 3 incorrect password attempts ; PWD=/ ; USER=root ; COMMAND=/bin/id",
            ("bob", "root", "/bin/id"),
            "3 incorrect password attempts",
        ),
        ("su", "(to root) ann on pts/1", ("ann", "root", "pts/1"), ""),
        ("su", "FAILED SU (to root) bob on pts/1", ("bob", "root", "pts/1"), "wrong password"),
        (
            "polkitd",
            "Operator of unix-session:2 FAILED to authenticate to gain authorization for action org.x.y for "
            "system-bus-name::1.4 [systemctl restart x] (owned by unix-user:dan)",
            ("dan", "root", "org.x.y"),
            "not authorized",
        ),
    ],
)
def test_uses_of_root_and_refusals(program: str, text: str, use: tuple[str, str, str], refused: str) -> None:
    _, _, (one,) = access.parsed(lines(program, text))
    assert (one.user, one.target, one.what) == use
    assert one.refused == refused


def test_one_wrong_password_is_no_finding_and_a_user_without_a_right_is() -> None:
    def told(*texts: str) -> list[str]:
        return [one.text for one in access.refusals(access.parsed(lines("sudo", *texts))[2])]

    assert told("bob : 1 incorrect password attempt ; PWD=/ ; USER=root ; COMMAND=/bin/id") == []
    assert told("mon : a password is required ; PWD=/ ; USER=root ; COMMAND=/bin/id") == []
    (text,) = told("eve : user NOT in sudoers ; PWD=/ ; USER=root ; COMMAND=/bin/id")
    assert text == "sudo refused eve once in the last day: user NOT in sudoers, for /bin/id."


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("d:x:2:2::/:/usr/sbin/nologin", []),
        ("postgres:x:101:101::/var/lib/postgresql:/bin/bash", []),
        (
            "toor:x:0:0::/root:/bin/bash",
            ["The account toor has uid 0, so it is root, with the shell /bin/bash."],
        ),
        (
            "eve::1001:1001::/home/eve:/bin/sh",
            ["The account eve has no password in /etc/passwd: anybody can be it."],
        ),
        ("twin:x:1000:1000::/:/bin/sh", ["The accounts ann and twin have the same uid 1000."]),
        ("a line", ["/etc/passwd line 3 is no account: 'a line'."]),
    ],
)
def test_faults_of_accounts(line: str, said: list[str]) -> None:
    base = "root:x:0:0::/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/bash\n"
    assert [one.text for one in accounts.faults(*accounts.accounts(base + line))] == said


def test_passwords_that_are_empty_locked_or_expired(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text(
        "ann:$y$x:19000:0:99999:7:::\nbob::19000::::::\ncid:!:19000::::::\ndan:$y$x:1:0:30:7:::\neve:$y$x:19000:0:::::10:\n"
    )
    known = accounts.passwords(str(tmp_path / "shadow"))
    assert [one.state for one in known.values()] == ["", "empty", "locked", "password expired", ""]
    assert accounts.passwords(str(tmp_path / "absent")) is None


def test_the_survey_tells_root_alone_of_passwords_and_never_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = (
        "ann:$y$x:19000:0:99999:7:::\nbob::19000::::::\ncid:!$y$x:19000::::::\ndan:$y$x:1:0:30:7:::\nline"
    )
    told = without_hashes(shadow)
    assert "$y$" not in told
    assert "shadow" not in json.loads(survey(12345))
    monkeypatch.setattr(accounts.procfs, "survey", lambda: {"shadow": told})
    known = accounts.passwords("/nowhere")
    assert [one.state for one in known.values()] == ["", "empty", "locked", "password expired"]


def test_certificates_of_configurations_are_told_with_their_service(tmp_path: Path) -> None:
    certificate(tmp_path / "shop.pem", "shop.example", 5)
    certificate(tmp_path / "old.pem", "old.example", -40)
    certificate(tmp_path / "good.pem", "good.example", 90)
    search = certificates.Search()
    search.add(tmp_path / "shop.pem", user="nginx")
    search.add(tmp_path / "shop.pem")
    search.add(tmp_path / "old.pem", user="postfix")
    search.add(tmp_path / "good.pem")
    search.add(tmp_path / "gone.pem", user="nginx")
    soon, expired = certificates.faults(search.found)
    assert (
        f"The certificate of shop.example in {tmp_path}/shop.pem, which nginx uses, expires in 5 days"
        in soon.text
    )
    assert (
        expired.text
        == f"The certificate of old.example in {tmp_path}/old.pem, which postfix uses, expired 39 days ago."
    )
    assert [one.severity for one in (soon, expired)] == ["warning", "problem"]
    (missing,) = certificates.missing(search)
    assert "The configuration of nginx names" in missing.text
    text = "ssl_certificate /etc/a.pem;\n  ssl_certificate_key /etc/a.key;\n# ssl_certificate /etc/b.pem;\n"
    text += "ssl_certificate $x;"
    pattern = certificates.CONFIGURATIONS["nginx"][1]
    assert certificates.named_in(text, pattern) == ["/etc/a.pem"]


STATUS = """Package: good
Status: install ok installed
Version: 1

Package: bad
Status: install ok half-configured
Version: 2

Package: kept
Status: hold ok installed
Version: 3

Package: gone
Status: deinstall ok config-files
Version: 4

Package: torn
Status: install reinstreq half-installed
Version: 5
"""


def test_packages_that_are_not_whole_come_with_the_reason_of_dpkg() -> None:
    found = packages.dpkg_packages(STATUS)
    assert [(one.name, one.fault) for one in found if one.fault] == [
        ("bad", "is half configured: its configuration failed"),
        ("torn", "must be installed again: its files are broken"),
    ]
    assert [one.name for one in found if one.wanted == "hold"] == ["kept"]
    log = [
        "dpkg: error processing package bad-data (--configure):",
        " another reason",
        "dpkg: error processing package bad (--configure):",
        " installed bad package post-installation script subprocess returned error exit status 1",
    ]
    assert packages.reason_of("bad", log[2:]).endswith("returned error exit status 1")
    assert packages.reason_of("good", log) == ""


def test_the_events_of_dpkg_are_read_and_security_updates_counted(tmp_path: Path) -> None:
    (tmp_path / "dpkg.log").write_text(
        "2026-01-02 03:04:05 startup archives unpack\n2026-01-02 03:04:06 upgrade bash:amd64 1 2\n"
        "2026-01-02 03:04:07 status installed bash:amd64 2\nbroken\n"
    )
    (tmp_path / "dpkg.log.2.gz").write_bytes(gzip.compress((tmp_path / "dpkg.log").read_bytes()))
    (event,) = packages.events((str(tmp_path / "dpkg.log"),))
    assert [event] == list(packages.events((str(tmp_path / "dpkg.log.2.gz"), str(tmp_path / "absent"))))
    assert (event.action, event.package, event.before, event.after) == ("upgrade", "bash", "1", "2")
    listed = [
        "Listing...",
        "apt/stable-security 2.6.2 amd64 [upgradable from: 2.6.1]",
        "vim/stable 9 amd64 [upgradable from: 8]",
    ]
    assert packages.security_updates(listed) == (["apt"], 2)


def test_a_package_is_told_with_its_version_or_as_absent() -> None:
    known = packages.dpkg_packages()
    if known:
        first = next(one for one in known if one.state == "installed")
        text = finding(report("package-state", package=first.name))
        assert text.startswith(f"{first.name} {first.version} is installed")
    assert "surely-absent" in finding(report("package-state", package="surely-absent")) or not known


def test_an_account_is_told_with_its_groups_or_as_absent() -> None:
    assert "root has uid 0 and the shell" in finding(report("accounts-check", user="root"))
    assert finding(report("accounts-check", user="no-such-user")) == "There is no account no-such-user."


def test_the_certificate_of_a_host_is_told_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(certificate(tmp_path / "pem", "shop.example", 90))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):  # one connection reads it, one verifies it
                taken, _ = server.accept()
                with (
                    taken,
                    contextlib.suppress(OSError),
                    context.wrap_socket(taken, server_side=True) as secure,
                ):
                    secure.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        text = report("certificate-expiry", host=f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert "is not trusted: it is signed by itself" in finding(text)
    assert "it expires in 90 days" in finding(text)


def test_a_certificate_on_the_command_line_of_a_process_is_in_use(tmp_path: Path) -> None:
    certificate(tmp_path / "shop.pem", "shop.example", -3)
    argv = [sys.executable, "-c", "import time; time.sleep(60)", f"--cert={tmp_path}/shop.pem"]
    waiting = subprocess.Popen(argv)
    try:
        while str(tmp_path) not in Path(f"/proc/{waiting.pid}/cmdline").read_text():
            time.sleep(0.01)
        assert f"{tmp_path}/shop.pem" in [path for path, _ in certificates.on_command_lines()]
    finally:
        waiting.kill()
        waiting.wait()


def test_logins_of_wtmpdb_are_read(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "wtmp.db")
    base.execute(
        "CREATE TABLE wtmp(ID INTEGER PRIMARY KEY, Type INTEGER, User TEXT NOT NULL, Login INTEGER, "
        "Logout INTEGER, TTY TEXT, RemoteHost TEXT, Service TEXT) STRICT"
    )
    now = int(time.time() * 1e6)
    rows = [(1, "reboot", now, "~", None), (3, "ann", now, "pts/0", "192.0.2.7"), (3, "old", 5, "tty1", None)]
    base.executemany("INSERT INTO wtmp(Type, User, Login, TTY, RemoteHost) VALUES(?, ?, ?, ?, ?)", rows)
    base.commit()
    base.close()
    found, problem = access.wtmpdb(time.time() - 60, str(tmp_path / "wtmp.db"))
    assert [(one.user, one.how, one.source) for one in found] == [("ann", "pts/0", "192.0.2.7")]
    assert not problem
    (tmp_path / "wtmp.db").write_bytes(b"no database")
    assert "cannot be read" in access.wtmpdb(0, str(tmp_path / "wtmp.db"))[1]


@pytest.mark.parametrize(
    "text",
    [
        "SESSION  UID USER SEAT  TTY\n      4 1000 ann  seat0 tty2\n\n1 sessions listed.\n",
        "SESSION  UID USER SEAT LEADER CLASS   TTY   IDLE SINCE\n"
        "      4 1000 ann  -    812    user    tty2  no   -\n"
        "      5 1000 ann  -    813    manager -     no   -\n\n"
        "2 sessions listed.\n",
    ],
)
def test_sessions_of_loginctl_old_and_new(text: str) -> None:
    assert access.sessions_in(text) == [("ann", "tty2", "4")]
    assert access.sessions_in("No sessions.\n") == []


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"_UID": "0", "_EXE": "/usr/sbin/sshd"}, True),
        ({}, True),
        ({"_UID": "105"}, True),
        ({"_UID": "1000", "_EXE": "/usr/bin/sudo"}, True),
        ({"_UID": "1000", "_EXE": "/usr/bin/sudo-rs"}, True),
        ({"_UID": "1000", "_EXE": "/usr/bin/logger"}, False),
        ({"_UID": "1000", "_EXE": "/home/eve/sudo"}, False),
        ({"_UID": "1000"}, False),
    ],
)
def test_words_that_anybody_may_log_under_a_name_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], counts: bool
) -> None:
    text = "eve : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND=/bin/sh " + "x" * 5000
    entry = {"MESSAGE": text, "SYSLOG_IDENTIFIER": "sudo", "__REALTIME_TIMESTAMP": "1", **fields}
    (tmp_path / "journalctl").write_text(f"#!/bin/sh\necho '{json.dumps(entry)}'\n")
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(access, "from_files", lambda since: [])
    found, _ = access.from_journal(0, ("sudo",))
    assert [len(line.text) for line in found] == ([1000] if counts else [])
