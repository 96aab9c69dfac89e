"""Calls of tools in the machine, as an agent would make them; `lactl tools call` carries them."""

from __future__ import annotations

import json
from typing import Any

from .machine import Machine
from .product import lactl, lactl_json


def call(machine: Machine, tool: str, *, agent: str = "ops", **args: Any) -> dict[str, Any]:
    """What ends the call: its `tool_result`, or an `error`."""
    done = lactl(machine, "--json", "tools", "call", agent, tool, "--args", json.dumps(args), check=False)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ends = [event for event in events if event["type"] in ("tool_result", "error")]
    assert ends, done.explain()
    return dict(ends[-1])


def shell(machine: Machine, command: str, effect: str = "observe", *, agent: str = "ops") -> str:
    """What a shell command prints, standard error included."""
    end = call(machine, "bash.exec", agent=agent, command=command, effect=effect)
    assert end["type"] == "tool_result", end
    return str(end["text"])


def worker_unit(machine: Machine, effect: str = "observe", agent: str = "ops") -> str:
    """The service that an agent's shell commands of root run in; a first one has been run."""
    shell(machine, "true", effect, agent=agent)
    [unit] = [
        str(worker["unit"])
        for worker in lactl_json(machine, "status")["workers"]
        if (worker["agent"], worker["effect"], worker["owner"]) == (agent, effect, 0)
    ]
    return unit


def bus_unit(worker: str) -> str:
    """The filter between a worker and the bus."""
    return f"lightagent-bus@{worker.partition('@')[2]}"


def main_pid(machine: Machine, unit: str) -> int:
    """The main process of a unit, or 0."""
    return int(machine.run(["systemctl", "show", "--property=MainPID", "--value", unit]).stdout)
