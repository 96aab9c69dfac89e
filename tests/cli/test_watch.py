"""Lists with --watch: drawn again at an event, for another size of the terminal, and after a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Lactl, environment
from tests.cli.terminal import Terminal
from tests.scripted_daemon import Connection, ScriptedDaemon, agent, approval, event

HOSTILE = "systemd\x1b]0;title\x07\x1b[2J\x1b[99B"


class Watched:
    """A daemon that lists approvals, and tells an event when it is said so."""

    def __init__(self, daemon: ScriptedDaemon) -> None:
        self.daemon, self.happened, self.over = daemon, threading.Event(), False
        self.asked: list[dict[str, Any]] = []
        daemon.answer("History.Page", {"page": {"events": [event(41)], "next_seq": 0}})
        daemon.handle("Events.Subscribe", self._subscribe)
        self.set("ops")

    def set(self, *agents: str, tool: str = "systemd") -> None:
        self.daemon.answer(
            "Approvals.List", {"approvals": [approval(agent=one, tool=tool) for one in agents]}
        )

    def looks(self) -> int:
        return sum(call["method"].endswith("Approvals.List") for call in self.daemon.calls)

    def _subscribe(self, connection: Connection, call: dict[str, Any]) -> None:
        self.asked.append(call["parameters"])
        connection.reply({"event": event(42)}, continues=True)
        while self.happened.wait(60) and not self.over:
            self.happened.clear()
            connection.reply({"event": event(43)}, continues=True)

    def hang_up(self) -> None:
        self.over = True
        self.happened.set()


@pytest.fixture
def watched(scripted: ScriptedDaemon) -> Iterator[Watched]:
    found = Watched(scripted)
    yield found
    found.hang_up()


def test_an_event_redraws_and_nothing_is_polled(watched: Watched) -> None:
    with Terminal(["approvals", "--watch"], env=environment(), columns=120) as terminal:
        terminal.until("ops")
        terminal.until(lambda _: watched.looks() >= 2)  # the first event redraws
        before = watched.looks()
        watched.set("ops", "web", tool=HOSTILE)
        watched.happened.set()
        terminal.until("web")
        assert "systemd" in terminal.screen.text
        assert watched.looks() == before + 1
        watched.set()
        watched.happened.set()
        terminal.until("Nothing waits for an answer.")
        terminal.send("\x03")
        assert terminal.finished() == 0
    assert watched.asked == [{"topic": "approval", "from_seq": 42, "follow": True}]


def test_it_goes_on_after_a_restart_of_the_daemon(watched: Watched) -> None:
    with Terminal(["approvals", "list", "-w"], env=environment(), columns=120) as terminal:
        terminal.until("ops")
        watched.hang_up()
        watched.daemon.stop()
        terminal.until(lambda text: "tried again." in " ".join(text.split()))
        watched.over = False
        watched.happened.clear()
        watched.set("web")
        watched.daemon.start()
        terminal.until("web")
        terminal.send("q")
        assert terminal.finished() == 0


def test_where_there_is_no_terminal_it_is_refused(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Agents.List", {"agents": [agent()]})
    for line in ("approvals --watch", "agents list --watch", "status -w", "flows runs -w --json"):
        done = lactl(*line.split())
        assert done.status == 2
        assert "In a pipe: lactl events --follow" in done.err
    assert "CALL and --watch cannot be used together." in lactl("confirm", "call_1", "--watch").err
    assert not scripted.calls
