"""Every action taints, or says why nobody else can have written or named anything in its output."""

from __future__ import annotations

from lightagentd.worker.loader import load_tool

from .conftest import TOOLS


def test_each_action_taints_or_says_why_not() -> None:
    unsaid = [
        f"{loaded.name}.{action.name}"
        for loaded in (load_tool(path) for path in sorted(TOOLS.glob("*.py")))
        for action in loaded.actions.values()
        if action.taints == bool(action.clean)
    ]
    assert unsaid == []
