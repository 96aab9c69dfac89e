"""The files of the page for Cockpit: translated whole, small, and without a way for text to become code."""

from __future__ import annotations

import json
import re

from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "packaging" / "cockpit"
TEXT = r'"((?:[^"\\]|\\.)*)"'
ASKED = re.compile(rf"\b_\({TEXT}\)|ngettext\({TEXT}, {TEXT}")
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser"
    r"|cockpit\.(?:spawn|script|http)"
)


def test_every_text_is_translated() -> None:
    found = [match for path in FOLDER.glob("*.js") for match in ASKED.finditer(path.read_text())]
    asked = {match[1] or match[2]: match[3] for match in found}
    assert len(asked) > 200
    for source in (FOLDER / "po").glob("*.json"):
        table = json.loads(source.read_text())
        assert asked.keys() == table.keys()
        for text, plural in asked.items():
            said = table[text] if plural else [table[text]]
            assert len(said) == (2 if plural else 1)
            for one in said:
                assert set(re.findall(r"\$\d", one)) == set(re.findall(r"\$\d", text)), one


def test_text_becomes_no_code_and_the_page_is_small() -> None:
    sources = {path.name: path.read_text() for path in FOLDER.iterdir() if path.is_file()}
    assert {name: found for name, text in sources.items() if (found := FORBIDDEN.findall(text))} == {}
    assert not re.search(r"\son\w+=|\sstyle=|<script>|<style", sources["index.html"])
    policy = json.loads(sources["manifest.json"])["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert sum(len(text.encode()) for text in sources.values()) < 140_000
