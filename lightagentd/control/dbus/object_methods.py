"""The methods of the objects on D-Bus: those of the interfaces, bound to one object.

`Agent.Start` is `Agents.Start` without the argument for the agent, and so on, with the same checks and the
same answers. `Prompt` is that of `Manager`, with the agent or the session given by the object.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from lightagentd.control.dbus.methods import MANAGER, Method, methods
from lightagentd.control.dbus.views import AGENT, APPROVAL, RUN, SESSION, Kind

PROMPT = "Prompt"
_BOUND: dict[str, tuple[str, str, tuple[str, ...]]] = {
    AGENT.folder: ("org.lightagent1.Agents", "name", ("Start", "Stop", "Restart")),
    SESSION.folder: ("org.lightagent1.Sessions", "session", ("Cancel", "Messages")),
    RUN.folder: ("org.lightagent1.Flows", "run", ("Cancel", "Resume", "Show")),
    APPROVAL.folder: ("org.lightagent1.Approvals", "approval", ("Approve", "Deny")),
}
"""Of each folder: the interface whose methods its objects have, the argument that names one, and which."""
_PROMPT_WITHOUT = {
    AGENT.folder: frozenset({"agent", "session"}),
    SESSION.folder: frozenset({"agent", "session", "new"}),
}
"""The arguments of Manager.Prompt that the object stands for, or that mean nothing there."""


@functools.cache
def methods_of(kind: Kind) -> Mapping[str, Method]:
    """The methods of the objects of a kind, by name."""
    found: dict[str, Method] = {}
    if kind.folder in _BOUND:
        interface, argument, names = _BOUND[kind.folder]
        found = {name: _bound(methods()[interface, name], kind, argument) for name in names}
    if kind.folder in _PROMPT_WITHOUT:
        without = _PROMPT_WITHOUT[kind.folder]
        manager = methods()[MANAGER, PROMPT]
        found[PROMPT] = replace(
            manager,
            interface=kind.interface,
            required={name: one for name, one in manager.required.items() if name not in without},
            optional={name: one for name, one in manager.optional.items() if name not in without},
        )
    return found


def argument_of(kind: Kind, method: Method) -> str:
    """The name of the argument that receives the object's name."""
    if method.name != PROMPT:
        return _BOUND[kind.folder][1]
    return "agent" if kind is AGENT else "session"


def _bound(method: Method, kind: Kind, argument: str) -> Method:
    required = {name: signature for name, signature in method.required.items() if name != argument}
    return replace(method, interface=kind.interface, required=required)
