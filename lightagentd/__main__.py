"""The program `lightagentd`: has systemd begin the first workers while Python imports the daemon."""

from __future__ import annotations

import gc
import os

from lightagentd.daemon.options import parsed
from lightagentd.worker import first_units


def main() -> None:
    parsed()  # first of all: --version and --help need no daemon
    if "NOTIFY_SOCKET" in os.environ and first_units.expected():
        first_units.begin()
    # What importing makes stays for good: to look for garbage in it takes a tenth of the import, each time.
    gc.disable()
    from lightagentd.daemon import serving  # only here: importing it takes as long as a worker's start

    gc.freeze()
    gc.enable()
    serving.main()


if __name__ == "__main__":
    main()
