"""All attacks by name."""

from __future__ import annotations

from tests.attacks import acting, exhausting, leaving, misleading, reading, writing
from tests.attacks.case import Case

CASES: dict[str, Case] = {}
for _case in (
    *writing.CASES,
    *acting.CASES,
    *reading.CASES,
    *leaving.CASES,
    *misleading.CASES,
    *exhausting.CASES,
):
    assert _case.name not in CASES, f"two attacks are called {_case.name!r}"
    CASES[_case.name] = _case
