"""When the guard of the figures fails."""

from __future__ import annotations

import json

import pytest

from tests.bench.container import side_by_side
from tests.bench.guard import RECORDED, worse


@pytest.mark.parametrize(
    ("recorded", "measured", "found"),
    [
        ({"a": 2.0}, {"a": 2.29}, []),
        ({"a": 2.0}, {"a": 0.5}, []),
        ({"a": 2.0, "b": 1.0}, {"a": 2.4, "b": 1.0}, ["guard, a: recorded 2, measured 2.4 (+20%)"]),
        ({"a": 2.0}, {}, ["guard, a: not measured"]),
        ({}, {"a": 2.0}, ["guard, a: not recorded"]),
    ],
)
def test_what_got_worse_or_lacks_is_named(
    recorded: dict[str, float], measured: dict[str, float], found: list[str]
) -> None:
    assert worse(recorded, measured) == found


def test_what_is_recorded_is_ratios_by_name() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert recorded
    assert all(isinstance(ratio, float) and ratio > 0 for ratio in recorded.values())


def test_figures_of_two_places_stand_side_by_side() -> None:
    found = side_by_side("machine: A\nstep: 2 ms\n", "machine: B\nstep, ratio: 1.5 (target: 2)\n")
    assert [line.split() for line in found] == [
        ["here", "Debian", "13"],
        ["machine", "A", "B"],
        ["step", "2", "ms", "-"],
        ["step,", "ratio", "-", "1.5", "(target:", "2)"],
    ]


def test_figures_whose_names_have_a_colon_stay_apart() -> None:
    text = "D-Bus: echo: 168 us (median of 7)\nD-Bus: echo, times (target: at most 2): 1.9 x (median of 7)\n"
    assert [" ".join(line.split()) for line in side_by_side(text, "")][1:] == [
        "D-Bus: echo 168 us (median of 7) -",
        "D-Bus: echo, times (target: at most 2) 1.9 x (median of 7) -",
    ]
