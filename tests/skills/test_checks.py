"""How checks are made: all at once, and none of them stops the others."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import REPOSITORY

WITHOUT_ROOM = """
import json, resource, sys, threading
sys.path.insert(0, sys.argv[1])
import checks
full, start = threading.Event(), threading.Thread.start
def starting(thread):
    try:
        start(thread)
    except RuntimeError:
        full.set()
        raise
threading.Thread.start = starting
for number in range(40):
    checks.check(f"a.{number:02}", "nothing")(lambda: iter(() if full.wait() else ()))
room = resource.getpagesize() * int(open("/proc/self/statm").read().split()[0]) + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
print(json.dumps([one.problem for one in checks.made()]))
"""


def test_a_check_that_cannot_start_is_told_and_the_others_are_made() -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", WITHOUT_ROOM, str(REPOSITORY / "skills/_lib")],
        capture_output=True,
        timeout=60,
        check=True,
    )
    problems = json.loads(done.stdout)
    assert len(problems) == 40
    assert set(problems) == {"", "It could not start: can't start new thread."}
