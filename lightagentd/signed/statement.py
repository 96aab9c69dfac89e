"""The statement of a change: everything that decides what runs, and the digest of it.

The daemon states a change, a person reads the statement at the approver, and the worker for change makes it
anew from what it is about to run. The three are about the same call only where their digests are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from lightagentd.errors import InvalidArgument

_DOMAIN = b"lightagentd change 1\0"


USES_KEY = frozenset({("crypto", "sign")})
"""Actions that use a private key of the key store: they change nothing, and are signed as changes are."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One call of an agent. `tool_sha256` is that of the tool's file, `expected` what the call rests on, and
    `kit` the folder of the agent's own tools. `above` are the agents that had this one called, the nearest
    first. The last three are the terms of `config.terms`.

    `owner`, `session`, `trigger` and `above` are the daemon's word: nobody else knows them.
    """

    agent: str
    tool: str
    action: str
    effect: str
    args: dict[str, Any]
    tool_sha256: str
    call_id: str
    session: str = ""
    owner: int = 0
    trigger: str = ""
    kit: str = ""
    above: list[str] = field(default_factory=list)
    expected: dict[str, Any] = field(default_factory=dict)
    confirm_within_s: int = 0
    check: str = ""
    inverse: str = ""

    @classmethod
    def of(cls, found: Any) -> Self:
        """From `to_dict`. Raises InvalidArgument."""
        kinds = {one.name: _KINDS.get(str(one.type), dict) for one in fields(cls)}
        if not isinstance(found, dict) or not found.keys() <= kinds.keys():
            raise InvalidArgument("A statement has other fields than it can have.")
        for name, value in found.items():
            texts = isinstance(value, list) and not all(isinstance(one, str) for one in value)
            if not isinstance(value, kinds[name]) or isinstance(value, bool) or texts:
                raise InvalidArgument(f"The field {name} of a statement is not what it has to be.")
        try:
            made = cls(**found)
            made.digest  # noqa: B018 - it has to have one
        except (TypeError, ValueError, RecursionError) as err:
            raise InvalidArgument("A statement lacks fields, or holds what JSON cannot.") from err
        return made

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def on_terms(self, terms: Mapping[str, Any]) -> Self:
        """The same call on these terms, by the names of `config.terms.TERMS`."""
        return replace(self, **terms)

    @property
    def uses_key(self) -> bool:
        """Whether it is about a key of its owner's."""
        return self.effect == "observe" and (self.tool, self.action) in USES_KEY

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON, in hexadecimal. Raises ValueError."""
        return hashlib.sha256(_DOMAIN + canonical(self.to_dict())).hexdigest()


_KINDS: dict[str, type] = {"str": str, "int": int, "list[str]": list}


def canonical(value: Any) -> bytes:
    """JSON that is the same for the same value. Raises ValueError, TypeError, RecursionError."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode()
