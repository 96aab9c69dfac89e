"""Notices a model that makes the same failing call again and again, and ends its turn.

Calls are the same when they name the same function with equal arguments, in any notation. A call failed when
its result is an error: refused, invalid, denied, failed, timed out. A command with an exit status other than
0 also counts, but only if its whole output was the same each time, because polling for a state is legitimate.
Any other call in between restarts the count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lightagentd.errors import CallLoop
from lightagentd.llm.protocol import ToolCall

MOST = 3
"""So many failing calls in a row are run; one more ends the turn."""
_CUT = (
    "\n[The answer was cut here, because it was as long as the model's answers may be. Make the call again"
    " with smaller arguments, or in several steps.]"
)
_LAST = (
    f"\n[This was the same failing call for the {MOST}rd time in a row. Once more, and the turn ends: change"
    " the arguments, do something else, or say what is wrong.]"
)


class Repeats:
    """The repeated failing calls of one turn. `trace_id` is the turn's."""

    def __init__(self, trace_id: str) -> None:
        self._trace_id = trace_id
        self._last = b""
        self._failure = b""
        self._count = 0

    def check(self, call: ToolCall) -> None:
        """Check a call before it runs. Raises CallLoop."""
        if self._count >= MOST and _fingerprint(call) == self._last:
            raise CallLoop(
                f"The model made the same failing call of {call.name[:100]} {MOST} times in a row and wanted"
                " it once more.",
                suggestion="Say what it should do instead, or look at the calls: lactl trace show"
                f" {self._trace_id}",
            )

    def remark(
        self, call: ToolCall, result: str, text: str, metadata: Mapping[str, Any], *, cut: bool = False
    ) -> str:
        """After a call: a remark for the model after its result, such as that it repeats itself.

        `cut`: the model's answer was cut at this call because it was too long.
        """
        remark = _CUT if cut and result == "invalid_argument" else ""
        if result == "ok" and metadata.get("exit_status") in (None, 0):
            self._count, self._last, self._failure = 0, b"", b""
            return remark
        this, failure = _fingerprint(call), b"" if result != "ok" else _digest(text)
        again = this == self._last and failure == self._failure
        self._last, self._failure = this, failure
        self._count = self._count + 1 if again else 1
        return remark + _LAST if self._count == MOST else remark


def _fingerprint(call: ToolCall) -> bytes:
    """The same for the same function with the same arguments."""
    try:
        arguments = json.dumps(json.loads(call.arguments), sort_keys=True)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return _digest(f"{call.name}\n{arguments}")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
