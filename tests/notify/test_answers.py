"""Answers from away: a link in a message, the gateway's page, and what the daemon makes of it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx
import pytest
from playwright.async_api import async_playwright

from lightagentd.config.configuration import load
from lightagentd.control.operations import answers
from lightagentd.host.paths import Paths
from lightagentd.notify import service as services
from tests.agents.asking import FRONT, add, prepare
from tests.agents.scripted import until
from tests.conftest import write
from tests.gateway.rig import Gateway, gateway
from tests.notify.receivers import Receiver
from tests.notify.rig import QUICK, notifying
from tests.scripted_model import call, say

ME = pwd.getpwuid(os.geteuid()).pw_name
PUBLIC = "http://phone.example.org"
NOBODY = "nobody"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")


@dataclass(kw_only=True)
class Away:
    """A person who is away: their messages, and a browser at the public address."""

    gateway: Gateway
    receiver: Receiver
    browser: httpx.AsyncClient
    paths: Paths
    service: services.Service

    async def asked(self, line: str = "ran") -> tuple[str, dict[str, str]]:
        """Have the agent ask for a call; the approval, and the paths of the links in the message about it."""
        before = len(self.receiver.taken)
        agent = self.gateway.daemon.agent
        await agent.prompt(await self.gateway.daemon.session(), line)
        await until(lambda: len(self.receiver.taken) > before)
        message = self.receiver.messages[-1]
        links = {one["label"].lower(): one["url"].removeprefix(PUBLIC) for one in message.get("actions", ())}
        [*_, approval] = self.gateway.daemon.daemon.registry.shared.asked.approvals.questions.open_ones()
        return approval.id, links

    def state(self, approval: str) -> str:
        questions = self.gateway.daemon.daemon.registry.shared.asked.approvals.questions
        return str(questions.get(approval).state)

    async def allow(self, answers: str) -> None:
        """Another section `[notify.answers]`, in force in the daemon alone."""
        _configure(self.paths, self.receiver, answers)
        await self.gateway.call("Manager.Reload")


def _configure(paths: Paths, receiver: Receiver, answers: str, user: str = ME) -> None:
    file = write(paths.config.parent / "topic", f"{receiver.base}/topic")
    to = f'[notify.to.phone]\nkind = "ntfy"\nurl_file = "{file}"\nuser = "{user}"\n'
    text = f"[notify]\n{QUICK}\n{to}[notify.answers]\n{answers}\n"
    write(paths.config / "lightagentd.toml.d" / "30-notify.toml", text)


@contextlib.asynccontextmanager
async def away(
    paths: Paths, listed: str = 'on = true\napprove = ["probe.*"]', hostile: str = "ran"
) -> AsyncIterator[Away]:
    write(paths.config / "lightagentd.toml.d" / "40-worker.toml", '[worker]\nchange_agents = ["test"]\n')
    async with Receiver() as receiver:
        _configure(paths, receiver, listed)
        asks = call("probe_add", add(prepare(paths), line=hostile))
        script = [asks, say("ok"), asks, say("ok")]
        async with gateway(paths, script, toml=f'public_url = "{PUBLIC}"\n', front=FRONT) as it:
            headers = {"Host": PUBLIC.partition("//")[2]}
            browser = it.over_tcp()
            browser.headers.update(headers)
            async with notifying(paths, load(paths.config)[0]) as service:
                yield Away(gateway=it, receiver=receiver, browser=browser, paths=paths, service=service)
        assert receiver.faults == []


async def test_a_link_decides_once_and_only_by_its_button(paths: Paths) -> None:
    async with away(paths) as it:
        approval, links = await it.asked()
        assert links.keys() == {"deny", "approve"}
        found = it.gateway.daemon.daemon.registry.shared.asked.approvals.questions.get(approval)
        notify = load(it.paths.config)[0].notify
        assert answers._decisions(notify, replace(found, approver="0" * 64)) == [
            "deny"
        ]  # people do that there
        page = await it.browser.get(links["approve"])  # as the preview of a link does
        assert (page.status_code, it.state(approval)) == (200, "waiting")
        assert "probe.add (change)" in page.text
        assert 'method="post"' in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"
        assert (await it.browser.head(links["approve"])).status_code == 200
        evil = await it.browser.post(links["approve"], headers={"Origin": "http://evil.example"})
        assert (evil.status_code, it.state(approval)) == (403, "waiting")
        done = await it.browser.post(links["approve"], headers={"Origin": PUBLIC})
        assert (done.status_code, "It was allowed" in done.text) == (200, True)
        assert it.state(approval) in ("granted", "used")
        for link in links.values():
            assert (await it.browser.post(link)).status_code == 404
            assert (await it.browser.get(link)).status_code == 404
        [granted] = it.gateway.daemon.stored(topic="approval.granted")
        assert granted.data is not None
        assert (granted.data["answered_by"], granted.data["unit"]) == (os.geteuid(), "notify:phone")
        assert granted.correlation_id == "notify:phone"
        stored = str([one.data for one in it.gateway.daemon.stored()]) + str(it.gateway.daemon.model.requests)
        assert not [link for link in links.values() if link.rpartition("/")[2] in stored]

        approval, links = await it.asked("again")
        assert (await it.browser.post(links["deny"])).status_code == 200
        assert it.state(approval) == "denied"
        denied = it.gateway.daemon.stored(topic="approval.denied")[-1]
        assert (denied.caller, denied.correlation_id) == (os.geteuid(), "notify:phone")


async def test_what_a_token_does_not_answer(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess, another call, one that was decided, what the configuration does not list any more."""
    async with away(paths) as it:
        approval, links = await it.asked()
        link = links["approve"]
        guesses = [link[:-1] + ("0" if link[-1] != "0" else "1"), link[:-64] + "0" * 64, "/answers/la_x"]
        for guess in guesses:
            assert (await it.browser.post(guess)).status_code == 404
        assert it.gateway.daemon.stored(topic="token.use")[-1].type == "refused"

        questions = it.gateway.daemon.daemon.registry.shared.asked.approvals.questions
        kept = questions.get(approval)
        changed = replace(kept, digest="0" * 64)
        questions._pending[approval] = changed  # what is asked about is another call now
        assert (await it.browser.post(link)).status_code == 404
        questions._pending[approval] = kept

        await it.allow("on = true\napprove = []")
        assert (await it.browser.post(link)).status_code == 404
        await it.allow('on = true\napprove = ["probe.add"]\nagents = ["other"]')
        assert (await it.browser.post(link)).status_code == 404
        await it.allow("on = false")
        assert (await it.browser.post(links["deny"])).status_code == 404
        assert it.state(approval) == "waiting"
        await it.allow('on = true\napprove = ["probe.add"]')
        await it.gateway.call("Approvals.Deny", approval=approval)
        assert (await it.browser.post(link)).status_code == 404


async def test_what_cannot_have_its_links_now_is_not_lost_and_who_guesses_waits(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "FIRST_S", 0.01)
    monkeypatch.setattr(services, "LONGEST_S", 0.02)
    async with away(paths) as it:
        monkeypatch.setattr(answers, "DENY", None)  # which no answer of the daemon can hold
        agent, outlet = it.gateway.daemon.agent, it.service.outbox.outlets["phone"]
        await agent.prompt(await it.gateway.daemon.session(), "go")
        await until(lambda: "The daemon gives no links" in outlet.problem)
        assert outlet.sending is not None
        monkeypatch.undo()
        await until(lambda: it.receiver.taken)
        link = it.receiver.messages[-1]["actions"][0]["url"].removeprefix(PUBLIC)
        questions = it.gateway.daemon.daemon.registry.shared.asked.approvals.questions
        [asked] = questions.open_ones()
        questions._pending[asked.id] = replace(asked, expires_us=1)
        assert (await it.browser.post(link)).status_code == 404, "its time is over"
        said = [(await it.browser.post(f"/answers/la_{at:064x}")).status_code for at in range(12)]
        assert (said[0], said[-1]) == (404, 429)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's daemon acts for others")
async def test_the_person_must_have_the_right_at_that_moment(paths: Paths) -> None:
    async with away(paths) as it:
        _configure(paths, it.receiver, 'on = true\napprove = ["probe.*"]', user=NOBODY)
        await it.gateway.call("Manager.Reload")
        agent = it.gateway.daemon.agent
        await agent.prompt(await it.gateway.daemon.session(), "go")
        approvals = it.gateway.daemon.daemon.registry.shared.asked.approvals
        await until(lambda: approvals.questions.waiting)
        [asked] = approvals.questions.open_ones()
        uid = pwd.getpwnam(NOBODY).pw_uid
        mine = approvals.answer_token(asked, "phone", os.geteuid(), "approve")
        theirs = approvals.answer_token(asked, "phone", uid, "approve")
        assert (await it.browser.post(f"/answers/{mine}")).status_code == 404, "another person's"
        assert (await it.browser.post(f"/answers/{theirs}")).status_code in (403, 404)
        assert it.state(asked.id) == "waiting"


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
async def test_the_page_in_a_browser_shows_hostile_text_as_text_and_needs_a_click(paths: Paths) -> None:
    hostile = "</pre><script>document.title='x'</script><img src=x onerror=document.title='x'>\u202e"
    async with away(paths, hostile=hostile) as it:
        approval, links = await it.asked()
        async with async_playwright() as playwright:
            rules = f"--host-resolver-rules=MAP phone.example.org 127.0.0.1:{it.gateway.port}"
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rules])
            page = await browser.new_page()
            asked: list[str] = []
            page.on("request", lambda one: asked.append(one.url))
            await page.goto(PUBLIC + links["approve"])
            assert await page.title() == "lightagentd"
            text = await page.inner_text("body")
            assert hostile[:-1] + "\\u202e" in text
            assert await page.locator("script, img").count() == 0
            assert asked == [PUBLIC + links["approve"]], "nothing else is fetched"
            assert it.state(approval) == "waiting"
            await page.get_by_role("button", name="Allow it, once").click()
            await page.get_by_role("heading", name="It was allowed.").wait_for()
            assert it.state(approval) in ("granted", "used")
            await browser.close()
