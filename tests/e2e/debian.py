"""Roots of Debian 13, by mmdebstrap(1): `MACHINE` to boot from, and `BUILDER` to build the packages in.

A root takes half a minute or more to make, so it is cached below `$LIGHTAGENT_TEST_CACHE`, or `.cache` in the
checkout, under the hash of all that went into it. Nothing ever writes to a finished one, and it can be
removed at any time while no test runs. Making it is safe against a second test run and against being killed.

    python -m tests.e2e.debian            print the folder of BUILDER, for packaging/checkout/*.sh
    python -m tests.e2e.debian machine    print the folder of MACHINE
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
SUITE = "trixie"
DEPENDENCIES = (
    # those in pyproject.toml; asyncvarlink and agent-client-protocol are not in Debian 13
    "python3",
    "python3-aiohttp",
    "python3-click",
    "python3-cryptography",
    "python3-dbus-next",
    "python3-dnspython",
    "python3-httpx",
    "python3-jsonschema",
    "python3-lmdb",
    "python3-markdown-it",
    "python3-prometheus-client",
    "python3-prompt-toolkit",
    "python3-psutil",
    "python3-pyasyncore",
    "python3-pydantic",
    "python3-pyinotify",
    "python3-pyudev",
    "python3-rich",
    "python3-starlette",
    "python3-systemd",
    "python3-uvicorn",
    "python3-yaml",
)
PACKAGES = (
    # the system
    "systemd",
    "systemd-sysv",
    "dbus",
    "udev",
    "polkitd",
    "bubblewrap",
    "xdg-dbus-proxy",
    "iproute2",
    "iputils-ping",
    "procps",
    "libglib2.0-bin",  # gdbus(1)
    "cockpit-ws",
    "cockpit-bridge",
    *DEPENDENCIES,
)
BUILD_PACKAGES = (
    "debhelper",
    "dh-python",
    "lintian",
    "rpm",
    *DEPENDENCIES,  # the pages and completions are made from the code
)
OPTIONS = (
    "--mode=root",
    "--variant=minbase",
    "--format=directory",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    # mmdebstrap copies these two from the host; no test may depend on the host's.
    '--customize-hook=echo debian13 > "$1/etc/hostname"',
    '--customize-hook=: > "$1/etc/resolv.conf"',
    # The exclusions are for the packages of the root, not for the one that is installed later.
    '--customize-hook=rm "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"',
)
BUILD_TIMEOUT_S = 900.0
# What of the host's apt configuration decides whether packages can be fetched at all.
_APT_SETTINGS = ("Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-", "Acquire::Retries")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a root has."""

    name: str
    packages: tuple[str, ...]


MACHINE = Recipe(name="trixie", packages=PACKAGES)
BUILDER = Recipe(name="builder", packages=BUILD_PACKAGES)


def cache_folder() -> Path:
    """Where roots are kept: `$LIGHTAGENT_TEST_CACHE`, or `.cache/e2e` in the checkout."""
    named = os.environ.get("LIGHTAGENT_TEST_CACHE")
    return Path(named).absolute() if named else CHECKOUT / ".cache" / "e2e"


def ensure_root(cache: Path, recipe: Recipe = MACHINE) -> Path:
    """The folder of a Debian root, made now if the cache has none.

    Raises subprocess.CalledProcessError with mmdebstrap's output in its notes.
    """
    key = hashlib.sha256("\0".join((SUITE, *OPTIONS, *sorted(recipe.packages))).encode()).hexdigest()[:16]
    root = cache / f"{recipe.name}-{key}"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)  # the root has setuid programs: not for other users
    with (cache / f"lock-{recipe.name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.is_dir():
            partial = cache / f"{root.name}.partial"
            # --one-file-system: whatever is mounted in what an interrupted run has left belongs to the host.
            subprocess.run(["rm", "-rf", "--one-file-system", "--", str(partial)], check=True)
            _build(partial, recipe.packages)
            partial.rename(root)
    return root


def _build(target: Path, packages: tuple[str, ...]) -> None:
    """Run mmdebstrap in namespaces of its own, so that a killed run leaves no mount and no process."""
    namespaces = ["--mount", "--propagation=private", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
    settings = [f"--aptopt={setting}" for setting in _host_apt_settings()]
    argv = ["setpriv", "--pdeathsig=KILL", "unshare", *namespaces, "mmdebstrap", "--quiet"]
    argv += [*settings, *OPTIONS, f"--include={','.join(packages)}", SUITE, str(target)]
    try:
        subprocess.run(
            argv,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        error.add_note(error.output.decode("utf-8", "replace")[-4000:])
        raise


def _host_apt_settings() -> list[str]:
    """The lines of the host's apt configuration about proxies, retries and dates; none without apt-config."""
    try:
        dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return []
    return [line for line in dump.splitlines() if line.startswith(_APT_SETTINGS) and '""' not in line]


if __name__ == "__main__":
    print(ensure_root(cache_folder(), MACHINE if sys.argv[1:] == ["machine"] else BUILDER))
