"""lightagent-away.service: from what happens to what people are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import signal
import sys
import time
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.config.service_problem import problem_file
from lightagentd.errors import StorageError
from lightagentd.events.types.trigger import TriggerFailed
from lightagentd.host.paths import Paths
from lightagentd.notify import service as services
from lightagentd.notify.messages import message_of
from lightagentd.notify.notices import Notice, Reader
from lightagentd.notify.outbox import Outbox, quiet_left_s
from lightagentd.notify.transports import signing_key
from lightagentd.redaction import Redactor
from lightagentd.unattended import delivery
from tests.agents.asking import add, asking, prepare
from tests.agents.scripted import Scripted, until
from tests.conftest import REPOSITORY, write
from tests.notify.receivers import ROOM, SECRET, TOKEN, Receiver, answers
from tests.notify.rig import QUICK, call, configured, notifying
from tests.prepared import Forked, prepared
from tests.scripted_model import call as calls
from tests.scripted_model import say

ME = pwd.getpwuid(os.geteuid()).pw_name
GITHUB = "ghp_" + "a1B2" * 9
"""What looks like a secret."""


def ntfy(receiver: Receiver, more: str = "") -> str:
    return f'[notify.to.phone]\nkind = "ntfy"\nurl = "{receiver.base}/topic"\n{more}\n'


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again soon."""
    monkeypatch.setattr(services, "FIRST_S", 0.01)
    monkeypatch.setattr(services, "LONGEST_S", 0.02)


async def ask(it: Scripted) -> str:
    """Have the agent ask for an approval; its id."""
    before = {one.id for one in it.daemon.registry.shared.asked.approvals.questions.all()}
    await it.agent.prompt(await it.session(), "go")
    questions = it.daemon.registry.shared.asked.approvals.questions
    await until(lambda: [one for one in questions.open_ones() if one.id not in before])
    return next(one.id for one in questions.open_ones() if one.id not in before)


async def fail(it: Scripted, text: str = "it broke") -> None:
    """Something that people are told of without an answer to it: a trigger's agent that came to none."""
    await it.daemon.history.append(
        TriggerFailed(code="timeout", message=text, trigger="disk", firing="f1").event()
    )


async def test_every_kind_of_destination_gets_the_whole_of_an_approval(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = tmp_path / "mails"
    sendmail = write(
        tmp_path / "bin" / "sendmail",
        f'#!/bin/sh\n[ "$1 $2 $#" = "-t -i 2" ] || exit 64\nexec cat > "{outbox}"\n',
    )
    sendmail.chmod(0o755)
    command = write(tmp_path / "bin" / "tell", '#!/bin/sh\necho "$LIGHTAGENT_NOTIFY_ID" >"$1"; cat >>"$1"\n')
    command.chmod(0o755)
    secret, token = write(tmp_path / "secret", SECRET), write(tmp_path / "token", TOKEN)
    got = tmp_path / "got"
    async with Receiver() as receiver:
        toml = f"""{ntfy(receiver, f'secret_file = "{token}"')}
[notify.to.hook]
kind = "webhook"
url = "{receiver.base}/hook"
secret_file = "{secret}"
[notify.to.room]
kind = "matrix"
url = "{receiver.base}"
room = "{ROOM}"
secret_file = "{token}"
[notify.to.mail]
kind = "mail"
mail_to = "anna@example.org"
user = "{ME}"
[notify.to.command]
kind = "command"
command = ["{command}", "{got}"]
user = "{ME}"
"""
        config = configured(paths, toml)
        script = [calls("probe_add", add(prepare(paths), line="a\u202eb\x1b[31m")), say("done")]
        monkeypatch.setattr(delivery, "SENDMAIL_PATH", str(sendmail.parent))
        async with asking(paths, script) as it, notifying(paths, config):
            approval = await ask(it)
            await until(lambda: len(receiver.taken) == 3 and got.exists() and outbox.exists())
            await until(lambda: got.read_text().endswith("}") and outbox.read_bytes().strip())
    assert receiver.faults == []
    found = {name for one in receiver.messages for name in one}
    assert {"topic", "data", "msgtype"} <= found
    mail = message_from_bytes(outbox.read_bytes(), policy=policy.default)
    assert (mail["To"], mail["Subject"]) == (
        "anna@example.org",
        "Agent test asks to run probe.add (change)",
    )
    number, _, said = got.read_text().partition("\n")
    data = json.loads(said)["data"]
    assert (data["id"], data["notices"][0]["key"]) == (number, approval)
    texts = [str(one) for one in receiver.messages] + [str(mail.get_content()), data["text"]]
    for text in texts:
        assert f"lactl approve {approval}" in text
        assert "\u202e" not in text
        assert "\x1b" not in text
        assert "u202e" in text, "what is hidden is shown as an escape"


async def test_what_is_not_taken_is_sent_again_and_what_never_is_told(paths: Paths, quick: None) -> None:
    replies = [
        answers(500, "boom"),
        answers(429, '{"code": 42901}', **{"Retry-After": "0"}),
        answers(200, "<html>log in</html>"),
        answers(200, "[" * 5000),
        answers(302, Location="http://127.0.0.1:9/"),
        answers(401, "who?"),
        answers(413, "too large"),
    ]
    async with (
        Receiver(replies=replies) as receiver,
        asking(paths, [say("ok")]) as it,
        notifying(paths, configured(paths, ntfy(receiver, "timeout_s = 1"))) as service,
    ):
        await fail(it, "x" * 3000)
        await until(lambda: receiver.taken)
        assert len({one["sequence_id"] for one in receiver.requests}) == 1
        assert len(receiver.messages[0]["message"].encode()) <= 2048, "half of what was too large"
        assert "left out" in receiver.messages[0]["message"]
        receiver.replies.append(answers(400, "never"))
        await fail(it)
        outlet = service.outbox.outlets["phone"]
        await until(lambda: "400 (never)" in outlet.problem and outlet.sending is None)
        told = problem_file(paths.runtime, "lightagent-away")
        await until(lambda: any("phone: " in one and "400" in one for one in it.daemon.problems()))
        assert "/topic" not in told.read_text(), "the name of a topic is a secret"
        await fail(it)
        await until(lambda: len(receiver.taken) == 2 and told.read_text() == "")


async def test_what_is_not_taken_for_long_is_given_up(paths: Paths, quick: None) -> None:
    async with Receiver(replies=[answers(503)] * 50) as receiver, asking(paths, [say("ok")]) as it:
        config = configured(paths, ntfy(receiver, "give_up_s = 0.05"))
        async with notifying(paths, config) as service:
            await fail(it)
            outlet = service.outbox.outlets["phone"]
            await until(lambda: "given up" in outlet.problem)
    assert receiver.taken == {}


async def test_a_dead_or_slow_destination_holds_up_no_other(paths: Paths, quick: None) -> None:
    dead = '[notify.to.dead]\nkind = "ntfy"\nurl = "http://127.0.0.1:9/topic"\n'
    async with (
        Receiver() as receiver,
        asking(paths, [say("ok")]) as it,
        notifying(paths, configured(paths, ntfy(receiver) + dead)) as service,
    ):
        await fail(it)
        await until(lambda: receiver.taken)
        await until(lambda: "cannot be reached" in service.outbox.outlets["dead"].problem)


async def test_killed_between_taking_and_storing_it_loses_and_doubles_nothing(paths: Paths) -> None:
    """The receiver takes a message, and the service is killed before it knows."""
    killed = asyncio.Event()

    def kill() -> None:
        process.send_signal(signal.SIGKILL)
        killed.set()
        return

    state = paths.state / "notify.json"
    argv = [f"--folder={paths.config}", f"--socket={paths.socket}", f"--state={state}"]

    def started() -> Forked:
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/"}
        with Path(os.devnull).open("r+b") as nothing:
            streams = (nothing.fileno(), nothing.fileno(), nothing.fileno())
            return prepared().fork("lightagentd.notify.service", argv, env, REPOSITORY, streams)

    async with Receiver() as receiver, asking(paths, [say("ok")]) as it:
        configured(paths, ntfy(receiver))
        for round_ in (1, 2, 3):
            process = started()
            try:
                await until(state.exists)
                receiver.replies, receiver.taken_before_reply = [kill], True
                killed.clear()
                await fail(it, f"the {round_}. thing")
                await asyncio.wait_for(killed.wait(), 60)
            finally:
                process.send_signal(signal.SIGKILL)
                await until(lambda process=process: process.poll() is not None)  # type: ignore[misc]
            receiver.taken_before_reply = False
            assert json.loads(state.read_text())["to"]["phone"]["sending"] is not None
        process = started()
        try:
            await until(lambda: "the 3. thing" in str(receiver.messages))
            await until(lambda: json.loads(state.read_text())["to"]["phone"]["sending"] is None)
        finally:
            process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None)
    said = "".join(one["message"] for one in receiver.messages)
    assert [said.count(f"the {round_}. thing") for round_ in (1, 2, 3)] == [1, 1, 1]
    assert len(receiver.requests) > len(receiver.taken), "some came again, with the id of before"


async def test_many_are_one_message_and_what_was_decided_is_not_sent(paths: Paths, quick: None) -> None:
    async with Receiver() as receiver:
        config = configured(paths, ntfy(receiver), QUICK.replace("batch_s = 0", "batch_s = 60"))
        script, past_s = [calls("probe_add", add(prepare(paths)))], [0.0]
        async with (
            asking(paths, script) as it,
            notifying(paths, config, clock=lambda: time.time() + past_s[0]) as service,
        ):
            outlet = service.outbox.outlets["phone"]
            first = await ask(it)
            await fail(it)
            second = await ask(it)
            await until(lambda: len(outlet.waiting) == 3)
            await call(paths, "Approvals.Deny", approval=second)
            await until(lambda: len(outlet.waiting) == 2)
            past_s[0] = 61.0
            outlet.wake.set()
            await until(lambda: receiver.taken)
    [message] = receiver.messages
    assert message["title"] == "1 approvals wait, 1 results of triggers"
    assert first in message["message"]
    assert second not in message["message"]
    assert "it broke" in message["message"]


async def test_quiet_hours_hold_back_all_but_panic(paths: Paths, quick: None) -> None:
    tomorrow = time.localtime(time.time() + 86_400)
    now = [time.mktime((tomorrow.tm_year, tomorrow.tm_mon, tomorrow.tm_mday, 23, 30, 0, 0, 0, -1))]
    async with Receiver() as receiver:
        config = configured(paths, ntfy(receiver), QUICK + 'quiet = "22:00-07:00"\n')
        async with (
            asking(paths, [say("ok")]) as it,
            notifying(paths, config, clock=lambda: now[0]) as service,
        ):
            outlet = service.outbox.outlets["phone"]
            await fail(it, "one")
            await fail(it, "two")
            await until(lambda: len(outlet.waiting) == 2)
            await call(paths, "Manager.Panic", reason="a fire\r\nSubject: x")
            await until(lambda: receiver.taken)
            [message] = receiver.messages
            assert message["title"] == "Emergency stop: everything is stopped"
            assert len(outlet.waiting) == 2
            now[0] += 8 * 3600
            outlet.wake.set()
            await until(lambda: len(receiver.taken) == 2)
            assert [word for word in ("one", "two") if word not in receiver.messages[1]["message"]] == []


def test_when_quiet_hours_end() -> None:
    def left(quiet: str, hour: int, minute: int) -> float:
        return quiet_left_s(quiet, time.mktime((2026, 1, 15, hour, minute, 0, 0, 0, -1)))

    night, noon = "22:00-07:00", "12:00-13:30"
    assert [left(night, *at) for at in ((21, 59), (22, 0), (23, 59), (0, 0), (6, 59), (7, 0))] == [
        *(0.0, 9 * 3600, 7 * 3600 + 60, 7 * 3600, 60, 0.0)
    ]
    assert [left(noon, *at) for at in ((11, 59), (12, 0), (13, 29), (13, 30))] == [0.0, 5400, 60, 0.0]
    assert left("", 3, 0) == 0.0


async def test_why_a_unit_failed_is_told(paths: Paths, quick: None) -> None:
    async with (
        Receiver() as receiver,
        asking(paths, [say("The disk is full.")]) as it,
        notifying(paths, configured(paths, ntfy(receiver))),
        AsyncClient(paths.socket) as client,
    ):
        await it.prompt(await it.session(), "go")  # of which nobody is told
        given = {"name": "triage", "data": {"unit": "web.service"}, "agent": "test"}
        async for _ in client.stream("Triggers.Run", **given, correlation_id="triage:web.service"):
            pass
        await until(lambda: receiver.taken)
    [message] = receiver.messages
    assert message["title"] == "web.service failed: test answered"
    assert message["message"].startswith("The disk is full.\nlactl sessions show ses_")


async def test_an_agent_asks_its_person(paths: Paths, quick: None) -> None:
    async with Receiver() as receiver:
        config = configured(paths, ntfy(receiver, 'agents = ["test"]'))
        script = [calls("human_ask", {"question": f"which {GITHUB}?", "choices": ["a", "b"]}), say("ok")]
        async with asking(paths, script, front="tools: [human]") as it, notifying(paths, config):
            await it.agent.prompt(await it.session(), "go")
            await until(lambda: len(receiver.taken) == 1)
            await call(paths, "Inputs.Answer", input=_inputs(it)[0], text="a")
    [question] = receiver.messages
    assert "1) a" in question["message"]
    assert GITHUB not in str(question)
    assert "lactl answer inp_" in question["message"]


def _inputs(it: Scripted) -> list[str]:
    return [one.id for one in it.daemon.registry.shared.asked.inputs.questions.open_ones()]


async def test_budgets_are_told_once_and_health_when_it_gets_worse(paths: Paths, quick: None) -> None:
    limits = "[budgets.day]\ntokens = 18\n"
    async with Receiver() as receiver, contextlib.AsyncExitStack() as stack:
        section = QUICK.replace("health_s = 86400", "health_s = 0.05")
        config = configured(paths, ntfy(receiver), section, limits)
        async with asking(paths, [say("ok")], front="skills: []") as it:
            for one in (await call(paths, "Agents.List"))["agents"]:
                if one["name"] != "test":  # so that nobody looks at the machine of this test
                    await call(paths, "Agents.Stop", name=one["name"])
            await stack.enter_async_context(notifying(paths, config))
            await it.prompt(await it.session(), "go")  # 15 tokens, which is more than 80%
            await until(lambda: receiver.taken)
            write(problem_file(paths.runtime, "lightagent-telemetry"), "it sends nothing since 3 h")
            await until(lambda: len(receiver.taken) == 2)
            write(problem_file(paths.runtime, "lightagent-telemetry"), "it sends nothing since 4 h")
            await asyncio.sleep(0.3)
    budget, health = receiver.messages
    assert "15 of 18 (tokens)" in budget["message"]
    assert "it sends nothing since 3 h" in health["message"]
    assert len(receiver.taken) == 2


async def test_a_test_is_sent_at_once(paths: Paths, quick: None) -> None:
    lactl = "import sys; from lightagentd.cli.main import run; sys.exit(run(sys.argv[1:]))"
    async with (
        Receiver(replies=[answers(403, "no")]) as receiver,
        asking(paths, [say("ok")]),
        notifying(paths, configured(paths, ntfy(receiver))),
    ):
        argv = [sys.executable, "-c", lactl, "--socket", str(paths.socket), "notify", "test"]
        for said in ("403 (no)", "phone\ttaken"):
            done = await asyncio.create_subprocess_exec(*argv, cwd=REPOSITORY, stdout=-1, stderr=-1)
            out, err = await done.communicate()
            assert said in (out + err).decode()


def test_what_stands_in_a_damaged_file_is_not_guessed(tmp_path: Path) -> None:
    from lightagentd.config.notify import Destination, Notify

    notify = Notify(to={"phone": Destination(kind="ntfy", url="http://127.0.0.1:9/topic")})
    path = tmp_path / "state.json"
    good: dict[str, Any] = {"seq": 1, "told": {}, "to": {}}
    bad: list[Any] = [[], {}, {**good, "seq": None}, {**good, "to": {"phone": {}}}, {**good, "told": 3}]
    for one in bad:
        path.write_text(json.dumps(one))
        with pytest.raises(StorageError, match="is damaged"):
            Outbox(notify, path).load()
    path.write_text(json.dumps(good))
    Outbox(notify, path).load()


def notice(text: str, title: str = "A title", **more: Any) -> Notice:
    return Reader(Redactor()).made("trigger", f"n{hash(text)}", title, text, **more)


def test_a_message_fits_and_says_what_it_leaves_out() -> None:
    many = [notice(f"{at} " + "\U0001f600" * 500) for at in range(40)]
    for chosen in (many, many[:1], many[:3]):
        message = message_of(
            "n", chosen, links={}, link="https://example.org/{id}", left_out=7, most_bytes=1000
        )
        assert len(message.text.encode()) <= 1000
        assert "7 older notices were left out" in message.text
        assert not message.whole
    alone = message_of("n", [notice("all")], links={}, link="", left_out=0, most_bytes=1000)
    assert (alone.text, alone.whole) == ("all", True)


def test_nothing_becomes_a_header_or_an_own_line() -> None:
    made = notice("a\r\nBcc: evil@example.org\n\u2028x", "one\r\nBcc: evil@example.org\x00\u202e")
    assert made.title == "one\\x0d Bcc: evil@example.org\\x00\\u202e"
    assert not set(made.text) & set("\r\u2028")
    hidden = Reader(Redactor(["a-secret-of-this-service"])).made(
        "panic", "n", f"by {GITHUB}", "with a-secret-of-this-service"
    )
    assert "[removed" in hidden.title
    assert "[removed" in hidden.text
    assert not hidden.whole, "nobody allows a call of which a part is left out"
    assert signing_key("plain") == b"plain"
    assert signing_key("whsec_aGVsbG8=") == b"hello"
