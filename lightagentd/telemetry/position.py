"""Keeps how far the receiver has taken the events, in a file that is written whole or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lightagentd.errors import StorageError
from lightagentd.host.atomic_file import whole_file
from lightagentd.telemetry.otlp import Signal
from lightagentd.text.reason import reason


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
    """The stored position; None when there is none yet. Raises StorageError for a file that is damaged: to
    begin anywhere else would lose events, or send them again.
    """
    try:
        found = json.loads(path.read_bytes())
        return Position(traces=int(found["traces"]), metrics=int(found["metrics"]))
    except FileNotFoundError:
        return None
    except OSError as err:
        raise StorageError(f"{path} cannot be read: {reason(err)}.") from err
    except (ValueError, TypeError, KeyError, RecursionError) as err:
        raise StorageError(
            f"{path} is damaged.", suggestion="Remove it; what happens from then on is sent."
        ) from err


def store(path: Path, position: Position) -> None:
    """Raises StorageError."""
    try:
        with whole_file(path) as file:
            file.write(json.dumps(asdict(position)).encode() + b"\n")
    except OSError as err:
        raise StorageError(f"{path} cannot be written: {reason(err)}.") from err
