"""The first process of a worker that the daemon starts: holds the worker, and outlives it by a moment.

    daemon → [bwrap →] [setpriv →] keeper → worker → commands
                                   └ domain ┴ nested ┴ nested again    (see `landlock`)

The keeper enters a Landlock domain if the worker is confined, sets the limits, and forks: the child becomes
the worker (`program`), and the keeper waits. It ends the worker when the daemon exits or closes its end of
the lifeline, a pipe. When the worker is gone for any reason, the keeper kills all remaining processes and
exits with the worker's status. Nothing in the sandbox can signal the keeper, and no command can signal its
worker.

Where the kernel does not scope signals, bwrap makes a PID namespace instead, and this program becomes the
worker at once, as the namespace's init: no signal of a command reaches it, and at its death all processes in
the namespace die (pid_namespaces(7)). `--ends` names the way in use.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lightagentd.host import libc
from lightagentd.host.rlimit import lower
from lightagentd.worker import landlock
from lightagentd.worker.leftovers import Ends, end_all, reap

AT_ONCE = b"k"
"""What the daemon writes to the lifeline before it closes it in an emergency stop."""
GRACE_S = 1.5
"""How long a worker has to end its calls and tools after it was asked to."""


def main() -> None:
    """Become keeper and worker. Options unknown to the keeper go to the worker."""
    parser = argparse.ArgumentParser(prog="lightagent-keeper", description=__doc__.partition("\n")[0])
    parser.add_argument("--ends", type=Ends, choices=list(Ends), required=True)
    parser.add_argument("--lifeline", type=int, required=True, metavar="FD")
    parser.add_argument("--confined", action="store_true")
    parser.add_argument("--bus", action="store_true", help="commands may talk to the filtered bus")
    parser.add_argument("--landlock", type=int, default=0, metavar="ABI")
    parser.add_argument("--limit-processes", type=int, default=0, metavar="COUNT")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where alone commands may write")
    options, rest = parser.parse_known_args()
    if options.scratch:
        rest += ["--scratch", str(options.scratch)]
    ends: Ends = options.ends
    # No core file, and no /proc/PID/mem or environ of these processes for the shells that they run.
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    rules = landlock.ruleset(options.landlock) if options.landlock else None
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if options.limit_processes:
        # Counted by user, and inside a user namespace of bwrap's by that namespace (setrlimit(2)).
        lower(resource.RLIMIT_NPROC, options.limit_processes)
    if rules is not None:
        landlock.enter(rules)
    if ends is Ends.NAMESPACE:
        os.set_inheritable(options.lifeline, False)
        _watch(options.lifeline)
    else:
        _fork(ends, options.lifeline)
        os.close(options.lifeline)
        if rules is not None:
            landlock.enter(rules)
    if rules is not None and options.scratch:
        # A read-only mount does not keep anybody from writing into a FIFO that is there (mount(8)).
        writable = [options.scratch, *landlock.WRITABLE_DEVICES]
        rules = landlock.ruleset(options.landlock, writable=writable)
    if options.confined:
        _confine(rules, options.limit_processes * 3 // 4, filtered=bool(options.scratch), bus=options.bus)
    _work(rest, ends)


def _watch(lifeline: int) -> None:
    """As an init: exit when the daemon is gone, even during a call, and ignore signals from inside.

    A signal on the parent's death (PR_SET_PDEATHSIG) does not work: bwrap as root without capabilities may
    not signal another user. The pipe raises SIGIO when its other end is closed (fcntl(2), O_ASYNC).
    """
    poller = select.poll()
    poller.register(lifeline, 0)

    def look(_number: int, _frame: object) -> None:
        if poller.poll(0):
            os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGIO, look)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    look(signal.SIGIO, None)


def _fork(ends: Ends, lifeline: int) -> None:
    """Return in the child, which becomes the worker; the parent stays the keeper and then exits."""
    keeper = os.getpid()
    worker = os.fork()
    if worker:
        sys.exit(keep(worker, lifeline, ends))
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM)  # so that it can end what it runs
    if os.getppid() != keeper:
        sys.exit("the keeper of this worker is gone")


def _confine(rules: int | None, processes: int, *, filtered: bool, bus: bool) -> None:
    """Where bwrap filters the worker (`filtered`), its commands get a filter of their own: they cannot serve,
    and with `bus` the worker can open Unix sockets, but they cannot.

    The other sockets that an effect forbids are refused by the worker's filter, also for its commands.
    """
    from lightagentd.worker import busdoor, confine, seccomp  # only here: the keeper stays small

    door = bus and busdoor.possible()
    code = seccomp.program(seccomp.REACH_FAMILIES, bus=door) if filtered else b""
    confine.confine_commands(rules, processes, code, bus=door)


def _work(arguments: Sequence[str], ends: Ends) -> None:
    from lightagentd.worker import program  # only here: the keeper stays small

    program.main(arguments, ends=ends)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is closed; to take the interpreter apart would take as long as a call


def keep(worker: int, lifeline: int, ends: Ends) -> int:
    """Wait for the worker, end it when the lifeline ends, then kill its leftovers. Gives the exit status.

    A byte on the lifeline (`AT_ONCE`) kills the worker at once, without time to end its calls.
    """
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    asked = [False]

    def on_term(_number: int, _frame: object) -> None:
        asked[0] = True

    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, on_term)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    poller = select.poll()
    poller.register(woken, select.POLLIN)
    poller.register(lifeline, select.POLLIN)  # and POLLHUP, which is always reported
    status: int | None = None
    deadline = 0.0
    while True:
        status = reap(worker)
        if status is not None:
            break
        if asked[0] and not deadline:
            deadline = time.monotonic() + GRACE_S
            os.kill(worker, signal.SIGTERM)
        left_ms = max(0.0, deadline - time.monotonic()) * 1000 if deadline else None
        ready = dict(poller.poll(left_ms))
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 512)
        if lifeline in ready:
            poller.unregister(lifeline)
            asked[0] = True
            if ready[lifeline] & select.POLLIN:  # a word on it: at once, without any grace
                os.kill(worker, signal.SIGKILL)
        if deadline and time.monotonic() >= deadline:
            os.kill(worker, signal.SIGKILL)
    while end_all(ends):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
    return status


if __name__ == "__main__":
    main()
