"""Rules in a daemon: taken at start, kept when newer ones are broken, and never fewer than are written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lightagentd import api
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import ConfigError
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from tests.conftest import write
from tests.policy.calls import a_call
from tests.policy.test_operations import ME

DENY = '[[rule]]\nname = "no-hosts"\ndecision = "deny"\ntool = "file"\nargs = { path = "/etc/hosts" }\n'
READ = a_call("file.read", effect=Effect.OBSERVE, args={"path": "/etc/hosts"})


def events(daemon: Daemon) -> list[tuple[str, dict[str, object]]]:
    found = daemon.history.queries.select(Filter(topic="policy.rules"))
    return [(event.type, event.data or {}) for event in found]


async def test_the_rules_are_taken_at_start_and_told_to_the_history(paths: Paths) -> None:
    file = write(paths.config / "policy.d" / "10-a.toml", DENY)
    async with Daemon(paths) as daemon:
        assert daemon.registry.shared.policy.decide(READ).rule == "no-hosts (10-a.toml)"
        ((kind, data),) = events(daemon)
        assert (kind, data["rules"], data["folder"]) == ("loaded", 1, str(file.parent))
        digest = hashlib.sha256(DENY.encode()).hexdigest()
        assert data["files"] == [{"name": "10-a.toml", "sha256": digest}]
        assert data["sha256"] == daemon.registry.shared.policy.rules.sha256
        assert daemon.registry.shared.policy.problem == ""


async def test_without_rules_the_defaults_are_in_force_and_the_history_says_so(daemon: Daemon) -> None:
    assert daemon.registry.shared.policy.decide(READ).rule == "default-observe"
    assert [data["rules"] for _, data in events(daemon)] == [0]


@pytest.mark.parametrize(
    "broken", ["[[rule]\n", DENY.replace("deny", "denie"), DENY + "match = [{}]\nnot_match = [{}]\n"]
)
async def test_a_daemon_with_broken_rules_does_not_start(paths: Paths, broken: str) -> None:
    write(paths.config / "policy.d" / "10-a.toml", DENY.replace("no-hosts", "fine"))
    write(paths.config / "policy.d" / "20-b.toml", broken)
    with pytest.raises(ConfigError, match=r"20-b\.toml"):
        async with Daemon(paths):
            pass
    write(paths.config / "policy.d" / "20-b.toml", DENY)
    async with Daemon(paths) as daemon:
        assert len(daemon.registry.shared.policy.rules.rules) == 2


async def test_a_reload_takes_new_rules(daemon: Daemon, paths: Paths) -> None:
    write(paths.config / "policy.d" / "10-a.toml", DENY)
    done = await daemon.service.manager.reload_content()
    assert "took 1 rules from 1 files of policy.d" in done.applied
    assert daemon.registry.shared.policy.decide(READ).rule == "no-hosts (10-a.toml)"
    (paths.config / "policy.d" / "10-a.toml").unlink()
    await daemon.service.manager.reload_content()
    assert daemon.registry.shared.policy.decide(READ).rule == "default-observe"
    assert [data["rules"] for _, data in events(daemon)] == [0, 1, 0]


async def explain(daemon: Daemon) -> api.PolicyExplanation:
    return await daemon.service.policy.explain(ME, agent="ops", tool="proc", action="list", args={})


async def test_a_reload_with_a_broken_file_keeps_the_old_rules_and_says_so(paths: Paths) -> None:
    file = write(paths.config / "policy.d" / "10-a.toml", DENY)
    async with Daemon(paths) as daemon:
        old = daemon.registry.shared.policy.rules
        file.write_text(DENY.replace("name", "nam"))
        write(paths.config / "policy.d" / "20-b.toml", DENY.replace("no-hosts", "another"))
        done = await daemon.service.manager.reload_content()
        assert daemon.registry.shared.policy.rules is old
        assert daemon.registry.shared.policy.decide(READ).rule == "no-hosts (10-a.toml)"
        (problem,) = [text for text in done.problems if "policy.d" in text]
        assert done.refused == [problem]
        assert not any("policy.d" in text for text in done.applied)
        assert problem in (await explain(daemon)).notes
        assert "still the old ones" in problem
        assert f"{file}:2: the rule without a name: the key 'nam' is not known." in problem
        kind, data = events(daemon)[-1]
        assert kind == "broken"
        assert data["sha256"] == old.sha256
        file.write_text(DENY)
        done = await daemon.service.manager.reload_content()
        assert (done.refused, (await explain(daemon)).notes) == ([], [])
        file.write_text(DENY + "# changed")
        [note] = (await explain(daemon)).notes
        assert "are not in force: lactl reload" in note
        assert not [text for text in done.problems if "policy.d" in text]
        assert len(daemon.registry.shared.policy.rules.rules) == 2


async def test_a_folder_that_is_none_keeps_the_old_rules(paths: Paths) -> None:
    file = write(paths.config / "policy.d" / "10-a.toml", DENY)
    async with Daemon(paths) as daemon:
        file.unlink()
        file.parent.rmdir()
        Path(file.parent).write_text("no folder")
        await daemon.service.manager.reload_content()
        assert daemon.registry.shared.policy.decide(READ).rule == "no-hosts (10-a.toml)"
        assert "cannot be read" in daemon.registry.shared.policy.problem


async def test_a_rule_that_can_match_nothing_is_a_problem_and_still_in_force(paths: Paths) -> None:
    file = write(
        paths.config / "policy.d" / "10-a.toml",
        DENY
        + DENY.replace("no-hosts", "no-tool").replace('"file"', '"flie"')
        + DENY.replace("no-hosts", "no-action")
        + '[[rule]]\nname = "x"\ndecision = "ask"\naction = "reed"\n'
        + DENY.replace("no-hosts", "no-argument").replace("path", "paht")
        + DENY.replace("no-hosts", "nested").replace("file", "web").replace("path", "headers.Host"),
    )
    async with Daemon(paths) as daemon:
        problems = [text for text in daemon.problems() if "can match no call" in text]
        assert problems == [
            f"{file}:6: the rule 'no-tool' can match no call: there is no such tool or action.",
            f"{file}:16: the rule 'x' can match no call: there is no such tool or action.",
            f"{file}:20: the rule 'no-argument' can match no call: there is no argument 'paht' of the tools"
            " and actions that it is about.",
        ]
        assert len(daemon.registry.shared.policy.rules.rules) == 6
        file.write_text(DENY)
        await daemon.service.manager.reload_content()
        assert not [text for text in daemon.problems() if "can match no call" in text]
