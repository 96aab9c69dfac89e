"""The wall clock set back and forth under a running daemon: order, times and questions keep right."""

from __future__ import annotations

import time
from typing import Any

from tests.faults.acting import answered, call, prompt, prompts_of, sound, until
from tests.kill.stage import Stage

HOUR_S = 3600.0


def now_us(stage_ahead_s: float) -> int:
    """What the daemon's clock says."""
    return time.time_ns() // 1000 + int(stage_ahead_s * 1e6)


def events(stage: Stage, **wanted: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(stage, "History.Query", limit=1000, **wanted)["events"]
    return found


def prompts(stage: Stage, **wanted: Any) -> list[str]:
    """The prompts in the order of the history, among the events that are wanted."""
    found = events(stage, topic="agent.prompt", **wanted)
    return [event["data"]["text"] for event in found]


def test_an_hour_back_keeps_the_order_and_every_event_is_found_by_its_time(stage: Stage) -> None:
    session = answered(stage, "p1")
    stage.shim.set_clock(-HOUR_S)
    back_us = now_us(-HOUR_S)
    other = answered(stage, "p2")
    answered(stage, "p3", session=session)
    stage.shim.set_clock(0)
    forward_us = now_us(0)
    answered(stage, "p4", session=session)

    assert prompts_of(stage, session) == ["p1 say", "p3 say", "p4 say"]
    assert prompts(stage) == ["p1 say", "p2 say", "p3 say", "p4 say"]
    sequence = [event["seq"] for event in events(stage)]
    assert sequence == sorted(sequence)
    assert prompts(stage, since_us=forward_us) == ["p4 say"]
    assert prompts(stage, since_us=back_us - 1) == ["p1 say", "p2 say", "p3 say", "p4 say"]
    assert prompts(stage, until_us=back_us + int(HOUR_S * 5e5)) == ["p2 say", "p3 say"]
    assert prompts(stage, session=session, until_us=back_us + int(HOUR_S * 5e5)) == ["p3 say"]
    shown = [one["id"] for one in call(stage, "Sessions.List")["sessions"]]
    assert set(shown) == {session, other}

    stage.shim.set_clock(-HOUR_S)
    stage.daemon.stop()
    stage.daemon.start()  # in its own past
    answered(stage, "p5", session=session)
    assert prompts_of(stage, session) == ["p1 say", "p3 say", "p4 say", "p5 say"]
    assert call(stage, "History.Verify")["verification"]["ok"]
    stage.daemon.kill()
    sound(stage)


def test_questions_neither_expire_nor_are_lost_when_the_clock_is_set_back(stage: Stage) -> None:
    approval = prompt(stage, "p1 append")[-1]
    asked = prompt(stage, "p2 ask")[-1]
    stage.shim.set_clock(-HOUR_S)
    answered(stage, "p3")
    waiting = call(stage, "Approvals.List")["approvals"]
    assert [(one["id"], one["state"]) for one in waiting] == [(approval["approval"], "waiting")]
    assert [one["id"] for one in call(stage, "Inputs.List")["inputs"]] == [asked["input"]]
    call(stage, "Approvals.Approve", approval=approval["approval"])
    call(stage, "Inputs.Answer", input=asked["input"], text="yes")
    until(lambda: (stage.out / "p1").exists())
    for turn in (approval, asked):
        assert call(stage, "Sessions.Wait", session=turn["session"], timeout_s=60)["session_info"]
    assert (stage.out / "p1").read_text() == "ran\n"


def test_a_clock_that_jumps_ahead_ends_what_is_overdue_and_says_so(stage: Stage) -> None:
    approval = prompt(stage, "p1 append")[-1]
    stage.shim.set_clock(2 * HOUR_S)
    answered(stage, "p2")
    stage.daemon.kill()
    stage.daemon.start()
    found = call(stage, "Approvals.Get", approval=approval["approval"])["approval"]
    assert found["state"] == "expired"
    assert call(stage, "Sessions.Wait", session=approval["session"], timeout_s=60)["session_info"]
    assert not (stage.out / "p1").exists()


def test_checkpoints_and_retention_go_on_in_the_past(stage: Stage) -> None:
    session = answered(stage, "p1")
    stage.shim.set_clock(-HOUR_S)
    before = call(stage, "History.Verify")["verification"]["head_seq"]
    answered(stage, "p2", session=session)
    until(lambda: [one for one in events(stage, topic="daemon.checkpoint") if one["seq"] > before])
    call(stage, "History.Prune", dry_run=False)
    assert prompts_of(stage, session) == ["p1 say", "p2 say"]
    assert call(stage, "History.Verify")["verification"]["ok"]
