"""The narrowest rule that allows one call, written as a file of policy.d.

Everything in a call's arguments is a model's text. So they never become patterns: the rule has them in
`exactly`, as TOML that is read back and compared, and no other call matches it. Its examples say so: the call
itself matches, and the same call of another agent, user or trigger, or with any other argument, does not.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from typing import Any

from lightagentd.errors import InvalidArgument
from lightagentd.host.users import called
from lightagentd.policy.call import PolicyCall
from lightagentd.policy.patterns import GLOB_CHARACTERS
from lightagentd.policy.rules import without_nulls

ARGS_CHARS = 8 << 10
"""Longer arguments are not put into a rule: nobody reads them there."""
_SHORT_CHARS = 200
_MISSED_ARGS = 20


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A rule and its file. `words` say what it lets through."""

    name: str
    file: str
    text: str
    words: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def propose(call: PolicyCall, approval: str, *, tainted: bool) -> Proposal:
    """The rule for a call whose effect is the one in force; for any caller and trigger where the call has
    none. Raises InvalidArgument for a call that no rule can name exactly.
    """
    exactly = without_nulls(call.args)
    named = (call.agent, call.tool, call.action, *([call.trigger] if call.trigger else []))
    if not all(name and GLOB_CHARACTERS.isdisjoint(name) for name in named):
        raise InvalidArgument("A name in this call has characters that stand for others in a rule.")
    try:
        size = len(json.dumps(exactly, allow_nan=False))
        inline = _toml(exactly)
        same = tomllib.loads(f"exactly = {inline}\n")["exactly"]
    except (ValueError, RecursionError) as err:
        raise InvalidArgument(f"The arguments of this call cannot stand in a rule: {err}.") from None
    if size > ARGS_CHARS or json.dumps(same, sort_keys=True) != json.dumps(exactly, sort_keys=True):
        raise InvalidArgument(
            f"The arguments of this call cannot stand in a rule: {size} characters, of {ARGS_CHARS}.",
            suggestion="Allow it once, or write a rule by hand: see lightagent-policy(5).",
        )
    facts = [*named, call.effect.value, call.caller, exactly, tainted]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
    name = f"allow-{call.tool}-{call.action}".replace("_", "-")[:50] + f"-{digest}"
    conditions = {
        "agent": call.agent,
        "tool": call.tool,
        "action": call.action,
        "effect": call.effect.value,
        **({"trigger": call.trigger} if call.trigger else {}),
        **({} if call.caller is None else {"caller": call.caller}),
    }
    lines = [
        f"# One exact call, from the approval {approval}.",
        "[[rule]]",
        f"name = {_toml(name)}",
        'decision = "allow"',
        f"reason = {_toml(f'Allowed from the approval {approval}.')}",
        f"even_if_tainted = {_toml(tainted)}",
        *(f"{key} = {_toml(value)}" for key, value in conditions.items()),
        f"exactly = {inline}",
        "match = [{}]",
        "not_match = [",
        *(f"  {_toml(one)}," for one in _near_misses(call)),
        "]",
    ]
    return Proposal(
        name=name, file=f"50-{name}.toml", text="\n".join([*lines, ""]), words=_words(call, tainted=tainted)
    )


def _words(call: PolicyCall, *, tainted: bool) -> str:
    outside = (
        "also when text from outside is in the session"
        if tainted
        else "but not when text from outside is in the session"
    )
    whose = "anybody" if call.caller is None else called(call.caller)
    began = f"when the turn was begun by: {call.trigger}" if call.trigger else "whatever began the turn"
    return (
        f"It lets {call.agent} make exactly this call of {call.tool}.{call.action} again, with these"
        f" arguments and no others, for {whose}, {began}; {outside}."
        " Nobody is asked then."
    )


def _near_misses(call: PolicyCall) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"agent": f"{call.agent}-2"}]
    if call.trigger:
        found.append({"trigger": f"{call.trigger}-2"})
    if call.caller is not None:
        found.append({"caller": call.caller + 1})
    for key in [*call.args][:_MISSED_ARGS]:
        value = call.args[key]
        found.append({"args": {key: _other(value)}})
        if isinstance(value, str) and value.startswith("/") and len(value) <= _SHORT_CHARS:
            found.append({"args": {key: f"/other{value}"}})
    return [*found, {"args": {"another-argument": "x"}}]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) and len(value) <= _SHORT_CHARS else "x"


def _toml(value: Any) -> str:
    """A value in TOML, on one line. Raises ValueError for one that has no form there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(one)}' for key, one in value.items())} }}"
    raise ValueError("one of them is empty, or a number that is too large")


def _escaped(char: str) -> str:
    """A character of a basic string; all but plain ASCII as an escape, so that nothing hides in a file."""
    code = ord(char)
    if 0xD800 <= code < 0xE000:
        raise ValueError("a character in them is half of a pair")
    if " " <= char <= "~" and char not in '"\\':
        return char
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
