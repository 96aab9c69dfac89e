"""The daemon with a journal of the test's own: `python -m tests.secrets.daemon SOCKET` and the daemon's
options.

SOCKET is where entries go instead of to journald; everything else is the real program.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lightagentd.daemon import serving
from lightagentd.events.journal import sink as journald

if __name__ == "__main__":
    place = Path(sys.argv.pop(1))
    kinds = journald.JournaldSink.__init__.__kwdefaults__
    assert kinds is not None
    kinds["path"] = place
    journald.JournaldSink.available = staticmethod(lambda: True)  # type: ignore[method-assign]
    serving.main()
