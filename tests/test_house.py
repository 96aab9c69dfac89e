"""The rules of the house (CONTRIBUTING.md): imports, processes, sizes, names, and what code cites."""

from __future__ import annotations

import re

from tests.house import REPOSITORY, circles, large_classes, modules, root, tracked

LAYERS = (
    ("lightagentd", "errors", "limits", "text"),
    ("api", "frontmatter", "host", "quoted", "tool"),
    ("bus", "config", "signed", "skills", "varlink"),
    ("redaction",),
    ("events",),
    ("llm", "memory", "policy", "toolkit"),
    ("client", "worker"),
    ("agents", "assessment"),
    ("mcp_server", "unattended"),
    ("gateway", "notify", "telemetry"),
    ("doctor",),
    ("control",),
    ("approver", "daemon"),
    ("cli", "embed"),
    ("desktop",),
    ("__main__",),
)
"""The rooms from the lowest to the highest. A module imports from its own room and from lower layers."""
PROGRAMS = {
    name: {"daemon"}
    for name in (
        *(
            "approver",
            "assessment",
            "cli",
            "client",
            "desktop",
            "gateway",
            "mcp_server",
            "notify",
            "telemetry",
        ),
        "unattended",
    )
}
"""Programs of their own, and the rooms that they do not load: they talk to the daemon as anybody would."""
SPAWNING = re.compile(r"\bsubprocess\.\w+\(|create_subprocess_|os\.(?:fork|posix_spawn|exec[lv]\w*)\(")
SPAWNERS = {
    "cli.authorize",  # polkit's text agent, beside lactl
    "client.remote",  # ssh, with the configuration of whoever runs lactl
    "cli.journal_output",  # journalctl, with the rights of whoever runs lactl
    "doctor.sandbox_probe",  # the attacks, from inside a sandbox
    "events.backup.stored",  # a child with the rights of the store's owner
    "host.process",
    "worker.busdoor",
    "worker.busproxy",
    "worker.first_units",
    "worker.keeper",
}
RETIRED = {
    "attempts": "retries",
    "checkup": "doctor",
    "copies": "backup",
    "damage": "corruption",
    "doubts": "lint",
    "fenced": "quoted",
    "kinds": "types",
    "offering": "tool_choice",
    "take_up": "resume",
}
"""Names that modules had, and what these are called now: one name for one thing."""


def _layer(room: str) -> int:
    (at,) = [number for number, rooms in enumerate(LAYERS) if (room or "lightagentd") in rooms]
    return at


def test_imports_point_downwards() -> None:
    across = [
        (module, modules()[name])
        for module in modules().values()
        for name in sorted(module.imports)
        if modules()[name].room != module.room
    ]
    assert [f"{a.name} imports {b.name}" for a, b in across if _layer(b.room) >= _layer(a.room)] == []
    assert [f"{a.name} imports {b.name}" for a, b in across if b.room in PROGRAMS.get(a.room, ())] == []


def test_no_modules_import_each_other() -> None:
    assert circles({name: module.imports for name, module in modules().items()}) == []


def test_nobody_holds_the_daemon() -> None:
    daemon = "lightagentd.daemon.daemon"
    holders = {name for name, module in modules().items() if daemon in module.imports | module.typed}
    assert {name for name in holders if modules()[name].room != "daemon"} <= {"lightagentd.__main__"}


def test_few_modules_spawn_processes() -> None:
    found = {name for name, module in modules().items() if SPAWNING.search(module.path.read_text())}
    assert found == {f"lightagentd.{name}" for name in SPAWNERS}


def test_nothing_is_too_large() -> None:
    assert len(root(modules())) <= 9
    assert {name: module.lines for name, module in modules().items() if module.lines > 500} == {}
    assert large_classes(modules(), 25) == {}
    long = [
        f"{module.name}.{function.name}"
        for module in modules().values()
        for function in module.functions()
        if function.end_lineno is not None and function.end_lineno - function.lineno >= 60
    ]
    assert long == []


def test_one_thing_has_one_name() -> None:
    parts = {part for name in modules() for part in name.split(".")}
    defined = {node.name for module in modules().values() for node in module.definitions}
    assert {f"{name}: {RETIRED[name]}" for name in (parts | defined) & RETIRED.keys()} == set()


def test_code_cites_only_what_is_in_the_repository() -> None:
    cited = re.compile(r"\b[A-Z]{5,}\.md\b|\b(?:DESIGN|STYLE) (?:section|rule)|\bdocs/[\w-]+\.md\b")
    own = {"AGENT.md", "MEMORY.md", "SKILL.md"}  # what agents and skills are made of
    texts = tracked("lightagentd", "tools", "skills", "units", "packaging", "docs", "*.md", "tests/*.py")
    wrong = {
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in texts
        if path.suffix in (".py", ".md", ".sh", ".service", ".socket", ".timer")
        for name in cited.findall(path.read_text())
        if name not in own and not (REPOSITORY / name).is_file()
    }
    assert wrong == set()


def test_messages_name_users_and_not_their_numbers() -> None:
    """A sentence has `host.users.called`; what a journal entry says of its sender stays as it is."""
    numbers = re.compile(r"\buid (?:\{(?!entry\[)|%d)")
    assert not [name for name, module in modules().items() if numbers.search(module.path.read_text())]
