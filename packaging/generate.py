#!/usr/bin/python3
"""Writes the man pages and the completions of shells: `generate.py OUT` makes OUT/man and OUT/completions.

The pages lactl(1), lightagentd.toml(5) and org.lightagent1(5) come from the code, so it must be importable,
with all that it imports. The other pages lie beside in `man/` and get the version and the date. The output
is the same for the same code and SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/).
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from click.shell_completion import BashComplete, FishComplete, ZshComplete
from manual import commands, configuration, interfaces
from manual.roff import Stamp

from lightagentd import __version__
from lightagentd.cli.main import lactl

PAGES = {
    "lactl.1": commands.page,
    "lightagentd.toml.5": configuration.page,
    "org.lightagent1.5": interfaces.page,
}
"""The pages that are generated."""
COMPLETIONS = {"lactl.bash": BashComplete, "_lactl": ZshComplete, "lactl.fish": FishComplete}
"""click's own scripts, which call lactl at each Tab."""


def main(out: Path) -> None:
    """Write everything below a folder."""
    moment = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    date = datetime.fromtimestamp(moment, UTC).date().isoformat()
    stamp = Stamp(date=date, version=__version__)
    for folder in ("man", "completions"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (out / "man" / name).write_text(page(stamp))
    for source in sorted((Path(__file__).resolve().parent / "man").glob("*.[158]")):
        (out / "man" / source.name).write_text(stamp.fill(source.read_text()))
    for name, shell in COMPLETIONS.items():
        script = shell(lactl, {}, "lactl", "_LACTL_COMPLETE")
        (out / "completions" / name).write_text(script.source_template % script.source_vars())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: generate.py OUT")
    main(Path(sys.argv[1]))
