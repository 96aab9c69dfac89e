"""The translations of the page for Cockpit, in the form that cockpit.locale() takes.

`packaging/cockpit/po/LANGUAGE.json` has the text for each text of the page, and a list of singular and plural
for one that counts. A test compares them with what the page asks for.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "cockpit"
PLURALS = {"de": "(n) => n != 1"}
"""How each language chooses the form of a plural, as a function of JavaScript."""


def translations() -> dict[str, str]:
    """The files by name: po.LANGUAGE.js for the page, po.manifest.LANGUAGE.js for its place in the menu."""
    found: dict[str, str] = {}
    label = json.loads((FOLDER / "manifest.json").read_text())["menu"]["index"]["label"]
    for source in sorted((FOLDER / "po").glob("*.json")):
        language, table = source.stem, json.loads(source.read_text())
        found[f"po.{language}.js"] = _script(language, table)
        found[f"po.manifest.{language}.js"] = _script(language, {label: table[label]})
    return found


def _script(language: str, table: dict[str, str | list[str]]) -> str:
    head = (
        f'"": {{"plural-forms": {PLURALS[language]}, "language": "{language}", "language-direction": "ltr"}}'
    )
    texts = {text: [None, *([said] if isinstance(said, str) else said)] for text, said in table.items()}
    lines = [f"{json.dumps(text)}: {json.dumps(said, ensure_ascii=False)}" for text, said in texts.items()]
    return "cockpit.locale({\n" + ",\n".join([head, *lines]) + "\n});\n"
