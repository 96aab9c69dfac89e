"""Says at the end of a run how many attacks came to nothing, by who spoke."""

from __future__ import annotations

import pytest

BY_MODEL, BY_SERVER = "by the model", "by an MCP server"
"""Who speaks, in the name of a test."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = [
        one.nodeid for one in terminalreporter.getreports("passed") if "test_an_attack_comes" in one.nodeid
    ]
    counts = {by: sum(f", {by}]" in one for one in passed) for by in (BY_MODEL, BY_SERVER)}
    if passed:
        told = ", ".join(f"{count} {by}" for by, count in counts.items())
        terminalreporter.write_line(f"attacks that came to nothing: {told}")
