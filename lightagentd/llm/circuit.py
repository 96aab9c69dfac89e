"""Circuit breakers: pause an endpoint that fails repeatedly.

One `Circuit` stands for one endpoint (scheme, host and port), for all agents and models that use it;
`Circuits` has them all, and belongs to the registry. A closed circuit admits every call. It opens after
`FAILURES` attempts in a row that found the endpoint down, in at least two turns: the retries of a single turn
do not lock its user out. While it is open, calls fail at once, so that a fallback takes over without delay.
When its time is over, a single call tries the endpoint. It closes the circuit or opens it again, for twice as
long when many calls were refused meanwhile.

A refused request counts as an answer, because the endpoint is up. A rate limit for a key (429) says nothing
about that. An internal error or an overload may concern only one model: a gateway has many, and the memory of
a server may be too small for one of them. So a circuit that only such answers opened refuses only the models
that they were for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from lightagentd.errors import (
    ModelCertificate,
    ModelCircuitOpen,
    ModelCutOff,
    ModelError,
    ModelGarbled,
    ModelOverloaded,
    ModelRateLimited,
    ModelRedirected,
    ModelRejected,
    ModelTimedOut,
    ModelUnreachable,
)
from lightagentd.llm.protocol import ModelClient

FAILURES = 5
"""So many failures in a row open a circuit."""
WITHIN_S = 120.0
"""Failures that are older than this do not count any more."""
OPEN_S, MOST_OPEN_S = 30.0, 300.0
"""How long a circuit stays open, the first time and at most."""
_CROWD = 3
"""When more turns than this were turned away while a circuit was open, its next time is twice as long."""


def is_down(err: BaseException) -> bool:
    """Whether an error says that the endpoint is down, and not that something else answers in its place."""
    return isinstance(err, ModelUnreachable) and not isinstance(
        err, ModelCertificate | ModelRedirected | ModelGarbled
    )


def endpoint_of(client: ModelClient) -> str:
    """The endpoint that a client names, such as `https://api.openai.com:443`; empty for none."""
    found = getattr(client, "endpoint", "")
    return found if isinstance(found, str) else ""


def endpoint_of_url(url: str) -> str:
    """Scheme, host and port of a URL; empty when it has no host."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    if not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


@dataclass(frozen=True, kw_only=True)
class CircuitState:
    """One endpoint's circuit, for display."""

    endpoint: str
    state: Literal["closed", "open", "probing"]
    failures: int
    """Failures in a row."""
    open_s: float
    """How much longer calls are refused; 0 when they are admitted."""
    why: str
    """The result of the last attempt in the daemon's words: an endpoint's may quote one user's prompt."""
    only: tuple[str, ...] = ()
    """The models that it turns away; empty for all."""

    def turns_away(self, model: str) -> bool:
        return self.state != "closed" and (not self.only or model in self.only)


class _Failure(NamedTuple):
    at: float
    turn: str
    only: str
    """The model that it says something about; empty when that is the whole endpoint."""


class Circuit:
    """The breaker of one endpoint. Each attempt calls `enter`, then `answered` or `failed`, then `leave`."""

    def __init__(
        self,
        endpoint: str,
        tell: Callable[[CircuitState], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self._tell = tell
        self._clock = clock
        self._failures: deque[_Failure] = deque()
        """More than `FAILURES` while they are one turn's."""
        self._until: float | None = None
        """The end of the time for which it is open; None while it is closed."""
        self._open_s = OPEN_S
        self._probe = ""
        """The turn that tries it while it is open."""
        self._turned_away: set[str] = set()
        self._only: set[str] = set()
        """The models that it is open for; empty for all."""
        self._why = ""

    @property
    def state(self) -> CircuitState:
        left_s = 0.0 if self._until is None else max(0.0, self._until - self._clock())
        return CircuitState(
            endpoint=self.endpoint,
            state="closed" if self._until is None else "probing" if self._probe else "open",
            failures=len(self._failures),
            open_s=left_s,
            why=self._why + (f" (only {', '.join(sorted(self._only))})" if self._only else ""),
            only=tuple(sorted(self._only)),
        )

    def enter(self, model: str, turn: str) -> None:
        """Let an attempt through. Raises ModelCircuitOpen."""
        if self._until is None or self._is_free(model):
            return
        left_s = self._until - self._clock()
        if left_s <= 0 and not self._probe:
            self._probe = turn
            return
        if len(self._turned_away) <= _CROWD:
            self._turned_away.add(turn)
        raise ModelCircuitOpen(
            f"The endpoint {self.endpoint} of the model {model} is left alone {self._until_when(left_s)}: it"
            f" failed {len(self._failures)} times in a row; the last time {self._why}.",
            suggestion=f"Wait, or choose another model; lactl models test {model} tries it now.",
        )

    def open_s(self, model: str) -> float:
        """How many more seconds calls of this model are refused; 0 when they are admitted."""
        return 0.0 if self._is_free(model) else self.state.open_s

    def _is_free(self, model: str) -> bool:
        """Whether an open circuit admits this model, because only other models failed."""
        return bool(self._only) and model not in self._only

    def answered(self, turn: str) -> None:
        """The endpoint answered, so it is up."""
        self._failures.clear()
        if self._until is not None:
            self._until, self._probe, self._open_s = None, "", OPEN_S
            self._turned_away.clear()
            self._only.clear()
            self._tell(self.state)
        elif self._probe == turn:
            self._probe = ""

    def failed(self, err: ModelError, model: str, turn: str) -> None:
        """An attempt failed. An error that proves that the endpoint is up counts as an answer."""
        if isinstance(err, ModelRejected):
            self.answered(turn)
        if not is_down(err) or isinstance(err, ModelRateLimited | ModelCircuitOpen):
            return
        now, self._why = self._clock(), _in_words(err)
        only = model if isinstance(err, ModelOverloaded) else ""
        if self._until is not None:
            if not only:
                self._only.clear()  # the endpoint is down for all models
            if self._probe == turn:
                self._only = {only} if only and not self._only else self._only
                longer = len(self._turned_away) > _CROWD
                self._open(now, min(MOST_OPEN_S, self._open_s * 2) if longer else self._open_s)
            return  # an attempt that was under way when it opened
        self._failures.append(_Failure(now, turn, only))
        while self._failures[0].at < now - WITHIN_S or len(self._failures) > 4 * FAILURES:
            self._failures.popleft()
        if len(self._failures) >= FAILURES and len({one.turn for one in self._failures}) > 1:
            models = {one.only for one in self._failures}
            self._only = models if "" not in models else set()
            self._open(now, OPEN_S)

    def leave(self, turn: str) -> None:
        """The attempt is over, perhaps cancelled: a probe without a result makes room for another."""
        if self._probe == turn:
            self._probe = ""

    def _open(self, now: float, open_s: float) -> None:
        self._open_s, self._until, self._probe = open_s, now + open_s, ""
        self._turned_away.clear()
        self._tell(self.state)

    @staticmethod
    def _until_when(left_s: float) -> str:
        if left_s <= 0:
            return "until the call that tries it now has an answer"
        when = datetime.now(UTC) + timedelta(seconds=left_s)
        return f"until {when:%H:%M:%S} UTC ({left_s:.0f} s)"


def _in_words(err: ModelError) -> str:
    if isinstance(err, ModelTimedOut):
        return "it did not answer in time"
    if isinstance(err, ModelCutOff):
        return "its answer broke off"
    if isinstance(err, ModelOverloaded):
        return "it had too much to do, or failed inside"
    return "it could not be reached"


class Circuits:
    """The circuits of all endpoints. `tell` is called when one opens or closes."""

    def __init__(
        self,
        tell: Callable[[CircuitState], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._circuits: dict[str, Circuit] = {}

    def of(self, client: ModelClient) -> Circuit | None:
        """The circuit of a client's endpoint; None for a client without one."""
        endpoint = endpoint_of(client)
        if not endpoint:
            return None
        if endpoint not in self._circuits:
            self._circuits[endpoint] = Circuit(endpoint, self._tell, self._clock)
        return self._circuits[endpoint]

    def states(self) -> list[CircuitState]:
        """All endpoints that were called, by name."""
        return [self._circuits[endpoint].state for endpoint in sorted(self._circuits)]

    def problems(self) -> list[str]:
        """A sentence for each endpoint that is paused now."""
        return [
            f"The model endpoint {one.endpoint} is left alone for {one.open_s:.0f} s more: it failed"
            f" {one.failures} times in a row; the last time {one.why}."
            if one.state == "open" and one.open_s
            else f"The model endpoint {one.endpoint} was down, and the next call tries it; the last time"
            f" {one.why}."
            for one in self.states()
            if one.state != "closed"
        ]
