"""A call that a person has typed, which counts as allowed by them if exactly that is what waits.

The daemon states the call to the approver, and it is not trusted: so lactl looks whether the statement is
what was typed. What was left out has to be as the tool's own file says, which is found here by the digest in
the statement; the worker refuses a statement with another one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd.config.terms import terms_of
from lightagentd.errors import PermissionDenied
from lightagentd.host.paths import kit_folders, share_folder
from lightagentd.signed.statement import USES_KEY
from lightagentd.text.agent_name import NAME

_CONFIG = Path("/etc/lightagentd")
_AGENT = re.compile(rf"{NAME.pattern}(?:\.{NAME.pattern})?")
_PERSON = "person"
_ELSEWHERE = ("args", "tool_sha256", "call_id", "kit", "expected")
"""Fields of a statement that are looked at otherwise, or that name no other call."""


@dataclass(frozen=True, kw_only=True)
class TypedCall:
    """`agent` is empty where none was named, and `terms` are those of Tools.Call."""

    agent: str
    tool: str
    action: str
    args: Mapping[str, Any]
    terms: Mapping[str, str | None] = field(default_factory=dict)
    for_root: bool = False
    """Whether the daemon may have it run for root, whoever typed it."""

    def is_stated(self, statement: Mapping[str, Any], uid: int) -> bool:
        """Whether a statement, as `Statement.to_dict` gives it, is about this call by this user and nothing
        else.
        """
        effect = "observe" if (self.tool, self.action) in USES_KEY else "change"
        wanted: dict[str, Any] = {"agent": self.agent or statement["agent"], "effect": effect}
        wanted |= {"tool": self.tool, "action": self.action, "session": "", "trigger": _PERSON}
        wanted |= {"confirm_within_s": 0, "check": "", "inverse": ""} | self._terms()
        stated = {name: one for name, one in statement.items() if name not in _ELSEWHERE}
        owner = stated.pop("owner")
        others = [one for name, one in stated.items() if name not in wanted]
        same = all(stated.get(name) == one for name, one in wanted.items())
        if not same or any(others) or owner not in ((uid, 0) if self.for_root else (uid,)):
            return False
        files = self._files(str(statement["agent"]))
        return self._has_args(statement["args"], str(statement["tool_sha256"]), files)

    def _terms(self) -> dict[str, Any]:
        try:
            found = terms_of(*(self.terms.get(name) or "" for name in ("confirm_within", "check", "inverse")))
        except ValueError:
            return {"confirm_within_s": None}  # the daemon should not have taken them
        return {} if found is None else found.fields()

    def _has_args(self, stated: dict[str, Any], sha256: str, files: list[Path]) -> bool:
        """Whether arguments are those that were typed, as the tool takes them."""
        if _same(stated, dict(self.args)):
            return True
        path = next((one for one in files if sha256 and _sha256(one) == sha256), None)
        if path is None:
            return False
        from pydantic import ValidationError

        from lightagentd.worker.loader import load_tool  # slow to import
        from lightagentd.worker.trusted import check_trusted

        try:
            check_trusted(path, f"the tool {self.tool}")
        except PermissionDenied:
            return False
        found = load_tool(path)
        if found.sha256 != sha256 or self.action not in found.actions:
            return False
        model = found.actions[self.action].args_model
        try:
            return model is not None and _same(
                stated, model.model_validate(dict(self.args)).model_dump(mode="json")
            )
        except ValidationError:
            return False

    def _files(self, agent: str) -> list[Path]:
        """Those that may be the tool's, also in a kit; the digest says which is."""
        kits = kit_folders(agent, _CONFIG) if _AGENT.fullmatch(agent) else []
        return [folder / "tools" / f"{self.tool}.py" for folder in (_CONFIG, share_folder(), *kits)]


def _sha256(path: Path) -> str:
    """Of a file; empty where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same as JSON: 1 is not true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
