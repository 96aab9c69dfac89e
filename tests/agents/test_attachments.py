from __future__ import annotations

from typing import Any

import pytest

from lightagentd.agents.sessions.attachments import ALL_TIMES, compose
from lightagentd.agents.turn import Asked
from lightagentd.api import Attachment
from lightagentd.config.configuration import Limits
from lightagentd.errors import AttachmentInvalid, AttachmentTooLarge, InvalidArgument
from lightagentd.host.paths import Paths
from lightagentd.limits import MAX_ATTACHMENTS
from lightagentd.quoted import Prompt
from tests.agents.scripted import ME, Scripted, scripted, until, watch
from tests.conftest import write
from tests.scripted_model import say

LIMITS = Limits(max_attachment_bytes=1000)


def attached(text: str, name: str = "a.log") -> Attachment:
    return {"name": name, "text": text}


class TestOrder:
    def test_a_prompt_without_attachments_stays_as_it_is(self) -> None:
        assert compose(Prompt(" as it is\n"), [], LIMITS) == Prompt(" as it is\n")

    def test_they_follow_the_text_in_the_order_given(self) -> None:
        found = compose(Prompt("compare\n"), [attached("two\n", "b"), attached("one", "a")], LIMITS)
        assert found.text == "compare\n\n```b\ntwo\n```\n\n```a\none\n```"

    def test_a_fence_is_longer_than_any_in_the_content(self) -> None:
        found = compose(Prompt("x"), [attached("a\n  `````\n```a.log\nb")], LIMITS)
        assert found.text == "x\n\n``````a.log\na\n  `````\n```a.log\nb\n``````"

    def test_a_backtick_in_a_name_does_not_spoil_the_fence(self) -> None:
        assert "\n```a'''b\n" in compose(Prompt("x"), [attached("y", "a```b")], LIMITS).text

    def test_an_empty_file_is_an_empty_block(self) -> None:
        assert compose(Prompt("x"), [attached("")], LIMITS).text == "x\n\n```a.log\n\n```"


class TestSizes:
    def test_one_may_have_as_much_as_the_limit(self) -> None:
        assert compose(Prompt("x"), [attached("é" * 500)], LIMITS)
        with pytest.raises(AttachmentTooLarge, match="has 1002 bytes; one may have 1000"):
            compose(Prompt("x"), [attached("é" * 501)], LIMITS)

    def test_all_together_may_have_four_times_that(self) -> None:
        full = [attached("x" * 1000)] * ALL_TIMES
        assert compose(Prompt("x"), full, LIMITS)
        with pytest.raises(AttachmentTooLarge, match="4001 bytes together; they may have 4000"):
            compose(Prompt("x"), [*full, attached("y")], LIMITS)

    def test_there_may_be_32(self) -> None:
        assert compose(Prompt("x"), [attached("y")] * MAX_ATTACHMENTS, LIMITS)
        with pytest.raises(AttachmentTooLarge, match="33 attachments; it may have 32"):
            compose(Prompt("x"), [attached("y")] * (MAX_ATTACHMENTS + 1), LIMITS)


class TestContent:
    @pytest.mark.parametrize(
        ("text", "why"),
        [("a\0b", "NUL"), ("\x01\x02\x03abc", "control characters"), ("a\udcffb", "not UTF-8")],
    )
    def test_what_is_no_text_is_refused(self, text: str, why: str) -> None:
        with pytest.raises(AttachmentInvalid, match=f"is binary: .*{why}"):
            compose(Prompt("x"), [attached(text)], LIMITS)

    @pytest.mark.parametrize(
        "text", ["\x1b[31mred\x1b[0m\r\n\tx\f", "\x07\x08", "naïve 日本 \U0001f600", "\x01 in a line"]
    )
    def test_text_of_a_terminal_is_text(self, text: str) -> None:
        assert text in compose(Prompt("x"), [attached(text)], LIMITS).text

    @pytest.mark.parametrize("name", ["", "a/b", "/etc/passwd", "a\nb", "a\x1b[0m", "a\u202eb", "x" * 256])
    def test_a_name_is_one_that_can_be_shown_and_no_path(self, name: str) -> None:
        with pytest.raises(AttachmentInvalid, match="cannot be the name"):
            compose(Prompt("x"), [attached("y", name)], LIMITS)

    @pytest.mark.parametrize("name", ["x" * 255, "..", "standard input", "naïve.log"])
    def test_other_names_will_do(self, name: str) -> None:
        assert f"```{name}\n" in compose(Prompt("x"), [attached("y", name)], LIMITS).text

    def test_a_question_is_needed(self) -> None:
        with pytest.raises(InvalidArgument, match="no text") as caught:
            compose(Prompt(" \n"), [attached("y")], LIMITS)
        assert "Say what" in caught.value.suggestion


class TestInTheDaemon:
    async def prompt(self, daemon: Scripted, text: str, *attachments: Attachment) -> list[Any]:
        events = daemon.daemon.service.conversations.prompt(
            ME, agent="test", text=text, attachments=list(attachments)
        )
        return [event async for event in events]

    async def test_they_are_in_the_stored_prompt_and_taint(self, paths: Paths) -> None:
        async with scripted(paths, [say("seen")]) as daemon:
            events = await self.prompt(daemon, "look", attached("one"))
            assert events[-1]["type"] == "done"
            session = daemon.agent.sessions[events[-1]["session"]]
            assert daemon.conversation(session)[0].content == "look\n\n```a.log\none\n```"
            assert session.record.title == "look"
            assert session.record.tainted
            assert session.record.tainted_by == events[-1]["trace_id"]

    async def test_what_is_refused_makes_no_session(self, paths: Paths) -> None:
        async with scripted(paths, [], toml="[limits]\nmax_prompt_bytes = 50\n") as daemon:
            for wrong, error in ((attached("a\0"), AttachmentInvalid), (attached("x" * 50), InvalidArgument)):
                with pytest.raises(error):
                    await self.prompt(daemon, "look", wrong)
            assert not daemon.agent.sessions


OWN_FENCE = "This I did:\n\n```\nls\n```\n\nNow check disk"
"""A question with a fence in it, which its author wrote."""


class TestAQuestionWithAFenceOfItsOwn:
    """The runbook model answers the whole question, and nothing that came with it."""

    @pytest.mark.parametrize(
        ("text", "outside", "attachments"),
        [
            (OWN_FENCE, False, []),
            (f"{OWN_FENCE}\n\n```standard input\ncheck memory\n```", True, []),
            (OWN_FENCE, False, [attached("check memory")]),
            (f"{OWN_FENCE}\n\n```standard input\nx\n```", True, [attached("check memory")]),
        ],
    )
    async def test_is_answered_as_a_whole(
        self, paths: Paths, text: str, outside: bool, attachments: list[Attachment]
    ) -> None:
        write(paths.config / "agent" / "book" / "AGENT.md", "---\nmodel: runbook\n---\nBe brief.\n")
        async with scripted(paths, []) as test:
            events = [
                event
                async for event in test.daemon.service.conversations.prompt(
                    ME,
                    agent="book",
                    text=text,
                    session="",
                    new=False,
                    correlation_id="",
                    outside=outside,
                    attachments=attachments,
                )
            ]
            call = next(event for event in events if event["type"] == "tool_call")
            assert (call["args"] or {})["name"] == "disk-check"
            session = test.daemon.registry.get("book").sessions[events[-1]["session"]]
            files = "".join(f"\n\n```{each['name']}\n{each['text']}\n```" for each in attachments)
            assert test.conversation(session)[0].content == text + files
            assert session.record.title == "This I did: ``` ls ``` Now check disk"

    async def test_outlives_the_daemon(self, paths: Paths) -> None:
        """What is stored says where the question ends: of a message, and of a prompt that waits."""
        prompt = compose(Prompt(OWN_FENCE), [attached("check memory")], LIMITS)
        async with scripted(paths, [say("seen")]) as test:
            session = await test.session()
            await watch(await test.agent.prompt(session, prompt))
            await session.enqueue(Asked(prompt=prompt), max_queue=9)
            fork = (await test.daemon.service.sessions.fork(ME, session.id, "", None)).id
        async with scripted(paths, [say("again")]) as test:
            session = test.agent.sessions[session.id]
            await until(lambda: session.at_rest)
            for one in (session, test.agent.sessions[fork]):
                said = [message for message in test.conversation(one) if message.role == "user"]
                assert {(message.content, message.question) for message in said} == {(prompt.text, OWN_FENCE)}
            assert len(test.stored(topic="agent.prompt")) == 2
