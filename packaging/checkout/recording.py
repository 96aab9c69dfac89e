"""Records commands in a terminal as a picture: `recording.py FILE.svg COMMAND...`, run by demo.sh.

Each command runs in a pseudo-terminal of its own, 100 columns wide. rich draws what it prints there.
"""

from __future__ import annotations

import io
import os
import pty
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 100
# rich's own frame, without the fonts that it would have a browser fetch.
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


def printed(argv: list[str]) -> str:
    """What a command prints on a terminal. Raises SystemExit when it fails."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES="50")
        os.execvp(argv[0], argv)  # noqa: S606 - on purpose: no shell
    chunks = io.BytesIO()
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end is closed, pty(7)
            break
        if not chunk:
            break
        chunks.write(chunk)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"{shlex.join(argv)} failed:\n{chunks.getvalue().decode()}")
    return chunks.getvalue().decode().replace("\r\n", "\n")


def main() -> None:
    target, *commands = sys.argv[1:]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for command in commands:
        console.print(Text(f"$ {command}", style="bold green"))
        console.print(Text.from_ansi(printed(shlex.split(command)).expandtabs()), soft_wrap=True)
        console.print()
    drawn = console.export_svg(title="lactl", theme=MONOKAI, code_format=FRAME, unique_id="lactl")
    Path(target).write_text(drawn)


if __name__ == "__main__":
    main()
