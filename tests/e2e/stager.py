"""Runs in the machine: stages faults, asks about them, and takes them back; staged.py sends it there.

Standard input is a JSON object: `each`, the faults that are staged one after the other and asked about, and
`together`, lists of faults that are there at once when the machine's health is asked, and `lasting`, those
that are there all that time. Standard output is a JSON object: `healthy`, the findings before any fault;
`each`, by the name of a fault, how it went; and `together`, for each list the findings.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lightagentd.client import Client

SHELL = r"""
unit() { cat > "/etc/systemd/system/$1"; touch /run/systemd/reload-units; }
systemctl() {
    if rm /run/systemd/reload-units 2>/dev/null; then command systemctl daemon-reload; fi
    command systemctl "$@"
}
daemon() { local name=$1; shift; systemd-run -q --unit="$name" "$@"; }
await() {
    for _ in $(seq 100); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.05; done
    echo "still not: $*" >&2
    return 1
}
gone() {
    for one; do
        if [ -e "/etc/systemd/system/$one" ]; then command systemctl disable -q "$one"; fi
        rm -f "/etc/systemd/system/$one"
    done 2>/dev/null
    command systemctl kill -q -s KILL "$@" 2>/dev/null
    command systemctl stop -q "$@" 2>/dev/null
    command systemctl daemon-reload
    command systemctl reset-failed "$@" 2>/dev/null
    true
}
"""
DEADLINE_S = 20
LASTING_S = 20.0
"""So old is a lasting fault at least when health is asked last."""


def shell(commands: str) -> tuple[int, str]:
    """The exit status of commands of bash, and what they printed."""
    done = subprocess.run(
        ["bash", "-c", SHELL + commands],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout


def ask(prompt: str) -> str:
    """The answer of the agent ops, in a session of its own."""
    answer = ""
    with Client() as client:
        for reply in client.sessions_prompt(agent="ops", text=prompt, new=True):
            event = reply["event"]
            if event["type"] in ("done", "error"):
                answer = event.get("text") or event.get("message") or ""
    return answer


def health() -> dict[str, Any]:
    """What `lactl health` found, and how long that took."""
    begun = time.monotonic()
    done = subprocess.run(
        ["lactl", "--json", "health", "--full"], capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        found = {"findings": [{"text": f"lactl health failed: {done.stderr}"}]}
    return {**found, "took_s": round(time.monotonic() - begun, 2)}


def each(fault: dict[str, Any], threads: ThreadPoolExecutor) -> dict[str, Any]:
    """Stage one fault, ask its prompts at once, and take it back."""
    begun = time.monotonic()
    _, said = shell(fault["stage"])
    is_there, proof = shell(fault["proof"])
    staged = time.monotonic()
    answers = list(threads.map(ask, fault["prompts"]))
    asked = time.monotonic()
    _, undone = shell(fault["undo"])
    is_left, _ = shell(fault["proof"])
    return {
        "staged": is_there == 0,
        "undone": is_left != 0,
        "said": said + proof + undone,
        "answers": answers,
        "took_s": [round(x, 2) for x in (staged - begun, asked - staged, time.monotonic() - asked)],
    }


def together(groups: list[list[dict[str, Any]]], lasting: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Stage the faults of each group, ask for the machine's health, and take them back."""
    for fault in lasting:
        shell(fault["stage"])
    begun = time.monotonic()
    for number, faults in enumerate(groups, start=1):
        for fault in faults:
            shell(fault["stage"])
        if lasting and number == len(groups):
            time.sleep(max(0.0, LASTING_S - (time.monotonic() - begun)))
        yield health()
        for fault in faults:
            shell(fault["undo"])
    for fault in lasting:
        shell(fault["undo"])


def main() -> None:
    asked = json.load(sys.stdin)
    with ThreadPoolExecutor(2) as threads:
        report = {
            "healthy": health(),
            "each": {fault["name"]: each(fault, threads) for fault in asked["each"]},
            "together": list(together(asked["together"], asked["lasting"])),
        }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
