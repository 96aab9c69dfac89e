"""Completion in a shell. click does it: the shell runs lactl at each Tab, with `$_LACTL_COMPLETE` set.

The packages install the scripts that click has for bash, zsh and fish. Each option and argument says in its
`shell_complete` how a value is completed. `main` imports this module in such a run alone.
"""

from __future__ import annotations

import glob
from pathlib import Path

from click.shell_completion import CompletionItem, FishComplete, add_completion_class


class _Fish(FishComplete):
    """fish takes what continues the whole word, so behind `--option=` the option stands in each item. Files
    are listed here then, since fish itself looks for none that begin with an option.
    """

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        option, equals, begin = incomplete.partition("=")
        if not (option.startswith("--") and equals):
            return found
        if any(item.type == "file" for item in found):
            paths = sorted(glob.glob(f"{glob.escape(begin)}*"))  # noqa: PTH207 - as it was typed
            found = [CompletionItem(f"{path}/" if Path(path).is_dir() else path) for path in paths]
        for item in found:
            item.value = f"{option}={item.value}"
        return found


add_completion_class(_Fish)
