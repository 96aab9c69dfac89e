"""The pictures of docs/cockpit.md and the figures of the page: `make page`.

No part of `make test`: what it measures depends on what else the machine does. The limits that it prints
beside the figures are those of a machine at rest.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from .cockpit import cockpit, opened
from .debian import CHECKOUT
from .machine import Machine
from .product import lactl
from .test_cockpit import begin, browser, ends, go, office, send

pytestmark = pytest.mark.e2e
__all__ = ["browser", "office"]

DOCS = CHECKOUT / "docs"
MESSAGES = 10_000
HEARD = """
const found = Object.getOwnPropertyDescriptor(WebSocket.prototype, "onmessage");
Object.defineProperty(WebSocket.prototype, "onmessage", { get: found.get, set(handler) {
    found.set.call(this, function (event) {
        if (!window.signal && String(event.data).includes("text_delta")) {
            window.signal = performance.now();
            new MutationObserver((_, observer) => {
                if (document.querySelector(".item.assistant .markdown")?.textContent) {
                    observer.disconnect();
                    requestAnimationFrame(() => (window.shown = performance.now()));
                }
            }).observe(document.body, { childList: true, subtree: true, characterData: true });
        }
        return handler.call(this, event);
    });
} });
"""
LOADED = """() => {
    const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    const size = name => all.reduce((sum, entry) => sum + entry[name], 0);
    return [size("encodedBodySize"), Math.max(...all.map(entry => entry.responseEnd))];
}"""
SCROLLED = """async () => {
    const element = document.querySelector(".messages");
    const gaps = [];
    let before = performance.now();
    for (let at = 0; at <= 200; at++) {
        element.scrollTop = element.scrollHeight * at / 200;
        await new Promise(requestAnimationFrame);
        gaps.push(performance.now() - before);
        before = performance.now();
    }
    return Math.max(...gaps);
}"""


def say(what: str, figure: float, most: float, unit: str) -> None:
    print(f"\n{what}: {figure:,.0f} {unit} (at most {most:,.0f} {unit})", end="")


def picture(page: Page, name: str) -> None:
    page.screenshot(path=DOCS / name)
    assert (DOCS / name).stat().st_size <= 150_000


def test_pictures(office: Machine, browser: Browser) -> None:
    with cockpit(office, "frida") as address:
        page = opened(browser, address)
        begin(page, "ops")
        send(page, "check memory")
        ends(page)
        page.locator(".messages").evaluate("element => (element.scrollTop = 0)")
        picture(page, "cockpit-chat.png")
        begin(page)
        send(page, "write it")
        page.locator(".item.approval").wait_for()
        go(page, "Approvals").locator(".question").wait_for()
        picture(page, "cockpit-approvals.png")
        page.get_by_role("button", name="Deny").click()


def test_figures(office: Machine, browser: Browser, tmp_path: Path) -> None:
    with cockpit(office, "frida") as address:
        page = opened(browser, address)
        page.wait_for_timeout(1000)
        size, loaded = page.evaluate(LOADED)
        say("page", size, 200_000, "bytes")
        say("loaded after", loaded, 1000, "ms")
        page.context.add_init_script(HEARD)
        page.reload()
        begin(page)
        send(page, "stream")
        ends(page)
        say("first words after the signal", page.evaluate("() => window.shown - window.signal"), 100, "ms")
        roles = ("user", "assistant")
        told = [
            {"role": roles[at % 2], "content": f"Message {at}: " + "words " * (at % 40)}
            for at in range(MESSAGES)
        ]
        importing = ("sessions", "import", "--title", "many")
        text = f"```json\n{json.dumps(told)}\n```\n"
        office.write("/tmp/messages.md", text)
        lactl(office, *importing, "--agent", "clerk", "/tmp/messages.md", user="frida")
        page.locator(".session", has_text="many").click()
        page.get_by_text(f"Message {MESSAGES - 1}:").wait_for()
        until = time.monotonic() + 60
        while page.locator(".item").last.get_attribute("aria-setsize") != str(MESSAGES):
            assert time.monotonic() < until, page.locator(".item").last.get_attribute("aria-setsize")
            page.locator(".messages").evaluate("element => (element.scrollTop = 0)")
            page.wait_for_timeout(200)
        page.evaluate("() => (window.pauses.length = 0)")
        say(f"longest pause in {MESSAGES:,} messages", page.evaluate(SCROLLED), 100, "ms")
        say("longest task in them", max(page.evaluate("() => window.pauses"), default=0), 100, "ms")
        expect(page.locator(".item").last).to_be_visible()
        print()
