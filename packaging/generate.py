#!/usr/bin/python3
"""Writes the files that are generated from the code, which must be importable with its dependencies.

`generate.py OUT` makes OUT/man, OUT/completions and OUT/cockpit (its translations) for a package. The pages
lactl(1), those of its commands, lightagentd.toml(5) and org.lightagent1(5) come from the code; the others are
in `man/` and get the version, the date and the files of `examples/`. The output is the same for the same code
and SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/).

`generate.py --checkout FOLDER` makes the generated files of the repository, at their places below a folder.
`make generate` writes them into the checkout; a test finds stale ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from click.shell_completion import BashComplete, FishComplete, ZshComplete
from learning import training
from manual import commands, configuration, interfaces
from manual.catalog import catalog
from manual.client import typed_methods
from manual.page import translations
from manual.roff import Stamp

from lightagentd import __version__
from lightagentd.cli.main import lactl

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = {
    "lightagentd.toml.5": configuration.page,
    "org.lightagent1.5": interfaces.page,
}
"""The pages that are generated, beside those of lactl."""
COMPLETIONS = {"lactl.bash": BashComplete, "_lactl": ZshComplete, "lactl.fish": FishComplete}
"""click's own scripts, which call lactl at each Tab."""
CATALOG = "packaging/journal/lightagentd.catalog"
REPLIES, CLIENT = "lightagentd/client/replies.py", "lightagentd/client/methods.py"
VARLINK = "packaging/varlink"
WEIGHTS = "lightagentd/llm/runbook/weights.bin"
PRINTED: Mapping[str, Sequence[str]] = {
    "tests/data/dbus.txt": ("tests.control.dbus.signatures",),
    "tests/data/dbus-objects.txt": ("tests.control.dbus.signatures", "objects"),
}
"""The frozen D-Bus interfaces, and the modules that print them."""


def main(out: Path) -> None:
    """Write all generated files of a package below a folder."""
    moment = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    date = datetime.fromtimestamp(moment, UTC).date().isoformat()
    stamp = Stamp(date=date, version=__version__)
    for folder in ("man", "completions", "cockpit"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    pages = commands.pages(stamp) | {name: page(stamp) for name, page in PAGES.items()}
    for name, text in pages.items():
        (out / "man" / name).write_text(text)
    for source in sorted((Path(__file__).resolve().parent / "man").glob("*.[1578]")):
        (out / "man" / source.name).write_text(stamp.fill(source.read_text()))
    for name, shell in COMPLETIONS.items():
        script = shell(lactl, {}, "lactl", "_LACTL_COMPLETE")
        (out / "completions" / name).write_text(script.source_template % script.source_vars())
    for name, text in translations().items():
        (out / "cockpit" / name).write_text(text)


def checkout(out: Path) -> None:
    """Write the generated files of the repository below a folder."""
    for name in (CATALOG, REPLIES, CLIENT, *PRINTED):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / CATALOG).write_text(catalog())
    replies, methods = typed_methods()
    (out / REPLIES).write_text(replies)
    (out / CLIENT).write_text(methods)
    for stale in (out / VARLINK).glob("*.varlink"):
        stale.unlink()
    _run("lightagentd.control.varlink.interfaces", str(out.resolve() / VARLINK))
    (out / WEIGHTS).parent.mkdir(parents=True, exist_ok=True)
    (out / WEIGHTS).write_bytes(_weights())
    for name, module in PRINTED.items():
        (out / name).write_text(_run(*module))


def _weights() -> bytes:
    """The weights of the matcher: those that are there, unless they were made of something else."""
    there = REPOSITORY / WEIGHTS
    content = there.read_bytes() if there.is_file() else b""
    made_of = training.digest(REPOSITORY / "skills")
    return content if made_of.encode() in content[:100_000] else training.learned(REPOSITORY / "skills")


def _run(*module: str) -> str:
    command = [sys.executable, "-m", *module]
    return subprocess.run(command, cwd=REPOSITORY, check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--checkout", folder]:
            checkout(Path(folder))
        case [folder] if not folder.startswith("-"):
            main(Path(folder))
        case _:
            sys.exit("usage: generate.py OUT\n       generate.py --checkout FOLDER")
