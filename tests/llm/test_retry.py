"""Waits between attempts: bounded in number and time, spread, and never shorter than was asked for."""

from __future__ import annotations

import random

import pytest

from lightagentd.errors import (
    ModelCertificate,
    ModelCircuitOpen,
    ModelCutOff,
    ModelError,
    ModelGarbled,
    ModelKeyRefused,
    ModelNotFound,
    ModelOverloaded,
    ModelPromptTooLong,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelRedirected,
    ModelRejected,
    ModelTimedOut,
    ModelUnreachable,
)
from lightagentd.llm.endpoint.refusals import NoModel
from lightagentd.llm.retry import DEFAULT, NEVER, Backoff, RetrySettings

DOWN = ModelUnreachable("It is away.")


class Highest(random.Random):
    """Always the longest wait."""

    def uniform(self, a: float, b: float) -> float:
        return b


def waits(settings: RetrySettings, err: ModelError = DOWN, dice: random.Random | None = None) -> list[float]:
    """All waits of a call that always fails in the same way."""
    backoff = Backoff(settings, dice or Highest())
    found = []
    while (wait_s := backoff.wait_s(err)) is not None:
        found.append(wait_s)
    return found


def test_the_longest_wait_doubles_up_to_a_limit() -> None:
    settings = RetrySettings(max_retries=8, max_retry_s=600.0)
    assert waits(settings) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]


def test_waits_are_spread_over_all_of_their_time() -> None:
    first = [Backoff(DEFAULT, random.Random(seed)).wait_s(DOWN) for seed in range(400)]
    assert all(wait_s is not None and 0 <= wait_s <= DEFAULT.base_s for wait_s in first)
    tenths = {int((wait_s or 0) / DEFAULT.base_s * 10) for wait_s in first}
    assert tenths >= set(range(10))
    assert Backoff(DEFAULT, random.Random(7)).wait_s(DOWN) == Backoff(DEFAULT, random.Random(7)).wait_s(DOWN)


@pytest.mark.parametrize("max_retries", [0, 1, 4, 20])
@pytest.mark.parametrize("max_retry_s", [0.01, 3.0, 60.0])
def test_all_retries_are_made_and_fit_into_their_time(max_retries: int, max_retry_s: float) -> None:
    settings = RetrySettings(max_retries=max_retries, max_retry_s=max_retry_s)
    for dice in (Highest(), random.Random(1)):
        found = waits(settings, dice=dice)
        assert len(found) == max_retries
        assert sum(found) <= max_retry_s * 1.000001


def test_what_the_endpoint_asks_for_is_the_least_wait() -> None:
    limited = ModelRateLimited("Slowly.", retry_after_s=7.0)
    assert waits(RetrySettings(max_retries=3, max_retry_s=60.0), limited) == [7.0, 7.0, 7.0]
    assert waits(RetrySettings(max_retries=3, max_retry_s=60.0), ModelRateLimited("x", retry_after_s=0.0))


def test_an_endpoint_that_wants_more_than_the_time_is_given_up_at_once() -> None:
    backoff = Backoff(RetrySettings(max_retries=4, max_retry_s=60.0), Highest())
    assert backoff.wait_s(ModelOverloaded("Later.", retry_after_s=50.0)) == 50.0
    assert backoff.gave_up == ""
    assert backoff.wait_s(ModelOverloaded("Later.", retry_after_s=11.0)) is None
    assert "11 s" in backoff.gave_up


def test_there_is_no_wait_beyond_the_turns_own_time() -> None:
    backoff = Backoff(DEFAULT, Highest())
    assert backoff.wait_s(DOWN, left_s=0.5) is None
    assert "turn's time" in backoff.gave_up
    assert backoff.wait_s(DOWN, left_s=0.51) == 0.5


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        (ModelUnreachable, True),
        (ModelTimedOut, True),
        (ModelCutOff, True),
        (ModelOverloaded, True),
        (ModelRateLimited, True),
        (ModelCircuitOpen, False),
        (ModelCertificate, False),
        (ModelRedirected, False),
        (ModelGarbled, True),
        (NoModel, False),
        (ModelRejected, False),
        (ModelKeyRefused, False),
        (ModelQuotaExceeded, False),
        (ModelNotFound, False),
        (ModelPromptTooLong, False),
        (ModelError, False),
    ],
)
def test_only_what_may_pass_is_tried_again(kind: type[ModelError], again: bool) -> None:
    assert (Backoff(DEFAULT).wait_s(kind("x")) is not None) is again
    assert Backoff(NEVER).wait_s(kind("x")) is None


def test_a_request_in_other_words_goes_out_at_once_but_not_for_ever() -> None:
    class Adapted(ModelRejected):
        transient = True

    for settings in (DEFAULT, NEVER):
        found = waits(settings, Adapted("Not with that field."))
        assert found[:8] == [0.0] * 8
        assert len(found) == 8 + settings.max_retries
