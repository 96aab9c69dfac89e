"""What the Debian package consists of, in a machine that has it and by lintian; and the RPM package.

`test_package_life.py` has the life of the package.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .debian import CHECKOUT
from .machine import Completed, Machine
from .product import LAUNCHERS, PREFIX, SHARE, VENDOR, built_packages

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("installed")]

UNITS = CHECKOUT / "units"
PAGE_FOLDER = "/usr/share/cockpit/lightagentd"
BUILDER = CHECKOUT / "packaging/checkout/builder.sh"
EXPECTED = (
    "/etc/lightagentd/lightagentd.toml",
    "/usr/bin/lactl",
    "/usr/bin/lightagentd",
    "/usr/bin/lightagent-notify",
    f"{PREFIX}/lightagentd/daemon/daemon.py",
    f"{PREFIX}/lightagentd/py.typed",
    f"{VENDOR}/asyncvarlink/__init__.py",
    f"{VENDOR}/asyncvarlink/LICENSE",
    f"{VENDOR}/acp/__init__.py",
    f"{VENDOR}/acp/LICENSE",
    f"{SHARE}/tools/bash.py",
    f"{SHARE}/skills/disk-check/SKILL.md",
    f"{SHARE}/skills/disk-check/scripts/disk_check.py",
    f"{SHARE}/agent/ops/AGENT.md",
    f"{SHARE}/agent/SOUL.md",
    f"{SHARE}/varlink/org.lightagent1.Manager.varlink",
    f"{SHARE}/change-profiles/services.conf",
    f"{SHARE}/selinux/lightagentd.te",
    "/etc/apparmor.d/lightagentd",
    "/usr/lib/systemd/user/lightagent-notify.service",
    "/usr/lib/systemd/catalog/lightagentd.catalog",
    "/usr/lib/sysusers.d/lightagentd.conf",
    "/usr/lib/tmpfiles.d/lightagentd.conf",
    "/usr/lib/sysctl.d/50-lightagentd.conf",
    "/usr/share/dbus-1/system.d/org.lightagent1.conf",
    "/usr/share/dbus-1/system-services/org.lightagent1.service",
    "/usr/share/dbus-1/system-services/org.lightagent1.Approver.service",
    "/usr/share/polkit-1/actions/org.lightagent1.policy",
    "/usr/share/polkit-1/rules.d/50-lightagentd.rules",
    "/usr/share/bash-completion/completions/lactl",
    "/usr/share/zsh/vendor-completions/_lactl",
    "/usr/share/fish/vendor_completions.d/lactl.fish",
    "/usr/share/man/man1/lactl.1.gz",
    "/usr/share/man/man1/lactl-sessions.1.gz",
    "/usr/share/man/man1/lightagent-notify.1.gz",
    "/usr/share/man/man5/lightagent-agent.5.gz",
    "/usr/share/man/man5/lightagent-policy.5.gz",
    "/usr/share/man/man7/lightagent-intro.7.gz",
    "/usr/share/man/man5/lightagent-skill.5.gz",
    "/usr/share/man/man5/lightagent-tool.5.gz",
    "/usr/share/man/man5/lightagentd.toml.5.gz",
    "/usr/share/man/man5/org.lightagent1.5.gz",
    "/usr/share/man/man8/lightagent-approver.8.gz",
    "/usr/share/man/man8/lightagentd.8.gz",
    "/usr/share/doc/lightagentd/README.md.gz",
    "/usr/share/doc/lightagentd/docs/tools.md.gz",
    "/usr/share/doc/lightagentd/copyright",
    "/usr/share/doc/lightagentd/examples/policy.d/20-guards.toml",
    "/usr/share/doc/lightagentd/examples/skills/large-logs/scripts/large_logs.sh",
)


PAGE = ("manifest.json", "index.html", "style.css", "app.js", "bus.js", "po.de.js", "po.manifest.de.js")
"""Some of the files of the page for Cockpit."""


@pytest.fixture(scope="module")
def listed(other_machine: Machine, installed: Completed) -> list[str]:
    """What the package has, as dpkg lists it."""
    assert installed.status == 0
    return other_machine.run(["dpkg", "-L", "lightagentd"]).stdout.splitlines()


def test_every_kind_of_file_is_where_it_belongs(listed: list[str]) -> None:
    assert set(EXPECTED) - set(listed) == set()
    for unit in [*UNITS.glob("*.service"), *UNITS.glob("*.socket"), *UNITS.glob("*.timer")]:
        assert f"/usr/lib/systemd/system/{unit.name}" in listed
    for folder in ("agent", "keys", "lightagentd.toml.d", "policy.d", "prompts", "skills", "tools"):
        assert f"/etc/lightagentd/{folder}" in listed
    assert not [path for path in listed if "__pycache__" in path or path.endswith((".pyc", ".orig"))]
    assert not [path for path in listed if path.startswith(("/run", "/var", "/usr/local"))]


def test_the_page_of_cockpit_is_a_package_of_its_own(other_machine: Machine, listed: list[str]) -> None:
    [package] = built_packages().glob("cockpit-lightagentd_*.deb")
    other_machine.copy_in(package, "/var/tmp/page.deb")
    out = other_machine.run(["dpkg", "--contents", "/var/tmp/page.deb"]).stdout
    there = {f"/{line.split()[5].removeprefix('./')}" for line in out.splitlines()}
    assert {f"{PAGE_FOLDER}/{name}" for name in PAGE} - there == set()
    assert not [path for path in listed if "cockpit/" in path]


def test_all_files_are_roots_and_nobody_elses_to_write(other_machine: Machine, listed: list[str]) -> None:
    listed = [
        path for path in listed if path != "/etc/lightagentd/keys"
    ]  # the daemon's: test_package_life.py
    out = other_machine.run(["xargs", "-d", "\\n", "stat", "-c", "%U %a %n"], input="\n".join(listed)).stdout
    lines = out.splitlines()
    assert len(lines) == len(listed)
    assert [line for line in lines if not re.match(r"root [0-7]?[0-7][0145][0145] ", line)] == []


def test_the_bus_knows_the_users_of_its_policy_when_it_reads_it(other_machine: Machine) -> None:
    said = [str(entry["MESSAGE"]) for entry in other_machine.journal("SYSLOG_IDENTIFIER=dbus-daemon")]
    assert [line for line in said if line.startswith("Unknown ")] == []


def test_nothing_differs_from_the_package(other_machine: Machine) -> None:
    assert other_machine.run(["dpkg", "-V", "lightagentd"]).stdout == ""


def test_systemd_finds_nothing_wrong_with_any_unit(other_machine: Machine) -> None:
    names = [path.name for kind in ("service", "socket", "timer") for path in UNITS.glob(f"*.{kind}")]
    instances = [name.replace("@.", "@07.") for name in sorted(names)]
    verified = other_machine.run(["systemd-analyze", "verify", *instances])
    assert (verified.stdout, verified.stderr) == ("", "")


def test_launchers_ignore_the_environment(other_machine: Machine) -> None:
    """A folder of somebody else's on the path of Python must not become code of the daemon's or of root's."""
    other_machine.write("/srv/e2e-path/click.py", "raise SystemExit('loaded from PYTHONPATH')\n")
    other_machine.write(
        "/srv/e2e-path/lightagentd/__init__.py", "raise SystemExit('loaded from PYTHONPATH')\n"
    )
    for program in LAUNCHERS:
        assert (
            other_machine.run(["head", "-n", "1", f"/usr/bin/{program}"]).stdout == "#!/usr/bin/python3 -I\n"
        )
        said = other_machine.run([program, "--help"], env={"PYTHONPATH": "/srv/e2e-path"})
        assert "usage" in said.stdout.lower(), said.explain()
    other_machine.run(["rm", "-r", "/srv/e2e-path"])


def test_asyncvarlink_of_the_system_does_not_shadow_the_tested_one(other_machine: Machine) -> None:
    system = "/usr/local/lib/python3.13/dist-packages/asyncvarlink"
    other_machine.write(f"{system}/__init__.py", "raise ImportError('another version')\n")
    try:
        code = "import lightagentd, asyncvarlink; print(asyncvarlink.__file__)"
        where = other_machine.run(["python3", "-I", "-c", code], user="nobody").stdout
        assert where == f"{VENDOR}/asyncvarlink/__init__.py\n"
        other_machine.run(["python3", "-I", "-c", "import lightagentd.worker.program"], user="nobody")
    finally:
        other_machine.run(["rm", "-r", system])


def test_lintian_finds_no_error_and_no_warning(debian_root: Path) -> None:
    """It looks from within the build root; an override in packaging/debian gives its reason.

    A package in which it has found nothing is not given to it again: the folder is of these files alone.
    """
    assert debian_root.is_dir()
    nothing_found = built_packages() / "lintian-found-nothing"
    if nothing_found.exists():
        return
    # man(1) would confine itself anew for each page that lintian gives it, which takes longer than the page.
    check = """mv /usr/bin/man /usr/bin/man-itself
    printf '#!/bin/sh\\nMAN_DISABLE_SECCOMP=1 exec man-itself "$@"\\n' >/usr/bin/man
    chmod 755 /usr/bin/man
    lintian --allow-root --fail-on error,warning *.changes"""
    done = subprocess.run(
        [str(BUILDER), str(built_packages()), "sh", "-c", check],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    nothing_found.touch()


def built_rpms() -> tuple[Path, Path]:
    """The RPM packages of this checkout, built once from the files that the .deb beside them are of: that of
    the daemon, and that of the page in Cockpit.
    """
    folder = built_packages() / "rpm"
    if not folder.is_dir():
        script, new = CHECKOUT / "packaging/checkout/rpm.sh", folder.with_name("rpm.new")
        built = subprocess.run(
            [str(script), str(new)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert built.returncode == 0, built.stderr[-6000:]
        new.rename(folder)
    page, daemon = sorted(folder.glob("*.rpm"))
    return daemon, page


def test_rpm_has_the_same_files(debian_root: Path, listed: list[str]) -> None:
    assert debian_root.is_dir()
    daemon, page = built_rpms()
    ask = f"rpm -qlp {daemon.name} && rpm -qp --scripts {daemon.name} && echo PAGE && rpm -qlp {page.name}"
    query = subprocess.run(
        [str(BUILDER), str(daemon.parent), "sh", "-c", ask],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    of_daemon, of_page = (
        {_neutral(path) for path in part.splitlines() if path.startswith("/")}
        for part in query.stdout.split("PAGE\n")
    )
    wanted = {_neutral(path) for path in EXPECTED if not path.startswith("/usr/share/doc/")}
    wanted |= {path for path in listed if path.startswith("/usr/lib/systemd/system/")}
    assert wanted - of_daemon == set()
    assert {f"{PAGE_FOLDER}/{name}" for name in PAGE} - of_page == set()
    assert not [path for path in of_daemon if "cockpit/" in path]
    assert "%{" not in query.stdout
    assert "%systemd" not in query.stdout


def _neutral(path: str) -> str:
    """The path without what differs between the distributions."""
    path = re.sub(r"^/usr/lib/python3[^/]*/(site|dist)-packages/", "/python/", path)
    return re.sub(r"zsh/(site-functions|vendor-completions)", "zsh/completions", path)
