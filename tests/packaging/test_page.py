"""The files of the page for Cockpit: translated whole, small, and without a way for text to become code."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from lightagentd.policy.proposed import propose
from lightagentd.signed import statement
from lightagentd.signed.statement import canonical
from tests.conftest import REPOSITORY
from tests.policy.calls import a_call

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


_HEAD = """
globalThis.cockpit = { gettext: one => one, dbus: () => ({ addEventListener() {}, subscribe() {} }) };
const page = await import(process.argv[1]);
const given = JSON.parse(await new Response(process.stdin).text());
"""
_DIGESTS = """
const found = [];
for (const text of given) {
    const value = JSON.parse(text);
    found.push([page.canonical(value), await page.digestOf(text), page.otherLetters(JSON.stringify(value))]);
}
console.log(JSON.stringify(found));
"""
_RULES = """
console.log(JSON.stringify(given.map(([text, signed, tainted]) => page.isRuleFor(text, signed, tainted))));
"""
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
_SAME: tuple[dict[str, object], ...] = (
    {},
    {"b": [1, -2, 0, 2**53 - 1, 0.5, -1.25e300, True, None], "a": {"z": "", "\n": '\t\b\f\r\\"/'}},
    {"text": "\x00\x1f\x7f\x80\u00e9\u202e\u2028\ufeff\U0001f600 p\u0430ypal"},
    {"\u00e9": 1, "e": 2, "Z": 3, "\uffff": 4},
)
_OTHER: tuple[object, ...] = (2**60 + 1, 1.0, 1e16, 1e-5, -0.0, {"\ufb00": 1, "\U0001f600": 2})
"""What JavaScript holds or writes differently: then the page shows the text itself."""


def said(script: str, given: object) -> Any:
    """What node says of the page's own code."""
    argv = ["node", "--input-type=module", "-e", _HEAD + script, str(FOLDER / "approver.js")]
    ran = subprocess.run(argv, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@needs_node
def test_what_the_page_shows_is_what_is_signed() -> None:
    values = (*_SAME, *_OTHER)
    texts = [canonical(value).decode() for value in values]
    found = said(_DIGESTS, texts)
    assert [one == text for (one, _, _), text in zip(found, texts, strict=True)] == [
        value in _SAME for value in values
    ]
    assert [digest for _, digest, _ in found] == [
        hashlib.sha256(statement._DOMAIN + text.encode()).hexdigest() for text in texts
    ]
    assert [letters for *_, letters in found[:2]] == ["", ""]
    assert "U+0430" in found[2][2]


@needs_node
def test_the_page_writes_a_rule_for_what_it_showed_alone() -> None:
    args = {
        "path": "/srv/\u00e9 \U0001f600.txt",
        "content": 'a = [1]\n\t"b\\\x7f',
        "n": [1, 0.5, {}],
        "no": None,
    }
    call = a_call("file.write", args=args)
    text = propose(call, "apr_1", tainted=False).text
    names = {"agent": "ops", "tool": "file", "action": "write", "effect": "change", "args": args}
    signed = canonical({**names, "call_id": "call_1"}).decode()
    wrong = [
        text.replace('"write"', '"read"'),
        text.replace("tainted = false", "tainted = true"),
        text.replace("/srv/", "/etc/", 1),
        text.replace('decision = "allow"', 'decision = "ask"'),
        text.replace("exactly = ", "args = "),
        text.replace("[[rule]]", "[[guard]]"),
        text + text,
        text + '[[rule]]\ndecision = "allow"\n',
        text.replace("not_match = [\n", 'not_match = [\n]\n[[rule]]\ndecision = "allow"\nx = [\n'),
        text.replace('agent = "ops"\n', ""),
        text.replace('agent = "ops"\n', 'agent = "ops"\nagent = "ops"\n'),
        text.replace("# One", "# One\r[[rule]]"),
        "",
    ]
    assert text not in wrong
    found = said(_RULES, [[one, signed, False] for one in (text, *wrong)])
    assert found == [True, *[False] * len(wrong)]
