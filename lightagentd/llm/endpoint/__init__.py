"""A model over HTTP: `http`, `connections`, certificates (`tls`), events (`sse`), refusals (`refusals`)."""

import sys
from types import ModuleType
from typing import cast

# The command line of httpx would load rich, click and pygments where these are installed: 5 MiB.
sys.modules.setdefault("httpx._main", cast(ModuleType, None))
