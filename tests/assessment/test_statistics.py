"""Intervals against published values, and at their edges."""

from __future__ import annotations

import pytest

from lightagentd.assessment.statistics import Share, difference, median, together, wilson


@pytest.mark.parametrize(
    ("passed", "of", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe, Statistics in Medicine 17:857 (1998), table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 1 - 0.1611, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilsons_interval_is_the_published_one(passed: int, of: int, low: float, high: float) -> None:
    assert wilson(passed, of) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("before", "after", "low", "high"),
    [
        ((48, 80), (56, 70), 0.0524, 0.3339),  # Newcombe, Statistics in Medicine 17:873 (1998), method 10
        ((3, 10), (9, 10), 0.1705, 0.8090),
        ((0, 10), (10, 10), 0.6075, 1.0),
        ((2, 7), (6, 7), 0.0582, 0.8062),
        ((0, 29), (5, 56), -0.0381, 0.1926),
        ((0, 20), (0, 10), -0.1611, 0.2775),
        ((0, 20), (10, 10), 0.6791, 1.0),
    ],
)
def test_newcombes_interval_is_the_published_one(
    before: tuple[int, int], after: tuple[int, int], low: float, high: float
) -> None:
    found = difference(Share(*before), Share(*after))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_a_difference_says_whether_it_is_sure() -> None:
    words = {
        ((0, 10), (10, 10)): "better",
        ((10, 10), (0, 10)): "worse",
        ((4, 5), (5, 5)): "better, not sure",
        ((5, 5), (4, 5)): "worse, not sure",
        ((3, 5), (3, 5)): "the same",
    }
    for (before, after), word in words.items():
        found = difference(Share(*before), Share(*after))
        assert found is not None
        assert found.word == word
    assert difference(Share(0, 0), Share(1, 1)) is None


def test_the_median_is_the_middle() -> None:
    assert [median(one) for one in ([], [3.0], [9, 1, 5], [4, 1, 2, 9])] == [None, 3.0, 5, 3.0]


def test_trials_of_one_case_are_worth_less_than_as_many_cases() -> None:
    clones = together([Share(5, 5)] * 8 + [Share(0, 5)] * 2)
    assert (clones.passed, clones.of, clones.worth) == (40, 50, 10)
    assert clones.interval == Share(8, 10).interval
    assert together([Share(5, 5)] * 10).interval == Share(10, 10).interval
    assert together([Share(4, 5)] * 10).interval == Share(40, 50).interval
    varying = together([Share(passed, 5) for passed in (3, 5, 4, 4, 5, 3, 4, 5, 3, 4)])
    assert varying.interval == Share(40, 50).interval
    assert together([Share(3, 5), Share(0, 0)]).interval == Share(3, 5).interval
    assert together([]).value is None
