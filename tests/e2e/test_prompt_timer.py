"""Prompts on a calendar: lightagent-prompt@NAME.timer, in the name of an ordinary user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .dropins import edited
from .machine import Completed, Machine
from .product import eventually, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

FOLDER = "/etc/lightagentd/prompts"
GOOD = 'agent = "ops"\nprompt = "check memory"\nowner = "carol"\n'


@pytest.fixture(scope="module", autouse=True)
def people(service: Machine) -> Iterator[None]:
    """carol is in the group lightagent, eve is not."""
    for name, groups in (("carol", "lightagent"), ("eve", "")):
        service.run(["useradd", new_uid(), "--create-home", f"--groups={groups}", name])
    yield
    for name in ("carol", "eve"):
        service.run(["userdel", "--remove", name])


@pytest.fixture(autouse=True)
def files(service: Machine) -> Iterator[None]:
    """What a test wrote, and what failed in it, is gone afterwards."""
    yield
    service.run(["sh", "-c", f"rm -f {FOLDER}/*.toml"])
    service.run(["systemctl", "reset-failed", "lightagent-prompt@*"], check=False)


def start(machine: Machine, name: str, text: str = GOOD, mode: int = 0o644) -> Completed:
    machine.write(f"{FOLDER}/{name}.toml", text, mode)
    return machine.run(["systemctl", "start", f"lightagent-prompt@{name}.service"], check=False, timeout_s=60)


def answers(machine: Machine, name: str) -> list[dict[str, Any]]:
    return machine.journal("--unit", f"lightagent-prompt@{name}.service", "--identifier=lightagent-prompt")


def ended(machine: Machine, name: str) -> tuple[int, str]:
    """The exit status of the unit's program, and what it wrote to standard error."""
    unit = f"lightagent-prompt@{name}.service"
    status = machine.run(["systemctl", "show", "--property=ExecMainStatus", "--value", unit]).stdout
    return int(status), "\n".join(str(entry["MESSAGE"]) for entry in machine.journal("--unit", unit))


def test_timer_asks_in_the_name_of_its_owner(service: Machine) -> None:
    service.write(f"{FOLDER}/daily.toml", GOOD)
    timer = "lightagent-prompt@daily.timer"
    soon = "[Timer]\nOnCalendar=\nOnActiveSec=100ms\nAccuracySec=10ms\nRandomizedDelaySec=0\n"
    with edited(service, timer, soon):
        service.run(["systemctl", "enable", "--now", timer])
        try:
            eventually(lambda: answers(service, "daily"), "the timer fired and the answer is in the journal")
        finally:
            service.run(["systemctl", "disable", "--now", timer])
    [entry] = answers(service, "daily")
    assert "memory" in str(entry["MESSAGE"])
    assert entry["_UID"] == str(service.account("carol").pw_uid)
    assert (entry["LIGHTAGENT_PROMPT"], entry["LIGHTAGENT_AGENT"]) == ("daily", "ops")
    [session] = lactl_json(service, "sessions", "list", user="carol")
    assert (session["id"], session["title"]) == (entry["LIGHTAGENT_SESSION"], "prompt daily")


def test_same_session_goes_on_and_a_file_gets_the_answers(service: Machine) -> None:
    path = "/home/carol/answers.md"
    text = f'{GOOD}session = "same"\nanswer = "file"\nfile = "{path}"\nappend = true\n'
    for _ in range(2):
        done = start(service, "kept", text)
        assert done.status == 0, ended(service, "kept")
    assert service.run(["stat", "-c", "%U %G %a", path]).stdout == "carol carol 600\n"
    assert service.run(["cat", path]).stdout.count("kept, session ses_") == 2
    [session] = [one for one in lactl_json(service, "sessions", "list") if one["title"] == "prompt kept"]
    assert session["turns"] == 2


def test_root_may_own_a_prompt(service: Machine) -> None:
    path = "/root/e2e-answer.md"
    text = f'{GOOD.replace("carol", "root")}answer = "file"\nfile = "{path}"\n'
    assert start(service, "roots", text).status == 0, ended(service, "roots")
    assert "memory" in service.run(["cat", path]).stdout
    service.run(["rm", path])
    [session] = [one for one in lactl_json(service, "sessions", "list") if one["title"] == "prompt roots"]
    assert session["owner"] == 0


def test_file_that_the_owner_may_not_write_is_refused(service: Machine) -> None:
    assert start(service, "sly", f'{GOOD}answer = "file"\nfile = "/root/sly.md"\n').status != 0
    status, said = ended(service, "sly")
    assert status == 74
    assert "cannot be written to /root/sly.md: Permission denied" in said
    assert service.run(["test", "-e", "/root/sly.md"], check=False).status != 0


@pytest.mark.parametrize("more", ["", "append = true\n"])
@pytest.mark.parametrize("owner", ["carol", "root"])
def test_answer_goes_nowhere_by_way_of_a_folder_of_somebody_else(
    service: Machine, owner: str, more: str
) -> None:
    victim = f"{service.account(owner).pw_dir}/.e2e-profile"
    service.run(["install", "-m", "600", "-o", owner, "/dev/null", victim])
    service.run(["install", "-d", "-o", "eve", "/srv/e2e-eve"])
    service.run(["ln", "-s", victim, "/srv/e2e-eve/report.txt"], user="eve")
    text = f'{GOOD.replace("carol", owner)}answer = "file"\nfile = "/srv/e2e-eve/report.txt"\n{more}'
    sessions = len(lactl_json(service, "sessions", "list"))
    try:
        assert start(service, "led", text).status != 0
        status, said = ended(service, "led")
        assert status == 74
        assert "the folder /srv/e2e-eve belongs to somebody else" in said
        assert service.run(["cat", victim]).stdout == ""
        assert service.run(["ls", "-A", "/srv/e2e-eve"]).stdout == "report.txt\n"
        assert len(lactl_json(service, "sessions", "list")) == sessions
    finally:
        service.run(["rm", "-r", "/srv/e2e-eve", victim])


def test_mail_goes_through_the_machines_sendmail(service: Machine) -> None:
    service.write(
        "/usr/sbin/sendmail", "#!/bin/sh\nid -un > /srv/e2e-mail/by\ncat > /srv/e2e-mail/text\n", 0o755
    )
    service.run(["install", "-d", "-o", "carol", "/srv/e2e-mail"])
    try:
        assert start(service, "mailed", f'{GOOD}answer = "mail"\n').status == 0, ended(service, "mailed")
        assert service.run(["cat", "/srv/e2e-mail/by"]).stdout == "carol\n"
        mail = service.run(["cat", "/srv/e2e-mail/text"]).stdout
        assert "To: carol" in mail
        assert "memory" in mail
    finally:
        service.run(["rm", "-r", "/usr/sbin/sendmail", "/srv/e2e-mail"])


@pytest.mark.parametrize(
    ("text", "mode", "status", "said"),
    [
        (GOOD.replace("carol", "eve"), 0o644, 77, "You may not connect to /run/lightagentd/control.sock."),
        (GOOD.replace("carol", "nobody-here"), 0o644, 78, "there is no user 'nobody-here'"),
        (
            GOOD + "timeout = 3\n",
            0o644,
            78,
            "bad.toml:4: the key 'timeout' is not known. Did you mean 'timeout_s'?",
        ),
        (GOOD, 0o666, 78, "can be written by others than root"),
        (GOOD.replace('"ops"', '"nemo"'), 0o644, 66, "There is no agent 'nemo'"),
    ],
)
def test_what_is_wrong_is_said_and_is_the_exit_status(
    service: Machine, text: str, mode: int, status: int, said: str
) -> None:
    assert start(service, "bad", text, mode).status != 0
    found, log = ended(service, "bad")
    assert found == status, log
    assert said in log


def test_config_check_looks_at_prompts(service: Machine) -> None:
    service.write(f"{FOLDER}/daily.toml", GOOD)
    checked = json.loads(lactl(service, "--json", "config", "check").stdout)
    assert f"{FOLDER}/daily.toml" in checked["files"]
    service.write(f"{FOLDER}/daily.toml", GOOD + "promt = 1\n")
    refused = lactl(service, "config", "check", check=False)
    assert refused.status == 78
    assert "daily.toml:4: the key 'promt' is not known." in refused.stderr
