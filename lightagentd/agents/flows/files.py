"""The flows that there are: below the configuration, and in the folders of agents.

`flows/NAME.toml` of the configuration is NAME. `flows/NAME.toml` in the folder of the agent AGENT is
AGENT.NAME, and NAME too where nothing else has that name; its steps are the agent's unless they say
otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from lightagentd.agents.content import Content
from lightagentd.agents.flows.records import digest_of
from lightagentd.config.flows.checking import Checked, Known, check_flow, read_flow
from lightagentd.config.flows.definition import FLOWS, NAME, Flow
from lightagentd.errors import NotFound


@dataclass(frozen=True, kw_only=True)
class FlowFile:
    """One file."""

    name: str
    path: Path
    checked: Checked
    digest: str = ""


@dataclass
class FlowFiles:
    """All of them, as they were read last."""

    config: Path
    content: Content
    found: dict[str, FlowFile] = field(default_factory=dict)
    _short: dict[str, str] = field(default_factory=dict)

    def read(self) -> None:
        """Read all files again. What is wrong with one stands with it."""
        paths = {path.stem: (path, "") for path in sorted((self.config / FLOWS).glob("*.toml"))}
        short: dict[str, list[str]] = {}
        for agent, definition in self.content.definitions.agents.items():
            for path in sorted((definition.folder / FLOWS).glob("*.toml")):
                paths[f"{agent}.{path.stem}"] = path, agent
                short.setdefault(path.stem, []).append(f"{agent}.{path.stem}")
        read = {name: read_flow(path, agent=agent) for name, (path, agent) in paths.items()}
        flows = {name: one.flow for name, one in read.items() if one.flow is not None}
        flows |= {
            name: flows[of[0]]
            for name, of in short.items()
            if name not in paths and of[0] in flows and len(of) == 1
        }
        self._short = {name: of[0] for name, of in short.items() if len(of) == 1 and name not in paths}
        known = self.known(flows)
        self.found = {}
        for name, (path, agent) in paths.items():
            checked = read_flow(path, known, agent=agent)
            if not NAME.match(path.stem):
                why = (
                    f"{path}: {path.stem[:60]!r} can be the name of no flow: small letters, digits, - and _."
                )
                checked = Checked(faults=(why,))
            digest = "" if checked.flow is None else digest_of(checked.flow)
            self.found[name] = FlowFile(name=name, path=path, checked=checked, digest=digest)
        self._check_circles()

    def _check_circles(self) -> None:
        """Flows that run each other can be used by nobody."""
        runs = {
            name: [self._short.get(step.flow, step.flow) for step in one.checked.flow.step if step.flow]
            for name, one in self.found.items()
            if one.checked.flow is not None
        }
        try:
            TopologicalSorter(runs).prepare()
        except CycleError as err:
            for name in set(err.args[1]):
                file = self.found[name]
                why = f"{file.path}: the flows run each other: {' → '.join(reversed(err.args[1]))}."
                self.found[name] = FlowFile(name=name, path=file.path, checked=Checked(faults=(why,)))

    def known(self, flows: dict[str, Flow] | None = None) -> Known:
        """What a flow may name."""
        if flows is None:
            found = {name: one.checked.flow for name, one in self.found.items()}
            found |= {name: found[of] for name, of in self._short.items() if of in found}
            flows = {name: flow for name, flow in found.items() if flow is not None}
        return Known(agents=[*self.content.definitions.agents], flows=flows, has_action=self._has_action)

    def _has_action(self, agent: str, call: str) -> bool:
        toolbox = self.content.toolbox_of(agent)
        tool, _, action = call.partition(".")
        if not toolbox.tools:
            return True  # no tool could be described, which is a problem of its own
        return any((one.tool, one.name) == (tool, action) for one in toolbox.functions.values())

    def check(self, text: str, path: str) -> Checked:
        """Check a text that is no file of these."""
        return check_flow(text, path, self.known())

    def names(self) -> Collection[str]:
        return sorted(self.found)

    def all_names(self) -> Collection[str]:
        """With the short ones."""
        return {*self.found, *self._short}

    def file(self, name: str) -> FlowFile:
        """Raises NotFound."""
        found = self.found.get(self._short.get(name, name))
        if found is None:
            raise NotFound(
                f"There is no flow {name[:80]!r}.",
                field="flow",
                suggestion="See: lactl flows list. A new file is read by: lactl reload",
            )
        return found

    def get(self, name: str) -> Flow:
        """Raises NotFound, ConfigError for one that cannot be used."""
        return self.file(name).checked.usable()

    def problems(self) -> list[str]:
        """Those that cannot be used, as sentences."""
        broken = [one.checked.faults for one in self.found.values() if one.checked.faults]
        known = self.all_names()
        missing = [
            f"The agent {agent} names flows that do not exist: {', '.join(gone)}."
            for agent, definition in self.content.definitions.agents.items()
            if (gone := [one for one in definition.front.flows if one not in known])
        ]
        return [*(f"A flow cannot be used: {faults[0]}" for faults in broken), *missing]
