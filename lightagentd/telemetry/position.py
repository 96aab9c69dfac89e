"""Keeps how far the receiver has taken the events, in a file that is written whole or not at all."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lightagentd.telemetry.otlp import Signal
from lightagentd.unattended.following import damaged, read_state, store_state


@dataclass(frozen=True, kw_only=True)
class Position:
    """The numbers of the newest events whose spans, and whose part of the metrics, were taken."""

    traces: int
    metrics: int

    @property
    def first_seq(self) -> int:
        """The first event that is needed."""
        return min(self.traces, self.metrics) + 1

    def of(self, signal: Signal) -> int:
        return self.traces if signal == "traces" else self.metrics

    def moved(self, signal: Signal, seq: int) -> Position:
        """The position once everything up to an event was taken."""
        return replace(self, **{signal: max(seq, self.of(signal))})


def read(path: Path) -> Position | None:
    """The stored position; None when there is none yet. Raises StorageError for a file that is damaged."""
    found = read_state(path)
    if found is None:
        return None
    try:
        return Position(traces=int(found["traces"]), metrics=int(found["metrics"]))
    except (ValueError, TypeError, KeyError) as err:
        raise damaged(path) from err


def store(path: Path, position: Position) -> None:
    """Raises StorageError."""
    store_state(path, asdict(position))
