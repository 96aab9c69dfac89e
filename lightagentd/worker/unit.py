"""The main program of the worker units: `lightagent-observe@AGENT`, `-reach@` and `-change@`.

systemd has made the sandbox that the unit file describes and passes the listening socket. Before it becomes
the worker, this program adds what a unit file cannot express. Each command gets a cgroup (`cgroups`). If the
effect is confined, each command also gets limits, a Landlock domain and a filter. In the domain it can write
only to its scratch folder, signal and trace nothing outside, and not leave its cgroup. The filter allows no
Unix socket but one to the filtered bus (`busdoor`). The environment of tools comes from the administrator's
configuration, which the worker reads itself.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightagentd.host import process
from lightagentd.host.paths import Paths, content_folders, tool_folders
from lightagentd.tool import Effect
from lightagentd.worker import busdoor, confine, landlock, program, seccomp
from lightagentd.worker.cgroups import CallCgroups, join
from lightagentd.worker.leftovers import Ends
from lightagentd.worker.sandbox import PROCESSES, SCRATCH

if TYPE_CHECKING:
    from lightagentd.worker.verifying import Verifier

_log = logging.getLogger(__name__)


def main() -> None:
    parser = argparse.ArgumentParser(prog="lightagent-worker", description=__doc__.partition("\n")[0])
    parser.add_argument("effect", type=Effect, choices=list(Effect))
    parser.add_argument("agent", nargs="?", default="", help="whose worker for change it is")
    options = parser.parse_args()
    effect: Effect = options.effect
    folder = Path(os.environ.get("LIGHTAGENT_CONFIG_DIR", "/etc/lightagentd"))
    paths = Paths(config=folder, state=Path("/var/lib/lightagentd"), runtime=Path("/run/lightagentd"))
    _tell_tools(paths, effect)
    try:
        calls = CallCgroups.of_this_unit()
    except OSError as err:
        sys.exit(
            "the unit has no cgroup of its own below which calls could run (Delegate=yes; with a Slice= of a"
            f" drop-in also ReadWritePaths=): {err}"
        )
    arguments = [option for one in tool_folders(paths) for option in ("--tools", str(one))]
    verifier = None
    if effect is Effect.CHANGE:
        verifier = _verifier(options.agent, paths)
        if own := os.environ.get("RUNTIME_DIRECTORY"):
            arguments += ["--scratch", own]
        process.before_exec(join)
    else:
        arguments += ["--scratch", str(SCRATCH)]
        _confine(effect)
    program.main(arguments, ends=Ends.CGROUP, cgroups=calls, effect=effect, verifier=verifier)


def _verifier(agent: str, paths: Paths) -> Verifier:
    """What keeps the daemon from more than people and rules allow. Exits where there can be none."""
    state = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if not agent or not state:
        sys.exit("a worker for change needs the name of its agent, and a folder for its state")
    from lightagentd.worker.verifying import Verifier  # only workers for change need it

    return Verifier(agent, state=Path(state), config=paths.config)


def _confine(effect: Effect) -> None:
    """Give every command of this worker limits, a domain, and a filter without sockets to services.

    Exits where the kernel has no Landlock or the filter cannot be made.
    """
    level = landlock.abi()
    if not level:
        sys.exit("the kernel has no Landlock (Linux 5.13), without which commands could leave their cgroup")
    if why := seccomp.missing():
        sys.exit(why)
    rules = landlock.ruleset(level, writable=[SCRATCH, *landlock.WRITABLE_DEVICES])
    families = seccomp.OBSERVE_FAMILIES if effect is Effect.OBSERVE else seccomp.REACH_FAMILIES
    bus = busdoor.possible()
    if not bus:
        _log.warning("%s", busdoor.IMPOSSIBLE)
    code = seccomp.program(families, uid=os.geteuid(), bus=bus)
    confine.confine_commands(rules, PROCESSES * 3 // 4, code, bus=bus)


def _tell_tools(paths: Paths, effect: Effect) -> None:
    """Set the environment that the pool gives to its own workers (`LocalWorkers.environment`)."""
    skills = content_folders("skills", paths)
    os.environ["LIGHTAGENT_SKILLS"] = ":".join(str(one) for one in skills)
    if effect is not Effect.OBSERVE:
        os.environ["LIGHTAGENT_WEB_ALLOW_IN"] = str(paths.config)
    state = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if effect is Effect.CHANGE and state:
        os.environ["LIGHTAGENT_UNDO"] = f"{state}/undo"


if __name__ == "__main__":
    main()
