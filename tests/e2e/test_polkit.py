"""polkit decides about the callers of both planes: asked, allowed and denied, absent, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from .machine import Completed, Machine
from .product import eventually, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

ACTIONS = ("administer", "approve", "inspect", "manage-agents", "prompt")
PASSWORD = "correct-horse"
RULES = "/etc/polkit-1/rules.d/10-e2e.rules"
CHANGE = "lightagent-change@ops.socket"
DBUS = ("org.lightagent1", "/org/lightagent1")

ON_TERMINAL = """
import os, pty, sys, termios, time
answer, argv = sys.argv[1], sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(argv[0], argv)
out, asked, answered = b"", 0, False
while True:
    try:
        chunk = os.read(terminal, 4096)
    except OSError:
        break
    out += chunk
    if b"[y/N] " in out and not answered:
        answered = True
        os.write(terminal, b"y\\n")
    if out.lower().count(b"password:") > asked:
        asked += 1
        while termios.tcgetattr(terminal)[3] & termios.ECHO:
            time.sleep(0.01)  # what is typed before that is thrown away
        os.write(terminal, b"\\x03" if answer == "^C" else answer.encode() + b"\\n")
_, status = os.waitpid(pid, 0)
sys.stdout.write(out.decode(errors="replace"))
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command on a terminal of its own, says yes once, and answers what asks for a password there."""


@pytest.fixture(scope="module", autouse=True)
def people(service: Machine) -> Iterator[None]:
    """anna and bert are in the group lightagent, eve is not; adam is an administrator with a password."""
    groups_of = {"anna": "lightagent", "bert": "lightagent", "eve": "", "adam": "sudo,lightagent"}
    for name, groups in groups_of.items():
        service.run(["useradd", new_uid(), "--create-home", f"--groups={groups}", name])
    service.run(["chpasswd"], input=f"adam:{PASSWORD}\n")
    yield
    service.run(["rm", "-f", RULES])
    for name in ("anna", "bert", "eve", "adam"):
        service.run(["userdel", "--remove", name])


@pytest.fixture
def rules(service: Machine) -> Iterator[None]:
    """Rules of the administrator's own; polkit has read them."""
    service.write(
        RULES,
        """
        polkit.addRule(function (action, subject) {
            if (action.id === "org.lightagent1.manage-agents" && subject.user === "anna"
                    && action.lookup("agent") === "ops") {
                return polkit.Result.YES;
            }
            if (action.id === "org.lightagent1.prompt" && subject.user === "bert") {
                return polkit.Result.NO;
            }
        });
        """,
    )
    eventually(lambda: prompt(service, "bert").status == 77, "polkit has read the rules")
    yield
    service.run(["rm", RULES])
    eventually(lambda: prompt(service, "bert").status == 0, "polkit has read that there are no more rules")


def prompt(machine: Machine, user: str) -> Completed:
    return lactl(machine, "prompt", "ops", "check memory", user=user, check=False)


def on_terminal(machine: Machine, user: str, answer: str, *argv: str) -> Completed:
    """How a command ended on a terminal where somebody answers with a password."""
    command = ["/usr/bin/python3", "-c", ON_TERMINAL, answer, *argv]
    return machine.run(command, user=user, check=False, timeout_s=60)


def error_code(done: Completed) -> str:
    return str(json.loads(done.stderr)["error"]["code"])


def busctl(machine: Machine, user: str, *args: str, interactive: bool = False) -> Completed:
    """A call over D-Bus."""
    allowed = f"--allow-interactive-authorization={'yes' if interactive else 'no'}"
    return machine.run(["busctl", allowed, *args], user=user, check=False)


def test_polkit_knows_the_actions(service: Machine) -> None:
    found = service.run(["pkaction"]).stdout.split()
    assert [one for one in found if one.startswith("org.lightagent1.")] == [
        f"org.lightagent1.{name}" for name in ACTIONS
    ]
    shown = service.run(["pkaction", "--verbose", "--action-id=org.lightagent1.approve"]).stdout
    assert "unix-user:lightagent" in shown
    assert "auth_admin_keep" in shown


def test_group_may_inspect_and_prompt_and_no_more_without_a_password(service: Machine) -> None:
    assert prompt(service, "anna").status == 0
    assert lactl_json(service, "status", user="anna")["state"] == "running"
    for command in (("reload",), ("agents", "stop", "ops")):
        refused = lactl(service, "--json", *command, user="anna", check=False)
        assert refused.status == 77, refused.explain()
        assert error_code(refused) == "authorization_required"
    rule = ("org.lightagent1.Approvals", "WriteRule", "ssa{sv}", "apr_0123456789abcdef", "0" * 64, "0")
    assert "authenticate" in busctl(service, "anna", "call", *DBUS, *rule).stderr


def test_a_user_outside_of_the_group_is_refused_on_the_bus_too(service: Machine) -> None:
    for method in ("org.lightagent1.Manager GetStatus", "org.lightagent1.Manager Reload"):
        refused = busctl(service, "eve", "call", *DBUS, *method.split())
        assert refused.status != 0
        assert "polkit asks an administrator to authenticate" in refused.stderr
    assert busctl(service, "anna", "call", *DBUS, "org.lightagent1.Manager", "GetStatus").status == 0


@pytest.mark.usefixtures("rules")
def test_administrators_rules_allow_and_deny_on_both_planes(service: Machine) -> None:
    assert error_code(lactl(service, "--json", "prompt", "ops", "hello", user="bert", check=False)) == (
        "permission_denied"
    )
    ask = (*DBUS, "org.lightagent1.Manager", "Ask", "ssa{sv}", "ops", "hello", "0")
    asked = busctl(service, "bert", "call", *ask)
    assert "org.lightagent1.prompt" in asked.stderr
    assert lactl(service, "agents", "stop", "ops", user="anna").status == 0
    started = busctl(service, "anna", "call", *DBUS, "org.lightagent1.Agents", "Start", "s", "ops")
    assert started.status == 0, started.explain()
    for other in ("web", "ops ", "ops\n", "Ops"):
        refused = lactl(service, "--json", "agents", "stop", other, user="anna", check=False)
        assert error_code(refused) == "authorization_required", other


@pytest.fixture
def hidden(service: Machine) -> Iterator[None]:
    """An agent that anna prompted, and may look at no more."""
    lactl(service, "agents", "create", "secret")
    lactl(service, "prompt", "secret", "check memory", user="anna")
    service.write(
        RULES,
        """
        polkit.addRule(function (action, subject) {
            if (action.id.indexOf("org.lightagent1.") === 0 && action.lookup("agent") === "secret"
                    && subject.user === "anna") {
                return polkit.Result.NO;
            }
        });
        """,
    )
    show = ("agents", "show", "secret")
    eventually(lambda: lactl(service, *show, user="anna", check=False).status == 77, "polkit has read it")
    yield
    service.run(["rm", RULES])
    eventually(lambda: lactl(service, *show, user="anna", check=False).status == 0, "polkit has read it")
    lactl(service, "agents", "delete", "secret")


@pytest.mark.usefixtures("hidden")
def test_an_agent_that_a_rule_hides_is_in_no_answer(service: Machine) -> None:
    for command in (("history",), ("events",), ("sessions", "list")):
        refused = lactl(service, "--json", *command, "--agent", "secret", user="anna", check=False)
        assert error_code(refused) == "permission_denied", command
    for command in (("agents", "list"), ("sessions", "list"), ("history",), ("undo", "--list"), ("status",)):
        assert "secret" not in lactl(service, "--json", *command, user="anna").stdout, command
        if command[0] != "undo":
            assert "secret" in lactl(service, "--json", *command).stdout or command == ("status",)
    for object_ in ("org.freedesktop.DBus.ObjectManager GetManagedObjects", "org.lightagent1.Agents List"):
        listed = busctl(service, "anna", "call", *DBUS, *object_.split())
        assert "ops" in listed.stdout, listed.explain()
        assert "secret" not in listed.stdout
    path = "/org/lightagent1/agents/secret"
    assert busctl(service, "anna", "introspect", DBUS[0], path).status != 0


def test_a_polkit_that_hangs_does_not_hold_up_root(service: Machine) -> None:
    assert prompt(service, "anna").status == 0
    service.run(["systemctl", "kill", "--signal=STOP", "polkit.service"])
    try:
        assert lactl_json(service, "status")["state"] == "running"
        eventually(
            lambda: "polkit cannot be asked" in "\n".join(lactl_json(service, "status")["problems"]),
            "status says what is wrong",
        )
    finally:
        service.run(["systemctl", "kill", "--signal=CONT", "polkit.service"])
    assert prompt(service, "anna").status == 0


def test_the_daemons_user_cannot_start_a_transient_unit_named_as_a_worker(service: Machine) -> None:
    systemd = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
    made = ("StartTransientUnit", "ssa(sv)a(sa(sv))", "lightagent-observe@evil.service", "replace", "0", "0")
    refused = busctl(service, "lightagent", "call", *systemd, *made)
    assert refused.status != 0
    assert "access denied" in refused.stderr.lower(), refused.explain()


def test_a_password_on_the_terminal_allows_one_call(service: Machine) -> None:
    done = on_terminal(service, "anna", PASSWORD, "lactl", "reload")
    assert done.status == 0, done.explain()
    assert "Authentication is required to administer the agent daemon" in done.stdout
    assert "were read again" in done.stdout
    assert service.run(["pgrep", "pkttyagent"], check=False).status == 1
    assert lactl(service, "reload", user="anna", check=False).status == 77


def test_a_yes_to_a_change_asks_an_administrator_for_the_password(service: Machine) -> None:
    """adam, who may use sudo, allows his own call where he made it; a wrong password allows nothing."""
    service.run(["systemctl", "enable", "--now", CHANGE])
    try:
        call = ("lactl", "tools", "call", "ops", "bash.exec", "effect=change")
        done = on_terminal(service, "adam", PASSWORD, *call, "command=id -u >/srv/e2e-approved")
        assert done.status == 0, done.explain()
        assert "[y/N]" not in done.stdout  # what waits is what he typed
        assert "Authentication is required to approve what the AI agent ops asks to do" in done.stdout
        assert service.run(["cat", "/srv/e2e-approved"]).stdout == "0\n"
        service.run(["rm", "/srv/e2e-approved"])
        granted = lactl_json(service, "approvals", "list", "--all")[-1]
        assert (granted["state"], granted["answered_by"]) == ("used", service.account("adam").pw_uid)
    finally:
        service.run(["systemctl", "disable", "--now", CHANGE])


def test_a_wrong_password_and_none_at_all_refuse(service: Machine) -> None:
    wrong = on_terminal(service, "anna", "wrong", "lactl", "agents", "stop", "ops")
    assert wrong.status == 77, wrong.explain()
    assert "AI agent ops" in wrong.stdout
    assert on_terminal(service, "anna", "^C", "lactl", "agents", "stop", "ops").status == 130
    assert lactl_json(service, "agents", "list")[0]["state"] == "running"
    assert service.run(["pgrep", "pkttyagent"], check=False).status == 1


def test_nobody_is_asked_who_does_not_want_it(service: Machine) -> None:
    done = on_terminal(service, "anna", PASSWORD, "lactl", "--no-ask-password", "reload")
    assert done.status == 77, done.explain()
    assert "assword:" not in done.stdout


def test_without_a_text_agent_lactl_says_what_to_install(service: Machine) -> None:
    done = on_terminal(service, "anna", PASSWORD, "env", "PATH=/nowhere", "/usr/bin/lactl", "reload")
    assert done.status == 77, done.explain()
    assert "pkttyagent is not installed" in done.stdout
    assert "package polkitd" in done.stdout


def test_a_call_that_allows_to_ask_where_nobody_answers_says_so(service: Machine) -> None:
    allowed = '{"allowInteractiveAuthentication":true}'
    socket = "/run/lightagentd/control.sock"
    over_varlink = service.run(
        ["varlinkctl", "call", socket, "org.lightagent1.Manager.Reload", allowed], user="anna", check=False
    )
    assert over_varlink.status != 0
    assert "org.lightagent1.AuthorizationRequired" in over_varlink.stderr
    on_bus = busctl(service, "anna", "call", *DBUS, "org.lightagent1.Manager", "Reload", interactive=True)
    assert "no authentication agent" in on_bus.stderr


def test_without_polkit_the_rule_of_the_group_applies_and_status_says_so(service: Machine) -> None:
    assert prompt(service, "anna").status == 0  # systemd starts no worker for the daemon without polkit
    service.run(["systemctl", "mask", "--runtime", "polkit.service"])
    service.run(["systemctl", "stop", "polkit.service"])
    try:
        assert prompt(service, "anna").status == 0
        refused = lactl(service, "--json", "reload", user="anna", check=False)
        assert error_code(refused) == "permission_denied"
        assert busctl(service, "eve", "call", *DBUS, "org.lightagent1.Manager", "GetStatus").status != 0
        problems = "\n".join(lactl_json(service, "status")["problems"])
        assert "polkit does not run here" in problems
        assert lactl(service, "reload").status == 0
    finally:
        service.run(["systemctl", "unmask", "--runtime", "polkit.service"])
    assert error_code(lactl(service, "--json", "reload", user="anna", check=False)) == (
        "authorization_required"
    )
    assert "polkit" not in "\n".join(lactl_json(service, "status")["problems"])


def test_polkit_that_was_restarted_decides_again(service: Machine) -> None:
    assert prompt(service, "anna").status == 0
    service.run(["systemctl", "restart", "polkit.service"])
    assert prompt(service, "anna").status == 0
    service.run(["systemctl", "kill", "--signal=KILL", "polkit.service"])
    # Who asks before systemd has seen its end has the bus wait 25 s for a unit that is active for systemd.
    state = ["systemctl", "is-active", "polkit.service"]
    eventually(lambda: service.run(state, check=False).stdout == "failed\n", "systemd has seen it")
    eventually(lambda: prompt(service, "anna").status == 0, "polkit is back")
