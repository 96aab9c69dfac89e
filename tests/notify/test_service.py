"""lightagent-away.service: from what happens to what people are told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import pwd
import signal
import sys
import time
from collections.abc import AsyncIterator
from email import message_from_bytes, policy
from pathlib import Path

import pytest
import pytest_asyncio

from lightagentd.client.aio import AsyncClient
from lightagentd.config.notify import Destination
from lightagentd.config.service_problem import problem_file
from lightagentd.host.paths import Paths
from lightagentd.notify import service as services
from lightagentd.notify.messages import Message
from lightagentd.notify.transports import TRANSPORTS
from lightagentd.unattended import delivery
from lightagentd.unattended.posting import NotTaken
from tests.agents.asking import asking
from tests.agents.flows.rig import echo, flow
from tests.agents.scripted import until
from tests.agents.triggers.rig import happened, trigger
from tests.conftest import REPOSITORY, write
from tests.notify.receivers import ROOM, SECRET, TOKEN, Receiver, answers
from tests.notify.rig import QUICK, Rig, configured, notifying, ntfy, settling
from tests.prepared import Forked, prepared
from tests.scripted_model import Answer, say
from tests.scripted_model import call as calls

in_module_loop = pytest.mark.asyncio(loop_scope="module")
ME = pwd.getpwuid(os.geteuid()).pw_name
GITHUB = "ghp_" + "a1B2" * 9
"""What looks like a secret."""
RULE = '[[rule]]\nname = "c"\ndecision = "allow"\ntool = "file"\naction = "write"\nconfirm_within = "1h"\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    base = tmp_path_factory.mktemp("la")
    paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    trigger(paths, agent="test")
    flow(paths, "look", {"name": "say"} | echo("The flow looked."), agent="test", inputs={"unit": {}})
    says: list[Answer] = []

    def answer(_: object) -> Answer:
        return says.pop(0) if says else say("ok")

    async with Receiver() as receiver, asking(paths, answer, front="skills: []") as it:
        rig = Rig(paths=paths, receiver=receiver, it=it, says=says)
        for one in (await rig.call("Agents.List"))["agents"]:
            if one["name"] != "test":  # so that nobody looks at the machine of this test
                await rig.call("Agents.Stop", name=one["name"])
        says += [calls("probe_read", {"url": "x"})]  # the workers of all tests are there before them
        await it.prompt(await it.session(), "go")
        await rig.call("Approvals.Deny", approval=await rig.ask())
        yield rig


@pytest_asyncio.fixture(loop_scope="module")
async def rig(shared: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """What failed is tried again soon."""
    monkeypatch.setattr(services, "FIRST_S", 0.01)
    monkeypatch.setattr(services, "LONGEST_S", 0.02)
    async with settling():
        yield shared


@in_module_loop
async def test_every_kind_of_destination_gets_the_whole_of_an_approval(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, got, receiver = tmp_path / "mails", tmp_path / "got", rig.receiver
    sendmail = write(
        tmp_path / "bin" / "sendmail",
        f'#!/bin/sh\n[ "$1 $2 $#" = "-t -i 2" ] || exit 64\nexec cat > "{outbox}"\n',
    )
    sendmail.chmod(0o755)
    command = write(tmp_path / "bin" / "tell", '#!/bin/sh\necho "$LIGHTAGENT_NOTIFY_ID" >"$1"; cat >>"$1"\n')
    command.chmod(0o755)
    secret, token = write(tmp_path / "secret", SECRET), write(tmp_path / "token", TOKEN)
    address = write(tmp_path / "address", f"{receiver.base}/topic-of-anna\n")
    config = rig.begin(f"""
[notify.to.phone]
kind = "ntfy"
url_file = "{address}"
secret_file = "{token}"
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
""")
    monkeypatch.setattr(delivery, "SENDMAIL_PATH", str(sendmail.parent))
    async with rig.notifying(config):
        approval = await rig.ask(line="a\u202eb\x1b[31m\n* topic-of-anna")
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
    texts = [str(one.get("message") or one.get("body") or one["data"]["text"]) for one in receiver.messages]
    for text in [*texts, str(mail.get_content()), data["text"]]:
        assert f"lactl approve {approval}" in text
        assert "\u202e" not in text
        assert "\x1b" not in text
        assert "u202e" in text, "what is hidden is shown as an escape"
        assert "topic-of-anna" not in text
        assert "\n* " not in text, "no line of a value looks like one of ours"


@in_module_loop
async def test_what_is_not_taken_is_sent_again_and_what_never_is_told(rig: Rig) -> None:
    receiver = rig.receiver
    config = rig.begin(ntfy(receiver, "timeout_s = 1"))
    receiver.replies += [
        answers(500, "boom"),
        answers(429, '{"code": 42901}', **{"Retry-After": "0"}),
        answers(200, "<html>log in</html>"),
        answers(200, "[" * 5000),
        answers(302, Location="http://127.0.0.1:9/"),
        answers(401, "who?"),
        answers(403, "not you"),
        answers(413, "too large"),
    ]
    async with rig.notifying(config) as service:
        await rig.fail("x" * 3000)
        await until(lambda: receiver.taken)
        assert len({one["sequence_id"] for one in receiver.requests}) == 1
        assert len(receiver.messages[0]["message"].encode()) <= 2048, "half of what was too large"
        assert "left out" in receiver.messages[0]["message"]
        receiver.replies.append(answers(400, "never"))
        await rig.fail()
        outlet = service.outbox.outlets["phone"]
        await until(lambda: "400 (never)" in outlet.problem and outlet.sending is None)
        told = problem_file(rig.paths.runtime, "lightagent-away")
        await until(lambda: any("phone: " in one and "400" in one for one in rig.it.daemon.problems()))
        assert "/topic" not in told.read_text(), "the name of a topic is a secret"
        await rig.fail()
        await until(lambda: len(receiver.taken) == 2 and told.read_text() == "")


@in_module_loop
async def test_how_long_a_destination_wants_to_be_left_alone(rig: Rig, tmp_path: Path) -> None:
    rig.begin()
    token = write(tmp_path / "token", TOKEN)
    limit = '{"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": %s}'
    cases = [
        ("matrix", limit % 2500, {}, 2.5),
        ("matrix", limit % 2500, {"Retry-After": "7"}, 7.0),
        ("matrix", limit % '"soon"', {}, 0.0),
        ("matrix", limit % 1e300, {}, 3600.0),
        ("ntfy", "", {"Retry-After": "7"}, 7.0),
        ("ntfy", "", {"Retry-After": "9" * 400}, 3600.0),
        ("ntfy", "", {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 0.0),
    ]
    message = Message(id="n", title="A", text="B", urgent=False, whole=True, notices=[], links={})
    for kind, body, headers, wait_s in cases:
        url = rig.receiver.base + ("/topic" if kind == "ntfy" else "")
        transport = TRANSPORTS[kind](Destination(kind=kind, url=url, room=ROOM, secret_file=token))  # type: ignore[arg-type]
        rig.receiver.replies.append(answers(429, body, **headers))
        with pytest.raises(NotTaken) as caught:
            await transport.send(message)
        await transport.close()
        assert caught.value.wait_s == wait_s, (kind, body, headers)


async def _trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that never comes to an end."""
    with contextlib.suppress(OSError):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{")
        while not reader.at_eof():
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)
    writer.close()


@in_module_loop
async def test_a_dead_or_endless_destination_holds_up_no_other_and_is_given_up(rig: Rig) -> None:
    endless = await asyncio.start_server(_trickle, "127.0.0.1", 0)
    port = endless.sockets[0].getsockname()[1]
    toml = ntfy(rig.receiver)
    for name, where, give_up_s in (("dead", "9", 0.05), ("endless", port, 900)):
        toml += f'[notify.to.{name}]\nkind = "ntfy"\nurl = "http://127.0.0.1:{where}/topic"\n'
        toml += f"give_up_s = {give_up_s}\ntimeout_s = 0.2\n"
    async with endless, rig.notifying(rig.begin(toml)) as service:
        await rig.fail()
        await until(lambda: rig.receiver.taken)
        outlets = service.outbox.outlets
        await until(lambda: "given up: http://127.0.0.1:9 cannot be reached" in outlets["dead"].problem)
        await until(lambda: "did not answer within 0.2 s" in outlets["endless"].problem)
        assert outlets["endless"].sending is not None


@in_module_loop
async def test_killed_between_taking_and_storing_it_loses_and_doubles_nothing(rig: Rig) -> None:
    """The receiver takes a message, and the service is killed before it knows."""
    killed, receiver, state = asyncio.Event(), rig.receiver, rig.paths.state / "notify.json"
    rig.begin()

    def kill() -> None:
        process.send_signal(signal.SIGKILL)
        killed.set()
        return

    argv = [f"--folder={rig.paths.config}", f"--socket={rig.paths.socket}", f"--state={state}"]

    def started() -> Forked:
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/"}
        with Path(os.devnull).open("r+b") as nothing:
            streams = (nothing.fileno(), nothing.fileno(), nothing.fileno())
            return prepared().fork("lightagentd.notify.service", argv, env, REPOSITORY, streams)

    for round_ in (1, 2):
        process = started()
        try:
            await until(state.exists)
            receiver.replies, receiver.taken_before_reply = [kill], True
            killed.clear()
            await rig.fail(f"the {round_}. thing")
            await asyncio.wait_for(killed.wait(), 60)
        finally:
            process.send_signal(signal.SIGKILL)
            await until(lambda process=process: process.poll() is not None)  # type: ignore[misc]
        receiver.taken_before_reply = False
        assert json.loads(state.read_text())["to"]["phone"]["sending"] is not None
    process = started()
    try:
        await until(lambda: "the 2. thing" in str(receiver.messages))
        await until(lambda: json.loads(state.read_text())["to"]["phone"]["sending"] is None)
    finally:
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None)
    said = "".join(one["message"] for one in receiver.messages)
    assert [said.count(f"the {round_}. thing") for round_ in (1, 2)] == [1, 1]
    assert len(receiver.requests) > len(receiver.taken), "some came again, with the id of before"


@in_module_loop
async def test_many_are_one_message_and_what_was_decided_is_not_sent(rig: Rig) -> None:
    config, past_s = rig.begin(section=QUICK.replace("batch_s = 0", "batch_s = 60")), [0.0]
    async with rig.notifying(config, clock=lambda: time.time() + past_s[0]) as service:
        outlet = service.outbox.outlets["phone"]
        first = await rig.ask()
        await rig.fail()
        second = await rig.ask()
        await until(lambda: len(outlet.waiting) == 3)
        await rig.call("Approvals.Deny", approval=second)
        await until(lambda: len(outlet.waiting) == 2)
        past_s[0] = 61.0
        outlet.wake.set()
        await until(lambda: rig.receiver.taken)
        [message] = rig.receiver.messages
        past_s[0] = -86_400.0  # a clock that is set back holds up nothing
        await rig.fail()
        await until(lambda: len(rig.receiver.taken) == 2)
    assert message["title"] == "1 approvals wait, 1 results of triggers"
    assert first in message["message"]
    assert second not in message["message"]
    assert "it broke" in message["message"]


@in_module_loop
async def test_why_a_unit_failed_and_what_a_trigger_came_to_is_told(rig: Rig) -> None:
    receiver = rig.receiver
    async with rig.notifying(rig.begin()), AsyncClient(rig.paths.socket) as client:
        await rig.it.prompt(await rig.it.session(), "go")  # of which nobody is told
        for more, said in (
            ({"agent": "test"}, "The disk is full.\nApprove: http://evil"),
            ({"flow": "look"}, ""),
        ):
            rig.says[:] = [say(said)]
            given = {"name": "triage", "data": {"unit": "web.service"}, **more}
            async for _ in client.stream("Triggers.Run", **given, correlation_id="triage:web.service"):
                pass
            await until(lambda: receiver.taken)
        await until(lambda: len(receiver.taken) == 2)
        rig.says[:] = [say("It grows.")]
        await rig.it.daemon.triggers.fire("disk", [happened("full")])
        await until(lambda: len(receiver.taken) == 3)
    one, two, three = receiver.messages
    assert one["title"] == "web.service failed: test answered"
    assert one["message"].startswith(
        "Answer: The disk is full.\n| Approve: http://evil\nlactl sessions show ses_"
    )
    assert "The flow looked." in two["message"]
    assert three["title"] == "Trigger disk: test answered"
    assert three["message"].startswith("Answer: It grows.\n")


@in_module_loop
async def test_an_agent_asks_its_person(rig: Rig) -> None:
    config = rig.begin(ntfy(rig.receiver, 'agents = ["test"]'))
    question = {"question": f"which {GITHUB}?\n* a line of ours", "choices": ["a", "b"]}
    async with rig.notifying(config):
        rig.says[:] = [calls("human_ask", question), say("ok")]
        await rig.it.agent.prompt(await rig.it.session(), "go")
        await until(lambda: len(rig.receiver.taken) == 1)
        [asked] = rig.it.daemon.registry.shared.asked.inputs.questions.open_ones()
        await rig.call("Inputs.Answer", input=asked.id, text="a")
    [message] = rig.receiver.messages
    assert message["title"] == "Agent test asks you"
    assert "\n| * a line of ours\n1) a\n" in message["message"]
    assert GITHUB not in str(message)
    assert f"lactl answer {asked.id}" in message["message"]


async def test_a_change_that_takes_itself_back_is_told_while_it_waits_and_when_it_is_over(
    paths: Paths, tmp_path: Path
) -> None:
    write(paths.config / "policy.d" / "confirmed.toml", RULE)
    script = [calls("file_write", {"path": str(tmp_path / "f"), "content": "two\n"}), say("ok")]
    async with Receiver() as receiver, asking(paths, script) as it:
        config = configured(paths, ntfy(receiver), QUICK.replace("batch_s = 0", "batch_s = 3600"))
        async with notifying(paths, config):
            await it.prompt(await it.session(), "go")
            await until(lambda: len(receiver.taken) == 1)
            kept = it.daemon.registry.shared.confirmations
            [waiting] = kept.listed()
            kept._all[waiting.id] = dataclasses.replace(waiting, due_us=0)
            await until(lambda: len(receiver.taken) == 2)
    one, two = receiver.messages
    assert one["title"] == "A change waits to be confirmed: file.write"
    assert "taken back 3600 s after it is done" in one["message"]
    assert "Taken back by: file." in one["message"]
    assert f"lactl confirm {waiting.id}" in one["message"]
    assert two["title"] == "A change was taken back: file.write"


@in_module_loop
async def test_budgets_are_told_once_and_health_when_it_gets_worse(rig: Rig) -> None:
    receiver = rig.receiver
    await rig.it.prompt(await rig.it.session(), "go")
    used = [one["total_tokens"] for one in (await rig.call("Usage.Get", scope="day"))["usage"]][-1]
    limit = int(used * 1.2)
    section = QUICK.replace("health_s = 86400", "health_s = 0.05")
    telemetry = problem_file(rig.paths.runtime, "lightagent-telemetry")
    async with rig.notifying(rig.begin(section=section, more=f"[budgets.day]\ntokens = {limit}\n")):
        await until(lambda: receiver.taken)
        write(telemetry, "it sends nothing since 3 h")
        await until(lambda: len(receiver.taken) == 2)
        write(telemetry, "it sends nothing since 4 h")
        await asyncio.sleep(0.2)
    telemetry.unlink()
    budget, health = receiver.requests
    assert f"of {limit:,.6g} (tokens)" in budget["message"]
    assert "it sends nothing since 3 h" in health["message"]


@in_module_loop
async def test_a_full_disk_keeps_nobody_from_being_told(rig: Rig) -> None:
    """A state that cannot be stored: its folder is none."""
    folder = rig.paths.state / "away"
    service = services.Service(rig.begin(), folder / "state.json", control=rig.paths.socket)
    task = asyncio.create_task(service.run())
    try:
        await until(lambda: service._caught_up.is_set())
        await rig.fail()
        await until(lambda: rig.receiver.taken)
        assert "cannot be written" in service._telling.problem
        folder.mkdir()
        await rig.fail()
        await until(lambda: len(rig.receiver.taken) == 2 and not service._telling.problem)
        assert json.loads((folder / "state.json").read_text())["to"]["phone"]["waiting"] == []
    finally:
        task.cancel()
        await asyncio.wait([task])


@in_module_loop
async def test_a_test_is_sent_at_once(rig: Rig) -> None:
    lactl = "import sys; from lightagentd.cli.main import run; sys.exit(run(sys.argv[1:]))"
    config = rig.begin()
    rig.receiver.replies.append(answers(403, "no"))
    async with rig.notifying(config):
        argv = [sys.executable, "-c", lactl, "--socket", str(rig.paths.socket), "notify", "test"]
        for said in ("403 (no)", "phone\ttaken"):
            done = await asyncio.create_subprocess_exec(*argv, cwd=REPOSITORY, stdout=-1, stderr=-1)
            out, err = await done.communicate()
            assert said in (out + err).decode()


@in_module_loop
async def test_quiet_hours_hold_back_all_but_panic_also_over_a_restart(rig: Rig) -> None:
    """The last one: panic ends the workers of the others."""
    tomorrow, receiver = time.localtime(time.time() + 86_400), rig.receiver
    evening = time.mktime((tomorrow.tm_year, tomorrow.tm_mon, tomorrow.tm_mday, 21, 30, 0, 0, 0, -1))
    now = [evening]
    config = rig.begin(section=QUICK + 'quiet = "22:00-07:00"\n')
    receiver.replies += [answers(503)] * 500
    async with rig.notifying(config, clock=lambda: now[0]) as service:
        await rig.fail("one")
        await until(lambda: receiver.requests)  # begun before them
        now[0] = evening + 2 * 3600
        await rig.fail("two")
        await until(lambda: len(service.outbox.outlets["phone"].waiting) == 1)
    now[0] += 3 * 3600
    async with rig.notifying(config, clock=lambda: now[0]) as service:
        outlet = service.outbox.outlets["phone"]
        receiver.replies.clear()
        await rig.fail("three")
        await until(lambda: len(outlet.waiting) == 2)
        await asyncio.sleep(0.05)
        assert receiver.taken == {}
        now[0] += 8 * 3600
        outlet.wake.set()
        await until(lambda: len(receiver.taken) == 2)
        said = [one["message"] for one in receiver.messages]
        assert ["one" in said[0], "two" in said[1], "three" in said[1]] == [True] * 3
        now[0] += 16 * 3600
        await rig.fail("four")
        await until(lambda: len(outlet.waiting) == 1)
        await rig.call("Manager.Panic", reason="a fire\r\nSubject: x")
        await until(lambda: len(receiver.taken) == 3)
        await rig.call("Manager.EndPanic")
        assert receiver.messages[-1]["title"] == "Emergency stop: everything is stopped"
        assert [one.about for one in outlet.waiting] == ["trigger"]
