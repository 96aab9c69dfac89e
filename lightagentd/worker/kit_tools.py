"""The tools of an agent's kit, in that agent's workers alone.

The daemon says with each call in which folder the kit is. A worker takes one kit for its whole life and
refuses calls for another one: what a kit's file did to its process stays with its agent. Tools that all
agents share come first, so no kit can take the place of one.

A worker for change runs with more rights than the others, so it loads a file only when nobody but root and
its own user can have written it. Everywhere else the daemon has checked who could write the kit, and the
loader looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lightagentd.errors import PermissionDenied, ToolNotFound
from lightagentd.tool import Place, Tool
from lightagentd.worker.loader import LoadedTool, ToolFiles
from lightagentd.worker.trusted import check_trusted

TOOLS, SERVERS = "tools", "mcp"
_OWN_PLACES = (None, Place.WATCHER, Place.SERVER, Place.REMOTE)
"""Where the tools of a kit may run; the other places serve all agents."""


class KitTools:
    """Owns the instances of a kit's tools for the life of the process."""

    def __init__(self) -> None:
        self.ready: Callable[[Tool], None] | None = None
        self._folder = ""
        self._tools: ToolFiles | None = None

    def check(self, folder: str) -> None:
        """Raises PermissionDenied for a call of an agent with another kit than this worker has."""
        if self._folder and folder != self._folder:
            raise PermissionDenied(f"This worker serves the kit in {self._folder} alone.")

    def beside(self, tools: Mapping[str, LoadedTool], name: str, folder: str, *, change: bool) -> LoadedTool:
        """One of `tools`, which all agents share, else of the kit. Raises ToolNotFound, PermissionDenied."""
        self.check(folder)
        found = tools.get(name) or self.get(name, folder, change=change)
        if found is None:
            raise ToolNotFound(f"There is no tool {name!r}.")
        return found

    def get(self, name: str, folder: str, *, change: bool) -> LoadedTool | None:
        """A tool of the kit in this folder; none without a folder, and for a name that it does not have.

        `change`: the call has that effect. Raises PermissionDenied.
        """
        self.check(folder)
        if not folder:
            return None
        if self._tools is None:
            self._folder = folder
            self._tools = ToolFiles([Path(folder, TOOLS), Path(folder, SERVERS)], self.ready)
        if name not in [*self._tools]:  # to ask the mapping itself would load the file
            return None
        if change:
            check_trusted(self._tools.path(name).parent, f"the kit's tool {name}")
        return _placed(self._tools[name])

    def path(self, name: str, folder: str) -> Path | None:
        """The file of a tool of the kit in this folder. Raises PermissionDenied."""
        self.check(folder)
        there = ToolFiles([Path(folder, TOOLS), Path(folder, SERVERS)]) if folder else None
        return there.path(name) if there is not None and name in [*there] else None

    def loaded(self) -> dict[str, LoadedTool]:
        """Those that were used."""
        return self._tools.loaded if self._tools is not None else {}


def _placed(found: LoadedTool) -> LoadedTool:
    shared = [action.name for action in found.actions.values() if action.place not in _OWN_PLACES]
    if not shared:
        return found
    why = f"the action {shared[0]} has a place that only tools of all agents can have"
    return LoadedTool(name=found.name, path=found.path, error=why)
