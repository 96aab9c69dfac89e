"""The page of Cockpit in Chromium, by the real cockpit-ws and cockpit-bridge: as an administrator, and as a
member of the group lightagent, who may not approve.

`LIGHTAGENT_SCREENSHOTS` names a folder that keeps a picture of each tab.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect

from .cockpit import TABS, chromium, cockpit, install_page, opened, violations
from .cockpit_model import WORDS, Model
from .loopback import answering, listening
from .machine import Machine
from .product import eventually, lactl, lactl_json, new_uid, start_service

pytestmark = pytest.mark.e2e

ETC = "/etc/lightagentd"
SETTINGS = """\
[models.providers.here]
kind = "openai"
base_url = "http://127.0.0.1:{port}/v1"
context_tokens = 128000
"""
CLERK = "---\nmodel: here/some\n---\nDo what you are asked.\n"
LARGE = 7 << 20
FILLED = """
import json, lmdb, sys
owner, count = int(sys.argv[1]), int(sys.argv[2])
env = lmdb.open("/var/lib/lightagentd/history", max_dbs=64, map_size=1 << 30)
db = env.open_db(b"sessions", create=False)
with env.begin(write=True) as txn:
    template = json.loads(next(value for _, value in txn.cursor(db)))
    for number in range(count):
        made = template | {"id": f"ses_{number:016x}", "agent": "ops", "owner": owner, "parent": "",
                           "title": f"Session number {number}", "updated_us": number + 1}
        txn.put(made["id"].encode(), json.dumps(made).encode(), db=db)
"""
"""Puts sessions into the store of a daemon that is stopped: to make so many by calls takes a minute."""


@pytest.fixture(scope="module")
def office(service: Machine) -> Iterator[Machine]:
    """The machine with the page, two users, and the agent clerk, who may change what is approved."""
    install_page(service)
    for user in ("frida", "gus"):
        service.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", user])
    with answering(listening(service), Model) as port:
        service.write(f"{ETC}/lightagentd.toml.d/page.toml", SETTINGS.format(port=port))
        service.write(f"{ETC}/agent/clerk/AGENT.md", CLERK)
        service.write("/srv/page.txt", "old line\n")
        service.run(["systemctl", "restart", "lightagentd"])
        service.run(["systemctl", "start", "lightagent-change@clerk.socket"])
        lactl(service, "prompt", "ops", "check memory", user="gus")
        yield service
    service.run(["systemctl", "stop", "lightagent-change@clerk.socket"])
    service.run(["rm", "-r", f"{ETC}/lightagentd.toml.d/page.toml", f"{ETC}/agent/clerk"])
    for user in ("frida", "gus"):
        service.run(["userdel", "--remove", "--force", user], check=False)
    service.run(["systemctl", "restart", "lightagentd"])


@pytest.fixture(scope="module")
def browser(office: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(office, tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def frida(office: Machine, browser: Browser) -> Iterator[Page]:
    """The administrator's page."""
    with cockpit(office, "frida") as address:
        yield opened(browser, address)


@pytest.fixture(scope="module")
def gus(office: Machine, browser: Browser) -> Iterator[Page]:
    """The page of somebody who may prompt, and not approve; in German and dark."""
    with cockpit(office, "gus") as address:
        yield opened(browser, address, color_scheme="dark")


def go(page: Page, tab: str) -> Locator:
    """Show a tab; gives its panel."""
    page.get_by_role("tab", name=tab).click()
    panel = page.get_by_role("tabpanel")
    expect(panel).to_be_visible()
    return panel


def begin(page: Page, agent: str = "clerk") -> None:
    """A new conversation in the chat."""
    panel = go(page, "Chat")
    panel.get_by_label("Agent", exact=True).select_option(agent)
    panel.get_by_role("button", name="New conversation").click()


def send(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("textbox", name="Message").press("Enter")


def ends(page: Page, count: int = 1) -> None:
    """Wait until so many turns of the conversation are over."""
    expect(page.locator(".item.end")).to_have_count(count)


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("user", ["frida", "gus"])
def test_axe_finds_nothing_wrong_with_a_tab(user: str, tab: str, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(user)
    panel = go(page, tab)
    expect(panel).not_to_be_empty()
    if tab == "Health":
        expect(panel.get_by_role("button", name="Check again")).to_be_enabled()
    assert violations(page) == []
    assert page.thrown == []  # type: ignore[attr-defined]
    if folder := os.environ.get("LIGHTAGENT_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{user}-{tab.lower().replace(' ', '-')}.png")


def test_nothing_but_what_cockpit_serves_may_run(frida: Page) -> None:
    loaded = frida.goto(frida.url.partition("#")[0])
    assert loaded is not None
    rules = loaded.headers["content-security-policy"]
    assert "script-src 'self'" in rules
    assert "unsafe" not in rules
    frida.get_by_role("tab").first.wait_for()


def test_an_answer_streams(frida: Page) -> None:
    begin(frida)
    send(frida, "stream")
    answer = frida.locator(".item.assistant")
    expect(answer).to_contain_text("word3")
    assert "word59" not in answer.inner_text()
    expect(frida.get_by_role("button", name="Cancel the turn")).to_be_visible()
    ends(frida)
    assert answer.locator(".markdown").inner_text().split() == "".join(WORDS).split()
    expect(frida.locator("[aria-live=polite].sr-only")).to_contain_text("word59")


def test_the_reasoning_is_folded(frida: Page) -> None:
    begin(frida)
    send(frida, "think")
    ends(frida)
    expect(frida.locator(".item").get_by_text("then I say")).to_be_visible()
    expect(frida.get_by_text("first I look")).to_be_hidden()
    frida.get_by_text("Reasoning").click()
    expect(frida.get_by_text("first I look")).to_be_visible()


def test_what_a_model_says_is_text(frida: Page) -> None:
    begin(frida)
    send(frida, "evil")
    ends(frida)
    answer = frida.locator(".item.assistant .markdown")
    expect(answer).to_contain_text("<script>document.title='owned'</script>")
    expect(answer).to_contain_text(
        "\u241b[31mtext and \u2039U+202E\u203aturned\u2039U+202C\u203a and \u2039U+200B\u203ahidden"
    )
    assert answer.locator("img, script").count() == 0
    links = answer.locator("a")
    assert [(one.get_attribute("href"), one.get_attribute("rel")) for one in links.all()] == [
        ("https://example.org/", "noopener noreferrer")
    ]
    assert "owned" not in frida.title()


def test_a_call_is_folded_and_its_output_is_text(frida: Page) -> None:
    begin(frida)
    send(frida, "look")
    ends(frida)
    tool = frida.locator(".item.tool")
    for part in ("bash.exec", "observe", "allow", "ok", "ms"):
        expect(tool.locator("summary")).to_contain_text(part)
    expect(tool.locator("pre").first).to_be_hidden()
    tool.locator("summary").click()
    expect(tool.locator("pre").last).to_contain_text("\u241b[31m<i>seen</i>")
    frida.reload()
    expect(frida.locator(".item.tool summary")).to_contain_text("observe")


def test_a_message_of_many_megabytes_is_cut_with_a_sentence(office: Machine, frida: Page) -> None:
    told = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x" * LARGE}]
    office.write("/tmp/large.md", f"```json\n{json.dumps(told)}\n```\n")
    lactl(office, "sessions", "import", "--title", "large", "--agent", "clerk", "/tmp/large.md", user="frida")
    go(frida, "Chat").get_by_role("listitem").filter(has_text="large").get_by_role("button").click()
    expect(frida.get_by_text(f"The text has {LARGE >> 20}.0 MiB; its beginning is shown.")).to_be_visible()


def test_a_call_is_approved_where_it_is_asked(office: Machine, frida: Page) -> None:
    begin(frida)
    send(frida, "write it")
    card = frida.locator(".item.approval .question")
    expect(card).to_contain_text("file.write")
    expect(card).to_contain_text("new <b>line</b>")
    expect(card.locator(".added, pre").first).to_be_visible()
    assert violations(frida) == []
    card.get_by_role("button", name="Approve").click()
    ends(frida)
    assert "new <b>line</b>" in office.run(["cat", "/srv/page.txt"]).stdout


def test_who_may_not_approve_gets_no_button_and_may_deny(office: Machine, gus: Page) -> None:
    begin(gus)
    send(gus, "write it")
    card = gus.locator(".item.approval .question")
    expect(card).to_contain_text("file.write")
    expect(card.get_by_role("button", name="Deny")).to_be_visible()
    expect(card.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
    card.get_by_role("button", name="Approve as an administrator").click()
    expect(card.get_by_role("alert")).to_be_visible()
    card.get_by_label("Note to the agent").fill("not today")
    card.get_by_role("button", name="Deny").click()
    ends(gus)
    expect(gus.locator(".item.assistant").last).to_contain_text("not today")


def test_an_administrator_approves_what_was_prompted_on_a_terminal(office: Machine, frida: Page) -> None:
    panel = go(frida, "Approvals")
    expect(panel).to_contain_text("No call waits for approval")
    run = [
        "systemd-run",
        "--quiet",
        "--collect",
        "--unit=on-terminal",
        "--uid=gus",
        "--setenv=HOME=/home/gus",
    ]
    office.run([*run, "lactl", "prompt", "--new", "clerk", "write it from a terminal"])
    card = panel.locator(".question")
    expect(card).to_contain_text("/srv/page.txt")
    expect(frida.get_by_role("tab", name="Approvals")).to_contain_text("1")
    card.get_by_role("button", name="Approve").click()
    expect(panel).to_contain_text("No call waits for approval")

    def over() -> bool:
        return office.run(["systemctl", "is-active", "on-terminal"], check=False).status != 0

    eventually(over, "the end of the prompt")
    said = [str(entry["MESSAGE"]) for entry in office.journal("--unit=on-terminal")]
    assert any("It said" in line for line in said), said


def test_a_question_is_answered_on_its_tab(frida: Page) -> None:
    begin(frida)
    send(frida, "question")
    expect(frida.locator(".item.input")).to_contain_text("Which <disk>?")
    panel = go(frida, "Inputs")
    panel.get_by_label("Your answer").select_option("sdb")
    panel.get_by_role("button", name="Answer").click()
    go(frida, "Chat")
    ends(frida)
    expect(frida.locator(".item.assistant").last).to_contain_text("sdb")


def test_a_turn_is_cancelled_with_escape(frida: Page) -> None:
    begin(frida)
    send(frida, "slowly")
    expect(frida.locator(".item.assistant")).to_contain_text("word3")
    frida.get_by_role("textbox", name="Message").press("Escape")
    expect(frida.locator(".item.error")).to_contain_text("cancel")
    expect(frida.get_by_role("button", name="Cancel the turn")).to_be_hidden()


def test_files_go_with_a_prompt(office: Machine, frida: Page) -> None:
    begin(frida)
    note: FilePayload = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"read me"}
    frida.locator("input[type=file]").set_input_files(note)
    expect(frida.get_by_role("list", name="Attachments")).to_contain_text("note.txt")
    send(frida, "hello with a file")
    ends(frida)
    expect(frida.locator(".item.user")).to_contain_text("read me")


def test_a_plan_is_drafted_and_applied(frida: Page) -> None:
    begin(frida)
    frida.get_by_role("button", name="Plan mode").click()
    expect(frida.locator("#panel-chat .plan")).to_contain_text("drafting")
    send(frida, "plan it")
    expect(frida.locator("#panel-chat .plan")).to_contain_text("look at the disk")
    panel = go(frida, "Plans")
    expect(panel).to_contain_text("Tidy up")
    panel.get_by_role("button", name="Apply the plan").click()
    go(frida, "Chat")
    expect(frida.locator("#panel-chat .plan")).to_contain_text("The plan is done.")


def test_a_flow_is_run_and_its_graph_is_live(frida: Page) -> None:
    panel = go(frida, "Flows")
    panel.get_by_role("button", name="Details of ops.incident").click()
    panel.get_by_role("button", name="Run it").click()
    expect(panel.locator("svg .step").first).to_be_visible()
    expect(panel.locator("svg .state-success, svg .state-failed").first).to_be_visible()
    panel.locator("svg .step").first.press("Enter")
    expect(panel.locator("dl").last).to_contain_text("Kind")


def test_an_agent_is_stopped_and_started_by_who_may(office: Machine, frida: Page, gus: Page) -> None:
    for page in (gus, frida):
        panel = go(page, "Agents")
        panel.get_by_role("button", name="Details of clerk").click()
        expect(panel).to_contain_text("bash")
        panel.get_by_role("button", name="Stop").click()
        if page is gus:
            expect(panel.get_by_role("alert")).to_be_visible()
            assert "running" in json.dumps(lactl_json(office, "agents", "show", "clerk"))
    panel.get_by_role("button", name="Start").click()
    expect(panel.get_by_role("row", name="Details of clerk")).to_contain_text("running")


def test_the_history_is_found_shown_as_a_tree_verified_and_exported(frida: Page) -> None:
    panel = go(frida, "History")
    panel.get_by_label("Tool", exact=True).fill("file")
    panel.get_by_label("Effect").select_option("change")
    panel.get_by_role("button", name="Find").click()
    expect(panel.get_by_role("listitem").first).to_contain_text("file.write")
    panel.get_by_role("button", name="Turn").first.click()
    tree = panel.get_by_role("region", name="Turn")
    for part in ("Step 1", "file.write", "change", "Step 2"):
        expect(tree).to_contain_text(part)
    with frida.expect_download() as waited:
        panel.get_by_role("button", name="Export").click()
    lines = Path(waited.value.path()).read_text().splitlines()
    assert lines
    assert all(json.loads(line)["data"]["tool"] == "file" for line in lines)
    panel.get_by_role("button", name="Verify").click()
    expect(panel).to_contain_text("The history is intact")


def test_plots_of_what_was_used(frida: Page, gus: Page) -> None:
    for page, whose in ((frida, "of everybody"), (gus, "of yours")):
        panel = go(page, "Usage")
        expect(panel).to_contain_text(whose)
        expect(panel.locator("figure svg .bar").first).to_be_attached()
        assert panel.locator("figure").count() == 6


def test_health_asks_the_agent(frida: Page, office: Machine) -> None:
    office.run(["systemd-run", "--quiet", "--unit=page-broken", "false"])
    panel = go(frida, "Health")
    again = panel.get_by_role("button", name="Check again")
    expect(panel).not_to_contain_text("Checking", timeout=60_000)
    again.click()
    expect(again).to_be_enabled(timeout=60_000)
    finding = panel.get_by_role("listitem").filter(has_text="page-broken")
    finding.get_by_role("button", name="Ask the agent about this").click()
    expect(frida.get_by_role("textbox", name="Message")).to_have_value("why is page-broken.service down")
    office.run(["systemctl", "reset-failed", "page-broken"])


def test_tabs_go_by_arrow_keys(frida: Page) -> None:
    frida.get_by_role("tab", name="Health").click()
    frida.keyboard.press("ArrowLeft")
    expect(frida.get_by_role("tab", name="Usage")).to_be_focused()
    expect(frida.get_by_role("tab", name="Usage")).to_have_attribute("aria-selected", "true")
    frida.keyboard.press("Home")
    expect(frida.get_by_role("tab", name="Health")).to_be_focused()


def test_light_and_dark_follow_cockpit(frida: Page) -> None:
    def back() -> str:
        return str(frida.evaluate("() => getComputedStyle(document.body).backgroundColor"))

    light = back()
    switch = (
        "style => { localStorage.setItem('shell:style', style);"
        " dispatchEvent(new CustomEvent('cockpit-style')); }"
    )
    frida.evaluate(switch, "dark")
    assert back() != light
    frida.evaluate(switch, "light")
    assert back() == light


def test_a_restart_in_the_middle_loses_nothing_typed(office: Machine, frida: Page) -> None:
    begin(frida)
    send(frida, "slowly")
    expect(frida.locator(".item.assistant")).to_contain_text("word3")
    frida.get_by_role("textbox", name="Message").fill("half a sentence")
    office.run(["systemctl", "stop", "lightagentd"], timeout_s=90)
    expect(frida.get_by_text("The agent daemon is not running.")).to_be_visible()
    assert violations(frida) == []
    expect(frida.get_by_role("textbox", name="Message")).to_have_value("half a sentence")
    frida.get_by_role("button", name="Start the daemon").click()
    expect(frida.get_by_text("The agent daemon is not running.")).to_be_hidden()
    frida.reload()
    expect(frida.get_by_role("textbox", name="Message")).to_have_value("half a sentence")
    expect(frida.locator(".item.user").first).to_contain_text("slowly")
    office.run(["systemctl", "is-active", "lightagentd"])
    frida.get_by_role("textbox", name="Message").fill("")
    if frida.get_by_role("button", name="Cancel the turn").is_visible():
        frida.get_by_role("button", name="Cancel the turn").click()


def test_who_may_not_start_the_daemon_is_told(office: Machine, gus: Page) -> None:
    go(gus, "Chat")
    office.run(["systemctl", "stop", "lightagentd"])
    gus.get_by_role("button", name="Start the daemon").click()
    expect(gus.locator(".banner [role=alert]")).to_be_visible()
    start_service(office)
    expect(gus.get_by_role("button", name="Start the daemon")).to_be_hidden()


def test_a_page_of_ten_thousand_sessions(office: Machine, gus: Page) -> None:
    office.run(["systemctl", "stop", "lightagentd"])
    uid = office.account("gus").pw_uid
    office.run(["python3", "-c", FILLED, str(uid), "10000"], user="lightagent")
    start_service(office)
    gus.reload()
    panel = go(gus, "Chat")
    expect(panel).to_contain_text("The newest 200 sessions")
    sessions = panel.get_by_role("list", name="Sessions")
    assert sessions.get_by_role("listitem").count() < 60
    for count in (400, 600, 800):
        sessions.evaluate("element => (element.scrollTop = element.scrollHeight)")
        expect(sessions.get_by_role("listitem").last).to_have_attribute("aria-setsize", str(count))
    panel.get_by_label("Search sessions").fill("number 9999")
    expect(panel).to_contain_text("1 session")
    expect(sessions).to_contain_text("Session number 9999")


def test_the_page_speaks_german(frida: Page, browser: Browser) -> None:
    address = frida.url.partition("#")[0]
    page = opened(browser, address, locale="de-DE")
    cookie = {"name": "CockpitLang", "value": "de-de", "url": address}
    page.context.add_cookies([cookie])  # type: ignore[list-item]
    page.reload()
    expect(page.get_by_role("tab", name="Genehmigungen")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "de"


def test_a_method_that_the_daemon_does_not_have_is_a_sentence(frida: Page) -> None:
    asks = "async () => (await import('./bus.js')).call('Sessions.Future').catch(error => error.message)"
    assert frida.evaluate(asks) == "The daemon is older than this page, and cannot do this."


def test_a_daemon_that_hangs_is_told(office: Machine, frida: Page) -> None:
    panel = go(frida, "Usage")
    office.run(["systemctl", "kill", "--kill-whom=main", "--signal=STOP", "lightagentd"])
    panel.get_by_role("button", name="Load again").click()
    try:
        expect(frida.locator(".banner")).to_contain_text("does not answer", timeout=60_000)
        assert violations(frida) == []
    finally:
        office.run(["systemctl", "kill", "--kill-whom=main", "--signal=CONT", "lightagentd"])
    panel.get_by_role("button", name="Load again").click()
    expect(frida.locator(".banner")).not_to_contain_text("does not answer")
