"""The files of a new skill: an empty one to fill, or one made from a written procedure.

A procedure is a Markdown page with fenced commands, or a shell script. Its commands that only look become the
steps of a runbook; the others stay in the text, and the report names them as not run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from lightagentd.policy.observing import observes

_STEP_S = 20
_MOST_STEPS = 100
_SHELLS = ("", "bash", "console", "sh", "shell", "shell-session", "zsh")
_FENCE = re.compile(r"\s*(```+|~~~+)\s*\{?\.?([\w-]*)")
_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")
_COMMENT = re.compile(r"(?:^|\s+)#(?:\s.*)?$")
_HERE = re.compile(r"<<-?\s*['\"]?(\w+)")
_OPENS = re.compile(r"(?:if|for|while|until|case|select)\b|.*\{$|\w+\s*\(\)")
_ENDS = re.compile(r";\s*(?:fi|done|esac|\})(?=\s|$)")
_CLOSES = re.compile(r"(?:fi|done|esac)\b|\}")
_SILENT = re.compile(r"(?:set|export|exit|source|\.|echo|printf|true|:)(?:\s[^>|`(;&\n]*)?|\w+=[^\s>|`(;&]*")
"""What neither shows nor changes anything of the machine."""
_SUDO = re.compile(r"(^|[|;&]\s*)sudo ")
_LEFT = "What follows may change something, so the runbook leaves it to you:"

_TEXT = """---
name: {name}
description: {description}
---

{body}
"""
_RUNBOOK = "script: {script}\neffect: observe  # reach, if it uses the network\ntimeout_s: {timeout_s}\n"
_ARGS = "args:\n  path: {kind: path, description: What to look at.}\n"
_EXAMPLES = "# Prompts that this skill answers, one a line; words that give an argument are marked.\n"
_PYTHON = '''"""Prints the finding first, then the evidence."""

import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--path", type=Path, default=Path("/etc"))
path = parser.parse_args().path

names = sorted(each.name for each in path.iterdir())
print(f"**{path} has {len(names)} entries.**\\n")
for name in names[:10]:
    print(f"- {name}")
'''
_SHELL = """#!/bin/sh
# Prints the finding first, then the evidence.
set -eu
path=/etc
for word in "$@"; do
  case $word in
    --path=*) path=${word#--path=} ;;
  esac
done

echo "**$path has $(ls "$path" | wc -l) entries.**"
echo
ls "$path" | head -n 10 | sed 's/^/- /'
"""
_STEPS = """#!/bin/sh
# Steps that only look, from %s. Prints the finding first, then what each step said.
ran=0 failed= report=$(mktemp) said=$(mktemp) shell=sh
command -v bash >/dev/null && shell="bash -o pipefail"
step() {
  ran=$((ran + 1))
  timeout %d $shell -c "$2" </dev/null >"$said" 2>&1
  status=$?  # 141: the next command of a pipe had enough
  [ $status = 1 ] && [ ! -s "$said" ] && status=0  # grep found nothing
  [ $status = 0 ] || [ $status = 141 ] || failed="$failed; $2 (status $status)"
  { printf '\\n## %%s\\n\\n```\\n$ %%s\\n' "$1" "$2"; head -n 40 "$said"; printf '```\\n'; } >>"$report"
}

%s

finding="All $ran steps ended well."
[ -z "$failed" ] || finding="Of $ran steps these failed: ${failed#; }."
echo "**$finding**"
cat "$report"
"""


@dataclass
class Procedure:
    """What a page or a script holds."""

    title: str = ""
    about: str = ""
    """Its first sentence."""
    steps: dict[str, str] = field(default_factory=dict)
    """Command -> the heading above it."""
    left: list[str] = field(default_factory=list)
    """Commands that may change something."""


def template(name: str, *, shell: bool) -> dict[str, str]:
    """The files of a skill that works and waits to be changed."""
    script = f"scripts/{name.replace('-', '_')}{'.sh' if shell else '.py'}"
    words = _words(name)
    return {
        "SKILL.md": _TEXT.format(
            name=name,
            description="Says how many entries a folder has. Use it when somebody asks for that.",
            body=f"# {name}\n\nSay here how to read the report, and how to do it by hand.",
        ),
        "runbook.yaml": _RUNBOOK.format(script=script, timeout_s=30) + _ARGS,
        "examples.txt": f"{_EXAMPLES}{words}\n{words} of {{path:/etc}}\n",
        script: _SHELL if shell else _PYTHON,
    }


def from_procedure(name: str, source: str, text: str) -> dict[str, str]:
    """The files of a skill made from a page or a script; without a runbook if nothing in it only looks."""
    source, text = " ".join(source.split()), re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    page = "```" in text or "~~~" in text or source.endswith((".md", ".markdown"))
    found = _read_page(text) if page and not text.startswith("#!") else _read_script(text)
    about = found.about or f"Runs the steps of {source} that only look."
    fence = "`" * (3 + max((len(run) for run in re.findall("`{3,}", text)), default=0))
    body = text.strip() if page else f"# {name}\n\nMade from {source}:\n\n{fence}sh\n{text.strip()}\n{fence}"
    if found.left:
        body += f"\n\n{_LEFT}\n\n"
        body += "\n".join(f"- `{command}`" for command in found.left)
    quoted = json.dumps(about, ensure_ascii=False)
    files = {"SKILL.md": _TEXT.format(name=name, description=quoted, body=body)}
    if found.steps:
        script = f"scripts/{name.replace('-', '_')}.sh"
        timeout_s = min(600, _STEP_S * len(found.steps) + 10)
        files[script] = _STEPS % (source, _STEP_S, _steps(found))
        files["runbook.yaml"] = _RUNBOOK.format(script=script, timeout_s=timeout_s)
        asked = dict.fromkeys(filter(None, (_words(name), found.title.lower().replace("{", "").rstrip("."))))
        files["examples.txt"] = _EXAMPLES + "".join(f"{prompt}\n" for prompt in asked)
    return files


def _words(name: str) -> str:
    return " ".join(re.split("[-_]", name))


def _steps(found: Procedure) -> str:
    lines = [f"step {shlex.quote(title)} {shlex.quote(command)}" for command, title in found.steps.items()]
    if found.left:
        told = "\n".join(["", _LEFT, "", *(f"- {each}" for each in found.left)])
        lines.append(f"printf '%s\\n' {shlex.quote(told)} >>\"$report\"")
    return "\n".join(lines)


def _read_page(text: str) -> Procedure:
    found, title, fence, language = Procedure(), "", "", ""
    block, prose = list[str](), list[str]()
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if fence and mark and mark[1].startswith(fence):
            if language in _SHELLS:
                _take(found, title, _typed(block))
            fence, block = "", []
        elif fence:
            block.append(line)
        elif mark:
            fence, language = mark[1], mark[2].lower()
        elif heading := _HEADING.match(line):
            title = heading[1]
            found.title = found.title or title
            prose.append("")
        else:
            prose.append(line.strip())
    paragraphs = (" ".join(each.split()) for each in "\n".join(prose).split("\n\n"))
    first = next((each for each in paragraphs if each[:1].isalpha()), "")
    found.about = re.split(r"(?<=[.!?])\s", first)[0][:300]
    return found


def _typed(lines: list[str]) -> list[str]:
    """The commands of a block; where prompts are shown, the other lines are what was answered."""
    shown = [re.sub(r"^\s*[$#]\s+", "", line) for line in lines if re.match(r"\s*\$\s", line)]
    return shown or lines


def _read_script(text: str) -> Procedure:
    found = Procedure()
    lines = text.splitlines()
    comments = [line.lstrip("# ").strip() for line in lines[:10] if line.startswith("#") and line[1:2] != "!"]
    found.about = next(filter(None, comments), "")[:300]
    _take(found, "", lines)
    return found


def _take(found: Procedure, title: str, lines: list[str]) -> None:
    """Sort the commands of some lines into steps and what is left."""
    folder = ""
    for command in _commands(lines):
        silent = _SILENT.fullmatch(command)
        if re.fullmatch(r"cd /[\w./-]+", command):
            folder = f"{command} && "
        elif not silent and "\n" not in command and observes(command) and len(found.steps) < _MOST_STEPS:
            found.steps.setdefault(folder + _SUDO.sub(r"\1", command), title or command)
        elif not silent:
            found.left += [line for line in command.splitlines() if line not in found.left]


def _commands(lines: list[str]) -> Iterator[str]:
    """Each command of some lines: with its continuations, and whole loops, branches and here documents."""
    whole, depth, here = list[str](), 0, ""
    for line in lines:
        comment = _COMMENT.search(line)
        if comment and not here and all(line[: comment.start()].count(quote) % 2 == 0 for quote in "'\""):
            line = line[: comment.start()]
        text = line.strip()
        if not text and not here:
            continue
        whole.append(text)
        if here:
            here = "" if text == here else here
        elif document := _HERE.search(text):
            here = document[1]
        else:
            depth += bool(_OPENS.match(text)) - bool(_CLOSES.match(text)) - len(_ENDS.findall(text))
        if not here and depth <= 0 and not text.endswith("\\"):
            yield "\n".join(whole) if len(whole) > 1 and not whole[0].endswith("\\") else _joined(whole)
            whole, depth = [], 0
    if whole:
        yield "\n".join(whole)


def _joined(lines: list[str]) -> str:
    return " ".join(line.removesuffix("\\").strip() for line in lines)
