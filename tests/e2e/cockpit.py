"""Cockpit in the machine, and Chromium on the host that looks at it: the page of `cockpit-lightagentd`.

`cockpit-ws` runs as the user whose session it is, as a unit of the machine's systemd, and needs no login so.
Chromium enters the machine's network alone, by nsenter(1), for that has nothing but its own `lo`. Playwright
drives it over a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
from playwright.sync_api import Browser, Page, expect, sync_playwright

from .machine import Machine
from .product import apt, built_packages, eventually

PAGE = "/cockpit/@localhost/lightagentd/index.html"
PORTS = {"frida": 9101, "gus": 9102}
"""Of the administrator and of the other user."""
expect.set_options(timeout=20_000)
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
RULES = "/etc/polkit-1/rules.d/10-page.rules"
ACCESS = "/usr/share/cockpit/test-access"
TABS = (
    "Health", "Chat", "Approvals", "Inputs", "Plans", "Flows", "Triggers", "Agents", "Skills and tools",
    "Memory", "History", "Usage",
)  # fmt: skip
RULE = r"""polkit.addRule(function (action, subject) {
    var ours = /^org\.(lightagent1\..*|freedesktop\.systemd1\.manage-units)$/.test(action.id);
    return ours && subject.user === "frida" ? polkit.Result.YES : polkit.Result.NOT_HANDLED;
});
"""
# How long each task took that took longer than 50 ms.
_WATCHED = """
window.pauses = [];
new PerformanceObserver(list => list.getEntries().forEach(entry => window.pauses.push(entry.duration)))
    .observe({ type: "longtask", buffered: true });
"""


# What begins Cockpit's administrative access: the machine has no sudo. Its root has no password meanwhile.
_BRIDGE = {"privileged": True, "label": "su", "spawn": ["su", "-c", "cockpit-bridge --privileged"]}
_ACCESS = """async verb => {
    const internal = cockpit.dbus(null, { bus: "internal" });
    await internal.call("/superuser", "cockpit.Superuser", verb, verb === "Start" ? ["any"] : []);
    internal.close();
}"""


@contextlib.contextmanager
def administrative_access(page: Page) -> Iterator[None]:
    """What the button at the top of Cockpit turns on, and off again."""
    page.evaluate(_ACCESS, "Start")
    try:
        yield
    finally:
        page.evaluate(_ACCESS, "Stop")


def install_page(machine: Machine) -> None:
    """Install the page's package, and let frida do everything, until `leave_page`."""
    [package] = built_packages().glob("cockpit-lightagentd_*.deb")
    machine.copy_in(package, f"/var/tmp/{package.name}")
    apt(machine, "install", f"/var/tmp/{package.name}")
    machine.write(RULES, RULE)
    machine.write(f"{ACCESS}/manifest.json", json.dumps({"bridges": [_BRIDGE]}))
    machine.run(["passwd", "--delete", "root"])


def leave_page(machine: Machine) -> None:
    """Undo `install_page` but for the package."""
    machine.run(["usermod", "--password=*", "root"])
    machine.run(["rm", "-r", RULES, ACCESS])


@contextlib.contextmanager
def cockpit(machine: Machine, user: str) -> Iterator[str]:
    """A session of Cockpit of a user; gives the address of the page."""
    port, unit = PORTS[user], f"cockpit-{user}"
    serve = ["/usr/lib/cockpit/cockpit-ws", "--no-tls", "--address=127.0.0.1", f"--port={port}"]
    run = [
        "systemd-run",
        "--quiet",
        "--collect",
        f"--unit={unit}",
        f"--uid={user}",
        f"--setenv=HOME=/home/{user}",
    ]
    machine.run([*run, *serve, "--local-session=cockpit-bridge"])
    try:
        ports = ["ss", "-Hltn", f"sport = :{port}"]
        eventually(lambda: machine.run(ports).stdout, f"Cockpit at port {port}")
        yield f"http://127.0.0.1:{port}{PAGE}"
    finally:
        machine.run(["systemctl", "stop", unit])


@contextlib.contextmanager
def chromium(machine: Machine, folder: Path) -> Iterator[Browser]:
    """Chromium in the network of the machine; `folder` takes what starts it."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert program, "the tests of the page need Chromium: apt-get install chromium"
    entering = folder / "chromium"
    entering.write_text(f'#!/bin/sh\nexec nsenter --target={machine.leader} --net -- {program} "$@"\n')
    entering.chmod(0o755)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=entering, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Browser, address: str, tab: str = "chat", **options: Any) -> Page:
    """The page at a tab, once it knows the daemon. What a script of it throws is in `page.thrown`, and its
    security policy in `page.rules`.
    """
    context = browser.new_context(viewport={"width": 1200, "height": 800}, **options)
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.add_init_script(_WATCHED)
    thrown: list[str] = []
    page.on("pageerror", lambda error: thrown.append(str(error)))
    page.thrown = thrown  # type: ignore[attr-defined]
    loaded = page.goto(f"{address}#/{tab}")
    assert loaded is not None
    page.rules = loaded.headers["content-security-policy"]  # type: ignore[attr-defined]
    page.get_by_role("tab").first.wait_for()
    return page


def violations(page: Page) -> list[str]:
    """What breaks a rule of axe on the page as it is: the rule with the elements."""
    if not page.evaluate("() => Boolean(window.axe)"):
        page.evaluate(AXE.read_text())
    found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{one['id']}: {[node['html'][:160] for node in one['nodes'][:3]]}" for one in found["violations"]
    ]
