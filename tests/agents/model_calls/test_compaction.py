"""A conversation that becomes too long for its model: what goes, what stays, and who sums it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lightagentd.agents.model_calls.compaction.compactor import DAEMON
from lightagentd.agents.model_calls.compaction.summary import INSTRUCTION
from lightagentd.agents.model_calls.compaction.window import SHORTENED, is_summary
from lightagentd.agents.sessions.context import compact, context_of
from lightagentd.agents.sessions.session import Session
from lightagentd.api import TurnEvent
from lightagentd.errors import Conflict
from lightagentd.events.history import NewEvent
from lightagentd.host.paths import Paths
from lightagentd.llm.protocol import Message
from tests.agents.asking import add, asked, asking, prepare
from tests.agents.scripted import ME, Scripted, check_conversation, define, scripted, types, until, watch
from tests.conftest import DaemonProcess, write
from tests.scripted_model import DONE, Answer, Fault, ScriptedModel, Stream, call, calls, chunk, say

WINDOW = 4000
FRONT = "tools: [proc, bash]"
INFO = ("proc_info", {"pid": 1})
UNCOUNTED = [chunk({"content": "yes"}, "stop"), DONE]
"""An answer that does not say what it took: the daemon's own estimate counts."""


def uncounted(answer: Stream) -> Stream:
    """An answer without the figures that the scripted model makes up."""
    return Stream(pieces=[piece for piece in answer.pieces if b'"usage"' not in piece])


def window(tokens: int = WINDOW, more: str = "") -> str:
    return f'[models.providers.openai]\nbase_url = "http://127.0.0.1:9"\ncontext_tokens = {tokens}\n{more}'


def sums_up(body: dict[str, Any]) -> bool:
    """Whether a request is one for a summary."""
    return bool(body["messages"][0]["content"] == INSTRUCTION)


def wire_check(body: dict[str, Any]) -> None:
    """No request may have a call without its result, or the other way round."""
    open_calls: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_calls
            open_calls.remove(message["tool_call_id"])
        else:
            assert not open_calls
            open_calls = {each["id"] for each in message.get("tool_calls") or ()}
    assert not open_calls


def model(*, summary: Answer, turn: Callable[[dict[str, Any]], Answer]) -> Callable[[dict[str, Any]], Answer]:
    def answer(body: dict[str, Any]) -> Answer:
        wire_check(body)
        return summary if sums_up(body) else turn(body)

    return answer


def yes(body: dict[str, Any]) -> Answer:
    del body
    return Stream(pieces=UNCOUNTED)


def question(number: int, size: int = 1000) -> str:
    return f"question {number} " + "x" * size


async def fill(test: Scripted, session: Session, turns: int = 10) -> list[TurnEvent]:
    """Prompt until the conversation is compacted; the events of that turn."""
    for number in range(turns):
        events = await test.prompt(session, question(number))
        assert events[-1]["type"] == "done", events[-1]
        if "compacted" in types(events):
            return events
    raise AssertionError("nothing was compacted")


def requests(test: Scripted, *, summaries: bool = False) -> list[dict[str, Any]]:
    return [each.body for each in test.model.requests if sums_up(each.body) is summaries]


async def test_the_model_sums_up_the_older_part_and_the_newest_turns_stay(paths: Paths) -> None:
    script = model(summary=say("The person asked many things."), turn=yes)
    async with scripted(paths, script, front=FRONT, toml=window()) as test:
        session = await test.session()
        events = await fill(test, session)
        [told] = [event for event in events if event["type"] == "compacted"]
        [asked] = requests(test, summaries=True)
        assert "tools" not in asked
        assert "question 0" in asked["messages"][1]["content"]
        newest = requests(test)[-1]["messages"]
        assert newest[0]["role"] == "system"
        assert "Be brief." in newest[0]["content"]
        assert newest[1]["role"] == "user"
        assert "written by openai/x" in newest[1]["content"]
        assert "The person asked many things." in newest[1]["content"]
        asked_now = [each["content"][:10] for each in newest if each["role"] == "user"][1:]
        assert len(asked_now) >= 2, "the newest turns stay beside the one that runs"
        turns = range(len(requests(test)))
        assert asked_now == [f"question {number}" for number in turns][-len(asked_now) :]

        [event] = test.stored(topic="session.compacted")
        assert event.data is not None
        assert event.trace_id == events[0]["trace_id"]
        assert event.data["summarized_by"] == "openai/x" == told["summarized_by"]
        assert event.data["removed"] == told["removed"]
        assert event.data["kept"] == told["kept"] == len(newest) - 1, "the first of them follows the summary"
        assert event.data["tokens_after"] == told["tokens_after"] < told["tokens_before"]
        assert told["tokens_before"] >= 0.8 * WINDOW
        whole = test.conversation(session)
        assert len(whole) == 2 * len(requests(test)), "the originals stay"
        assert event.data["removed"] + event.data["kept"] == len(whole) - 1, "the answer came after it"
        first = test.daemon.history.queries.messages(session.id, event.data["from_seq"])[0]
        assert first.data is not None
        assert first.data["content"] in newest[1]["content"], "one message of the user, not two"
        [counted] = [one for one in test.stored(topic="agent.llm_response") if one.type == "summary"]
        assert counted.trace_id == event.trace_id
        row = test.daemon.registry.shared.ledger.row(f"session/{session.id}").counters
        assert row.steps == len(test.model.requests), "the call for the summary is counted, too"
        assert counted.data is not None
        assert (counted.data["prompt_tokens"], counted.data["completion_tokens"]) == (10, 5)


BAD_SUMMARIES: dict[str, Answer] = {
    "fails": Fault(),
    "breaks off": Fault(status=200, body=chunk({"content": "hm"}), cut=True),
    "is empty": say("  \n"),
    "is too long": say("endless " * 10_000),
    "is cut": Stream(pieces=[chunk({"content": "The"}, "length"), DONE]),
    "is a call": call(*INFO),
}


@pytest.mark.parametrize("what", BAD_SUMMARIES)
async def test_a_summary_that_is_of_no_use_gives_way_to_the_daemons_own(paths: Paths, what: str) -> None:
    script = model(summary=BAD_SUMMARIES[what], turn=yes)
    async with scripted(paths, script, front=FRONT, toml=window()) as test:
        session = await test.session()
        events = await fill(test, session)
        assert events[-1]["type"] == "done"
        [told] = [event for event in events if event["type"] == "compacted"]
        assert told["summarized_by"] == DAEMON
        begin = requests(test)[-1]["messages"][1]["content"]
        assert "- Asked: question 0" in begin
        assert "Answered: yes" in begin
        notices = [event["message"] for event in events if event["type"] == "notice"]
        assert not any("goes on with" in message for message in notices), "no reason to fall back"


async def test_it_is_compacted_again_and_again_and_the_first_prompt_is_still_known(paths: Paths) -> None:
    script = model(summary=Fault(), turn=yes)
    async with scripted(paths, script, front=FRONT, toml=window()) as test:
        session = await test.session()
        for number in range(30):
            assert (await test.prompt(session, question(number)))[-1]["type"] == "done"
        compacted = test.stored(topic="session.compacted")
        assert len(compacted) >= 3
        seqs = [event.data["from_seq"] for event in compacted if event.data]
        assert seqs == sorted(set(seqs))
        newest = requests(test)[-1]["messages"]
        assert sum(message["content"].startswith("[The older part") for message in newest) == 1
        assert "question 0" in newest[1]["content"]
        assert len(test.conversation(session)) == 60


def messages() -> list[NewEvent]:
    """A thousand messages of 500 turns, as they are stored."""
    said = [
        message
        for number in range(500)
        for message in (
            Message(role="user", content=question(number, 200)),
            Message(role="assistant", content="yes"),
        )
    ]
    return [NewEvent(topic="agent.message", type="message", data=each.to_dict()) for each in said]


async def test_a_thousand_messages_never_make_a_request_too_long(paths: Paths) -> None:
    script = model(summary=say("Many questions, all answered with yes."), turn=yes)
    async with scripted(paths, script, front=FRONT, toml=window()) as test:
        session = await test.session()
        with session.context():
            await test.daemon.history.append(*messages())
        session.forget_messages()
        events = await test.prompt(session, "and now?")
        assert events[-1]["type"] == "done"
        [told] = [event for event in events if event["type"] == "compacted"]
        assert told["removed"] + told["kept"] == 1001
        assert told["tokens_after"] < 0.8 * WINDOW < told["tokens_before"]
        for body in (each.body for each in test.model.requests):
            assert sum(len(message["content"]) for message in body["messages"]) < WINDOW * 3.5


async def test_results_stay_with_their_calls_however_they_are_interleaved(paths: Paths) -> None:
    def turn(body: dict[str, Any]) -> Answer:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return Stream(pieces=UNCOUNTED)
        tree = ("proc_tree", {"pid": 1}, "call_2")
        return uncounted(calls((*INFO, "call_1"), tree, (*INFO, "call_3"), text="Looking."))

    script = model(summary=say("Looked at processes."), turn=turn)
    async with scripted(paths, script, front=FRONT, toml=window(3000)) as test:
        session = await test.session()
        for number in range(8):
            assert (await test.prompt(session, question(number, 300)))[-1]["type"] == "done"
        assert test.stored(topic="session.compacted")
        check_conversation(session.messages)
        sent = session.messages
        session.forget_messages()
        assert session.messages == sent, "it is stored as it is in memory"
        assert is_summary(session.messages[0])


async def test_a_long_turn_has_its_results_shortened_for_the_model_alone(paths: Paths) -> None:
    big = ("bash_exec", {"command": "head -c 4000 /dev/zero | tr '\\0' x"})

    def turn(body: dict[str, Any]) -> Answer:
        done = sum(message["role"] == "tool" for message in body["messages"])
        return uncounted(call(*big, call_id=f"call_{done}")) if done < 5 else Stream(pieces=UNCOUNTED)

    async with scripted(paths, model(summary=Fault(), turn=turn), front=FRONT, toml=window(5500)) as test:
        session = await test.session()
        events = await test.prompt(session, "look")
        assert events[-1]["type"] == "done"
        sent = [each["content"] for each in requests(test)[-1]["messages"] if each["role"] == "tool"]
        assert len(sent) == 5
        assert SHORTENED in sent[0]
        assert SHORTENED not in sent[-1], "the newest result comes last"
        stored = [each for each in test.conversation(session) if each.role == "tool"]
        assert all(SHORTENED not in each.content for each in stored)
        assert not any(SHORTENED in each.content for each in session.messages), "after the turn it is whole"


async def test_what_cannot_be_shortened_ends_the_turn_with_context_full(paths: Paths) -> None:
    async with scripted(paths, [say("never")], front=FRONT, toml=window(), body="Be brief.") as test:
        session = await test.session()
        events = await test.prompt(session, "x" * 20_000)
        assert events[-1]["type"] == "error"
        assert events[-1]["code"] == "context_full"
        assert "openai/x" in events[-1]["message"]
        assert not test.model.requests
        assert (await test.prompt(session, "short"))[-1]["type"] == "done", "that turn goes, and it goes on"


TOO_LONG = Fault(
    status=400,
    body=b'{"error": {"message": "This model\'s maximum context length is 900 tokens.", "code": "x"}}',
)


async def test_an_endpoint_that_says_it_is_too_long_gets_less_once(paths: Paths) -> None:
    def turn(body: dict[str, Any]) -> Answer:
        size = sum(len(message["content"]) for message in body["messages"])
        return TOO_LONG if size > 9000 else Stream(pieces=UNCOUNTED)

    script = model(summary=say("Many questions."), turn=turn)
    async with scripted(paths, script, front=FRONT) as test:
        session = await test.session()
        for number in range(14):
            events = await test.prompt(session, question(number))
            assert events[-1]["type"] == "done", events[-1]
        assert test.stored(topic="session.compacted")
        test.model.script = model(summary=say("Many."), turn=lambda _: TOO_LONG)
        before = len(requests(test))
        events = await test.prompt(session, question(99))
        assert events[-1]["code"] == "context_full"
        assert len(requests(test)) == before + 2, "it is tried once more, and no longer"


async def test_a_model_whose_window_is_too_small_gives_way_to_the_next(paths: Paths) -> None:
    def turn(body: dict[str, Any]) -> Answer:
        return TOO_LONG if body["model"] == "x" else Stream(pieces=UNCOUNTED)

    async with scripted(
        paths, model(summary=Fault(), turn=turn), front=f"{FRONT}\nfallback: [openai/wide]"
    ) as test:
        session = await test.session()
        events = await test.prompt(session, question(0))
        assert events[-1]["type"] == "done"
        [notice] = [event for event in events if event["type"] == "notice"]
        assert notice["code"] == "context_full"
        assert "openai/wide" in notice["message"]


async def test_a_restart_and_a_kill_find_the_conversation_as_it_was_compacted(
    paths: Paths, daemon_process: DaemonProcess
) -> None:
    script = model(summary=say("Many questions."), turn=yes)
    async with ScriptedModel(script) as endpoint:
        define(paths, endpoint, front=FRONT)
        write(paths.config / "lightagentd.toml", window())
        await asyncio.to_thread(daemon_process.start)
        for number in range(12):
            done = await asyncio.to_thread(daemon_process.lactl, "prompt", "test", question(number))
            assert done.returncode == 0, done.stderr
        assert any(sums_up(each.body) for each in endpoint.requests)
        daemon_process.kill()
        await asyncio.to_thread(daemon_process.start)
        await asyncio.to_thread(daemon_process.lactl, "prompt", "test", "and now?")
        after = endpoint.requests[-1].body["messages"]
        prompts = [each["content"] for each in after if each["role"] == "user"][1:]
        assert prompts == [*map(question, range(12)), "and now?"][-len(prompts) :]
        assert len(prompts) > 1
        assert "Many questions." in after[1]["content"]


async def test_a_tainted_session_stays_tainted(paths: Paths) -> None:
    script = model(summary=say("Nothing came from outside."), turn=yes)
    async with scripted(paths, script, front=FRONT, toml=window()) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, question(0), outside=True)
        await watch(turn)
        await fill(test, session)
        assert session.record.tainted
        assert session.record.tainted_by == turn.trace_id


async def test_a_budget_holds_for_the_summary_too(paths: Paths) -> None:
    script = model(summary=say("Many questions."), turn=yes)
    toml = window(more="[budgets.session]\nsteps = 6\n")
    async with scripted(paths, script, front=FRONT, toml=toml) as test:
        session = await test.session()
        for number in range(9):
            events = await test.prompt(session, question(number, 1000))
        assert events[-1]["code"] == "budget_exceeded"
        assert len(test.model.requests) == 6


async def test_a_summary_has_nothing_in_it_that_is_not_stored(paths: Paths) -> None:
    out, secret = prepare(paths), "4711-hunter2"

    def turn(body: dict[str, Any]) -> Answer:
        if len(body["messages"]) == 2:
            return call("probe_add", add(out, code=secret))
        return Stream(pieces=UNCOUNTED)

    script = model(summary=Fault(), turn=turn)
    async with asking(paths, script, front="tools: [proc, probe]", toml=window()) as test:
        session = await test.session()
        running = await test.agent.prompt(session, question(0))
        approval = await asked(test)
        await test.daemon.service.approvals.approve(ME, approval.id, "")
        await watch(running)
        await fill(test, session)
        [compacted] = test.stored(topic="session.compacted")
        assert "probe_add" in str(compacted.data)
        assert secret not in str(compacted.data)
        assert secret not in str(test.daemon.history.queries.state("compactions"))
        assert secret not in str(requests(test, summaries=True))


@pytest.mark.parametrize("restart", [False, True])
async def test_a_call_that_waits_for_an_approval_is_kept_with_its_result(paths: Paths, restart: bool) -> None:
    out = prepare(paths)

    def turn(body: dict[str, Any]) -> Answer:
        last = body["messages"][-1]
        if last["role"] == "user" and last["content"].startswith("change it"):
            return calls(("probe_add", add(out), "call_1"), (*INFO, "call_2"))
        return Stream(pieces=UNCOUNTED)

    script = model(summary=say("Many questions."), turn=turn)
    front = "tools: [proc, probe]"
    text = "change it " + "y" * 3000
    async with asking(paths, script, front=front, toml=window(3500)) as test:
        session = await test.session()
        for number in range(4):
            await test.prompt(session, question(number))
        assert not test.stored(topic="session.compacted")
        running = await test.agent.prompt(session, text)
        approval = await asked(test)
        if not restart:
            await test.daemon.service.approvals.approve(ME, approval.id, "")
            await watch(running)
            _check_kept(test, session, text)
    if not restart:
        return
    async with asking(paths, script, front=front, toml=window(3500)) as test:
        again = test.agent.sessions[session.id]
        await until(lambda: again.running is not None)
        assert again.running is not None
        running = again.running
        await test.daemon.service.approvals.approve(ME, approval.id, "")
        await watch(running)
        _check_kept(test, again, text)


def _check_kept(test: Scripted, session: Session, prompt: str) -> None:
    """The turn with the approval is whole in the last request, behind a summary of those before it."""
    assert test.stored(topic="session.compacted")
    last = requests(test)[-1]["messages"]
    assert last[1]["content"].startswith("[The older part")
    assert prompt in [each["content"] for each in last]
    assert [each["tool_call_id"] for each in last if each["role"] == "tool"] == ["call_1", "call_2"]
    session.forget_messages()
    check_conversation(session.messages)


async def test_a_person_has_it_compacted_between_turns_and_none_begins_meanwhile(paths: Paths) -> None:
    gate = asyncio.Event()
    summing = Stream(pieces=[chunk({"content": "They asked twice."}, "stop"), DONE], gate=(0, gate))
    async with scripted(paths, model(summary=summing, turn=yes), front=FRONT, toml=window(100_000)) as test:
        session, agent = await test.session(), test.agent
        assert (await compact(session, agent, ME.uid)).removed == 0, "there is nothing yet"
        for number in range(2):
            await test.prompt(session, question(number))
        before = await context_of(session, agent.running_parts())
        assert (before.messages, before.window_tokens, before.window_known) == (4, 100_000, True)
        parts = before.system_tokens + before.function_tokens + before.message_tokens
        assert abs(parts - before.tokens) <= 2
        task = asyncio.create_task(compact(session, agent, ME.uid))
        await until(lambda: requests(test, summaries=True))
        with pytest.raises(Conflict):
            await compact(session, agent, ME.uid)
        turn = await agent.prompt(session, question(2))
        await asyncio.sleep(0.05)
        assert session.running is None, "it waits for the compaction"
        gate.set()
        done = await task
        assert (done.removed, done.kept, done.summarized_by) == (2, 2, "openai/x")
        assert types(await watch(turn))[-1] == "done"
        sent = [each["content"] for each in requests(test)[-1]["messages"][1:]]
        assert "They asked twice." in sent[0]
        assert "question 1" in sent[0]
        assert "question 0" not in "".join(sent)
        assert sent[-1].startswith("question 2")
        assert done.tokens_after < before.tokens
