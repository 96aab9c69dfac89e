"""`lactl skills add`, `check`, `new` and `remove`: files of their own, no daemon, and one that is told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from lightagentd.cli.skill_files import from_procedure
from lightagentd.host.paths import share_folder
from lightagentd.skills import load_skill
from tests.cli.conftest import Lactl
from tests.conftest import write
from tests.scripted_daemon import ScriptedDaemon

PAGE = """---
owner: mail team
---
# Mail queue is long

Look at the queue first,
then at the service. Then act.

## Look

```console
$ sudo postqueue -p | tail -n 5
-- 3 Kbytes in 2 Requests.
$ df -h   # room for the queue
```

## Repair

```sh
cd /var/spool
ls -l mail
systemctl restart postfix
for f in a b; do
  rm "$f"
done
export LANG=C
```

```yaml
rm: -rf
```
"""
SCRIPT = """#!/bin/bash
# Looks at memory. Asks for more, now and then.
set -eu
LIMIT=80
free -m | \\
  grep Mem
if [ "$1" = fix ]; then
  systemctl restart app
fi
cleanup() { rm -f /tmp/x; }
cat <<END
df -h
END
swapoff -a
"""


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a daemon that does not run."""
    monkeypatch.setenv("LIGHTAGENT_CONFIG_DIR", str(tmp_path / "etc"))
    monkeypatch.setenv("LIGHTAGENT_SOCKET", str(tmp_path / "no.sock"))
    (tmp_path / "etc").mkdir()
    return tmp_path / "etc"


@pytest.mark.parametrize("option", [[], ["--shell"]], ids=["python", "shell"])
def test_a_template_is_a_skill_that_runs(lactl: Lactl, etc: Path, option: list[str]) -> None:
    done = lactl("skills", "new", "raid_check", *option)
    assert (done.status, done.err) == (0, "")
    folder = etc / "skills" / "raid_check"
    assert done.out == f"raid_check\t{folder}\n"
    skill = load_skill(folder)
    assert [example.text for example in skill.examples] == ["raid check", "raid check of /etc"]
    (folder / "x").mkdir()
    ran = subprocess.run(
        skill.command({"path": str(folder)}), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert ran[:3] == [f"**{folder} has 5 entries.**", "", "- SKILL.md"]
    assert lactl("skills", "new", "raid_check").status == 73
    assert lactl("skills", "new", "raid_check", "--force").status == 0


@pytest.mark.parametrize("name", ["../x", "A", ""])
def test_a_bad_name_is_refused_and_writes_nothing(lactl: Lactl, etc: Path, name: str) -> None:
    assert lactl("skills", "new", name).status == 65
    assert [path for path in etc.rglob("*") if path != etc / "skills"] == []


def test_a_page_becomes_a_runbook_of_what_only_looks(tmp_path: Path) -> None:
    files = from_procedure("mail-queue", "queue.md", PAGE)
    for name, text in files.items():
        write(tmp_path / "mail-queue" / name, text)
    skill = load_skill(tmp_path / "mail-queue")
    assert skill.description == "Look at the queue first, then at the service."
    assert [example.text for example in skill.examples] == ["mail queue", "mail queue is long"]
    assert [line for line in files["scripts/mail_queue.sh"].splitlines() if line.startswith("step ")] == [
        "step Look 'postqueue -p | tail -n 5'",
        "step Look 'df -h'",
        "step Repair 'cd /var/spool && ls -l mail'",
    ]
    assert skill.body.endswith(
        '\n\n- `systemctl restart postfix`\n- `for f in a b; do`\n- `rm "$f"`\n- `done`'
    )
    assert "owner:" not in skill.body


def test_a_script_becomes_steps_and_its_text_stays(tmp_path: Path) -> None:
    files = from_procedure("mem", "mem.sh", SCRIPT)
    write(tmp_path / "mem" / "SKILL.md", files["SKILL.md"])
    script = files["scripts/mem.sh"]
    assert [line for line in script.splitlines() if line.startswith("step ")] == [
        "step 'free -m | grep Mem' 'free -m | grep Mem'"
    ]
    skill = load_skill(tmp_path / "mem")
    assert skill.description == "Looks at memory. Asks for more, now and then."
    assert SCRIPT.strip() in skill.body
    assert "- `swapoff -a`" in skill.body
    assert "- `LIMIT" not in skill.body


def test_the_report_has_the_finding_first_and_what_was_not_run_last(tmp_path: Path) -> None:
    page = "```sh\necho $(x)\nls /etc/hostname\nls /no/such | head\nls /proc | head -n 1\n"
    page += "grep nosuch /etc/hostname\nreboot 'now'\n```\n"
    files = from_procedure("look", "a\nreboot", page)
    script = write(tmp_path / "x.sh", files["scripts/look.sh"])
    said = subprocess.run(["/bin/sh", script], capture_output=True, text=True, check=True).stdout
    assert said.startswith(
        "**Of 4 steps these failed: ls /no/such | head (status 2).**\n\n## ls /etc/hostname\n"
    )
    assert "```\n$ ls /etc/hostname\n/etc/hostname\n```\n" in said
    assert said.endswith("leaves it to you:\n\n- echo $(x)\n- reboot 'now'\n")


def test_a_procedure_that_only_changes_is_text_alone(lactl: Lactl, etc: Path) -> None:
    page = write(etc.parent / "x.md", "# Again\n\n```\nreboot\n```\n")
    done = lactl("skills", "new", "again", "--from", str(page))
    assert done.status == 0
    assert "is text alone" in done.err
    assert load_skill(etc / "skills" / "again").runbook is None
    assert lactl("skills", "new", "other", "--from", str(etc / "none.md")).status == 66


def test_an_archive_is_added_checked_and_removed(
    lactl: Lactl, etc: Path, tmp_path: Path, scripted: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloaded: dict[str, list[str]] = {"applied": [], "needs_restart": [], "problems": [], "refused": []}
    scripted.answer("Manager.Reload", {"reloaded": reloaded})
    monkeypatch.setenv("LIGHTAGENT_SOCKET", str(scripted.path))
    write(tmp_path / "given" / "SKILL.md", "---\nname: given\ndescription: X.\ncolour: red\n---\n")
    with tarfile.open(tmp_path / "given.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "given", "given")
    folder = etc / "skills" / "given"
    scripted.answer("Skills.Get", {"skill": {"origin": str(folder)}})
    done = lactl("skills", "add", str(tmp_path / "given.tar.gz"), "--json")
    warning = f"{folder}/SKILL.md, line 4: the key colour is not known; it is kept."
    assert json.loads(done.out) == {
        "name": "given",
        "folder": str(folder),
        "warnings": [warning],
        "in_force": True,
    }
    assert warning in lactl("skills", "check", "given").err
    assert lactl("skills", "remove", "given").status == 0
    assert not folder.exists()
    assert lactl("skills", "remove", "given").status == 66
    scripted.answer("Skills.Get", {"skill": {"origin": "/elsewhere/given"}})
    elsewhere = lactl("skills", "add", str(tmp_path / "given"), "--json")
    assert not json.loads(elsewhere.out)["in_force"]
    assert f"The daemon that answers does not read {etc}/skills." in elsewhere.err


def test_a_skill_in_place_of_a_shipped_one_is_told_and_a_shipped_one_stays(lactl: Lactl, etc: Path) -> None:
    said = lactl("skills", "new", "disk-check").err
    assert re.search(r"in place of the shipped skill \S+/skills/disk-check\.", said)
    assert "in place" not in lactl("skills", "new", "disk-room").err
    assert lactl("skills", "remove", "disk-check").status == 0
    for name in ("disk-check", "_lib", "../etc"):
        assert lactl("skills", "remove", name).status == 66
    assert lactl("skills", "check", "disk-check").status == 0


def test_a_broken_skill_is_not_added_and_the_source_is_named(lactl: Lactl, etc: Path, tmp_path: Path) -> None:
    write(tmp_path / "bad" / "SKILL.md", "---\nname: bad\n---\n")
    done = lactl("skills", "add", str(tmp_path / "bad"))
    assert done.status == 78
    assert f"{tmp_path}/bad/SKILL.md: the key description is missing" in done.err
    assert list((etc / "skills").iterdir()) == []
    assert lactl("skills", "add", str(tmp_path / "none")).status == 66


def test_check_says_what_is_odd_and_what_is_broken(lactl: Lactl, etc: Path) -> None:
    lactl("skills", "new", "one")
    lactl("skills", "new", "two")
    one, two = etc / "skills" / "one", etc / "skills" / "two"
    write(two / "examples.txt", "One of {path:/srv}\n")
    write(two / "scripts" / "two.py", "def (")
    write(two / "scripts" / "three.rkt", "#!/usr/bin/racket-of-nowhere\n")
    write(etc / "skills" / "bad" / "SKILL.md", "")
    done = lactl("skills", "check", str(etc / "skills"))
    assert done.status == 78
    assert done.out == "bad\tbroken\tno\t0\t0\none\twarnings\tyes\t1\t2\ntwo\twarnings\tyes\t2\t1\n"
    for said in (
        f"{etc}/skills/bad/SKILL.md, line 1: the file must begin",
        f"{one}/examples.txt: the skill two has 'one of /etc', too.",
        f"{two}/examples.txt: the skill one has 'One of /srv', too.",
        f"{two}/scripts/two.py, line 1: ",
        "racket-of-nowhere is not installed here",
    ):
        assert said in done.err
    assert lactl("skills", "check", "one").status == 0
    assert lactl("skills", "check", str(one)).out == "one\twarnings\tyes\t1\t2\n"
    assert lactl("skills", "check", "nowhere").status == 66


def test_somebody_without_a_daemon_of_their_own_is_told_to_use_sudo(
    lactl: Lactl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTAGENT_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = lactl("skills", "new", "mine")
    assert (done.status, list(tmp_path.iterdir())) == (77, [])
    assert "use sudo" in done.err


def test_the_shipped_skills_are_checked_by_name(lactl: Lactl, etc: Path) -> None:
    done = lactl("skills", "check", "disk-check")
    assert (done.status, done.out.split("\t")[0]) == (0, "disk-check")


def test_only_examples_of_ones_own_skills_are_compared_with_shipped_ones(lactl: Lactl, etc: Path) -> None:
    write(etc / "skills" / "mine" / "SKILL.md", "---\nname: mine\ndescription: X.\n---\n")
    write(etc / "skills" / "mine" / "runbook.yaml", "script: mine.sh\n")
    write(etc / "skills" / "mine" / "mine.sh", "#!/bin/sh\n")
    write(etc / "skills" / "mine" / "examples.txt", "check disk\n")
    done = lactl("skills", "check")
    shipped = share_folder() / "skills"
    told = [line for line in done.err.splitlines() if "examples.txt" in line]
    assert len(told) == 2
    assert set(told) == {
        f"lactl: {etc}/skills/mine/examples.txt: the skill disk-check has 'check disk', too.",
        f"lactl: {shipped}/disk-check/examples.txt: the skill mine has 'check disk', too.",
    }
