"""Runs an administrator's hooks, in a worker that does nothing else (see `toolkit.hook`).

The worker loads the files of a folder at the first question about it, in the order of their names, and keeps
them. A hook runs in the main thread: a signal ends it when its time is over, and where that does not help,
the daemon ends the worker. It can start no program, and has less memory than a command of a tool.
"""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import hashlib
import json
import logging
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd.host.rlimit import lower
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.toolkit.hook import PHASES, TOLD, Block, Replace
from lightagentd.varlink.connection import AtOnce
from lightagentd.worker import landlock
from lightagentd.worker.loader import LOAD_LIMIT_S, bounded, check_owner, line_of, module_of
from lightagentd.worker.lockdown import forbid_programs

_log = logging.getLogger(__name__)

TIMEOUT_S, MAX_TIMEOUT_S = 2.0, 30.0
"""How long one hook may take unless its file says otherwise, and the most that it can say."""
DATA_BYTES = 512 << 20
"""The memory of the worker of hooks (RLIMIT_DATA)."""
MAX_PAYLOAD_BYTES = MAX_MESSAGE_BYTES // 2
_MAX_REASON_CHARS = 1000
_ON_ERROR = ("block", "go on")
_RUN = b'{"method":"org.lightagent1.WorkerHooks.Run",'


@dataclass(frozen=True, kw_only=True)
class HookFile:
    """One loaded file; with a `problem`, why it cannot be used."""

    path: Path
    functions: dict[str, Callable[[dict[str, Any]], object]] = field(default_factory=dict)
    on_error: str = "block"
    timeout_s: float = TIMEOUT_S
    agents: list[str] = field(default_factory=list)
    """The agents that it is asked for; all of them when there are none."""
    sha256: str = ""
    problem: str = ""
    line: int = 0

    def described(self) -> dict[str, Any]:
        own = ("on_error", "timeout_s", "agents", "sha256", "problem", "line")
        phases = [phase for phase in PHASES if phase in self.functions]
        return {"name": self.path.name, "phases": phases, **{key: getattr(self, key) for key in own}}


def load_hooks(folder: Path) -> list[HookFile]:
    """The hook files of a folder, in the order of their names."""
    return [load_hook(path) for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")]


def load_hook(path: Path) -> HookFile:
    """Load one file; what is wrong with it is its `problem`."""
    try:
        check_owner(path)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        with bounded(LOAD_LIMIT_S, "load"):
            module = vars(module_of(path, f"lightagentd_hook_{path.stem}"))
        return _declared(path, module, sha256)
    except (Exception, SystemExit) as err:  # noqa: BLE001 - whatever a file raises is a report, not a crash
        return HookFile(path=path, problem=f"{type(err).__name__}: {err}", line=line_of(err, path))


def _declared(path: Path, module: Mapping[str, Any], sha256: str) -> HookFile:
    """Raises TypeError, ValueError."""
    functions = {phase: module[phase] for phase in PHASES if phase in module}
    odd = sorted(
        name
        for name, one in module.items()
        if name.startswith(("before_", "after_", "on_")) and callable(one) and name not in PHASES
    )
    if odd:
        raise ValueError(f"{odd[0]} is not a phase; the phases are: {', '.join(PHASES)}")
    if not functions:
        raise ValueError(f"it has no function for a phase; the phases are: {', '.join(PHASES)}")
    for phase, function in functions.items():
        if not callable(function):
            raise TypeError(f"{phase} is not a function")
    on_error, timeout_s = module.get("on_error", "block"), module.get("timeout_s", TIMEOUT_S)
    if on_error not in _ON_ERROR:
        raise ValueError(f"on_error is {on_error!r}; it can be: {', '.join(map(repr, _ON_ERROR))}")
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"timeout_s is {timeout_s!r}; it can be up to {MAX_TIMEOUT_S:g} seconds")
    agents = module.get("agents", [])
    if not isinstance(agents, list | tuple) or not all(isinstance(one, str) for one in agents):
        raise TypeError("agents is not a list of names")
    return HookFile(
        path=path,
        functions=functions,
        on_error=on_error,
        timeout_s=float(timeout_s),
        agents=list(agents),
        sha256=sha256,
    )


def digest(value: object) -> str:
    """The SHA-256 of a value as JSON with sorted keys. Raises TypeError, ValueError."""
    return hashlib.sha256(_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False)


def run_hooks(
    files: list[HookFile], phase: str, given: Callable[[], dict[str, Any]], agent: str
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Ask each file about a payload, until one blocks; `given` makes it, anew for each file, which may change
    what it gets. Gives the payload if it was replaced, and what was decided: objects {hook, decision, reason,
    keys, before, after}. Hooks that just go on are not in it.
    """
    replaced: dict[str, Any] | None = None
    decided: list[dict[str, Any]] = []
    for one in files:
        function = one.functions.get(phase)
        if function is None or (one.agents and agent not in one.agents):
            continue
        found = {"hook": one.path.name, "reason": "", "keys": [], "before": "", "after": ""}
        try:
            with bounded(one.timeout_s, "answer"):
                answer = function(given() if replaced is None else json.loads(_json(replaced)))
            if answer is None:
                continue
            payload = given() if replaced is None else replaced
            changed = _changed(phase, payload, answer)
        except (Exception, SystemExit) as err:  # noqa: BLE001 - whatever a hook raises is its failure
            line = line_of(err, one.path)
            where = f"{one.path}:{line}" if line else f"{one.path}"
            reason = f"{where}: {phase}: {type(err).__name__}: {err}".rstrip(": ")[:_MAX_REASON_CHARS]
            goes_on = one.on_error == "go on"
            out_of_memory = isinstance(err, MemoryError)
            decided.append(
                found | {"decision": "failed", "reason": reason, "goes_on": goes_on, "retire": out_of_memory}
            )
            if goes_on:
                continue
            break
        if isinstance(answer, Block):
            reason = str(answer.reason)[:_MAX_REASON_CHARS]
            decided.append(found | {"decision": "told" if phase in TOLD else "blocked", "reason": reason})
            if phase not in TOLD:
                break
        if changed:
            before = {key: payload[key] for key in changed}
            replaced = payload | changed
            keys = {"keys": [*changed], "before": digest(before), "after": digest(changed)}
            decided.append(found | {"decision": "replaced"} | keys)
    return replaced, decided


def _changed(phase: str, payload: dict[str, Any], answer: object) -> dict[str, Any]:
    """The keys that an answer changes, with their new values. Raises TypeError, ValueError."""
    if isinstance(answer, Block):
        return {}
    if not isinstance(answer, Replace):
        raise TypeError(f"it gave {type(answer).__name__}; a hook gives nothing, replace(...) or block(...)")
    if not isinstance(answer.payload, dict):
        raise TypeError(f"it replaces the payload by {type(answer.payload).__name__}, which is no dict")
    size = len(_json(answer.payload))
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(f"its payload has {size / (1 << 20):.1f} MiB of {MAX_PAYLOAD_BYTES >> 20} at most")
    given: dict[str, Any] = json.loads(_json(answer.payload))
    changed = {key: value for key, value in given.items() if key not in payload or payload[key] != value}
    for key, value in changed.items():
        if key not in PHASES[phase]:
            may = ", ".join(PHASES[phase]) or "nothing"
            raise ValueError(f"it replaces {key!r}; this phase can replace: {may}")
        if type(value) is not type(payload[key]):
            raise TypeError(f"{key} is {type(value).__name__}, not {type(payload[key]).__name__}")
    return changed


class HooksInterface(AtOnce, VarlinkInterface, name="org.lightagent1.WorkerHooks"):
    """The hooks of one worker for the daemon. `retire` has the worker exit."""

    def __init__(self, retire: Callable[[], None]) -> None:
        self._retire = retire
        self._folders: dict[str, list[HookFile]] = {}

    @varlinkmethod(return_parameter="hooks", allow_foreign=True)
    async def Describe(self, *, folder: str) -> list[Any]:
        """The hook files of a folder, also those that cannot be used."""
        return [one.described() for one in self._files(folder)]

    @varlinkmethod(return_parameter="answer", allow_foreign=True)
    async def Run(self, *, folder: str, phase: str, payload: Any, agent: str) -> Any:
        """Ask the hooks of a folder. Gives {payload, decided}; payload is null where nothing changed."""
        return self._run(folder, phase, lambda: json.loads(_json(payload)), agent)

    def at_once(self, message: bytes) -> dict[str, Any] | None:
        """As `Run`, which a step of a turn calls several times."""
        if not message.startswith(_RUN):
            return None
        asked = json.loads(message)["parameters"]
        first = [asked.pop("payload")]  # the next ones are read again

        def given() -> dict[str, Any]:
            found: dict[str, Any] = first.pop() if first else json.loads(message)["parameters"]["payload"]
            return found

        return {"answer": self._run(asked["folder"], asked["phase"], given, asked["agent"])}

    def _run(
        self, folder: str, phase: str, given: Callable[[], dict[str, Any]], agent: str
    ) -> dict[str, Any]:
        found, decided = run_hooks(self._files(folder), phase, given, agent)
        if any(one.pop("retire", False) for one in decided):
            self._retire()  # what is left of its memory would not be enough for others
        return {"payload": found, "decided": decided}

    def _files(self, folder: str) -> list[HookFile]:
        if folder not in self._folders:
            if not self._folders:
                lower(resource.RLIMIT_DATA, DATA_BYTES)
                if not forbid_programs():
                    _log.warning("no filter of system calls can be made here: hooks can start programs")
                if level := landlock.abi():  # or they could use the scratch folder of the calls
                    landlock.enter(landlock.ruleset(level, writable=landlock.WRITABLE_DEVICES))
            self._folders[folder] = load_hooks(Path(folder))
        return self._folders[folder]
