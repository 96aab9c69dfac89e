"""Reads what is stored of runs."""

from __future__ import annotations

import threading

from lightagentd.agents.flows.records import DEFINITIONS, RUNS, STEPS, RunRecord, StepRecord, flow_in
from lightagentd.config.flows.definition import Flow
from lightagentd.errors import HistoryDamaged, NotFound
from lightagentd.events.history import History

_KEPT = 50


class FlowStore:
    """The stored runs. All raise HistoryDamaged."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._definitions: dict[str, Flow] = {}
        """Those that were looked at last, the newest last."""
        self._using = threading.Lock()
        """Held while one is looked up, by the loop and by threads."""

    def record(self, run_id: str) -> RunRecord:
        """Raises NotFound."""
        key = f"ses_{run_id.removeprefix('run_')}" if run_id.startswith("run_") else run_id
        try:
            return RunRecord.from_dict(self._history.queries.state_of(RUNS, key))
        except HistoryDamaged:
            raise
        except NotFound:
            raise NotFound(
                f"There is no run {run_id[:60]!r}.", field="run", suggestion="See: lactl flows runs"
            ) from None

    def records(self) -> list[RunRecord]:
        """All runs, the oldest first. Reads all of them; for a thread."""
        found = [RunRecord.from_dict(value) for value in self._history.queries.state(RUNS).values()]
        return sorted(found, key=lambda one: one.started_us)

    def steps(self, record: RunRecord) -> list[StepRecord]:
        rows = self._history.queries.state(STEPS, f"{record.session}/")
        return [StepRecord.from_dict(value) for value in rows.values()]

    def definition(self, record: RunRecord) -> Flow:
        """What a run runs. Raises HistoryDamaged."""
        with self._using:
            found = self._definitions.pop(record.digest, None)
            if found is None:
                found = self._read(record)
            self._definitions[record.digest] = found
            while len(self._definitions) > _KEPT:
                self._definitions.pop(next(iter(self._definitions)))
        return found

    def _read(self, record: RunRecord) -> Flow:
        try:
            return flow_in(self._history.queries.state_of(DEFINITIONS, record.digest))
        except (NotFound, HistoryDamaged):
            raise HistoryDamaged(
                f"What the run {record.id} runs cannot be read any more.",
                suggestion=f"Run it as the file is now: lactl flows rerun {record.id} STEP --new",
            ) from None
