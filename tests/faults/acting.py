"""What the tests of faults do with a daemon, and what they look for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from lightagentd.errors import LightagentError
from tests.kill.inspection import look
from tests.kill.ledger import Ledger
from tests.kill.stage import AGENT, Stage


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Wait until something is so, and give it; the time is only there to end a test that fails."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return found


def call(stage: Stage, method: str, **parameters: Any) -> dict[str, Any]:
    """One call on a connection of its own."""
    with stage.daemon.client() as client:
        return client.call(method, **parameters)


def prompt(stage: Stage, text: str, *, session: str = "") -> list[dict[str, Any]]:
    """Prompt, and give the turn's events up to its last one, or to one that asks a person."""
    events: list[dict[str, Any]] = []
    with stage.daemon.client() as client:
        where = {"session": session} if session else {"agent": AGENT, "new": True}
        for reply in client.stream("Sessions.Prompt", text=text, **where):
            events.append(reply["event"])
            if events[-1]["type"] in ("approval_requested", "input_requested"):
                break
    return events


def answered(stage: Stage, name: str, verb: str = "say", *, session: str = "") -> str:
    """Prompt, and see the answer come; gives the session."""
    events = prompt(stage, f"{name} {verb}", session=session)
    assert events[-1]["type"] == "done", events[-1]
    return str(events[-1]["session"])


def refusal(stage: Stage, text: str) -> str:
    """Prompt, and see it fail; gives what is said of it, message and suggestion."""
    try:
        last = prompt(stage, text)[-1]
    except LightagentError as err:
        return f"{err.code}: {err} {err.suggestion}"
    assert last["type"] == "error", last
    return f"{last['code']}: {last['message']} {last['suggestion']}"


def problems(stage: Stage) -> str:
    """What `status` says is wrong."""
    return "\n".join(call(stage, "Manager.GetStatus")["status"]["problems"])


def prompts_of(stage: Stage, session: str) -> list[str]:
    messages = call(stage, "Sessions.Messages", session=session, limit=1000)["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


def sound(stage: Stage) -> None:
    """The chain verifies, and states and events agree. The daemon may run or not."""
    with _in_order(stage):
        problems = look(stage.paths.history, Ledger())
        assert not problems, problems


@contextlib.contextmanager
def _in_order(stage: Stage) -> Iterator[None]:
    yield
    log = stage.daemon.log.read_text()
    assert "Traceback" not in log, log[-4000:]
