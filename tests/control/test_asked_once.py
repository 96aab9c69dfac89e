"""How often polkit is asked about a call of a user over the socket: once for each decision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, TOML, add, prepare
from tests.agents.questions import ask
from tests.agents.scripted import until
from tests.control.test_authz import NOBODY, SOMEBODY, OtherUser, needs_root, open_paths
from tests.fake_systemd import private_bus
from tests.raw_varlink import code
from tests.scripted_model import ScriptedModel, call, say
from tests.scripted_polkit import NO, YES, Answer, Check, ScriptedPolkit
from tests.talker import talker

__all__ = ["open_paths"]  # a fixture
pytestmark = needs_root

SIGHT = ["inspect", "administer"]


async def users(check: Check) -> Answer:
    """Whom it decides about may do all but administer; SOMEBODY may see everything."""
    administers = check.action.endswith(".administer") and check.subject["uid"] != SOMEBODY
    return NO if administers else YES


@dataclass(kw_only=True)
class Asked:
    daemon: Daemon
    polkit: ScriptedPolkit

    async def of(self, user: OtherUser, method: str, **parameters: Any) -> list[str]:
        """What polkit is asked about a call, which ends well: the actions, each with its agent."""
        before = len(self.polkit.checks)
        assert code(await user.call(method, **parameters)) == "ok", method
        return [
            ":".join(filter(None, (check.action.rpartition(".")[2], check.details.get("agent", ""))))
            for check in self.polkit.checks[before:]
        ]

    async def approval(self) -> str:
        """Wait for the one open approval, and until its owner was told whether they may answer."""
        told = len(self.polkit.checks)
        await self.polkit.until(lambda: any(_approves(check) for check in self.polkit.checks[told:]))
        [found] = self.daemon.registry.shared.asked.approvals.questions.open_ones()
        return found.id

    async def input(self) -> str:
        """Wait for the one question of the agent."""
        questions = self.daemon.registry.shared.asked.inputs.questions
        await until(lambda: bool(questions.open_ones()))
        return questions.open_ones()[0].id


def _approves(check: Check) -> bool:
    return check.action.endswith(".approve")


@pytest.fixture
async def asked(open_paths: Paths, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asked]:
    file = prepare(open_paths)
    (open_paths.config / "lightagentd.toml.d" / "50-change.toml").write_text(
        TOML.replace('"test"', '"talker"')
    )
    script = [say("hi")]
    for number in range(3):
        script += [call("probe_add", add(file, line=str(number))), say("done")]
    script += [ask(), say("done")]
    with private_bus() as address:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        async with (
            ScriptedPolkit(users).on(address) as polkit,
            ScriptedModel(script) as model,
        ):
            talker(open_paths, model, extra=f"{FRONT}\n")
            async with Daemon(open_paths) as daemon:
                open_paths.socket.chmod(0o666)
                yield Asked(daemon=daemon, polkit=polkit)


async def test_polkit_is_asked_once_for_each_decision(asked: Asked) -> None:
    path = asked.daemon.paths.socket
    async with OtherUser(path, NOBODY) as nobody, OtherUser(path, NOBODY) as other:
        assert await asked.of(nobody, "Manager.Ask", agent="talker", text="hello") == ["prompt:talker"]
        [session] = asked.daemon.registry.get("talker").sessions
        for method, parameters, expected in (
            ("Sessions.Get", {}, ["inspect:talker"]),
            ("Sessions.Messages", {}, ["inspect:talker"]),
            ("Sessions.Rename", {"title": "new"}, ["prompt:talker"]),
            ("Sessions.Fork", {}, ["prompt:talker"]),
            ("Plans.Get", {}, ["inspect:talker"]),
            ("Usage.Budgets", {}, ["inspect:talker", "administer"]),
        ):
            assert await asked.of(nobody, method, session=session, **parameters) == expected, method
        assert await asked.of(nobody, "Sessions.Create", agent="talker") == ["prompt:talker"]
        [*one, sees] = await asked.of(nobody, "Agents.Get", name="talker")
        assert (one, sees) == (["inspect:talker", "administer"], "inspect:ops"), "which it may ask"
        stopping = await asked.of(nobody, "Agents.Stop", name="ops")
        assert stopping == ["manage-agents:ops", "administer", "inspect:talker"]
        everything = await asked.of(nobody, "Sessions.List")
        assert sorted(everything) == sorted([*SIGHT, "inspect:ops", "inspect:talker"])
        for method, expected in (("Approve", ["approve:talker"]), ("Deny", ["inspect:talker"])):
            turn = asyncio.create_task(other.call("Manager.Ask", agent="talker", text="go"))
            approval = await asked.approval()
            assert await asked.of(nobody, f"Approvals.{method}", approval=approval) == expected
            assert code(await turn) == "ok"
        async with OtherUser(path, SOMEBODY) as somebody:
            turn = asyncio.create_task(other.call("Manager.Ask", agent="talker", text="go"))
            approval = await asked.approval()
            told = await asked.of(somebody, "Approvals.Approve", approval=approval)
            assert told == [*SIGHT, "approve:talker"], "of another user's"
            assert code(await turn) == "ok"
        turn = asyncio.create_task(other.call("Manager.Ask", agent="talker", text="go"))
        question = await asked.input()
        assert await asked.of(nobody, "Inputs.Answer", input=question, text="sda") == ["prompt:talker"]
        assert code(await turn) == "ok"
        before = len(asked.polkit.checks)
        assert (
            code(await nobody.call("Approvals.Approve", approval="app_0123456789abcdef"))
            == "approval_not_found"
        )
        assert len(asked.polkit.checks) == before + 2


async def test_the_limits_of_owners_hold_no_administrator_of_polkit(asked: Asked) -> None:
    asked.daemon.owners._most = {**asked.daemon.owners._most, "changes_per_minute": 1}
    async with OtherUser(asked.daemon.paths.socket, SOMEBODY) as somebody:
        assert await asked.of(somebody, "Memory.SetProfile", text="a") == ["prompt"]
        assert await asked.of(somebody, "Memory.SetProfile", text="b") == ["prompt", "administer"]
    async with OtherUser(asked.daemon.paths.socket, NOBODY) as nobody:
        await asked.of(nobody, "Memory.SetProfile", text="a")
        assert code(await nobody.call("Memory.SetProfile", text="b")) == "limit_exceeded"
