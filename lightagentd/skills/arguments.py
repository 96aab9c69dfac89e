"""The arguments of a runbook: their kinds, and the shape of the values of each kind.

A value of kind `time` is what `--since` of the shipped scripts takes: `boot`, `today`, `yesterday`, either
followed by ` HH:MM`, a span back from now (`-30s`, `-15min`, `-2h`, `-7d`), or `YYYY-MM-DD`, optionally
followed by ` HH:MM`; times are local. One of kind `priority` is a level as
journalctl(1) writes it. A flag is `yes` where it is given, and an option without a value for the script.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from lightagentd.errors import InvalidArgument

Kind = Literal[
    "unit",
    "path",
    "host",
    "pid",
    "port",
    "time",
    "user",
    "package",
    "interface",
    "container",
    "priority",
    "flag",
]

_HOST = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>\d{1,5}))?|"
    r"[0-9A-Fa-f:.]{2,45}"
)
_SHAPES: dict[str, tuple[re.Pattern[str], str]] = {
    "unit": (
        re.compile(r"(?:-\.(?:mount|slice)|[A-Za-z0-9_][A-Za-z0-9:_.\\@-]{0,254})"),
        "a unit such as nginx.service",
    ),
    "path": (re.compile(r"/[^\0\n\r]{0,4095}"), "an absolute path such as /var/log"),
    "host": (_HOST, "a host name or address, optionally with :port, such as example.org:443"),
    "pid": (re.compile(r"[1-9]\d{0,6}"), "a process id such as 4242"),
    "port": (re.compile(r"[1-9]\d{0,4}"), "a port from 1 to 65535"),
    "time": (
        re.compile(
            r"boot|(?:today|yesterday)(?: \d\d:\d\d)?|-[1-9]\d{0,5}(?:s|min|h|d)"
            r"|\d{4}-\d\d-\d\d(?: \d\d:\d\d)?"
        ),
        "boot, today, yesterday 14:00, -30min, -2h, -7d or 2025-01-31 14:00",
    ),
    "user": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,254}\$?"), "a user's name such as www-data"),
    "package": (re.compile(r"[A-Za-z0-9][A-Za-z0-9+._:~-]{0,199}"), "a package such as openssh-server"),
    "interface": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}"), "a network interface such as eth0"),
    "container": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"), "the name or id of a container"),
    "priority": (
        re.compile("emerg|alert|crit|err|warning|notice|info|debug"),
        "emerg, alert, crit, err, warning, notice, info or debug",
    ),
    "flag": (re.compile("yes"), "yes, or leave it out"),
}


class ArgSpec(BaseModel):
    """One argument of a runbook, as `runbook.yaml` declares it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    description: str = Field(min_length=1)
    effect: Literal["observe", "reach"] = "observe"
    """The effect that a call needs at least when this argument is given."""

    def check(self, name: str, value: str) -> None:
        """Raise InvalidArgument unless `value` is of this kind."""
        shape, wanted = _SHAPES[self.kind]
        found = shape.fullmatch(value)
        port = value if self.kind == "port" else (found.groupdict().get("port") if found else None)
        if found is None or (port is not None and not 0 < int(port) < 65536):
            raise InvalidArgument(
                f"{name}={value!r} is not a {self.kind}.", field=name, suggestion=f"Give {wanted}."
            )
