"""What every daemon of the tests reads of this checkout, read once by a process.

To read it anew takes 50 ms of processor time for each daemon, and there are thousands. Files of a test's own
are read each time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightagentd.agents import content
from lightagentd.agents.builtin import running
from lightagentd.agents.flows import files
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.agents.tool_calls.toolbox import toolbox_of as _toolbox_of
from lightagentd.config.flows.checking import Checked, Known
from lightagentd.config.flows.checking import read_flow as _read_flow
from lightagentd.llm.metadata import facts
from lightagentd.llm.metadata.table import Reading
from lightagentd.llm.metadata.table import read_table as _read_table
from lightagentd.skills import catalog
from lightagentd.skills.skill import Skill
from lightagentd.tool import Action, Tool
from lightagentd.tool import actions_of as _actions_of

CHECKOUT = Path(__file__).resolve().parents[1]
_NOTHING_KNOWN = Known()
_load_skill = catalog.load_skill
_skills: dict[tuple[Path, str], Skill] = {}
_tables: dict[bytes, Reading] = {}
_flows: dict[tuple[Path, str], Checked] = {}
_actions: dict[type[Tool], list[Action]] = {}
_toolboxes: dict[str, Toolbox] = {}


def read_once() -> None:
    """From now on; for the whole life of a process that runs tests."""
    catalog.load_skill = _skill
    facts.read_table = _table  # type: ignore[attr-defined]
    files.read_flow = _flow  # type: ignore[attr-defined]
    running.actions_of = _builtin_actions  # type: ignore[attr-defined,assignment]
    content.toolbox_of = _toolbox  # type: ignore[attr-defined]


def _skill(folder: Path, *, origin: str = "") -> Skill:
    if folder.parent != CHECKOUT / "skills":
        return _load_skill(folder, origin=origin)
    key = folder, origin
    if key not in _skills:
        _skills[key] = _load_skill(folder, origin=origin)
    return _skills[key]


def _table(text: str | bytes, *, strict: bool) -> Reading:
    if strict or isinstance(text, str) or len(text) != facts.SHIPPED_FILE.stat().st_size:
        return _read_table(text, strict=strict)
    if text not in _tables:
        _tables.clear()
        _tables[text] = _read_table(text, strict=strict)
    return _tables[text]


def _flow(path: Path, known: Known = _NOTHING_KNOWN, *, agent: str = "") -> Checked:
    if known != _NOTHING_KNOWN or not path.is_relative_to(CHECKOUT / "agent"):
        return _read_flow(path, known, agent=agent)
    key = path, agent
    if key not in _flows:
        _flows[key] = _read_flow(path, known, agent=agent)
    return _flows[key]


def _builtin_actions(tool: Tool) -> Sequence[Action]:
    """Of a tool that is built in: its class says all but what is bound to the object."""
    if not type(tool).__module__.startswith("lightagentd."):
        return [*_actions_of(tool)]
    kind = type(tool)
    if kind not in _actions:
        _actions[kind] = [_of(kind, one) for one in _actions_of(tool)]
    return [_of(tool, one) for one in _actions[kind]]


def _of(owner: Tool | type[Tool], one: Action) -> Action:
    resume = getattr(owner, one.resume.__name__) if one.resume else None
    return replace(one, method=getattr(owner, one.name), resume=resume)


def _toolbox(described: Sequence[dict[str, Any]]) -> Toolbox:
    """Another toolbox with the same tools, and so with the functions that models saw of them before."""
    if not all(Path(tool["path"]).is_relative_to(CHECKOUT) or "(" in tool["path"] for tool in described):
        return _toolbox_of(described)
    key = json.dumps(described)
    if key not in _toolboxes:
        _toolboxes[key] = _toolbox_of(described)
    return Toolbox({**_toolboxes[key].tools})
