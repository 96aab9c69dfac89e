"""The page of Cockpit in Chromium, by the real cockpit-ws and cockpit-bridge: as an administrator, and as a
member of the group lightagent, who may not approve.

`LIGHTAGENT_SCREENSHOTS` names a folder that keeps a picture of each tab.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect

from .cockpit import (
    RULE,
    RULES,
    TABS,
    administrative_access,
    chromium,
    cockpit,
    install_page,
    leave_page,
    opened,
    violations,
)
from .cockpit_model import WORDS, Model
from .loopback import answering, listening
from .machine import Machine
from .product import eventually, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

ETC = "/etc/lightagentd"
SETTINGS = """\
[models.providers.here]
kind = "openai"
base_url = "http://127.0.0.1:{port}/v1"
context_tokens = 128000
"""
AGENT = "---\nmodel: here/some\nagents: [{other}]\n---\nDo what you are asked.\n"
TRIGGER = 'on = "unit-failed"\nunit = "nothing-*.service"\nagent = "clerk"\nowner = "frida"\nprompt = "why"\n'
OURS = (
    "lightagentd.toml.d/page.toml",
    "agent/clerk",
    "agent/lead",
    "triggers/broken.toml",
)
LARGE = (12 << 20) - 1000
"""As much as can be imported."""
FILLED = """
import json, pathlib, sys
from lightagentd.events.store import rows
from lightagentd.events.store.layout import Environment
owner, count = int(sys.argv[1]), int(sys.argv[2])
store = Environment(pathlib.Path("/var/lib/lightagentd/history"))
with store.env.begin(write=True) as txn:
    template = json.loads(next(value for _, value in txn.cursor(store.db["sessions"])))
    for number in range(count):
        made = template | {"id": f"ses_{number:016x}", "agent": "ops", "owner": owner, "parent": "",
                           "title": f"Session number {number}", "updated_us": number + 1}
        rows.put(store, txn, "sessions", made["id"].encode(), json.dumps(made).encode())
store.close()
"""
"""Puts sessions into the store of a daemon that is stopped: to make so many by calls takes a minute."""


@pytest.fixture(scope="module")
def office(product: Machine) -> Iterator[Machine]:
    """The machine with the page, two users, a unit that failed, and agents who may change what is allowed."""
    install_page(product)
    for user in ("frida", "gus"):
        product.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", user])
    with answering(listening(product), Model) as port:
        product.write(f"{ETC}/lightagentd.toml.d/page.toml", SETTINGS.format(port=port))
        for name, other in (("clerk", "ops"), ("lead", "clerk")):
            product.write(f"{ETC}/agent/{name}/AGENT.md", AGENT.format(other=other))
        product.write(f"{ETC}/triggers/broken.toml", TRIGGER)
        product.write("/srv/page.txt", "old line\n")
        product.run(["systemd-run", "--quiet", "--unit=page-broken", "false"])
        product.run(["systemctl", "restart", "lightagentd"])
        product.run(["systemctl", "start", "lightagent-change@clerk.socket"])
        lactl(product, "prompt", "ops", "check memory", user="gus")
        yield product
    product.run(["systemctl", "stop", "lightagent-change@clerk.socket", "lightagentd"])
    product.run(["systemctl", "reset-failed", "page-broken"])
    product.run(["rm", "-r", *(f"{ETC}/{name}" for name in OURS)])
    leave_page(product)
    for user in ("frida", "gus"):
        product.run(["userdel", "--remove", "--force", user], check=False)


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


# The checks of Health take as long as all the rest: one user has them made, once.
@pytest.mark.parametrize(
    ("user", "tab"), [*(("frida", tab) for tab in TABS), *(("gus", tab) for tab in TABS[1:])]
)
def test_axe_finds_nothing_wrong_with_a_tab(user: str, tab: str, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(user)
    panel = go(page, tab)
    expect(panel).not_to_be_empty()
    if tab == "Health":
        expect(panel.get_by_text("page-broken").first).to_be_visible(timeout=60_000)
    assert violations(page) == []
    assert page.thrown == []  # type: ignore[attr-defined]
    if folder := os.environ.get("LIGHTAGENT_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{user}-{tab.lower().replace(' ', '-')}.png")


def test_health_asks_the_agent(frida: Page) -> None:
    finding = go(frida, "Health").get_by_role("listitem").filter(has_text="page-broken")
    finding.get_by_role("button", name="Ask the agent about this").click()
    expect(frida.get_by_role("textbox", name="Message")).to_have_value("why is page-broken.service down")


def test_nothing_but_what_cockpit_serves_may_run(frida: Page) -> None:
    assert "script-src 'self'" in frida.rules  # type: ignore[attr-defined]
    assert "unsafe" not in frida.rules  # type: ignore[attr-defined]


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


def test_a_page_that_is_loaded_anew_leaves_no_stream_behind(office: Machine, frida: Page) -> None:
    """A connection to the bus has so many streams, and that of the bridge outlives the page."""

    def connections() -> set[str]:
        listed = office.run(["busctl", "list", "--no-legend"]).stdout.splitlines()
        return {line.split()[0] for line in listed if " cockpit-bridge " in line and " frida " in line}

    before = connections()
    frida.reload()
    frida.get_by_role("tab").first.wait_for()
    eventually(lambda: before - connections(), "the end of the old page's connection")


def test_a_message_of_many_megabytes_is_cut_with_a_sentence(office: Machine, frida: Page) -> None:
    told = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x" * LARGE}]
    office.write("/tmp/large.md", f"```json\n{json.dumps(told)}\n```\n")
    lactl(office, "sessions", "import", "--title", "large", "--agent", "clerk", "/tmp/large.md", user="frida")
    go(frida, "Chat").get_by_role("listitem").filter(has_text="large").get_by_role("button").click()
    expect(
        frida.get_by_text(f"The text has {LARGE / (1 << 20):.1f} MiB; its beginning is shown.")
    ).to_be_visible()
    paste = """size => {
        const data = new DataTransfer();
        data.setData("text", "y".repeat(size));
        const pasted = new ClipboardEvent("paste", { clipboardData: data, cancelable: true });
        return document.querySelector(".composer textarea").dispatchEvent(pasted);
    }"""
    assert not frida.evaluate(paste, 16 << 20)
    expect(frida.get_by_text("What you pasted is larger than 1 MiB.")).to_be_visible()
    assert frida.evaluate(paste, 100)


def test_a_call_is_approved_where_it_is_asked(office: Machine, frida: Page) -> None:
    begin(frida)
    send(frida, "write it")
    card = frida.locator(".item.approval .question").last
    expect(card).to_contain_text("file.write")
    expect(card).to_contain_text("new <b>line</b>")
    expect(card.locator(".added, pre").first).to_be_visible()
    assert violations(frida) == []
    card.get_by_role("button", name="Allow once").click()
    ends(frida)
    assert "new <b>line</b>" in office.run(["cat", "/srv/page.txt"]).stdout


def test_a_leave_covers_what_is_tainted_only_when_that_is_said(frida: Page) -> None:
    """In the session of the test before: the output of its call is text from outside."""
    send(frida, "write it")
    card = frida.locator(".item.approval .question").last
    card.get_by_role("button", name="Allow in this session").click()
    expect(card.get_by_role("alert")).to_contain_text("Text from outside is in this session")
    card.get_by_role("checkbox").check()
    card.get_by_role("button", name="Allow in this session").click()
    ends(frida, 2)
    send(frida, "write it")
    ends(frida, 3)


def test_a_rule_is_shown_and_written_by_an_administrator(office: Machine, frida: Page) -> None:
    begin(frida)
    send(frida, "write it")
    card = frida.locator(".item.approval .question")
    card.get_by_role("button", name="Always").click()
    expect(card.get_by_role("alert")).to_contain_text("only the daemon's word")
    card.get_by_role("checkbox").check()
    card.get_by_role("button", name="Always").click()
    rule = card.get_by_role("region", name="A rule for this call")
    for part in (
        "no others, for anybody",
        'tool = "file"',
        "of the last",
        f"{ETC}/policy.d/50-allow-file-write-",
    ):
        expect(rule).to_contain_text(part)
    expect(rule.get_by_role("table", name="Past calls")).to_contain_text("/srv/page.txt")
    write = rule.get_by_role("button", name="Write this rule, and allow")
    write.click()
    expect(rule.get_by_role("alert")).to_contain_text("turn on administrative access")
    assert office.run(["ls", f"{ETC}/policy.d"]).stdout == ""
    with administrative_access(frida):
        write.click()
        ends(frida)
    begin(frida)
    send(frida, "write it")
    ends(frida)
    assert frida.locator(".item.approval").count() == 0
    office.run(["sh", "-c", f"rm {ETC}/policy.d/50-allow-file-write-* && systemctl reload lightagentd"])


def test_a_change_takes_itself_back_unless_it_is_kept(office: Machine, frida: Page) -> None:
    changes = frida.get_by_role("region", name="Changes that take themselves back")
    for within, kept in (("8s", False), ("5m", True)):
        office.write("/srv/page.txt", "old line\n")
        begin(frida)
        send(frida, "write it")
        card = frida.locator(".item.approval .question")
        card.get_by_text("Take it back unless").click()
        card.get_by_label("Within").fill(within)
        card.get_by_role("button", name="Allow for now").click()
        change = changes.get_by_role("listitem").last
        expect(change).to_contain_text("Taken back by: file.undo")
        expect(change.get_by_role("timer")).to_contain_text("left")
        if kept:
            assert violations(frida) == []
            change.get_by_role("button", name="Keep the change").click()
        expect(change).to_contain_text("stays" if kept else "was taken back")
        assert ("new" in office.run(["cat", "/srv/page.txt"]).stdout) is kept
        change.get_by_role("button", name="Hide this").click()
    expect(changes).to_have_count(0)


def test_who_is_no_administrator_may_deny_and_needs_administrative_access(gus: Page) -> None:
    begin(gus)
    for round_ in (1, 2):
        send(gus, "write it")
        card = gus.locator(".item.approval .question").last
        expect(card).to_contain_text("turn on administrative access")
        if round_ == 2:
            with administrative_access(gus):
                card.get_by_role("button", name="Allow once").click()
                ends(gus, 2)
            break
        card.get_by_role("button", name="Allow once").click()
        expect(card.get_by_role("alert")).to_contain_text("You may not do this.")
        card.get_by_label("Note to the agent").fill("not today")
        card.get_by_role("button", name="Deny").click()
        ends(gus)
        expect(gus.locator(".item.assistant").last).to_contain_text("not today")


@contextlib.contextmanager
def of_gus(office: Machine, action: str, result: str, holds: Callable[[], bool]) -> Iterator[None]:
    """Have polkit say this to gus, once that holds."""
    rule = f'if (/{action}/.test(action.id) && subject.user === "gus") return polkit.Result.{result};'
    office.write(RULES, RULE.replace("{", "{ " + rule, 1))
    eventually(holds, "the new rule of polkit")
    try:
        yield
    finally:
        office.write(RULES, RULE)


def test_there_is_no_yes_where_polkit_says_no(office: Machine, gus: Page) -> None:
    begin(gus)
    send(gus, "write it")
    gus.locator(".item.approval").wait_for()
    card = go(gus, "Approvals").locator(".question")

    def is_told() -> bool:
        gus.evaluate("async () => (await import('./stores.js')).approvals.refresh()")
        return "You may not approve this" in card.inner_text()

    with of_gus(office, "approve", "NO", is_told):
        assert [one.inner_text() for one in card.get_by_role("button").all()] == ["Deny"]
    card.get_by_role("button", name="Deny").click()
    expect(gus.get_by_role("tabpanel")).to_contain_text("No call waits for approval")


def test_who_may_not_look_is_told_on_each_tab(office: Machine, gus: Page) -> None:
    """As a user who is not in the group lightagent."""

    def is_refused() -> bool:
        return lactl(office, "status", user="gus", check=False).status != 0

    with of_gus(office, "lightagent1", "AUTH_ADMIN", is_refused):
        gus.reload()
        for tab in ("Chat", "Approvals", "Inputs", "Plans", "Agents", "History", "Usage"):
            expect(go(gus, tab)).to_contain_text("You may not do this. An administrator may")
    eventually(lambda: not is_refused(), "the old rule of polkit")
    gus.reload()
    expect(go(gus, "Agents")).to_contain_text("clerk")


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
    card.get_by_role("button", name="Allow once").click()
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


def test_files_go_with_a_prompt(frida: Page) -> None:
    begin(frida)
    note: FilePayload = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"read me"}
    frida.locator("input[type=file]").set_input_files(note)
    drop = """() => {
        const data = new DataTransfer();
        data.items.add(new File(["drop me"], "dropped.txt"));
        const dropped = new DragEvent("drop", { dataTransfer: data, cancelable: true });
        document.querySelector(".composer").dispatchEvent(dropped);
    }"""
    frida.evaluate(drop)
    for name in ("note.txt", "dropped.txt"):
        expect(frida.get_by_role("list", name="Attachments")).to_contain_text(name)
    send(frida, "hello with two files")
    ends(frida)
    for text in ("read me", "drop me"):
        expect(frida.locator(".item.user")).to_contain_text(text)


def test_who_of_a_team_speaks_is_said(frida: Page) -> None:
    begin(frida, "lead")
    send(frida, "hand over")
    ends(frida)
    expect(frida.locator(".item.assistant .who").last).to_contain_text("clerk")
    expect(frida.locator(".chat-head")).to_contain_text("lead \u2192 clerk")


def test_what_an_agent_proposes_to_remember_is_kept(frida: Page) -> None:
    begin(frida)
    send(frida, "remember it")
    ends(frida)
    panel = go(frida, "Memory")
    candidate = panel.get_by_role("region", name="Memory").filter(has_text="The disk is <new>.")
    candidate.get_by_role("button", name="Keep").click()
    expect(candidate).to_have_count(0)
    panel.get_by_label("Show").select_option("kept")
    expect(candidate).to_be_visible()


def test_a_trigger_is_paused_by_who_may(frida: Page, gus: Page) -> None:
    for page in (gus, frida):
        panel = go(page, "Triggers")
        panel.get_by_role("button", name="Details of broken").click()
        panel.get_by_role("button", name="Pause").click()
        if page is gus:
            expect(panel.get_by_role("alert")).to_be_visible()
    row = panel.get_by_role("row", name="Details of broken")
    expect(row).to_contain_text("paused")
    panel.get_by_role("button", name="Resume").click()
    expect(row).not_to_contain_text("paused")


def test_a_plan_is_applied_a_task_skipped_and_one_tried_again(office: Machine, frida: Page) -> None:
    begin(frida)
    frida.get_by_role("button", name="Plan mode").click()
    plan = frida.locator("#panel-chat .plan")
    expect(plan).to_contain_text("drafting")
    send(frida, "plan it")
    expect(plan).to_contain_text("look at the disk")
    panel = go(frida, "Plans")
    expect(panel).to_contain_text("Tidy up")
    panel.get_by_role("button", name="Apply the plan").click()
    panel.get_by_role("button", name="Skip the task").click()
    expect(panel.get_by_role("listitem").first).to_contain_text("skipped")
    office.write("/srv/ready", "")
    panel.get_by_role("button", name="Try the task again").click()
    go(frida, "Chat")
    expect(plan).to_contain_text("The plan is done.")


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
    row = panel.get_by_role("row", name="Details of clerk")
    expect(row).to_contain_text("running")
    for model, shown in (("here/other", "here/other"), ("", "here/some")):
        panel.get_by_label("Model, empty for its own").fill(model)
        panel.get_by_role("button", name="Set the model").click()
        expect(row).to_contain_text(shown)


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


def test_tabs_go_by_arrow_keys(frida: Page) -> None:
    frida.get_by_role("tab", name="Inputs").click()
    for key, name in (("ArrowLeft", "Approvals"), ("ArrowRight", "Inputs"), ("End", "Usage")):
        frida.keyboard.press(key)
        expect(frida.get_by_role("tab", name=name)).to_be_focused()
        expect(frida.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")


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


def test_a_restart_in_the_middle_loses_nothing_typed(office: Machine, frida: Page, gus: Page) -> None:
    go(gus, "Chat")
    begin(frida)
    send(frida, "slowly")
    expect(frida.locator(".item.assistant")).to_contain_text("word1")
    frida.get_by_role("textbox", name="Message").fill("half a sentence")
    office.run(["systemctl", "stop", "lightagentd"], timeout_s=90)
    expect(frida.get_by_text("The agent daemon is not running.")).to_be_visible()
    assert violations(frida) == []
    uid = office.account("gus").pw_uid
    office.run(["python3", "-c", FILLED, str(uid), "10000"], user="lightagent")
    gus.get_by_role("button", name="Start the daemon").click()
    expect(gus.locator(".banner [role=alert]")).to_be_visible()
    expect(frida.get_by_role("textbox", name="Message")).to_have_value("half a sentence")
    frida.get_by_role("button", name="Start the daemon").click()
    for page in (frida, gus):
        expect(page.get_by_text("The agent daemon is not running.")).to_be_hidden()
    frida.reload()
    expect(frida.get_by_role("textbox", name="Message")).to_have_value("half a sentence")
    expect(frida.locator(".item.user").first).to_contain_text("slowly")
    office.run(["systemctl", "is-active", "lightagentd"])
    frida.get_by_role("textbox", name="Message").fill("")


def test_a_page_of_ten_thousand_sessions(gus: Page) -> None:
    """Those that were put into the store while the daemon was stopped."""
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


def test_the_page_speaks_german(gus: Page) -> None:
    cookie = {"name": "CockpitLang", "value": "de-de", "url": gus.url.partition("#")[0]}
    gus.context.add_cookies([cookie])  # type: ignore[list-item]
    gus.reload()
    expect(gus.get_by_role("tab", name="Genehmigungen")).to_be_visible()
    assert gus.locator("html").get_attribute("lang") == "de"


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
