"""Attacks that use something up: processes, memory, output, time, descriptors, the scratch folder."""

from __future__ import annotations

from tests.attacks.case import ENDED, OBSERVE, REACH, TRIED, Aftermath, Case, ask, asked, python, sh, shell

STATUS_BOUND_S = 8.0
"""How long the daemon may take to say its status, on a machine that has other things to do as well; the bench
has the figure for one that has not."""
RESULT_BYTES = 1 << 20


def answers(aftermath: Aftermath) -> None:
    """The daemon answered all the while, and what came to the model is bounded."""
    assert max(aftermath.status_s) < STATUS_BOUND_S, sorted(aftermath.status_s)[-3:]
    assert all(len(result["text"]) < RESULT_BYTES for result in aftermath.results)


def _sees_nothing_of_the_last(aftermath: Aftermath) -> None:
    answers(aftermath)
    assert aftermath.results[-1]["text"].split() == ["0", "worked"], aftermath.results[-1]["text"]


_NEXT = shell("find $(dirname $TMPDIR) -mindepth 1 ! -path $TMPDIR | wc -l; echo worked", timeout_s=10.0)

_THREADS = """
import threading, time
held = []
try:
    for _ in range(1_000_000):
        held.append(threading.Thread(target=time.sleep, args=(300,), daemon=True))
        held[-1].start()
except RuntimeError as err:
    print(len(held), err)
while True:
    time.sleep(1)
"""

_DESCRIPTORS = """
import os, resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
null = lambda: os.open("/dev/null", 0)
for open_one in (null, os.pipe, lambda: os.memfd_create("x"), lambda: os.eventfd(0)):
    try:
        for _ in range(100_000):
            held.append(open_one())
    except OSError as err:
        print(len(held), err)
print(len(held))
"""

_ZOMBIES = """
import os, time
try:
    while True:
        if os.fork() == 0:
            os._exit(0)
except OSError as err:
    print(err)
time.sleep(60)
"""

_DEEP_FOLDERS = """
import os
os.chdir(os.environ["TMPDIR"])
for number in range(3000):
    os.mkdir("d")
    os.chdir("d")
open("file", "w").close()
os.chmod(".", 0)
"""

_INODES = """
import os
os.chdir(os.environ["TMPDIR"])
number = 0
try:
    while number < 100_000:
        open(str(number), "w").close()
        number += 1
except OSError as err:
    print(err)
print(number)
"""

_OUTLIVE = """
import os, signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
while True:
    time.sleep(1)
"""


_SHARED = """
import ctypes, fcntl, os, platform
libc = ctypes.CDLL(None, use_errno=True)
number = 206 if platform.machine() == "x86_64" else 0
print("asynchronous I/O:", libc.syscall(number, 65536, ctypes.byref(ctypes.c_ulong())))
for path in ("/dev/ptmx", "/dev/pts/ptmx"):
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_NOCTTY):
        try:
            fcntl.ioctl(os.open(path, flags), 0x80045430, bytes(4))  # TIOCGPTN
        except OSError as err:
            print(path, err)
            continue
        print("terminal: 0")
"""


def _none_taken(aftermath: Aftermath) -> None:
    assert "asynchronous I/O: -1" in aftermath.text, aftermath.text
    assert "terminal: 0" not in aftermath.text, aftermath.text


def _limited(name: str, command: str, timeout_s: float = 0.5) -> Case:
    """A command that would never end, then one that must find everything as usual."""
    return Case(
        name=name,
        steps=((shell(command, timeout_s=timeout_s),), (_NEXT,)),
        effects=OBSERVE,
        ends=ENDED,
        also=_sees_nothing_of_the_last,
    )


CASES = [
    _limited("a fork bomb", "f() { f | f & }; f; wait"),
    _limited(
        "a fork bomb in sessions of its own", 'f() { setsid bash -c "$(declare -f f); f" & f & }; f; wait'
    ),
    _limited("a million threads", python(_THREADS)),
    _limited("zombies", python(_ZOMBIES)),
    _limited("all the descriptors", python(_DESCRIPTORS)),
    _limited("all the memory", python("held = []\nwhile True:\n    held.append(bytearray(64 << 20))")),
    _limited("a loop without an end", "while :; do :; done & while :; do :; done"),
    _limited("no signal heeded", python(_OUTLIVE)),
    _limited("no signal heeded by the shell", "trap '' TERM INT HUP; while :; do sleep 300; done"),
    _limited("stopped by itself", "kill -STOP $$; echo never"),
    _limited("ten gigabytes of output", "yes | head -c 10G"),
    _limited("output without an end", "yes & yes >&2"),
    _limited("a line without an end", "cat /dev/zero"),
    _limited("bytes that are no text", "cat /dev/urandom"),
    _limited("a read that never ends", "cat @silent_fifo@ - </dev/null; read x <@silent_fifo@"),
    _limited("output held open", "sleep 300 & sleep 300 & exec 3>&1; setsid sleep 300 >&3 2>&3 & echo done"),
    _limited(
        "the scratch folder full", "head -c 10G /dev/zero >$TMPDIR/x; df -P $TMPDIR | tail -1", timeout_s=15.0
    ),
    _limited("the scratch folder full of files", python(_INODES), timeout_s=15.0),
    sh("pseudo terminals and kernel I/O of all", python(_SHARED), also=_none_taken),
    sh("no command at all", ":", "exit 255", "exec </dev/null >&- 2>&-", "kill -9 $$", also=answers),
    asked(
        "files that never end",
        *(
            ask("file_read", path=path)
            for path in (
                "/dev/zero",
                "/dev/random",
                "/dev/tty",
                "@silent_fifo@",
                "/proc/kmsg",
                "/dev/full",
                "/dev/stdin",
            )
        ),
        ask("file_read", path="@sparse@"),
        ask("file_read", path="@sparse@", offset=5000, limit=5000),
        ask("file_grep", path="@sparse@", pattern="x"),
        ask("crypto_sha256", path="@silent_fifo@"),
        ask("crypto_sha256", path="/dev/zero"),
        ask("crypto_certificate", path="@sparse@"),
        ends=TRIED,
        also=answers,
    ),
    asked(
        "a digest of a file that never ends", ask("crypto_sha256", path="@sparse@"), ends=TRIED, also=answers
    ),
    asked(
        "patterns that never end",
        ask("file_grep", path="@evil@", pattern="(a+)+$"),
        ask("journal_query", text="(a+)+$", regex=True),
        ask("file_glob", pattern="**/" * 30 + "x", path="/etc"),
        ask("file_grep", path="/etc", pattern="(" * 5000 + ")" * 5000),
        ask("file_grep", path="/etc", pattern="x{1,65000}{1,65000}"),
        ends=TRIED,
        also=answers,
    ),
    asked(
        "answers of the web that never end",
        ask("web_get", url="http://127.0.0.1:@web@/bomb"),
        ask("web_get", url="http://127.0.0.1:@web@/endless", timeout_s=3),
        ask("web_get", url="http://127.0.0.1:@web@/headers", timeout_s=5),
        effects=REACH,
        ends=TRIED | {"limit_exceeded"},
        also=answers,
    ),
    _limited("folders in folders", python(_DEEP_FOLDERS), timeout_s=15.0),
    _limited(
        "folders that are closed",
        "mkdir -p $TMPDIR/a/b/c; chmod 0 $TMPDIR/a/b $TMPDIR/a $TMPDIR; cd ..; touch left",
    ),
]
