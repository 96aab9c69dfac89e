"""A turn that waits for a person: what is asked, how it is answered, and what runs then."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any, cast

import pytest

from lightagentd import api
from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.api import TurnEvent
from lightagentd.control.authz import Authority, Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.approvals import Approvals
from lightagentd.control.seats import Seats
from lightagentd.errors import (
    ApprovalClosed,
    ApprovalMismatch,
    ApprovalNotFound,
    AuthorizationRequired,
    InvalidArgument,
    PermissionDenied,
)
from lightagentd.events.history import Change
from lightagentd.host.paths import Paths
from lightagentd.policy.operation import Operation
from lightagentd.policy.questions.question import State
from tests.agents.asking import Watched, add, approvals, asked, asking, kinds, lines, prepare, result, waiting
from tests.agents.scripted import ME, check_conversation, types, until
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import call, calls, say

OTHER = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)


async def test_a_granted_call_runs_once_and_the_turn_goes_on_with_its_result(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        session = await test.session()
        async with Watched(test, session) as turn:
            question = await asked(test)
            assert lines(out) == []
            assert (await test.daemon.service.sessions.get(ME, session.id)).state == "waiting"
            status = await test.daemon.service.manager.status(ME)
            assert (status.turns_running, status.turns_waiting) == (0, 1)
            with pytest.raises(ApprovalMismatch, match="than what was shown"):
                await test.daemon.service.approvals.approve(ME, question.id, digest="0" * 64)
            assert waiting(test) == [question]
            await test.daemon.service.approvals.approve(ME, question.id, "fine", question.digest)
            events = await turn.end()
        assert lines(out) == ["ran"]
        assert types(events) == [
            "queued",
            "started",
            "usage",
            "approval_requested",
            "approval_answered",
            "tool_call",
            "tool_result",
            "text_delta",
            "usage",
            "done",
        ]
        requested = next(event for event in events if event["type"] == "approval_requested")
        assert requested["approval"] == question.id
        assert requested["args"] == {"path": str(out), "line": "ran", "cwd": "/", "key": None, "code": None}
        assert (requested["preview"], requested["effect"], requested["volatile"]) == ("+ran", "change", False)
        assert result(events)["text"] == f"added as uid {ME.uid}, expecting {{'line': 'ran'}}"
        assert kinds(test) == ["requested", "granted", "used"]
        stored = test.stored(turn.turn.trace_id)
        order = [event.type for event in stored]
        assert order.index("requested") < order.index("granted") < order.index("intent") < order.index("used")
        assert {event.session for event in test.stored(topic="approval")} == {session.id}
        intent = next(event for event in stored if event.type == "intent")
        assert intent.data is not None
        assert (intent.data["decision"], intent.data["approval"]) == ("ask", question.id)
        assert approvals(test)[0].state is State.USED
        assert approvals(test)[0].answered_by == ME.uid
        check_conversation(test.conversation(session))


async def test_a_denied_call_does_not_run_and_the_model_reads_the_note(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("pity")]) as test:
        session = await test.session()
        async with Watched(test, session) as turn:
            question = await asked(test)
            await test.daemon.service.approvals.deny(ME, question.id, "not on a Friday")
            events = await turn.end()
        assert lines(out) == []
        assert result(events)["result"] == "approval_denied"
        assert "not on a Friday" in result(events)["text"]
        assert events[-1]["text"] == "pity"
        assert kinds(test) == ["requested", "denied"]
        check_conversation(test.conversation(session))


async def test_an_unanswered_question_expires_to_denied(paths: Paths) -> None:
    out = prepare(paths)
    toml = "[limits]\napproval_timeout_s = 0.3\n"
    async with asking(paths, [call("probe_add", add(out)), say("pity")], toml=toml) as test:
        events = await test.prompt(await test.session())
        assert result(events)["result"] == "approval_denied"
        assert lines(out) == []
        assert kinds(test) == ["requested", "expired"]
        with pytest.raises(ApprovalClosed, match="expired"):
            await test.daemon.service.approvals.approve(ME, approvals(test)[0].id, "")


async def test_the_time_of_a_turn_stands_still_while_a_person_is_asked(paths: Paths) -> None:
    out = prepare(paths)
    front = "limits: {turn_timeout_s: 50}"
    async with asking(paths, [call("probe_add", add(out)), say("done")], front=front) as test:
        session = await test.session()
        async with Watched(test, session) as turn:
            question = await asked(test)
            await until(lambda: turn.turn.is_waiting)
            timer = turn.turn.timer
            assert timer is not None
            assert timer.when() is None
            await test.daemon.service.approvals.approve(ME, question.id, "")
            await turn.end()
        when = timer.when()
        assert when is not None
        assert lines(out) == ["ran"]


async def test_a_cancel_while_waiting_lapses_the_question(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("back")]) as test:
        session = await test.session()
        async with Watched(test, session) as turn:
            question = await asked(test)
            assert await test.daemon.service.conversations.cancel(ME, session.id) == 1
            events = await turn.end()
        assert events[-1]["code"] == "cancelled"
        assert kinds(test) == ["requested", "lapsed"]
        with pytest.raises(ApprovalClosed, match="lapsed"):
            await test.daemon.service.approvals.approve(ME, question.id, "")
        assert lines(out) == []
        assert test.daemon.history.queries.state("turns") == {}
        check_conversation(test.conversation(session))
        assert (await test.prompt(session))[-1]["text"] == "back"


async def test_a_cancel_while_the_question_is_stored_leaves_nothing_waiting(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out))]) as test:
        store = test.daemon.registry.shared.asked.approvals
        session = await test.session()
        request = store.request

        async def cancelled(*args: Any, **more: Any) -> Any:
            test.agent.cancel(session)
            return await request(*args, **more)

        monkeypatch.setattr(store, "request", cancelled)
        events = await test.prompt(session)
        assert events[-1]["code"] == "cancelled"
        assert store.questions.waiting == 0
        assert [value["state"] for value in test.daemon.history.queries.state("approvals").values()] == [
            "lapsed"
        ]
        assert kinds(test) == ["requested", "lapsed"]
        assert lines(out) == []


async def test_a_question_that_is_just_being_closed_takes_no_answer(paths: Paths) -> None:
    async with asking(paths, [call("probe_add", add(prepare(paths))), say("ok")]) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        question = await asked(test)
        store = test.daemon.registry.shared.asked.approvals
        lapsed, changes = store.questions.lapse(question.id, "Its turn ends.")
        assert test.daemon.history.queries.state_of("approvals", question.id)["state"] == "waiting"
        with pytest.raises(ApprovalClosed, match="has lapsed"):
            await store.answer(question.id, grant=True, uid=ME.uid)
        assert store.questions.open_ones() == []
        await test.daemon.history.append(*lapsed, changes=changes)
        await turn.over.wait()
        assert [event.type for event in test.stored(topic="approval")] == ["requested", "lapsed"]


@pytest.mark.parametrize("first", [True, False])
async def test_a_second_answer_is_refused(paths: Paths, first: bool) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        service = test.daemon.service
        async with Watched(test, await test.session()) as turn:
            question = await asked(test)
            answer = service.approvals.approve if first else service.approvals.deny
            await answer(ME, question.id, "")
            for again in (service.approvals.approve, service.approvals.deny):
                with pytest.raises(ApprovalClosed):
                    await again(ME, question.id, "")
            await turn.end()
        for again in (service.approvals.approve, service.approvals.deny):
            with pytest.raises(ApprovalClosed):
                await again(ME, question.id, "")
        assert lines(out) == (["ran"] if first else [])


async def test_of_two_answers_at_once_one_counts(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        service = test.daemon.service
        for _ in range(5):
            before = len(lines(out))
            test.model.requests.clear()
            async with Watched(test, await test.session()) as turn:
                question = await asked(test)
                answers = await asyncio.gather(
                    *(service.approvals.approve(ME, question.id, "") for _ in range(3)),
                    *(service.approvals.deny(ME, question.id, "") for _ in range(3)),
                    return_exceptions=True,
                )
                await turn.end()
            assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
            assert all(isinstance(one, ApprovalClosed) for one in answers if isinstance(one, Exception))
            assert len(lines(out)) == before + 1
            assert kinds(test, question.id) == ["requested", "granted", "used"]


async def test_two_sessions_that_wait_do_not_disturb_each_other(paths: Paths) -> None:
    out = prepare(paths)

    def script(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        return say("done") if last["role"] == "tool" else call("probe_add", add(out))

    async with asking(paths, script) as test:
        one, two = await test.session(), await test.session()
        async with Watched(test, one) as first, Watched(test, two) as second:
            await asked(test, 2)
            mine = {question.session: question for question in approvals(test)}
            await test.daemon.service.approvals.deny(ME, mine[two.id].id, "")
            assert result(await second.end())["result"] == "approval_denied"
            assert lines(out) == []
            await test.daemon.service.approvals.approve(ME, mine[one.id].id, "")
            assert result(await first.end())["result"] == "ok"
        assert lines(out) == ["ran"]


async def test_calls_of_one_answer_are_asked_one_by_one(paths: Paths) -> None:
    out = prepare(paths)
    wanted = [("probe_add", add(out, line=f"n{number}"), f"c{number}") for number in range(3)]
    async with asking(paths, [calls(*wanted), say("done")]) as test:
        async with Watched(test, await test.session()) as turn:
            for number, grant in enumerate((True, False, True)):
                await until(lambda: [one.args["line"] for one in waiting(test)] == [f"n{number}"])  # noqa: B023
                question = await asked(test)
                approvals_of = test.daemon.service.approvals
                answer = approvals_of.approve if grant else approvals_of.deny
                await answer(ME, question.id, "")
            await turn.end()
        assert lines(out) == ["n0", "n2"]


async def test_an_unattended_turn_asks_nobody(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("pity")]) as test:
        events: list[TurnEvent] = [
            event
            async for event in test.daemon.service.conversations.prompt(
                ME, agent="test", text="go", session="", new=True, correlation_id="", unattended=True
            )
        ]
        assert result(events)["result"] in ("approval_required", "policy_denied")
        assert "approval_requested" not in types(events)
        assert approvals(test) == []
        assert lines(out) == []


async def test_the_question_can_be_heard_of_by_who_comes_late(paths: Paths) -> None:
    out = prepare(paths)
    async with (
        asking(paths, [call("probe_add", add(out)), say("done")]) as test,
        Watched(test, await test.session()) as turn,
    ):
        question = await asked(test)
        await until(lambda: turn.turn.is_waiting)
        late = turn.turn.stream.watch().events()
        assert (await anext(late))["approval"] == question.id
        await late.aclose()
        await test.daemon.service.approvals.deny(ME, question.id, "")
        await turn.end()


# Who may answer


async def test_only_who_may_see_the_session_knows_the_question(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        service = test.daemon.service
        async with Watched(test, await test.session()) as turn:
            question = await asked(test)
            assert await service.approvals.listed(OTHER, all_=True) == []
            for refused in (
                service.approvals.get(OTHER, question.id),
                service.approvals.approve(OTHER, question.id, ""),
                service.approvals.deny(OTHER, question.id, ""),
            ):
                with pytest.raises(ApprovalNotFound) as caught:
                    await refused
                assert caught.value.message == f"There is no approval {question.id!r}."
            shown = await service.approvals.get(ME, question.id)
            assert (shown.id, shown.may_answer, shown.state) == (question.id, True, "waiting")
            await service.approvals.deny(ME, question.id, "")
            await turn.end()


async def test_the_owner_may_deny_and_not_approve(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        service = test.daemon.service
        made = await service.sessions.create(OTHER, "test", "")
        async with Watched(test, test.agent.sessions[made.id]) as turn:
            question = await asked(test)
            assert not (await service.approvals.get(OTHER, question.id)).may_answer
            with pytest.raises(PermissionDenied):
                await service.approvals.approve(OTHER, question.id, "")
            assert [one.id for one in await service.approvals.listed(OTHER, all_=False)] == [question.id]
            assert (await service.approvals.deny(OTHER, question.id, "")).state == "denied"
            assert result(await turn.end())["result"] == "approval_denied"
        assert lines(out) == []


async def test_a_prompt_says_who_may_answer(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        for caller, may in ((ME, True), (OTHER, False)):
            test.model.requests.clear()
            events = test.daemon.service.conversations.prompt(
                caller, agent="test", text="go", session="", new=True, correlation_id=""
            )
            async for event in events:
                if event["type"] == "approval_requested":
                    assert (event["may_answer"], event["must_authenticate"]) == (may, False)
                    await test.daemon.service.approvals.deny(ME, event["approval"], "")


class Challenges:
    """polkit, where only an administrator may approve."""

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        if operation is Operation.APPROVE and ask:
            raise AuthorizationRequired("This needs a password.")
        return operation in (Operation.PROMPT, Operation.INSPECT)


async def test_a_question_says_that_its_reader_may_answer_once_they_authenticate(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        daemon = test.daemon
        authority = Authority(Challenges())
        access = Access(authority, Seats(None), daemon.registry, daemon.history, daemon.now, daemon.owners)
        told = {"type": "approval_requested", "session": "s", "trace_id": "t"}
        for caller, expected in ((ME, (True, False)), (replace(OTHER, pid=os.getpid()), (False, True))):
            event = await access.for_caller(cast(api.TurnEvent, told), caller, "test")
            assert (event["may_answer"], event["must_authenticate"]) == expected
        made = await daemon.service.sessions.create(OTHER, "test", "")
        async with Watched(test, test.agent.sessions[made.id]) as turn:
            waiting = await asked(test)
            shown = Approvals(access, daemon.registry)
            [listed] = await shown.listed(replace(OTHER, pid=os.getpid()))
            assert (listed.may_answer, listed.must_authenticate) == (False, True)
            denied = await shown.deny(OTHER, waiting.id)
            assert (denied.may_answer, denied.must_authenticate) == (False, False)
            await turn.end()


@pytest.mark.parametrize(
    "forged", ["", "apr_", "apr_0123456789abcdef", "../x", "x" * 5000, "apr_\0", "ü\ud800"]
)
async def test_a_forged_id_is_not_found(paths: Paths, forged: str) -> None:
    async with asking(paths, [say("x")]) as test:
        service = test.daemon.service
        for refused in (
            service.approvals.get(ME, forged),
            service.approvals.approve(ME, forged, ""),
            service.approvals.deny(ME, forged, ""),
        ):
            with pytest.raises(ApprovalNotFound):
                await refused


async def test_a_note_that_is_too_long_answers_nothing(paths: Paths) -> None:
    out = prepare(paths)
    async with (
        asking(paths, [call("probe_add", add(out)), say("done")]) as test,
        Watched(test, await test.session()) as turn,
    ):
        question = await asked(test)
        for note in ("n" * 1001, "a\0b"):
            with pytest.raises(InvalidArgument):
                await test.daemon.service.approvals.approve(ME, question.id, note)
        assert approvals(test)[0].state is State.WAITING
        await test.daemon.service.approvals.deny(ME, question.id, "")
        await turn.end()


# A person's own call


async def own(test: Any, args: dict[str, Any], **more: Any) -> list[TurnEvent]:
    return [event async for event in call_as_person(test.agent, ME.uid, "probe", "add", args, **more)]


async def test_the_call_of_a_person_who_may_approve_is_approved_by_his_asking(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [say("x")]) as test:
        events = [
            event
            async for event in test.daemon.service.tools.call(
                ME, agent="test", tool="probe", action="add", args=add(out)
            )
        ]
        assert types(events) == ["tool_call", "tool_result", "done"]
        assert lines(out) == ["ran"]
        assert kinds(test) == ["requested", "granted", "used"]
        found = approvals(test)[0]
        assert (found.state, found.answered_by, found.session) == (State.USED, ME.uid, "")


async def test_the_call_of_a_person_who_may_not_approve_waits(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [say("x")]) as test:
        task = asyncio.create_task(own(test, add(out)))
        question = await asked(test)
        assert lines(out) == []
        await test.daemon.service.approvals.approve(ME, question.id, "")
        assert types(await task)[-1] == "done"
        assert lines(out) == ["ran"]


async def test_a_caller_who_hangs_up_lapses_his_question(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [say("x")]) as test:
        task = asyncio.create_task(own(test, add(out)))
        question = await asked(test)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: kinds(test) == ["requested", "lapsed"])
        with pytest.raises(ApprovalClosed):
            await test.daemon.service.approvals.approve(ME, question.id, "")
        assert lines(out) == []


async def test_a_draining_daemon_ends_a_persons_call_that_waits(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [say("x")]) as test:
        task = asyncio.create_task(own(test, add(out)))
        await asked(test)
        await test.daemon.drain()
        assert (await task)[-1]["code"] == "shutting_down"
        await until(lambda: kinds(test) == ["requested", "lapsed"])


# What is bound


async def test_arguments_that_were_changed_in_the_store_are_refused(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        async with Watched(test, await test.session()) as turn:
            question = await asked(test)
            forged = question.to_dict() | {"args": {**question.args, "line": "evil"}}
            await test.daemon.history.append(
                changes=[Change(state="approvals", key=question.id, value=forged | {"state": "granted"})]
            )
            # The grant writes the record that is in memory, so the forger comes again behind it.
            granting = asyncio.create_task(test.daemon.service.approvals.approve(ME, question.id, ""))
            await asyncio.sleep(0)
            await test.daemon.history.append(
                changes=[Change(state="approvals", key=question.id, value=forged | {"state": "granted"})]
            )
            await granting
            events = await turn.end()
        assert result(events)["result"] == "approval_mismatch"
        assert lines(out) == []
        assert kinds(test) == ["requested", "granted", "lapsed"]


async def test_a_stored_state_of_granted_alone_grants_nothing(paths: Paths) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        async with Watched(test, await test.session()) as turn:
            question = await asked(test)
            await test.daemon.history.append(
                changes=[
                    Change(
                        state="approvals", key=question.id, value=question.to_dict() | {"state": "granted"}
                    )
                ]
            )
            assert (
                test.daemon.registry.shared.asked.approvals.questions.get(question.id).state is State.WAITING
            )
            await test.daemon.service.approvals.deny(ME, question.id, "")
            await turn.end()
        assert lines(out) == []


async def test_a_call_whose_tool_has_no_preview_is_asked_with_its_arguments(paths: Paths) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out, line="no preview")), say("done")]
    async with asking(paths, script) as test, Watched(test, await test.session()) as turn:
        question = await asked(test)
        assert "cannot be read" in question.preview
        await test.daemon.service.approvals.approve(ME, question.id, "")
        assert result(await turn.end())["result"] == "ok"


async def test_policy_is_asked_again_after_the_answer(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    out = prepare(paths)
    async with asking(paths, [call("probe_add", add(out)), say("done")]) as test:
        async with Watched(test, await test.session()) as turn:
            question = await asked(test)
            monkeypatch.setattr(test.daemon.pool, "has_change", lambda agent: False)
            await test.daemon.service.approvals.approve(ME, question.id, "")
            events = await turn.end()
        assert result(events)["result"] == "change_not_enabled"
        assert lines(out) == []
        assert kinds(test) == ["requested", "granted", "lapsed"]
