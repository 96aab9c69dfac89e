"""Conversations of two ordinary users on a booted system: lactl, plans, memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .machine import Machine
from .product import lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

PLAN = """# Look after the disk

- [ ] check disk
  check: test -d /var
- [ ] check memory
"""


@pytest.fixture(scope="module", autouse=True)
def people(service: Machine) -> Iterator[None]:
    for name in ("erin", "frank"):
        service.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", name])
    yield
    for name in ("erin", "frank"):
        service.run(["userdel", "--remove", name])


def erins(machine: Machine, *args: str) -> Any:
    return lactl_json(machine, *args, user="erin")


def refused(machine: Machine, user: str, *args: str) -> tuple[int, str]:
    """The status and the code of a command that fails."""
    done = lactl(machine, "--json", *args, user=user, check=False)
    assert done.status != 0, done.explain()
    return done.status, json.loads(done.stderr.splitlines()[-1])["error"]["code"]


def test_a_session_lives_from_its_first_prompt_to_its_end(service: Machine) -> None:
    session = erins(service, "sessions", "new", "ops", "--title", "disks")["id"]
    service.write("/home/erin/a.log", "one\n")
    lactl(service, "prompt", "ops", "check disk", "-a", "/home/erin/a.log", "--no-wait", user="erin")
    assert "room" in lactl(service, "wait", "ops", user="erin").stdout
    shown = erins(service, "sessions", "show", "ops")
    assert shown["messages"][0]["content"] == "check disk\n\n```a.log\none\n```"

    fork = erins(service, "sessions", "fork", session)["id"]
    lactl(service, "sessions", "export", fork, "--format=jsonl", "-o", "/home/erin/x.jsonl", user="erin")
    assert service.run(["stat", "--format=%a %U", "/home/erin/x.jsonl"]).stdout == "600 erin\n"
    imported = erins(service, "sessions", "import", "/home/erin/x.jsonl", "--agent=ops")
    assert imported["tainted"]
    assert refused(service, "frank", "sessions", "export", session) == (66, "session_not_found")
    assert refused(service, "frank", "sessions", "switch", session) == (66, "session_not_found")

    assert refused(service, "erin", "sessions", "delete", fork) == (73, "confirmation_required")
    for each in (fork, imported["id"]):
        lactl(service, "sessions", "delete", "--yes", each, user="erin")
    assert [each["id"] for each in erins(service, "sessions", "list")] == [session]
    assert lactl_json(service, "audit", "verify")["ok"]


def test_a_plan_is_set_looked_at_and_applied(service: Machine) -> None:
    erins(service, "sessions", "new", "ops")
    service.write("/home/erin/plan.md", PLAN)
    lactl(service, "plan", "set", "ops", "/home/erin/plan.md", user="erin")
    plan = erins(service, "plan", "show", "ops")
    assert (plan["phase"], [task["text"] for task in plan["tasks"]]) == (
        "ready",
        ["check disk", "check memory"],
    )
    lactl(service, "plan", "apply", "ops", user="erin")
    assert erins(service, "sessions", "show", "ops")["mode"] == "normal"
    assert {task["state"] for task in erins(service, "plan", "show", "ops")["tasks"]} == {"done"}


def test_what_is_remembered_for_one_is_not_there_for_the_other(service: Machine) -> None:
    lactl(service, "memory", "add", "the backups are on marmot", user="erin")
    assert "marmot" in lactl(service, "memory", "list", user="erin").stdout
    assert "marmot" in lactl(service, "memory", "search", "backups", user="erin").stdout
    assert lactl_json(service, "memory", "list", user="frank") == []


def test_usage_is_each_users_own(service: Machine) -> None:
    assert sum(each["steps"] for each in erins(service, "usage", "--by", "session")) > 0
    assert lactl_json(service, "usage", "--by", "session", user="frank") == []


def test_chat_works_through_a_pipe_on_a_dumb_terminal(service: Machine) -> None:
    done = service.run(
        ["sh", "-c", "printf 'check disk\\n/exit\\n' | TERM=dumb lactl chat ops"], user="erin", timeout_s=60
    )
    assert "room" in done.stdout
    assert "\x1b" not in done.stdout
