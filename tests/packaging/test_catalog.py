"""The journal's catalog explains each kind of entry that the code can write, and no other."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from lightagentd import errors
from lightagentd.events.journald import GAP, message_id
from lightagentd.policy.approval import State
from tests.conftest import REPOSITORY

CATALOG = REPOSITORY / "packaging/journal/lightagentd.catalog"
HEADERS = ["Subject", "Defined-By", "Support", "Documentation"]
FROM_OUTSIDE = {
    ("agents/dispatch.py", "_tool_event"),
    ("agents/watches.py", "_heard"),
}
"""Functions that pass on what tools name: the shipped ones' are found where they publish."""
CODES = frozenset(row.code for row in errors.table())
ANSWERS = frozenset(str(state) for state in State if state is not State.WAITING)


@dataclass
class Source:
    """One file of the program."""

    path: Path
    tree: ast.Module
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(REPOSITORY / "lightagentd"))

    def constant(self, name: str) -> str | None:
        """The text that a name of the module stands for."""
        dotted = ".".join(self.path.relative_to(REPOSITORY).with_suffix("").parts)
        found = getattr(importlib.import_module(dotted), name, None)
        return found if isinstance(found, str) else None


def sources(*folders: str) -> Iterator[Source]:
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            functions = {
                node.name: node
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            yield Source(path, tree, functions)


def calls(tree: ast.AST, name: str) -> Iterator[tuple[ast.Call, str]]:
    """Each call of a function or method, and the innermost function that it stands in."""

    def walk(node: ast.AST, inside: str) -> Iterator[tuple[ast.Call, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = node.name
        if isinstance(node, ast.Call):
            called = node.func
            if name == (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")):
                yield node, inside
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    return walk(tree, "")


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    if len(call.args) > position:
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def values(node: ast.expr | None, inside: str, source: Source) -> frozenset[str]:
    """What an expression can be; empty when that cannot be said."""
    if isinstance(node, ast.Constant):
        return frozenset([str(node.value)])
    if isinstance(node, ast.JoinedStr):
        parts = [values(part, inside, source) or {"*"} for part in node.values]
        return frozenset("".join(parts) for parts in product(*parts))
    if isinstance(node, ast.FormattedValue):
        return values(node.value, inside, source)
    if isinstance(node, ast.Attribute):
        return {"code": CODES, "state": ANSWERS}.get(node.attr, frozenset())
    if isinstance(node, ast.IfExp):
        return values(node.body, inside, source) | values(node.orelse, inside, source)
    if not isinstance(node, ast.Name):
        return frozenset()
    function = source.functions.get(inside)
    parameters = [one.arg for one in (*function.args.args, *function.args.kwonlyargs)] if function else []
    if node.id not in parameters:
        constant = source.constant(node.id)
        return frozenset([constant]) if constant else frozenset()
    if node.id == "state":
        return ANSWERS
    position = parameters.index(node.id) - (parameters[0] == "self")
    found: frozenset[str] = frozenset()
    for call, where in calls(source.tree, inside):
        if where != inside:
            found |= values(argument(call, position, node.id), where, source)
    return found


@functools.cache
def written() -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Every topic and type in the code, and the places where they cannot be told."""
    found = {GAP}
    unclear = set()
    for source in sources("lightagentd"):
        for call, inside in calls(source.tree, "NewEvent"):
            topics = values(argument(call, 9, "topic"), inside, source)
            types = values(argument(call, 9, "type"), inside, source)
            if not topics or not types:
                unclear.add((source.name, inside))
            found |= {(topic, kind) for topic, kind in product(topics, types) if _goes_together(topic, kind)}
        if source.name.startswith("unattended/"):
            for call, inside in calls(source.tree, "enter"):
                kinds = values(argument(call, 0, "kind"), inside, source)
                if not kinds:
                    unclear.add((source.name, inside))
                found |= {(f"unattended.{kind.partition('.')[0]}", kind.partition(".")[2]) for kind in kinds}
    for source in sources("tools", "lightagentd/worker/watching"):
        for name in ("publish", "_publish", "emit"):
            for call, inside in calls(source.tree, name):
                if inside != name and inside != "_publish":
                    topics, types = (values(argument(call, at, ""), inside, source) for at in (0, 1))
                    assert topics, (source.path, inside)
                    assert types, (source.path, inside)
                    found |= set(product(topics, types))
    return found, unclear


def _goes_together(topic: str, kind: str) -> bool:
    exact = topic.startswith(("approval.", "memory.", "plan.")) and topic != "memory.profile"
    return not exact or topic.partition(".")[2] == kind


@dataclass(frozen=True)
class Entry:
    topic: str
    type: str
    message_id: str
    headers: list[tuple[str, str]]
    text: str


def entries() -> list[Entry]:
    found = []
    for block in re.split(r"^# (?=[a-z_.*]+/[a-z_]+$)", CATALOG.read_text(), flags=re.MULTILINE)[1:]:
        head, _, text = block.partition("\n\n")
        kind, identity, *headers = head.splitlines()
        topic, _, event_type = kind.partition("/")
        pairs = [(name, value) for name, _, value in (line.partition(": ") for line in headers)]
        found.append(Entry(topic, event_type, identity.removeprefix("-- "), pairs, text.strip()))
    return found


def test_no_kind_of_entry_lacks_an_explanation_and_no_explanation_is_stale() -> None:
    found, unclear = written()
    assert unclear == FROM_OUTSIDE
    assert {(entry.topic, entry.type) for entry in entries()} == found
    assert len(entries()) == len(found)


def test_what_is_looked_for_is_found() -> None:
    found, _ = written()
    assert len(found) > 60
    assert {
        ("agent.prompt", "prompt"),
        ("tool.*", "invocation"),
        ("approval.lapsed", "lapsed"),
        ("daemon.state", "panic"),
        ("tool.inotify.event", "overflow"),
        ("agent.error", "timeout"),
        ("unattended.triage", "answered"),
    } <= found


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.topic}/{entry.type}")
def test_every_entry_is_complete(entry: Entry) -> None:
    assert entry.message_id == message_id(entry.topic, entry.type)
    assert [name for name, _ in entry.headers] == HEADERS
    assert all(value for _, value in entry.headers)
    assert len(entry.text.split()) >= 12
    assert all(len(line) <= 80 for line in entry.text.splitlines())
    for field in re.findall(r"@([A-Z_]+)@", f"{entry.headers} {entry.text}"):
        assert field in FIELDS, field


FIELDS = {
    *(f"LIGHTAGENT_{name}" for name in ("SEQ", "AGENT", "SESSION", "TOOL", "ACTION", "EFFECT", "DECISION")),
    *(f"LIGHTAGENT_{name}" for name in ("TRACE_ID", "CALLER_UID", "DURATION_MS", "RESULT", "PROMPT")),
    *(f"LIGHTAGENT_MISSING_{name}" for name in ("FROM", "TO", "COUNT")),
}


def test_journalctl_takes_the_catalog(tmp_path: Path) -> None:
    if shutil.which("journalctl") is None:
        pytest.skip("journalctl is not installed")
    folder = tmp_path / "usr/lib/systemd/catalog"
    folder.mkdir(parents=True)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    (folder / CATALOG.name).write_text(CATALOG.read_text())

    def journalctl(option: str) -> str:
        done = subprocess.run(
            ["journalctl", f"--root={tmp_path}", option], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout

    journalctl("--update-catalog")
    listed = dict(line.split(" ", 1) for line in journalctl("--list-catalog").splitlines())
    assert listed == {
        entry.message_id: f"lightagentd: {dict(entry.headers)['Subject']}" for entry in entries()
    }
    dumped = journalctl("--dump-catalog")
    for entry in entries():
        assert entry.text in dumped
