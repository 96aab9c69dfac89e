"""Tells whether the caller of the current operation allows that a person is asked for authorization.

Each control plane sets it for the length of a call; `control/polkit.py` looks at it. It is here, below both,
because the Varlink server that the daemon shares with its workers sets it too.
"""

from __future__ import annotations

from contextvars import ContextVar

INTERACTION: ContextVar[bool] = ContextVar("INTERACTION", default=False)

PARAMETER = "allowInteractiveAuthentication"
"""What a Varlink call has beside the method's own parameters to allow it, as with systemd's services."""
