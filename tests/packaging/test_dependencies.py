"""That the packages of distributions depend on what pyproject.toml says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
DEBIAN_NAMES = {
    "markdown-it-py": "python3-markdown-it",
    "pyyaml": "python3-yaml",
    "systemd-python": "python3-systemd",
}
"""Where the Debian package is not python3- and the name in pyproject.toml."""
FEDORA_NAMES = {
    "dnspython": "python3-dns",
    "pyinotify": "python3-inotify",
    "pyyaml": "python3-pyyaml",
    "systemd-python": "python3-systemd",
}
PRIVATE = ("agent-client-protocol", "asyncvarlink")
"""The dependencies that travel inside."""


def test_dependencies_are_those_of_the_project() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", entry)[0] for entry in project["dependencies"])
    assert all(bounds.pop(name) for name in PRIVATE)
    control = (CHECKOUT / "packaging/debian/control").read_text()
    build, binary, page = control.split("\n\n")
    assert "lightagentd (= ${binary:Version})" in page
    for section in (build, binary):
        found = dict(re.findall(r"(python3-[\w-]+) \(>= ([\d.]+)\)", section))
        assert found == _named(bounds, DEBIAN_NAMES)
    spec = (CHECKOUT / "packaging/rpm/lightagentd.spec").read_text()
    for kind in ("Requires", "BuildRequires"):
        found = dict(re.findall(rf"^{kind}: +(python3-[\w-]+) >= ([\d.]+)$", spec, re.MULTILINE))
        assert found == _named(bounds, FEDORA_NAMES)


def _named(bounds: dict[str, str], names: dict[str, str]) -> dict[str, str]:
    return {names.get(name, f"python3-{name}"): bound for name, bound in bounds.items()}
