"""What a start makes of turns that the last run did not end, as the history has them after a crash."""

from __future__ import annotations

from collections.abc import Sequence

from lightagentd.agents.sessions.session import Session, new_record
from lightagentd.agents.tool_calls.results import message_event
from lightagentd.agents.turn import Asked, Turn
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.history import History, NewEvent
from lightagentd.events.model import new_id, within
from lightagentd.events.types.agent import CallIntended
from lightagentd.events.types.daemon import DaemonReady, DaemonStarting
from lightagentd.events.types.history import HistoryRecovered
from lightagentd.events.types.tool import CallEnded
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import Message, ToolCall
from lightagentd.quoted import Prompt
from tests.agents.scripted import ME, check_conversation, scripted, until
from tests.events.stored import opened
from tests.scripted_model import Fault, say

RUNNING = (DaemonStarting(message="").event(), DaemonReady(message="").event())


async def crashed(paths: Paths, turns: Sequence[Sequence[NewEvent | str]]) -> str:
    """Write the history of a daemon that was killed: for each turn `queued` or what it had stored."""
    history = History(paths.history)
    await history.start()
    record = new_record("test", ME.uid, "t")
    session = Session(record, history)
    with session.context():
        created = NewEvent(topic="session.created", type="created", data={"title": "t"})
        await history.append(*RUNNING, created, changes=(record.change(),))
    for number, stored in enumerate(turns):
        turn = Turn(session, Asked(prompt=Prompt(f"p{number}")), trace_id=new_id("trace"))
        with session.context(turn):
            prompt = NewEvent(topic="agent.prompt", type="prompt", data={"text": turn.prompt.text})
            await history.append(prompt, changes=(turn.change("queued"),))
            if list(stored) != ["queued"]:
                user = message_event(Message(role="user", content=turn.prompt.text))
                events = [event for event in stored if isinstance(event, NewEvent)]
                made = [_again(event) for event in events]
                await history.append(_again(user), *made, changes=(turn.change("running"),))
    await history.close()
    return record.id


def _again(event: NewEvent) -> NewEvent:
    """The event in the present context."""
    return NewEvent(topic=event.topic, type=event.type, data=event.data, source=event.source)


def asked(*names: str) -> NewEvent:
    made = tuple(ToolCall(id=f"c{number}", name=name, arguments="{}") for number, name in enumerate(names))
    return message_event(Message(role="assistant", content="", tool_calls=made))


def intent(call_id: str, function: str) -> NewEvent:
    tool, _, action = function.partition("_")
    return CallIntended(
        call_id=call_id,
        function=function,
        tool=tool,
        action=action,
        effect="observe",
        args={},
        decision="allow",
        rule="test",
    ).event()


def invocation(call_id: str) -> NewEvent:
    return CallEnded(
        call_id=call_id,
        tool="bash",
        action="exec",
        effect="observe",
        result="ok",
        duration_ms=1,
        output_chars=2,
        taints=True,
        metadata={},
    ).event()


def result(model_id: str, name: str) -> NewEvent:
    return message_event(Message(role="tool", content="ok", tool_call_id=model_id, name=name))


async def test_prompts_that_waited_are_run_in_their_order(paths: Paths) -> None:
    session_id = await crashed(paths, [["queued"], ["queued"]])
    async with scripted(paths, [say("one"), say("two")]) as test:
        await until(lambda: test.daemon.history.queries.state("turns") == {})
        session = test.agent.sessions[session_id]
        contents = [message.content for message in test.conversation(session)]
        assert contents == ["p0", "one", "p1", "two"]


async def test_a_turn_that_asked_the_model_is_ended_and_not_run_again(paths: Paths) -> None:
    session_id = await crashed(paths, [[], ["queued"]])
    async with scripted(paths, [say("fine")]) as test:
        await until(lambda: test.daemon.history.queries.state("turns") == {})
        assert len(test.model.requests) == 1
        session = test.agent.sessions[session_id]
        assert [message.content for message in test.conversation(session)] == ["p0", "", "p1", "fine"]
        ended = test.stored(topic="agent.error")
        assert [(event.type, (event.data or {})["code"]) for event in ended] == [
            ("interrupted", "interrupted")
        ]
        assert ended[0].session == session_id


async def test_a_call_that_ran_has_an_unknown_outcome_and_later_ones_did_not_run(paths: Paths) -> None:
    stored = [
        asked("bash_exec", "bash_exec", "bash_exec"),
        intent("call_a", "bash_exec"),
        invocation("call_a"),
        result("c0", "bash_exec"),
        intent("call_b", "bash_exec"),
    ]
    session_id = await crashed(paths, [stored])
    async with scripted(paths, [say("fine")]) as test:
        session = test.agent.sessions[session_id]
        found = test.conversation(session)
        check_conversation(found)
        assert [message.content.split(":")[0] for message in found[2:-1]] == [
            "ok",
            "Error (outcome_unknown)",
            "Error (cancelled)",
        ]
        ended = test.stored(topic="agent.error")[-1]
        assert ended.data is not None
        assert (ended.data["code"], ended.data["unknown_calls"]) == ("outcome_unknown", 1)
        ends = [event for event in test.stored() if event.type == "invocation"]
        assert [(event.source, (event.data or {})["result"]) for event in ends] == [
            ("worker", "ok"),
            ("daemon", "outcome_unknown"),
        ]
        assert (ends[1].trace_id, ends[1].session) == (ended.trace_id, session_id)
        assert session.record.interrupted == (
            f"The daemon stopped in the middle of the turn {ended.trace_id}: 1 of its calls ended before"
            " that, whether bash_exec took effect is not known, 1 of its calls was not run."
        )
        assert test.daemon.history.queries.state_of("sessions", session.id) == session.record.to_dict()
        await test.prompt(session, "and now?")
        assert session.record.interrupted == ""
        assert test.daemon.history.queries.state_of("sessions", session.id)["interrupted"] == ""
        sent = test.model.requests[0].body["messages"]
        assert [message["role"] for message in sent] == [
            "system",
            "user",
            "assistant",
            "tool",
            "tool",
            "tool",
            "assistant",
            "user",
        ]


async def test_a_call_without_an_intent_was_not_run(paths: Paths) -> None:
    session_id = await crashed(paths, [[asked("bash_exec")]])
    async with scripted(paths, [say("fine")]) as test:
        found = test.conversation(test.agent.sessions[session_id])
        check_conversation(found)
        assert found[-2].content.startswith("Error (cancelled)")
        assert found[-1].cut_off.startswith("Error (interrupted)")
        told = test.agent.sessions[session_id].record.interrupted
        assert "none of its calls had ended before that, 1 of its calls was not run" in told
        assert (test.stored(topic="agent.error")[-1].data or {})["unknown_calls"] == 0


async def test_what_is_known_of_an_interrupted_turn_is_said_until_a_turn_is_done(paths: Paths) -> None:
    session_id = await crashed(paths, [[asked("bash_exec")]])
    async with scripted(paths, [Fault(status=400), say("fine")]) as test:
        told = test.agent.sessions[session_id].record.interrupted
    async with scripted(paths, [Fault(status=400), say("fine")]) as test:
        session = test.agent.sessions[session_id]
        assert session.record.interrupted == told != ""
        assert (await test.prompt(session))[-1]["type"] == "error"
        assert session.record.interrupted == told
        assert (await test.prompt(session))[-1]["type"] == "done"
        assert session.record.interrupted == ""


async def test_a_second_start_finds_nothing_left(paths: Paths) -> None:
    await crashed(paths, [[asked("bash_exec"), intent("call_a", "bash_exec")]])
    async with scripted(paths, [say("fine")]) as test:
        before = len(test.stored(topic="agent"))
        await test.agent.stop()
        await test.agent.start()
        assert len(test.stored(topic="agent")) == before


async def test_one_event_says_what_a_crash_left(paths: Paths) -> None:
    interrupted = [asked("bash_exec"), intent("call_a", "bash_exec")]
    await crashed(paths, [interrupted, ["queued"]])
    async with scripted(paths, [say("fine")]) as test:
        told = test.stored(topic=HistoryRecovered.topic)
        assert [event.type for event in told] == ["examined", "recovered"]
        data = told[1].data or {}
        assert data | {"message": "", "tail_events": 0} == {
            "message": "",
            "tail_events": 0,
            "interrupted_turns": 1,
            "unknown_calls": 1,
            "requeued_turns": 1,
            "waiting_turns": 0,
            "approvals": 0,
            "inputs": 0,
            "watches": 0,
        }
        assert data["message"] == (
            f"the last run ended without a stop at event {data['tail_events']}; 1 turn was interrupted,"
            " 1 call of unknown outcome"
        )
    async with scripted(paths, []) as test:
        assert len(test.stored(topic=HistoryRecovered.topic)) == 2


async def test_a_call_without_a_turn_is_ended_as_unknown_once(paths: Paths) -> None:
    await crashed(paths, [])
    async with opened(paths.history) as history:
        with within(agent="gone", owner=77, caller=5, trace_id="trace_0000000000000001"):
            await history.append(intent("call_p", "bash_exec"), intent("call_q", "bash_exec"))
            await history.append(invocation("call_q"))
    for _ in range(2):
        async with scripted(paths, []) as test:
            ends = [event for event in test.stored() if event.type == "invocation"]
            assert [(event.data or {})["call_id"] for event in ends] == ["call_q", "call_p"]
            end = ends[1]
            assert (end.data or {})["result"] == "outcome_unknown"
            assert (end.agent, end.owner, end.caller) == ("gone", 77, 5)
            assert end.trace_id == "trace_0000000000000001"


async def test_turns_of_an_agent_that_is_gone_are_ended_and_its_prompts_stay(paths: Paths) -> None:
    session_id = await crashed(paths, [[asked("bash_exec"), intent("call_a", "bash_exec")], ["queued"]])
    async with Daemon(paths) as daemon:
        assert "test" not in daemon.registry.agents
        told = daemon.history.queries.find_in_topic(HistoryRecovered.topic, lambda _: True)
        assert told is not None
        assert told.data is not None
        assert (told.data["interrupted_turns"], told.data["unknown_calls"]) == (1, 1)
        ended = daemon.history.queries.find_in_topic("agent.error", lambda _: True)
        assert ended is not None
        assert (ended.type, ended.session) == ("interrupted", session_id)
        assert [turn["state"] for turn in daemon.history.queries.state("turns").values()] == ["queued"]


async def test_the_check_of_a_task_that_ran_has_an_unknown_outcome(paths: Paths) -> None:
    answer = message_event(Message(role="assistant", content="done"))
    session_id = await crashed(paths, [[answer, intent("call_check", "bash_exec")]])
    async with scripted(paths, []) as test:
        ended = test.stored(topic="agent.error")[-1]
        assert (ended.data or {})["unknown_calls"] == 1
        told = test.agent.sessions[session_id].record.interrupted
        assert "whether bash_exec took effect is not known" in told
        assert "not run" not in told
