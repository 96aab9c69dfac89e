"""The shipped profiles that narrow a worker for change, as drop-ins of `lightagent-change@AGENT.service`.

A profile is a file `change-profiles/NAME.conf` of the package. Chosen for an agent, it lies as
`50-profile.conf` in the folder of that unit's drop-ins, which root alone can write (systemd.unit(5)). Those
of an administrator with later names count after it.
"""

from __future__ import annotations

import re
from pathlib import Path

from lightagentd.host.atomic_file import write_whole
from lightagentd.host.paths import share_folder

DROP_INS = Path("/etc/systemd/system")
DROP_IN = "50-profile.conf"
NAMES = ("services", "files", "packages")
_TITLE = re.compile(r"# Profile \w+: (.*)")
_HOW_TO = "# lactl change "
"""Begins the last line of a profile's comment."""


def unit(agent: str) -> str:
    """The service that an agent's profile is for."""
    return f"lightagent-change@{agent}.service"


def drop_in(agent: str) -> Path:
    """Where the profile of an agent lies, if it has one."""
    return DROP_INS / f"{unit(agent)}.d" / DROP_IN


def chosen(agent: str) -> str:
    """The name of an agent's profile, `altered` for a file that is none of this version, empty for none.

    Raises OSError.
    """
    try:
        found = drop_in(agent).read_bytes()
    except FileNotFoundError:
        return ""
    return next((name for name in NAMES if _shipped(name).read_bytes() == found), "altered")


def agents() -> list[str]:
    """The agents that have a profile, or whose worker for change is enabled."""
    instance = re.compile(r"lightagent-change@(.+)\.(?:socket|service\.d)")
    found = [
        *DROP_INS.glob("*.wants/lightagent-change@*.socket"),
        *(one.parent for one in DROP_INS.glob(f"lightagent-change@*.service.d/{DROP_IN}")),
    ]
    return sorted({match[1] for one in found if (match := instance.fullmatch(one.name))})


def described(name: str) -> str:
    """What a profile leaves to an agent and what not, as its file says. Raises OSError."""
    words = []
    for line in _shipped(name).read_text().splitlines():
        if not line.startswith("# ") or line.startswith(_HOW_TO):
            break
        title = _TITLE.fullmatch(line)
        words.append(title[1] if title else line.removeprefix("# "))
    return " ".join(words)


def lay(agent: str, name: str) -> Path:
    """Choose a profile for an agent; systemd reads it with its next reload. Raises OSError."""
    path = drop_in(agent)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_whole(path, _shipped(name).read_bytes(), mode=0o644)
    return path


def remove(agent: str) -> bool:
    """Take an agent's profile away; whether it had one. Raises OSError."""
    path = drop_in(agent)
    had = path.exists()
    path.unlink(missing_ok=True)
    if had and not any(path.parent.iterdir()):
        path.parent.rmdir()
    return had


def _shipped(name: str) -> Path:
    """The file of a profile: of the checkout, or of the package."""
    share = share_folder()
    checkout = share / "units" / "change-profiles"
    return (checkout if checkout.is_dir() else share / "change-profiles") / f"{name}.conf"
