"""Times of a calendar in the words of systemd.time(7), as systemd-analyze(1) works them out."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lightagentd.errors import ConfigError, ToolError
from lightagentd.host.process import run

TIMEOUT_S = 20.0
_NEXT = re.compile(r"^\s*(?:Next elapse|Iter\. #\d+): (?P<local>.*)$")
_UTC = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) UTC$")


async def next_times(calendar: str, after_us: int, count: int = 1) -> list[int]:
    """The next times after a moment, in UTC microseconds; fewer where the calendar ends.

    Raises ConfigError for what is no calendar, ToolError where systemd-analyze cannot be run.
    """
    base = f"--base-time=@{after_us / 1e6:.6f}"
    argv = ["systemd-analyze", "calendar", f"--iterations={count}", base, "--", calendar]
    done = await run(argv, timeout_s=TIMEOUT_S, env={"LC_ALL": "C"}, limit_bytes=1 << 20)
    if done.timed_out or done.signal:
        raise ToolError("systemd-analyze(1) did not answer.")
    if done.status != 0:
        said = " ".join((done.stderr.text() or done.stdout.text()).split())[:300]
        raise ConfigError(
            f"calendar: {calendar[:100]!r} is no time of a calendar: {said}",
            field="calendar",
            suggestion="See systemd.time(7), and try: systemd-analyze calendar 'Mon *-*-* 06:00'",
        )
    found: list[int] = []
    pending = ""
    for line in done.stdout.text().splitlines():
        if match := _NEXT.match(line):
            pending = match["local"].strip()
        elif line.strip().startswith("(in UTC):"):
            pending = line.partition(":")[2].strip()
        else:
            continue
        if (moment := _UTC.search(pending)) is not None:
            at = datetime.fromisoformat(moment[1]).replace(tzinfo=UTC)
            found.append(round(at.timestamp() * 1e6))
    return found
