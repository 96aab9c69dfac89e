"""Guards in turns: a real daemon, a scripted model behind real HTTP; what people, model and history get."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from lightagentd.errors import PolicyDenied
from lightagentd.host.paths import Paths
from lightagentd.quoted import Prompt, quoted
from tests.agents.questions import prompted, question
from tests.agents.scripted import ME, Scripted, scripted
from tests.conftest import write
from tests.scripted_model import Fault, call, chunk, say

CARD = "4111 1111 1111 1111"
MAIL = "jane.doe@example.org"


def guard(paths: Paths, *tables: str) -> None:
    write(paths.config / "policy.d" / "10-guards.toml", "".join(f"[[guard]]\n{one}\n" for one in tables))


def decisions(test: Scripted) -> list[dict[str, Any]]:
    return [event.data or {} for event in test.stored(topic="policy.guard")]


def all_that_is_stored(test: Scripted) -> str:
    return "".join(str(event.data) for event in test.stored())


async def test_a_prompt_is_blocked_before_it_is_stored_or_redacted_before_the_model_sees_it(
    paths: Paths,
) -> None:
    guard(
        paths,
        'name = "cards"\non = ["prompt", "attachment"]\nmatch = "payment-card"\naction = "block"',
        'name = "mails"\non = ["prompt", "attachment"]\nmatch = "mail-address"\naction = "redact"',
        'name = "names"\non = "prompt"\npattern = "falcon"\naction = "tag"\ntag = "secret-project"',
    )
    async with scripted(paths, [say("Noted.")]) as test:
        session = await test.session()
        with pytest.raises(PolicyDenied, match=r"cards \(10-guards.toml\) blocks this prompt"):
            await test.agent.prompt(session, f"Pay with {CARD}.")
        with pytest.raises(PolicyDenied, match="blocks this attachment"):
            await test.agent.prompt(session, Prompt("Read this.").with_blocks(quoted("a", CARD)))
        assert "4111" not in all_that_is_stored(test)

        text = f"Falcon: write to {MAIL}."
        prompt = Prompt(text).with_blocks(quoted("a", f"From: {MAIL}"))
        turn = await test.agent.prompt(session, prompt)
        await turn.over.wait()
        sent = test.model.requests[0].body["messages"][-1]["content"]
        assert sent == "Falcon: write to [mail address].\n\n```a\nFrom: [mail address]\n```"
        assert turn.prompt.question == "Falcon: write to [mail address]."
        assert MAIL not in all_that_is_stored(test)
        found = [(one["guard"], one["on"], one["action"], one["count"]) for one in decisions(test)]
        assert found == [
            ("cards (10-guards.toml)", "prompt", "block", 1),
            ("cards (10-guards.toml)", "attachment", "block", 1),
            ("mails (10-guards.toml)", "prompt", "redact", 1),
            ("names (10-guards.toml)", "prompt", "tag", 1),
            ("mails (10-guards.toml)", "attachment", "redact", 1),
        ]
        assert decisions(test)[2]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
        assert decisions(test)[3]["tag"] == "secret-project"


def in_deltas(text: str, size: int) -> Any:
    return say(*(text[place : place + size] for place in range(0, len(text), size)))


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_an_answer_is_redacted_while_it_streams(paths: Paths, size: int) -> None:
    guard(paths, 'name = "pii"\non = "answer"\nmatch = ["mail-address", "payment-card"]\naction = "redact"')
    answer = f"It is {MAIL}, paid with {CARD} in 2024.\nThat is all."
    async with scripted(paths, [in_deltas(answer, size)]) as test:
        events = await test.prompt(await test.session())
        told = "".join(event["text"] for event in events if event["type"] == "text_delta")
        clean = "It is [mail address], paid with [payment card] in 2024.\nThat is all."
        assert (told, events[-1]["text"]) == (clean, clean)
        assert "4111" not in all_that_is_stored(test)
        ((count, action),) = [(one["count"], one["action"]) for one in decisions(test)]
        assert (count, action) == (2, "redact")


async def test_of_a_blocked_answer_nobody_sees_anything(paths: Paths) -> None:
    guard(
        paths,
        'name = "falcon"\non = "answer"\npattern = "project falcon"\naction = "block"\nreason = "Not told."',
    )
    async with scripted(paths, [in_deltas("The plan: Project Falcon flies.", 4), say("Fine.")]) as test:
        session = await test.session()
        events = await test.prompt(session)
        told = "".join(event["text"] for event in events if event["type"] == "text_delta")
        assert told == events[-1]["text"] == "[The guard falcon blocked this answer: Not told.]"
        assert "Falcon" not in all_that_is_stored(test)
        assert (await test.prompt(session))[-1]["text"] == "Fine."
        assert "Falcon" not in str(test.model.requests[-1].body)


async def test_what_was_said_until_a_failure_is_guarded_too(paths: Paths) -> None:
    guard(paths, 'name = "mails"\non = "answer"\nmatch = "mail-address"\naction = "redact"')
    body = chunk({"role": "assistant", "content": f"Ask {MAIL} "})
    broken = Fault(status=200, body=body, content_type="text/event-stream", cut=True)
    async with scripted(paths, [broken]) as test:
        events = await test.prompt(await test.session())
        assert events[-1]["type"] == "error"
        assert MAIL not in all_that_is_stored(test) + str(events)
        assert "Ask [mail address]" in all_that_is_stored(test)


def result(test: Scripted) -> str:
    """What the model read last of a call."""
    messages = test.model.requests[-1].body["messages"]
    return str(next(one["content"] for one in reversed(messages) if one["role"] == "tool"))


async def test_a_tools_result_is_redacted_or_blocked_before_anybody_reads_it(paths: Paths) -> None:
    guard(
        paths,
        'name = "mails"\non = "tool_result"\nmatch = "mail-address"\naction = "redact"',
        'name = "falcon"\non = "tool_result"\npattern = "falcon"\naction = "block"\nreason = "Not read."',
    )
    script = [
        call("bash_exec", {"command": f"echo from {MAIL}"}),
        call("bash_exec", {"command": "echo fal; echo proj fal''con"}, call_id="call_2"),
        say("Done."),
    ]
    async with scripted(paths, script) as test:
        events = await test.prompt(await test.session())
        first, second = (event for event in events if event["type"] == "tool_result")
        assert "from [mail address]" in first["text"]
        assert (second["result"], second["metadata"]) == ("policy_denied", {})
        assert "The guard falcon (10-guards.toml) blocks this result: Not read." in result(test)
        told = "".join(event["text"] for event in events if event["type"] == "tool_output")
        assert told == "", "where a guard may block, nothing is shown of what a command says"
        assert "proj falcon" not in all_that_is_stored(test)
        assert MAIL not in str([first, *(one for one in test.stored(topic="tool"))])


async def test_what_a_command_says_is_redacted_while_it_runs(paths: Paths) -> None:
    guard(paths, 'name = "mails"\non = "tool_result"\nmatch = "mail-address"\naction = "redact"')
    command = "printf 'from jane.d'; sleep 0.1; printf 'oe@exam'; sleep 0.1; echo ple.org"
    async with scripted(paths, [call("bash_exec", {"command": command}), say("Done.")]) as test:
        events = await test.prompt(await test.session())
        told = "".join(event["text"] for event in events if event["type"] == "tool_output")
        assert told == "from [mail address]\n"


@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_a_person_lets_a_result_through_or_not(paths: Paths, answer: str) -> None:
    guard(paths, 'name = "mails"\non = "tool_result"\nmatch = "mail-address"\naction = "ask"')
    script = [call("bash_exec", {"command": f"echo from {MAIL}"}), say("Done.")]
    async with scripted(paths, script) as test:
        async with prompted(test, await test.session()) as (_, events):
            asked = await question(test)
            assert asked.question.endswith("in the result of bash.exec. May the model read it?")
            await test.daemon.registry.shared.asked.inputs.answer(asked.id, answer, uid=ME.uid)
            assert (await events)[-1]["type"] == "done"
        assert (MAIL in result(test)) == (answer == "yes")
        if answer == "no":
            assert "its result stays closed" in result(test)


async def test_a_memory_is_kept_without_what_a_guard_takes_out_or_not_at_all(paths: Paths) -> None:
    guard(
        paths,
        'name = "mails"\non = "memory"\nmatch = "mail-address"\naction = "redact"',
        'name = "cards"\non = "memory"\nmatch = "payment-card"\naction = "block"',
    )
    script = [
        call("memory_remember", {"text": f"Jane is {MAIL}."}),
        call("memory_remember", {"text": f"They pay with {CARD}."}, call_id="call_2"),
        say("Done."),
    ]
    async with scripted(paths, script) as test:
        await test.prompt(await test.session())
        assert "cards (10-guards.toml) blocks this memory" in result(test)
        (kept,) = await test.daemon.registry.shared.memories.search(ME.uid, "Jane")
        assert kept.text == "Jane is [mail address]."
