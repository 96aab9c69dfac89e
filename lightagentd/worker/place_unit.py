"""The main program of the units of which a machine has one: `lightagent-keys` and `lightagent-inspect`.

systemd has made the sandbox that the unit file describes and passes the listening socket. This program finds
the tools as the daemon does and becomes the worker, which serves only the actions of its place and gives up
the ability to start programs (`lockdown`). It uses the unit's own scratch folder, if there is one. What it
looks at before it answers is in `admission`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lightagentd.host.paths import Paths, content_folders
from lightagentd.tool import Place
from lightagentd.worker import program
from lightagentd.worker.admission import Admission, KeyUse, Questions
from lightagentd.worker.lockdown import MACHINE

SCRATCH = Path("/run/lightagent-scratch")


def main() -> None:
    """Become the worker of the place named on the command line."""
    parser = argparse.ArgumentParser(prog="lightagent-worker", description=__doc__.partition("\n")[0])
    parser.add_argument("place", type=Place, choices=MACHINE)
    options = parser.parse_args()
    config = Path(os.environ.get("LIGHTAGENT_CONFIG_DIR", "/etc/lightagentd"))
    paths = Paths(config=config, state=Path("/var/lib/lightagentd"), runtime=Path("/run/lightagentd"))
    arguments = ["--place", options.place]
    for folder in content_folders("tools", paths):
        arguments += ["--tools", str(folder)]
    if SCRATCH.is_dir():
        arguments += ["--scratch", str(SCRATCH)]
    program.main(arguments, admission=_admission(options.place, paths))


def _admission(place: Place, paths: Paths) -> Admission:
    """What this unit looks at before it answers. Exits where the key store has no folder of its own."""
    if place is not Place.KEYS:
        return Questions()
    state = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if not state:
        sys.exit("the key store needs a folder for its state")
    return KeyUse(Path(state), paths.config)


if __name__ == "__main__":
    main()
