"""Two ordinary users of the group: what is one's does not exist for the other, on either plane."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from .machine import Completed, Machine
from .product import eventually, lactl, lactl_json, lactl_json_lines, new_uid

pytestmark = pytest.mark.e2e

SECRET = "marmot-4711"
CHANGE = "lightagent-change@ops.socket"
ROOT = "/org/lightagent1"
READ = ("org.freedesktop.DBus.Properties", "GetAll", "s")


@dataclass(frozen=True)
class Theirs:
    """What carol has: a session, and in it what waits for an answer."""

    session: str
    approval: str


@pytest.fixture(scope="module", autouse=True)
def people(service: Machine) -> Iterator[None]:
    for name in ("carol", "dave"):
        service.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", name])
    yield
    for name in ("carol", "dave"):
        service.run(["userdel", "--remove", name])


@pytest.fixture(scope="module")
def hers(service: Machine, people: None) -> Iterator[Theirs]:
    """A session of carol's with a secret in it, and a question that waits for an answer."""
    lactl(service, "prompt", "ops", "--new", f"what is {SECRET}", user="carol", check=False)
    [session] = lactl_json(service, "sessions", "list", user="carol")
    assert session["owner"] == service.account("carol").pw_uid
    service.run(["systemctl", "enable", "--now", CHANGE])
    waiting = ["systemd-run", "--unit=e2e-hers", "--collect", "--property=User=carol"]
    args = json.dumps({"path": f"/srv/{SECRET}", "content": "x"})
    service.run([*waiting, "lactl", "tools", "call", "ops", "file.write", "--args", args])
    eventually(lambda: lactl_json(service, "approvals", user="carol"), "carol is asked")
    [question] = lactl_json(service, "approvals", user="carol")
    yield Theirs(session=session["id"], approval=question["id"])
    service.run(["systemctl", "disable", "--now", CHANGE])
    service.run(["systemctl", "stop", "e2e-hers.service"], check=False)


def as_dave(machine: Machine, *args: str) -> Completed:
    return lactl(machine, "--json", *args, user="dave", check=False)


def busctl(machine: Machine, user: str, *args: str) -> Completed:
    return machine.run(["busctl", "--json=short", "call", "org.lightagent1", *args], user=user, check=False)


def made_up(id_: str) -> str:
    """An id of the same kind that nobody has."""
    return f"{id_.partition('_')[0]}_0123456789abcdef"


def on_bus(id_: str) -> str:
    """The path of an object, as sd_bus_path_encode(3) makes it."""
    kind = "sessions" if id_.startswith("ses_") else "approvals"
    return f"{ROOT}/{kind}/{id_.replace('_', '_5f')}"


def answers(done: list[Completed], hers: str) -> list[tuple[int, str, str]]:
    """Status and words of each, with her id and its path as those that nobody has."""
    swaps = [(on_bus(hers), on_bus(made_up(hers))), (hers, made_up(hers))]
    found = []
    for one in done:
        out, err = one.stdout, one.stderr
        for old, new in swaps:
            out, err = out.replace(old, new), err.replace(old, new)
        found.append((one.status, out, err))
    return found


def test_her_own_session_is_there_for_her_on_both_planes(service: Machine, hers: Theirs) -> None:
    shown = lactl_json(service, "sessions", "show", hers.session, user="carol")
    assert SECRET in json.dumps(shown)
    over_bus = busctl(service, "carol", ROOT, "org.lightagent1.Sessions", "Get", "s", hers.session)
    assert hers.session in over_bus.stdout, over_bus.explain()
    for id_, kind in ((hers.session, "Session"), (hers.approval, "Approval")):
        read = busctl(service, "carol", on_bus(id_), *READ, f"org.lightagent1.{kind}")
        assert read.status == 0, read.explain()


def test_lists_hold_nothing_of_hers(service: Machine, hers: Theirs) -> None:
    assert lactl_json(service, "sessions", "list", user="dave") == []
    found = [
        as_dave(service, "sessions", "list"),
        as_dave(service, "approvals", "list"),
        as_dave(service, "agents", "list"),
        as_dave(service, "status"),
        as_dave(service, "history", "--limit=1000"),
        as_dave(service, "events", "--since=-1h"),
        busctl(service, "dave", ROOT, "org.lightagent1.Sessions", "List", "a{sv}", "0"),
        busctl(service, "dave", ROOT, "org.lightagent1.Approvals", "List", "a{sv}", "0"),
        busctl(service, "dave", ROOT, "org.lightagent1.History", "Query", "a{sv}", "0"),
        busctl(service, "dave", ROOT, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects"),
        service.run(["busctl", "tree", "org.lightagent1"], user="dave", check=False),
    ]
    for done in found:
        for id_ in (hers.session, hers.approval):
            assert id_ not in done.stdout + done.stderr, done.explain()
            assert on_bus(id_) not in done.stdout, done.explain()
        assert SECRET not in done.stdout + done.stderr, done.explain()


@pytest.mark.parametrize(
    "command",
    [
        ("sessions", "show", "SESSION"),
        ("sessions", "cancel", "SESSION"),
        ("prompt", "ops", "--session=SESSION", "hello"),
        ("approvals", "show", "APPROVAL"),
        ("deny", "APPROVAL"),
        ("approve", "APPROVAL"),
    ],
)
def test_her_id_is_answered_like_a_made_up_one_on_the_socket(
    service: Machine, hers: Theirs, command: tuple[str, ...]
) -> None:
    id_ = hers.approval if "APPROVAL" in command else hers.session
    done = []
    for tried in (id_, made_up(id_)):
        argv = [part.replace("SESSION", tried).replace("APPROVAL", tried) for part in command]
        done.append(as_dave(service, *argv))
    of_hers, of_nothing = answers(done, id_)
    assert of_hers == of_nothing
    assert of_hers[0] == 66, done[0].explain()


@pytest.mark.parametrize(
    "call",
    [
        ("org.lightagent1.Sessions", "Get", "s", "SESSION"),
        ("org.lightagent1.Sessions", "Messages", "sa{sv}", "SESSION", "0"),
        ("org.lightagent1.Sessions", "Cancel", "s", "SESSION"),
        ("org.lightagent1.Manager", "Ask", "ssa{sv}", "ops", "hello", "1", "session", "s", "SESSION"),
        ("org.lightagent1.Approvals", "Get", "s", "APPROVAL"),
        ("org.lightagent1.Approvals", "Deny", "sa{sv}", "APPROVAL", "0"),
        ("org.lightagent1.Approvals", "Approve", "sa{sv}", "APPROVAL", "0"),
    ],
)
def test_her_id_is_answered_like_a_made_up_one_on_the_bus(
    service: Machine, hers: Theirs, call: tuple[str, ...]
) -> None:
    id_ = hers.approval if "APPROVAL" in call else hers.session
    done = []
    for tried in (id_, made_up(id_)):
        argv = [part.replace("SESSION", tried).replace("APPROVAL", tried) for part in call]
        done.append(busctl(service, "dave", ROOT, *argv))
    of_hers, of_nothing = answers(done, id_)
    assert of_hers == of_nothing
    assert "There is no " in done[0].stderr, done[0].explain()


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("session", (*READ, "org.lightagent1.Session")),
        ("session", ("org.lightagent1.Session", "Cancel")),
        ("session", ("org.lightagent1.Session", "Messages", "a{sv}", "0")),
        ("session", ("org.freedesktop.DBus.Introspectable", "Introspect")),
        ("session", ("org.example.Nothing", "Nothing")),
        ("approval", (*READ, "org.lightagent1.Approval")),
        ("approval", ("org.lightagent1.Approval", "Approve", "a{sv}", "0")),
        ("approval", ("org.lightagent1.Approval", "Deny", "a{sv}", "0")),
        ("approval", ("org.freedesktop.DBus.Introspectable", "Introspect")),
    ],
)
def test_her_object_is_answered_like_a_made_up_one(
    service: Machine, hers: Theirs, kind: str, call: tuple[str, ...]
) -> None:
    id_ = hers.session if kind == "session" else hers.approval
    done = [busctl(service, "dave", on_bus(tried), *call) for tried in (id_, made_up(id_))]
    of_hers, of_nothing = answers(done, id_)
    assert of_hers == of_nothing
    if call[0] != "org.freedesktop.DBus.Introspectable":
        assert of_hers[0] != 0


def test_after_all_that_her_session_is_as_it_was(service: Machine, hers: Theirs) -> None:
    shown = lactl_json(service, "sessions", "show", hers.session)
    asked = [message for message in shown["messages"] if message["role"] == "user"]
    assert [SECRET in message["content"] for message in asked] == [True]
    assert [one["id"] for one in lactl_json(service, "approvals", user="carol")] == [hers.approval]


def test_an_administrator_sees_both(service: Machine, hers: Theirs) -> None:
    lactl_json_lines(service, "prompt", "ops", "check memory")
    owners = {one["owner"] for one in lactl_json(service, "sessions", "list")}
    assert {0, service.account("carol").pw_uid} <= owners


PLANTED = """trap 'rm -f "$HOME/../left"' EXIT
echo 'echo hijacked' > "$HOME/../left"; echo private > "$HOME/file"; chmod 0700 "$HOME"
SECRET=private sleep 1234569
"""
LOOKED = """test -e /proc/$pid && echo 'sees the process'
cat "$HOME"/../left "$HOME"/../*/file /proc/$pid/environ 2>/dev/null && echo 'read it'
for one in "$HOME"/../*; do test "$one" = "$HOME/../${HOME##*/}" || echo "found $one"; done
kill -9 $pid 2>/dev/null && echo 'killed it'
for ((i = 0; i < 300; i++)); do sleep 300 & done 2>/dev/null; echo "started $i"
"""
"""What one who shares a worker with another could do to them."""


@pytest.mark.parametrize("effect", ["observe", "reach"])
def test_users_of_one_agent_share_no_worker(service: Machine, effect: str) -> None:
    args = json.dumps({"command": PLANTED, "effect": effect})
    carols = ["systemd-run", f"--unit=e2e-{effect}", "--collect", "--property=User=carol"]
    service.run([*carols, "lactl", "tools", "call", "ops", "bash.exec", "--args", args])
    running = ["pgrep", "-fx", "sleep 1234569"]
    eventually(lambda: service.run(running, check=False).stdout, "carol's command runs")
    try:
        pid = service.run(running).stdout.split()[0]
        looked = json.dumps({"command": f"pid={pid}; {LOOKED}", "effect": effect})
        done = as_dave(service, "tools", "call", "ops", "bash.exec", "--args", looked)
        said = "".join(str(json.loads(line).get("text", "")) for line in done.stdout.splitlines())
        assert ("sees the process" in said) == (effect == "observe"), done.explain()
        assert "started 300" in said
        assert [
            word for word in ("read it", "found", "killed it", "hijacked", "private") if word in said
        ] == []
        assert service.run(running).stdout, "it runs still"
        workers = lactl_json(service, "status")["workers"]
        units = {one["owner"]: one["unit"] for one in workers if one["effect"] == effect}
        users = [
            service.run(["systemctl", "show", "-P", "User", units[service.account(name).pw_uid]]).stdout
            for name in ("carol", "dave")
        ]
        assert len(set(users)) == 2
    finally:
        service.run(["systemctl", "stop", f"e2e-{effect}.service"], check=False)
