"""Every list on a terminal of 80 and of 60 columns: what one came for is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from lightagentd.cli.main import lactl as root
from tests.cli.conftest import environment, on_terminal
from tests.cli.test_audit_list import serve_acts
from tests.cli.test_inputs import question
from tests.cli.test_models import FOUND, UNKNOWN, model, provider
from tests.cli.test_trace import serve
from tests.cli.test_usage import row
from tests.conftest import write
from tests.scripted_daemon import (
    ScriptedDaemon,
    agent,
    approval,
    eval_run,
    event,
    flow,
    flow_run,
    flow_step,
    kit,
    session,
    skill,
    tool,
    trigger,
)

BUDGET = {"scope": "owner_day", "name": "uid 1000", "what": "total_tokens", "used": 12e6, "limit": 20e6}
TEXT = "Restarts what has failed, and says why it did, in some more words than a line has."
HOOK = {
    "kit": "",
    "name": "10-names.py",
    "path": "/etc/lightagentd/hooks/10-names.py",
    "phases": ["before_turn"],
    "agents": [],
    "on_error": "block",
    "timeout_s": 2.0,
    "sha256": "",
    "problem": TEXT,
}
CONFIRMATION = {
    "id": "call_0123456789abcdef",
    "state": "waiting",
    "left_s": 252.5,
    "agent": "ops",
    "tool": "file",
    "action": "write",
    "what": '{"path": "/etc/motd"}',
    "back": 'file.undo {"call_id": "call_0123456789abcdef"}',
    "why": "",
}
TOKEN = {
    "id": "0aB1cD2e",
    "name": "chat",
    "uid": 1000,
    "user": "anna",
    "scopes": ["inspect", "prompt"],
    "agents": ["ops"],
    "limits": {"requests_per_minute": 60, "streams": 4, "request_bytes": 1 << 20, "tokens_per_day": 200_000},
    "created_us": 1_763_768_400_000_000,
    "expires_us": 1_763_768_500_000_000,
    "used_us": 0,
    "tokens_today": 12_345,
}
SERVER = {
    "kit": "",
    "name": "files",
    "path": "/etc/lightagentd/mcp.d/files.toml",
    "reached": "/usr/local/bin/mcp-files /srv",
    "agents": ["ops", "dev"],
    "functions": 12,
    "problem": TEXT,
}
CALL = {
    "call_id": "call_1",
    "tool": "systemd",
    "action": "restart",
    "effect": "change",
    "rule": "ask-for-units",
}
ACTS = (
    event(
        104_711, "agent.tool_dispatch", "intent", data={**CALL, "decision": "ask", "args": {"unit": "nginx"}}
    ),
    event(104_712, "tool.systemd", "invocation", data={**CALL, "result": "tool_failed", "duration_ms": 2100}),
)
REQUEST = event(
    104_713,
    "trigger.webhook",
    "taken",
    request_id="hook_01",
    data={"trigger": "build", "digest": "", "headers": {"x-github-event": TEXT}, "body": TEXT},
)
PROMPT = event(
    7,
    "agent.prompt",
    "prompt",
    data={"text": TEXT},
    trace_id="trace_0123456789abcdef",
    session="ses_0123456789abcdef",
)
END = event(8, "session.turn", "done", data={"steps": 12}, trace_id=PROMPT["trace_id"])
CHECKPOINT = event(
    9, "daemon.checkpoint", "signed", data={"seq": 8, "hash": "ab" * 32, "fingerprint": "cd" * 32}
)
CHANGE = {
    "call_id": "call_0123456789abcdef",
    "agent": "ops",
    "owner": 0,
    "action": "file.write",
    "path": "/etc/nginx/nginx.conf",
    "time_us": 1_763_768_400_000_000,
    "undone_by": "call_fedcba9876543210",
}
MEMORY = {
    "id": "mem_0123456789abcdef",
    "state": "candidate",
    "agent": "ops",
    "source": "agent",
    "session": "ses_0123456789abcdef",
    "confidence": 0.8,
    "updated_us": 1_763_768_400_000_000,
    "tags": ["disk", "backup"],
    "text": TEXT,
}
RULE = {
    "name": "restart-nginx",
    "decision": "allow",
    "reason": "it is safe to restart it whenever that helps",
    "even_if_tainted": True,
    "conditions": {"tool": "systemd", "action": "restart", "args": {"unit": "nginx.service"}},
    "origin": "/etc/lightagentd/policy.d/50-nginx.toml:1",
}
GUARD = {
    "name": "privacy-text",
    "on": ["prompt", "attachment", "tool_result"],
    "action": "redact",
    "match": ["mail-address", "phone", "payment-card"],
    "pattern": ["project falcon"],
    "reason": "The template privacy keeps what tells of people from models.",
    "conditions": {"agent": ["web-*"]},
    "origin": "/usr/lib/python3/dist-packages/lightagentd/policy/templates/privacy.toml:2",
}
ACTIONS = [{**tool()["actions"][0], "name": name} for name in ("status", "list", "restart", "show", "failed")]
LISTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "agents list": (
        "Agents.List",
        {
            "agents": [
                agent("administrator", description=TEXT, model="openrouter/anthropic/claude-sonnet-4.5")
            ]
        },
        "administrator running Restarts",
    ),
    "sessions list": (
        "Sessions.List",
        {
            "sessions": [
                session("ses_0123456789abcdef", title="Why is the disk full", state="waiting", paused=True)
            ]
        },
        "ses_01234567 waiting,paused Why",
    ),
    "approvals": ("Approvals.List", {"approvals": [approval()]}, "apr_01234567 file.write /etc/motd"),
    "approvals list": ("Approvals.List", {"approvals": [approval()]}, "apr_01234567 waiting /etc/motd"),
    "confirm": ("Confirmations.List", {"confirmations": [CONFIRMATION]}, "call_01234567 4m12s file.write"),
    "inputs": ("Inputs.List", {"inputs": [question(question=TEXT)]}, "inp_01234567 Restarts"),
    "inputs list": ("Inputs.List", {"inputs": [question(question=TEXT)]}, "inp_01234567 waiting Restarts"),
    "memory list": ("Memory.List", {"memories": [MEMORY]}, "mem_01234567 Restarts failed"),
    "memory search x": ("Memory.Search", {"memories": [MEMORY]}, "mem_01234567 Restarts failed"),
    "usage": ("Usage.Get", {"usage": [row(name="ses_0123456789abcdef")]}, "ses_01234567 1,323,567 12.3"),
    "usage --budgets": ("Usage.Budgets", {"budgets": [BUDGET]}, "uid 12,000,000 20,000,000"),
    "models list --provider x": (
        "Models.List",
        {"models": [model(model="openrouter/anthropic/claude-sonnet-4.5"), UNKNOWN]},
        "openrouter/ unusable (default)",
    ),
    "models providers": (
        "Models.Providers",
        {"providers": [provider(), FOUND]},
        "ollama found 127.0.0.1:11434",
    ),
    "tools list": (
        "Tools.List",
        {"tools": [tool(description=TEXT, actions=ACTIONS)]},
        "systemd Restarts failed,",
    ),
    "kits list": (
        "Kits.List",
        {"kits": [kit("database-administrator", description=TEXT)]},
        "database-administrator Restarts failed,",
    ),
    "flows list": (
        "Flows.List",
        {"flows": [flow("certificates-renewal", description=TEXT)]},
        "certificates-renewal Restarts failed,",
    ),
    "flows check": ("Flows.List", {"flows": []}, ""),
    "flows runs": ("Flows.Runs", {"runs": [flow_run(flow="certificates")]}, "run_01234567 waiting 3/7"),
    "flows run x --dry-run": (
        "Flows.Plan",
        {"steps": [flow_step("upgrade-packages", will=TEXT)]},
        "upgrade-packages approve Restarts",
    ),
    "triggers list": (
        "Triggers.List",
        {"triggers": [trigger("certificates-daily", problem=TEXT)]},
        "certificates-daily timer ops active",
    ),
    "webhooks list": ("History.Page", {"page": {"events": [REQUEST], "next_seq": 0}}, "hook_01 build taken"),
    "mcp list": ("Mcp.List", {"servers": [SERVER]}, "files 12 ops,"),
    "hooks list": ("Hooks.List", {"hooks": [HOOK]}, "10-names.py before_turn all"),
    "tokens list": ("Tokens.List", {"tokens": [TOKEN]}, "chat inspect, never"),
    "eval list": (
        "Evals.List",
        {"runs": [eval_run("eval_0123456789abcdef", name=TEXT)]},
        "eval_01234567 ops work/a 72",
    ),
    "skills list": (
        "Skills.List",
        {"skills": [skill("certificate-expiry-check", description=TEXT)]},
        "certificate-expiry-check Restarts failed,",
    ),
    "policy list": ("Policy.List", {"rules": [RULE]}, 'restart-nginx allow tool="systemd"'),
    "policy guards": ("Policy.ListGuards", {"guards": [GUARD]}, "privacy-text redact prompt,"),
    "undo --list": ("Undo.List", {"changes": [CHANGE]}, "call_01234567 call_fedcba98 /etc/nginx/"),
}


def check(scripted: ScriptedDaemon, command: str, words: str, width: int) -> None:
    done = on_terminal(command.split(), width=width, env=environment(NO_COLOR="1"))
    assert done.status == 0, done.err
    assert [word for word in words.split() if word not in done.out] == [], done.out
    assert max(map(len, done.out.split("\n\n")[0].splitlines())) <= width, done.out


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("command", LISTS)
def test_what_one_came_for_is_seen(scripted: ScriptedDaemon, command: str, width: int) -> None:
    method, answer, words = LISTS[command]
    scripted.answer(method, answer)
    check(scripted, command, words, width)


STORED = {
    "audit list": "ops system ask tool_f 2025 {",
    "audit checkpoints": "9 8 ababababababab",
    "history": "agent.tool_dispatch:intent tool.systemd:invocation tool=",
    "events": "agent.prompt:prompt Restarts what",
    "trace list": "trace_01234567 done 2025-11 Restarts what",
}


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("command", STORED)
def test_what_one_came_for_is_seen_of_what_is_stored(
    scripted: ScriptedDaemon, command: str, width: int
) -> None:
    stored = (PROMPT, END, CHECKPOINT, *ACTS)
    (serve_acts if command == "audit list" else serve)(scripted, *stored)
    scripted.answer("Events.Subscribe", *({"event": each} for each in stored))
    check(scripted, command, STORED[command], width)


@pytest.mark.parametrize("width", [80, 60])
def test_what_one_came_for_is_seen_of_whom_a_service_tells(tmp_path: Path, width: int) -> None:
    one = {"kind": "ntfy", "waiting": 3, "sent_us": 0, "failed_us": 1_763_768_400_000_000, "problem": TEXT}
    write(tmp_path / "lightagent-away" / "status.json", json.dumps({"destinations": {"phone": one}}))
    where = environment(NO_COLOR="1", LIGHTAGENT_SOCKET=str(tmp_path / "run" / "control.sock"))
    done = on_terminal(["notify", "list"], width=width, env=where)
    assert done.status == 0, done.err
    assert [word for word in ("phone", "3", "never", TEXT.split()[0]) if word not in done.out] == []
    assert max(map(len, done.out.splitlines())) <= width, done.out


def test_every_list_is_looked_at() -> None:
    lists = {
        f"{noun} list"
        for noun in root.list_commands(click.Context(root))
        if isinstance(group := root.get_command(click.Context(root), noun), click.Group)
        and "list" in group.commands
    }
    assert lists <= {" ".join(name.split()[:2]) for name in (*LISTS, *STORED, "notify list", "change list")}


def test_the_meaning_of_an_exit_status_is_whole() -> None:
    done = on_terminal(["help", "exit-codes"], width=80, env=environment(NO_COLOR="1"))
    assert "…" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert "reads it as the result." in " ".join(done.out.split())
