"""The report on databases or web servers: which run, since when, where they listen, and whether they answer.

A worker that only observes may open no connection; then the report says so, and judges by the kernel's view.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import clock
from areas import servers
from areas.servers import Kind, Listener, Server
from checks import CannotSee, Finding
from commands import run
from headline import tell
from report import Report, shorten, span

_TIMEOUT_S = 2.0
Hello = Callable[[socket.socket, Kind], str]
"""Says the smallest hello of a protocol on a connection, and returns what came back; raises OSError."""


def report_on(
    report: Report, kinds: tuple[Kind, ...], what: str, unit: str | None, hello: Hello
) -> list[Server]:
    """Make the report; returns the servers that it is about."""
    try:
        found, hidden = servers.servers(kinds)
    except CannotSee as err:
        report.note(f"The services: {err}")
        report.finding = f"Whether a {what} runs here cannot be seen."
        return []
    if unit:
        found = [one for one in found if one.unit.name.startswith(unit.removesuffix(".service"))]
    if not found:
        named = (
            f"{unit} is no {what} that runs or is enabled here"
            if unit
            else f"No {what} runs or is enabled here"
        )
        known = ", ".join(kind.name for kind in kinds[:5])
        report.finding = f"{named} (looked for {known} and others)."
        report.found_nothing = bool(unit)
        return []
    answers = {one.unit.name: _answer(one, hello, report) for one in found if one.serves}
    faults = [*servers.down(found), *servers.faults(found), *_silent(found, answers)]
    shown = [one for one in found if one.serves or len(found) == 1]
    tell(report, faults, " ".join(_state(one, answers.get(one.unit.name, "")) for one in shown))
    _evidence(report, what, found, answers)
    if any(not one.is_sure for one in found) and hidden:
        report.note(f"Which process holds a port was judged by its number, not seen: {hidden}")
    return found


def _evidence(report: Report, what: str, found: list[Server], answers: dict[str, str]) -> None:
    report.table(
        what.capitalize() + "s",
        ("Server", "Unit", "State", "Since", "Listens on", "Answer"),
        [
            (
                one.kind.name,
                one.unit.name,
                one.unit.active if one.unit.active == one.unit.sub else f"{one.unit.active} ({one.unit.sub})",
                clock.show(one.unit.since) if one.unit.since else "-",
                one.at or "-",
                shorten(answers.get(one.unit.name, "-"), 60) or "not tried",
            )
            for one in found
        ],
    )
    waiting = [
        f"{row.waiting} of {row.most} at {row.where}" for one in found for row in one.listeners if row.waiting
    ]
    if waiting:
        report.text("Connections that wait to be taken", ", ".join(waiting))
    lines = [row for one in found for row in servers.complaints(one, "-1d")]
    report.lines(
        "Complaints in the journal of the last day",
        [f"{clock.show(when)} {text}" for when, text in lines[-5:]],
    )


def _state(one: Server, answer: str) -> str:
    """`nginx.service runs since ... and listens on 0.0.0.0:80; it answers ...`."""
    started = one.unit.started
    since = f" since {clock.show(started)} ({span(time.time() - started)})" if started else ""
    if not one.serves:
        return f"{one.unit.name} is {one.unit.active}{since}, and groups other units."
    where = f" and listens on {one.at}" if one.at else ""
    said = (
        f"; it answers {shorten(answer, 80).rstrip('.')}"
        if answer and not answer.startswith("no answer")
        else ""
    )
    return f"{one.kind.name} ({one.unit.name}) runs{since}{where}{said}."


def _silent(found: list[Server], answers: dict[str, str]) -> list[Finding]:
    return [
        Finding(
            f"{one.kind.name} ({one.unit.name}) runs but serves nobody: {answers[one.unit.name]}.",
            f"errors of {one.unit.name}",
        )
        for one in found
        if answers.get(one.unit.name, "").startswith(("no answer", "HTTP/1.0 5", "HTTP/1.1 5"))
    ]


def _answer(one: Server, hello: Hello, report: Report) -> str:
    """What the server says, `no answer: ...`, or an empty string where nothing could be asked."""
    ways = sorted(one.listeners, key=lambda row: (row.port not in one.expected, not row.port))
    for row in ways[:3]:
        try:
            with _connection(row) as plain:
                started = time.monotonic()
                return (
                    f"{hello(plain, one.kind)} in {1000 * (time.monotonic() - started):.0f} ms at {row.where}"
                )
        except (TimeoutError, ConnectionError) as err:
            return f"no answer: {getattr(err, 'strerror', None) or err}"
        except OSError:  # this sandbox opens no connection, or the socket is hidden from it
            continue
    if ways:
        report.note(
            "Whether it answers: this worker may open no connection. Judged by the kernel's list of sockets."
        )
    return ""


def _connection(row: Listener) -> socket.socket:
    """A connection to a listener of this machine; raises OSError."""
    if not row.port:
        if row.where.startswith("@"):
            raise OSError("an abstract socket")
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: object = row.where
    else:
        host = row.where.rpartition(":")[0].strip("[]").removeprefix("::ffff:")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared
        plain = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        address = (host, row.port)
    plain.settimeout(_TIMEOUT_S)
    try:
        plain.connect(address)  # type: ignore[arg-type]
    except BaseException:
        plain.close()
        raise
    return plain


def tested(report: Report, command: tuple[str, ...], title: str) -> str:
    """The error that a server's own test of its configuration gives, or an empty string."""
    answer = run(*command, timeout_s=8)
    text = (answer.stderr + answer.stdout).strip()
    if not answer.problem:
        report.text(title, f"`{' '.join(command)}`: good.")
        return ""
    if answer.status == 127:
        return ""
    lines = [
        line for line in text.splitlines() if "Permission denied" not in line and "must be run as" not in line
    ]
    bad = [line for line in lines if " in /" in line or "syntax error" in line.lower() or "parsing [" in line]
    if bad:
        return shorten(bad[0])
    report.note(f"Whether the configuration is good: `{' '.join(command)}` works only as root.")
    return ""
