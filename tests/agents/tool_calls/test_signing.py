"""The daemon's side of changes that the approver signs: what it registers, and what goes to the worker."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd.agents.confirming import confirmations
from lightagentd.host.paths import Paths
from lightagentd.signed.statement import Statement
from lightagentd.varlink.server import VarlinkServer
from lightagentd.worker.call import Call
from tests.agents.asking import add, approvals, asked, asking, lines, prepare, result
from tests.agents.scripted import ME, Scripted, types, until
from tests.conftest import write
from tests.scripted_model import call, say
from tests.worker.verified import ASKER

RULE = (
    '[[rule]]\nname = "free"\ndecision = "allow"\ntool = "probe"\nargs = {line = "free"}\n'
    "even_if_tainted = true\n"
)
NO_SEAT = {"unit": "", "tty": "", "login_uid": None, "login_session": None}


class Approver(VarlinkInterface, name="org.lightagent1.ApproverRequests"):
    """Says yes once `yes` is set, and keeps what it was asked."""

    def __init__(self) -> None:
        self.statements: dict[str, Statement] = {}
        self.yes = asyncio.Event()

    @varlinkmethod(return_parameter="digest", allow_foreign=True)
    async def Register(self, *, approval: str, statement: Any, said: Any, expires_us: int) -> str:
        assert said.keys() >= {"preview", "chain", "tainted"}
        assert expires_us
        self.statements[approval] = Statement.of(statement)
        return self.statements[approval].digest

    @varlinkmethod(return_parameter="answer", allow_foreign=True)
    async def Wait(self, *, approval: str) -> Any:
        await self.yes.wait()
        found = self.statements[approval]
        terms = {name: getattr(found, name) for name in ("confirm_within_s", "check", "inverse")}
        grant = {"grant": approval, "signature": "x"}
        answer = {"state": "granted", "by": 1000, "answered_us": 1, "note": "", "seat": NO_SEAT}
        return {**answer, "terms": terms, "digest": found.digest, "grant": grant}

    @varlinkmethod(allow_foreign=True)
    async def Lapse(self, *, approval: str) -> None:
        assert approval in self.statements


@contextlib.asynccontextmanager
async def verifying(
    paths: Paths, script: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Scripted, Approver, list[Call]]]:
    """A daemon that has its changes signed by an approver; the list has the changes that its workers got."""
    ran: list[Call] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "approver"))
        listener.listen()
        approver = Approver()
        server = VarlinkServer([listener], lambda _: [approver], product="approver")
        server.start()
        async with asking(paths, script) as test:
            pool, dispatcher = test.daemon.pool, test.daemon.registry.shared.dispatcher
            monkeypatch.setattr(pool.source, "verifies", True)
            monkeypatch.setattr(dispatcher.approver, "_path", tmp_path / "approver")
            make = pool.call

            def noted(wanted: Call) -> Any:
                if wanted.effect == "change":
                    ran.append(wanted)
                return make(wanted)

            monkeypatch.setattr(pool, "call", noted)
            yield test, approver, ran
        await server.close()


async def test_a_change_is_registered_and_goes_to_its_worker_with_the_signature(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = prepare(paths)
    same = call("probe_add", add(out))
    async with verifying(paths, [same, say("1"), same, say("2")], tmp_path, monkeypatch) as made:
        test, approver, ran = made
        session = await test.session()
        prompting = asyncio.create_task(test.prompt(session))
        question = await asked(test)
        stated = approver.statements[question.id]
        assert (stated.agent, stated.call_id, stated.session) == ("test", question.call_id, session.id)
        assert (stated.expected, stated.trigger, stated.above) == ({"line": "ran"}, "person", [])
        assert question.approver == stated.digest
        assert lines(out) == []
        approver.yes.set()
        events = await prompting
        assert "approval_requested" in types(events)
        assert ran[0].signed == {"grant": question.id, "signature": "x"}
        assert (ran[0].args, ran[0].expected, ran[0].trigger) == (stated.args, stated.expected, "person")

        events = await test.prompt(session)  # the approver says yes at once
        assert not {"approval_requested", "approval_answered"} & {*types(events)}
        assert result(events)["result"] == "ok"
        assert ran[1].signed["grant"] == approvals(test)[-1].id
        assert (approvals(test)[-1].answered_by, lines(out)) == (1000, ["ran", "ran"])


async def test_a_leave_of_the_daemon_lets_nothing_run_that_nobody_signed(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = prepare(paths)
    same = call("probe_add", add(out))
    async with verifying(paths, [same, say("1"), same, say("2")], tmp_path, monkeypatch) as made:
        test, approver, ran = made
        monkeypatch.setattr(test.daemon.pool.source, "verifies", False)
        session = await test.session()
        prompting = asyncio.create_task(test.prompt(session))
        question = await asked(test)
        await test.daemon.service.approvals.approve(ME, question.id, for_session=True)
        await prompting
        monkeypatch.setattr(test.daemon.pool.source, "verifies", True)
        prompting = asyncio.create_task(test.prompt(session))
        await asked(test)
        assert (len(ran), len(approver.statements)) == (1, 1)
        approver.yes.set()
        await prompting


async def test_a_rule_allows_no_way_back_that_a_caller_thought_of(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = prepare(paths)
    write(paths.config / "policy.d/10.toml", RULE)
    async with verifying(paths, [], tmp_path, monkeypatch) as made:
        test, approver, ran = made
        approver.yes.set()
        args = add(out, line="free")
        ways: list[dict[str, Any]] = [{}, {"confirm_within": "1h", "inverse": "true"}]
        for terms in ways:
            made_call = test.daemon.service.tools.call(
                ME, agent="test", tool="probe", action="add", args=args, **terms
            )
            events = [event async for event in made_call]
            assert events[-1]["type"] == "done", events
        assert [bool(one.signed) for one in ran] == [False, True]
        (statement,) = approver.statements.values()
        assert (statement.confirm_within_s, statement.inverse) == (3600, "true")


async def test_what_takes_a_change_back_asks_nobody_and_says_which(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmations, "TICK_S", 0.02)
    file = tmp_path / "file"
    async with verifying(paths, [], tmp_path, monkeypatch) as made:
        test, approver, ran = made
        approver.yes.set()
        args = {"path": str(file), "content": "x"}
        made_call = test.daemon.service.tools.call(
            ME, agent="test", tool="file", action="write", args=args, confirm_within="1s"
        )
        events = [event async for event in made_call]
        assert events[-1]["type"] == "done", events
        assert ran[0].given == {"must_keep": True}
        await until(lambda: not file.exists())
        assert (ran[1].takes_back, ran[1].signed, len(approver.statements)) == (ran[0].call_id, {}, 1)


async def test_a_call_goes_on_with_an_answer_that_is_signed_too(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(paths.config / "tools/asker.py", ASKER)
    script = [call("asker_make", {"name": "ada"}), say("done")]
    async with verifying(paths, script, tmp_path, monkeypatch) as made:
        test, approver, ran = made
        approver.yes.set()
        inputs = test.daemon.registry.shared.asked.inputs
        prompting = asyncio.create_task(test.prompt(await test.session()))
        await until(lambda: inputs.questions.waiting == 1)
        (question,) = inputs.questions.all()
        approver.yes.clear()
        await inputs.answer(question.id, "yes", uid=ME.uid)
        rest = await asked(test)
        assert len(ran) == 1
        approver.yes.set()
        assert result(await prompting)["result"] == "ok"
        said = {"goes_on": {"question": "Really?", "answer": "yes"}}
        assert approver.statements[rest.id].expected == ran[1].expected == said
        assert [one.signed["grant"] for one in ran] == [*approver.statements]
        assert (ran[1].call_id, ran[1].args) == (ran[0].call_id, ran[0].args)
