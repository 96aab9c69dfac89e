"""Calls that wait for a limit for a minute, and for no other error."""

from __future__ import annotations

import pytest

from lightagentd.assessment.daemon import patiently
from lightagentd.errors import LightagentError, LimitExceeded, QueueFull

MINUTE = LimitExceeded("carol has reached the limit changes_per_minute, which is 600.")


async def test_only_the_limit_for_a_minute_is_waited_for() -> None:
    errors: list[LightagentError] = [MINUTE, MINUTE]
    tried = []

    async def work() -> str:
        tried.append(1)
        if errors:
            raise errors.pop()
        return "done"

    assert (await patiently(work, 0), len(tried)) == ("done", 3)
    for other in (QueueFull("changes_per_minute"), LimitExceeded("the limit sessions")):
        errors, before = [other], len(tried)
        with pytest.raises(LimitExceeded):
            await patiently(work, 0)
        assert len(tried) == before + 1
