"""The files of the page for Cockpit: translated whole, small, and without a way for text to become code."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess

import pytest

from lightagentd.signed import statement
from lightagentd.signed.statement import canonical
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
    assert sum(len(text.encode()) for text in sources.values()) < 146_000


_NODE = """
globalThis.cockpit = { gettext: one => one, dbus: () => ({ addEventListener() {}, subscribe() {} }) };
const { canonical, digestOf, otherLetters } = await import(process.argv[1]);
const texts = JSON.parse(await new Response(process.stdin).text());
const found = await Promise.all(texts.map(async text =>
    [canonical(JSON.parse(text)), await digestOf(text), otherLetters(JSON.stringify(JSON.parse(text)))]));
console.log(JSON.stringify(found));
"""
_SAME: tuple[dict[str, object], ...] = (
    {},
    {"b": [1, -2, 0, 2**53 - 1, 0.5, -1.25e300, True, None], "a": {"z": "", "\n": '\t\b\f\r\\"/'}},
    {"text": "\x00\x1f\x7f\x80\u00e9\u202e\u2028\ufeff\U0001f600 p\u0430ypal"},
    {"\u00e9": 1, "e": 2, "Z": 3, "\uffff": 4},
)
_OTHER: tuple[object, ...] = (2**60 + 1, 1.0, 1e16, 1e-5, -0.0, {"\ufb00": 1, "\U0001f600": 2})
"""What JavaScript holds or writes differently: then the page shows the text itself."""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_what_the_page_shows_is_what_is_signed() -> None:
    values = (*_SAME, *_OTHER)
    texts = [canonical(value).decode() for value in values]
    argv = ["node", "--input-type=module", "-e", _NODE, str(FOLDER / "approver.js")]
    ran = subprocess.run(argv, input=json.dumps(texts), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert [one == text for (one, _, _), text in zip(found, texts, strict=True)] == [
        value in _SAME for value in values
    ]
    assert [digest for _, digest, _ in found] == [
        hashlib.sha256(statement._DOMAIN + text.encode()).hexdigest() for text in texts
    ]
    assert [letters for *_, letters in found[:2]] == ["", ""]
    assert "U+0430" in found[2][2]
