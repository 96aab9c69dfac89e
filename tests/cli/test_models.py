"""`lactl models`: for a person, for a pipe and as JSON; and refreshing from a file and from a real server."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lightagentd.cli import models as command
from lightagentd.cli import table_source
from lightagentd.cli.options import model_names
from lightagentd.llm.metadata.table import read_table
from tests.cli.conftest import Lactl, on_terminal
from tests.scripted_daemon import ScriptedDaemon

TABLE: dict[str, Any] = {
    "acme": {
        "name": "Acme",
        "env": ["ACME_API_KEY"],
        "api": "https://acme.example/v1",
        "models": {
            "good": {"name": "Good", "limit": {"context": 5000}, "cost": {"input": 1, "output": 2}},
            "bad": {"name": "Bad", "cost": {"input": -1, "output": 2}},
            "painter": {"name": "P", "modalities": {"output": ["image"]}},
        },
    }
}
DONE = {"refreshed": {"providers": 1, "models": 1, "changes": ["acme/good: the window is 5,000 tokens now."]}}


def model(**changes: Any) -> dict[str, Any]:
    price = {"prompt": 1.25, "completion": 10.0, "cached": 0.125, "cache_write": None, "origin": "shipped"}
    return {
        "model": "openai/gpt-5",
        "name": "GPT-5",
        "provider": "openai",
        "state": "ready",
        "problem": "",
        "suggestion": "",
        "default": True,
        "agents": ["ops"],
        "context_tokens": 400_000,
        "context_from": "shipped",
        "input_tokens": 272_000,
        "max_output_tokens": 128_000,
        "tools": True,
        "reasoning": True,
        "attachments": True,
        "price": price,
        "knowledge": "2024-09-30",
        "released": "",
        "status": "",
        "facts_from": "shipped",
        **changes,
    }


UNKNOWN = model(
    model="work/mine",
    default=False,
    agents=[],
    state="unusable",
    problem="There is no key for the provider 'work'.",
    suggestion="Set WORK_KEY.",
    price=None,
    facts_from="",
    **dict.fromkeys(("context_tokens", "max_output_tokens", "tools", "reasoning", "attachments")),
)


def provider(**changes: Any) -> dict[str, Any]:
    return {
        "name": "openai",
        "kind": "openai",
        "base_url": "https://api.openai.com/v1",
        "state": "ready",
        "problem": "",
        "suggestion": "",
        "key": "present",
        "known_models": 37,
        "models": [],
        **changes,
    }


FOUND = provider(
    name="ollama",
    base_url="http://127.0.0.1:11434/v1",
    state="found",
    key="not needed",
    models=[f"m{number}" for number in range(7)],
)


# Listing


def test_a_pipe_gets_one_line_for_each_model(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Models.List", {"models": [model(), UNKNOWN]})
    found = lactl("models", "list")
    assert found.out == (
        "openai/gpt-5\tready\t400000\tyes\tyes\t1.25\t10\tshipped\t(default),ops\n"
        "work/mine\tunusable\t-\t-\t-\t-\t-\t-\t-\n"
    )
    assert found.err == "lactl: There is no key for the provider 'work'.\nSet WORK_KEY.\n"
    assert scripted.calls[-1]["parameters"] == {}
    lactl("models", "list", "--all")
    assert scripted.calls[-1]["parameters"] == {"all": True}
    lactl("models", "list", "--provider", "anthropic")
    assert scripted.calls[-1]["parameters"] == {"provider": "anthropic"}
    assert json.loads(lactl("models", "list", "--json").out) == [model(), UNKNOWN]


def test_a_person_is_offered_what_runs_on_this_machine(scripted: ScriptedDaemon) -> None:
    scripted.answer("Models.List", {"models": [model()]})
    scripted.answer("Models.Providers", {"providers": [provider(), FOUND]})
    out = on_terminal(["models", "list"], width=120).out
    assert "WINDOW" in out
    assert "400,000" in out
    assert (
        "Found on this machine: ollama at http://127.0.0.1:11434/v1 with m0, m1, m2, m3, m4 and 2 more."
        in out
    )
    assert "model: ollama/m0" in out
    assert 'default = "ollama/m0"' in out


def test_providers(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    broken = provider(name="work", state="unusable", key="missing", problem="No key.", suggestion="Set X.")
    scripted.answer("Models.Providers", {"providers": [provider(), broken, FOUND]})
    found = lactl("models", "providers")
    assert found.out.splitlines()[0] == ("openai\tready\topenai\thttps://api.openai.com/v1\tpresent\t37\t-")
    assert found.out.splitlines()[2].endswith("\tm0,m1,m2,m3,m4,m5,m6")
    assert "Set X." in found.err


def test_show(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Models.Show", {"model": model()})
    lines = dict(line.split("\t") for line in lactl("models", "show", "openai/gpt-5").out.splitlines())
    assert lines["window"] == "400000"
    assert lines["window_from"] == "shipped"
    assert lines["longest_prompt"] == "272000"
    assert lines["price_cached"] == "0.125"
    scripted.answer("Models.Show", {"model": UNKNOWN})
    unknown = lactl("models", "show", "work/mine")
    lines = dict(line.split("\t") for line in unknown.out.splitlines())
    assert {lines[name] for name in ("window", "tools", "price_prompt", "facts_from")} == {"-"}
    assert "Set WORK_KEY." in unknown.err


# Testing


def report(**changes: Any) -> dict[str, Any]:
    return {
        "model": "openai/x",
        "agent": "ops",
        "endpoint": "https://api.openai.com:443",
        "duration_ms": 400,
        "text": "Light is fast.",
        "finish_reason": "tool_calls",
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cached_tokens": 0,
        "cost": 0.00012,
        "checks": [
            {"name": "reachable", "seen": True, "detail": "answered in 0.40 s"},
            {"name": "tool call", "seen": False, "detail": "it called nothing"},
            {"name": "cached", "seen": None, "detail": "nothing of this prompt"},
        ],
        **changes,
    }


def test_a_test_says_what_was_seen(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Models.Test", {"report": report()})
    found = lactl("models", "test")
    assert found.status == 0
    assert found.out == (
        "reachable\tyes\tanswered in 0.40 s\ntool call\tno\tit called nothing\n"
        "cached\t-\tnothing of this prompt\n"
    )
    assert scripted.calls[-1]["parameters"] == {}
    lactl("models", "test", "--agent", "ops")
    assert scripted.calls[-1]["parameters"] == {"agent": "ops"}
    lactl("models", "test", "openai/x")
    assert scripted.calls[-1]["parameters"] == {"model": "openai/x"}
    assert json.loads(lactl("models", "test", "--json").out) == report()
    shown = on_terminal(["models", "test"], width=100).out
    assert "openai/x of the agent ops answers. Light is fast." in shown
    assert "This call cost 0.00012." in shown


def test_the_models_that_a_shell_completes(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Models.List", {"models": [model(), UNKNOWN]})
    scripted.answer("Models.Providers", {"providers": [provider(), FOUND]})
    import click

    context = click.Context(command.command)
    assert model_names(context, command.command.params[0], "op") == ["openai/gpt-5"]
    assert command.provider_names(context, command.command.params[0], "") == ["openai", "ollama"]


# Refreshing


def sent(scripted: ScriptedDaemon) -> dict[str, Any]:
    """The table that the daemon was given, which is one that it takes."""
    data = scripted.calls[-1]["parameters"]["data"]
    read_table(data, strict=True)
    found: dict[str, Any] = json.loads(data)
    return found


@pytest.mark.parametrize("place", ["file", "stdin"])
def test_a_table_is_cut_down_before_it_is_sent(
    scripted: ScriptedDaemon, lactl: Lactl, tmp_path: Path, place: str
) -> None:
    scripted.answer("Models.Refresh", DONE)
    file = tmp_path / "api.json"
    file.write_text(json.dumps(TABLE))
    if place == "file":
        found = lactl("models", "refresh", str(file))
    else:
        found = lactl("models", "refresh", "-", stdin=file.read_bytes())
    assert found.status == 0
    good = {"name": "Good", "cost": {"input": 1, "output": 2}, "limit": {"context": 5000}}
    assert sent(scripted) == {"acme": {"name": "Acme", "models": {"good": good}}}
    assert found.out == (
        "The table has 1 model of 1 provider now.\nacme/good: the window is 5,000 tokens now.\n"
    )
    assert "acme/bad" in found.err
    told = json.loads(lactl("models", "refresh", str(file), "--json").out)
    assert told["models"] == 1
    assert len(told["left_out"]) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"<html>", "not JSON"), (b"{}", "no model"), (b"[]", "not a JSON object"), (b"\xff\xfe", "not JSON")],
)
def test_what_is_no_table_is_not_sent(
    scripted: ScriptedDaemon, lactl: Lactl, tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    found = lactl("models", "refresh", str(tmp_path / "x.json"))
    assert found.status == 65
    assert said in found.err
    assert not scripted.calls


def test_a_file_that_is_not_there_or_too_large(
    scripted: ScriptedDaemon, lactl: Lactl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lactl("models", "refresh", str(tmp_path / "none.json")).status == 66
    assert lactl("models", "refresh", str(tmp_path)).status == 65
    monkeypatch.setattr(table_source, "MAX_FILE_BYTES", 1 << 20)
    (tmp_path / "big.json").write_bytes(b" " * ((1 << 20) + 1))
    found = lactl("models", "refresh", str(tmp_path / "big.json"))
    assert found.status == 65
    assert f"larger than {1 << 20} bytes" in found.err
    assert not scripted.calls


class _Pages(http.server.BaseHTTPRequestHandler):
    """Serves what the tests put there: path to status, headers and body."""

    pages: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, headers, body = self.pages.get(self.path, (404, {}, b"no such page"))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # who has read enough hangs up
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        del format, args


@pytest.fixture
def site() -> Iterator[str]:
    """The address of a server with `_Pages.pages`."""
    table = json.dumps(TABLE).encode()
    _Pages.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        here = f"http://127.0.0.1:{server.server_port}"
        _Pages.pages = {
            "/api.json": (200, {"Content-Type": "application/json"}, table),
            "/moved": (302, {"Location": "/api.json"}, b""),
            "/away": (302, {"Location": "http://models.example/api.json"}, b""),
            "/round": (302, {"Location": f"{here}/round"}, b""),
            "/portal": (200, {"Content-Type": "text/html"}, b"<html>Sign in</html>"),
            "/gzip": (200, {"Content-Encoding": "gzip"}, gzip.compress(table)),
            "/error": (500, {}, b"oops"),
            "/big": (200, {}, b" " * ((1 << 20) + 1)),
        }
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield here
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["/api.json", "/moved"])
def test_a_table_from_a_server(scripted: ScriptedDaemon, lactl: Lactl, site: str, path: str) -> None:
    scripted.answer("Models.Refresh", DONE)
    found = lactl("models", "refresh", f"{site}{path}")
    assert found.status == 0
    assert [*sent(scripted)["acme"]["models"]] == ["good"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/away", 65, "without https"),
        ("/round", 69, "redirects more than 5 times"),
        ("/portal", 65, "not JSON"),
        ("/gzip", 69, "compressed"),
        ("/error", 69, "status 500"),
        ("/none", 69, "status 404"),
        ("/big", 65, "is larger than"),
    ],
)
def test_a_server_that_has_no_table(
    scripted: ScriptedDaemon,
    lactl: Lactl,
    site: str,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    status: int,
    said: str,
) -> None:
    monkeypatch.setattr(table_source, "MAX_FILE_BYTES", 1 << 20)
    found = lactl("models", "refresh", f"{site}{path}")
    assert (found.status, said in found.err) == (status, True), found.err
    assert len(found.err.splitlines()) == 2
    assert len(_Pages.asked) <= 6
    assert not scripted.calls


@pytest.mark.parametrize(
    "url", ["http://models.example/api.json", "ftp://models.example/x", "file:///etc/passwd", "https://"]
)
def test_only_https_is_fetched_from_elsewhere(scripted: ScriptedDaemon, lactl: Lactl, url: str) -> None:
    found = lactl("models", "refresh", url)
    assert found.status in (65, 69)
    assert found.err.startswith("lactl: ")
    assert not scripted.calls


def test_a_server_that_is_not_there(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    found = lactl("models", "refresh", "http://127.0.0.1:9/api.json")
    assert found.status == 69
    assert "name the file" in found.err
