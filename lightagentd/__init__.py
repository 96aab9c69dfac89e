"""lightagentd: the agent daemon for Linux.

The map of the package, from the edges in: `daemon` assembles everything; `control` adapts one
`service.Service` to Varlink; `agents` holds the registry, the sessions and the turn loop; `llm`,
`policy`, `worker` and `events` are what a turn uses; `errors` and `config` import nothing of the
package. `tool` is what a tool author imports, `client` what a program that talks to the daemon imports.
"""

import sys
from pathlib import Path

__version__ = "0.1.0"

# Packages of distributions include the tested asyncvarlink and acp here; a checkout does not. They come first
# in the path, so that other versions on the system do not replace them.
_PRIVATE = Path(__file__).parent / "_vendor"
if _PRIVATE.is_dir() and str(_PRIVATE) not in sys.path:
    sys.path.insert(0, str(_PRIVATE))
