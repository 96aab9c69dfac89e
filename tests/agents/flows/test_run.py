"""Runs from their beginning to their end: kinds of steps, conditions, items, failures and their handling."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightagentd.agents.flows.records import RunRecord
from lightagentd.errors import ConfigError, InvalidArgument, NotFound
from lightagentd.events.filter import Filter
from lightagentd.host.paths import Paths
from tests.agents.asking import lines
from tests.agents.flows.rig import add, allow, answer, echo, ended, flow, over, running, states, stored
from tests.agents.scripted import ME, until
from tests.agents.team.rig import dumped
from tests.scripted_model import Answer, Fault, call, say


async def test_each_kind_of_step_gives_its_output_to_those_behind_it(paths: Paths) -> None:
    flow(paths, "below", echo("below {inputs.what}") | {"name": "one"}, inputs={"what": {}})
    flow(
        paths,
        "flow",
        {"name": "call"} | echo('{{"n": 3, "names": ["a", "b"]}}'),
        {"name": "prompt", "prompt": "Think of {call.json.names.1} on {inputs.host}"},
        {"name": "nested", "flow": "below", "inputs": {"what": "{call.json.n}"}},
        {"name": "ask", "ask": "Go on with {nested.output}?", "choices": ["yes", "no"]},
        {"name": "last"} | echo("{prompt.output}, {nested.output}, {ask.output}, {run.flow}, {call.status}"),
        inputs={"host": {"default": "web1"}},
    )
    prompts: list[str] = []

    def think(body: dict[str, object]) -> object:
        prompts.append(dumped(body["messages"]))
        return say("thought")

    async with running(paths, think) as daemon:  # type: ignore[arg-type]
        run = await daemon.flows.run("flow", {}, ME.uid)
        await answer(daemon, run, "ask")
        await over(run)
        assert run.record.state == "success", run.record.message
        assert run.steps["last"].output == "thought, below 3, yes, flow, success"
        assert "Think of b on web1" in prompts[0]
        assert stored(daemon, run) == run.steps
        events = daemon.history.queries.select(Filter(topic="flow.step"), limit=1000)
        moves = [(e.data["step"], e.type) for e in events if e.data and e.data["run"] == run.record.id]
        assert moves == [
            *(("call", "running"), ("call", "success"), ("prompt", "running"), ("prompt", "success")),
            *(("nested", "running"), ("nested", "success"), ("ask", "waiting_approval"), ("ask", "success")),
            *(("last", "running"), ("last", "success")),
        ]


async def test_an_output_of_several_lines_stands_in_a_block_behind_the_prompt(paths: Paths) -> None:
    flow(
        paths, "flow", {"name": "read"} | echo("one\ntwo"), {"name": "say", "prompt": "Sum up {read.output}"}
    )
    prompts: list[str] = []

    def think(body: dict[str, object]) -> object:
        prompts.append(str(body["messages"][-1]["content"]))  # type: ignore[index]
        return say("ok")

    async with running(paths, think) as daemon:  # type: ignore[arg-type]
        run = await ended(daemon)
        (prompt,) = prompts
        assert prompt.startswith("Sum up one two\n\n```read.output\none\ntwo\n```")
        _, child = daemon.registry.session(run.steps["say"].session)
        assert child.record.parent == run.session.id
        assert child.record.tainted  # the probe's text comes from outside
        assert run.session.record.tainted


async def test_conditions_skip_steps_and_those_behind_them_run(paths: Paths) -> None:
    flow(
        paths,
        "flow",
        {"name": "count"} | echo("7"),
        {"name": "many", "when": {"step": "count", "compare": "> 3"}} | echo("many"),
        {"name": "few", "when": {"step": "count", "compare": "<= 3"}} | echo("few"),
        {"name": "last", "depends_on": ["many", "few"]} | echo("{many.output?}{few.output?}"),
    )
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert states(run) == {"count": "success", "many": "success", "few": "skipped", "last": "success"}
        assert run.steps["last"].output == "many"


async def test_a_condition_cancels_the_run(paths: Paths) -> None:
    flow(
        paths,
        "flow",
        {"name": "look"} | echo("locked"),
        {"name": "do", "cancel_if": {"step": "look", "contains": "locked"}} | echo("x"),
        {"name": "behind"} | echo("x"),
    )
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert (run.record.state, run.steps["do"].state) == ("cancelled", "cancelled")
        assert "behind" not in run.steps


async def test_items_run_at_once_within_their_limit_and_give_a_list(paths: Paths) -> None:
    flow(
        paths,
        "flow",
        {"name": "list"} | echo('["a", {{"b": 1}}]'),
        {"name": "each", "for_each": "{list.json}", "at_once": 2} | echo("<{item}>"),
    )
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert run.steps["each"].output == '["<a>", "<{\\"b\\": 1}>"]'
        assert run.steps["each/0001"].output == '<{"b": 1}>'


async def test_too_many_items_and_what_is_no_list_fail_the_step(paths: Paths) -> None:
    flow(
        paths,
        "no",
        {"name": "list"} | echo("7"),
        {"name": "each", "for_each": "{list.json}"} | echo("{item}"),
    )
    many = str([1] * 1001)
    flow(
        paths,
        "many",
        {"name": "list"} | echo(many),
        {"name": "each", "for_each": "{list.json}"} | echo("{item}"),
    )
    async with running(paths) as daemon:
        run = await ended(daemon, "no")
        assert (run.steps["each"].code, run.steps["each"].message) == (
            "invalid_argument",
            "for_each is no list.",
        )
        run = await ended(daemon, "many")
        assert run.steps["each"].message == "for_each has 1001 items, and 1000 is the most."
        assert [name for name in run.steps if "/" in name] == []


async def test_a_failing_item_fails_the_step_and_no_more_begin(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    step = {"name": "each", "for_each": [str(tmp_path), str(tmp_path / "out"), str(tmp_path / "other")]}
    flow(paths, "flow", step | {"call": "probe.add", "args": {"path": "{item}"}})
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert run.record.state == "failed"
        assert run.steps["each"].message.startswith("1 of 3 failed; each/0000: ")
        assert not (tmp_path / "out").exists()
        (tmp_path / "dir").mkdir()


async def test_a_failure_stops_the_run_unless_the_step_says_otherwise(paths: Paths) -> None:
    bad = {"call": "probe.read", "args": {"url": "x", "fail": True}}
    flow(paths, "stop", {"name": "a"} | bad, {"name": "b"} | echo("b"))
    flow(
        paths,
        "go",
        {"name": "a", "on_failure": "continue"} | bad,
        {"name": "b"} | echo("{a.output?}{a.status}"),
    )
    flow(
        paths,
        "handled",
        {"name": "a", "on_failure": "mend"} | bad,
        {"name": "mend", "depends_on": []} | echo("mended"),
        {"name": "b", "depends_on": ["a", "mend"]} | echo("{mend.output?}"),
    )
    flow(
        paths,
        "unneeded",
        {"name": "a", "on_failure": "mend"} | echo("a"),
        {"name": "mend", "depends_on": []} | echo("m"),
    )
    async with running(paths) as daemon:
        run = await ended(daemon, "stop")
        assert (run.record.state, states(run)) == ("failed", {"a": "failed"})
        assert "cannot read x" in run.record.message
        run = await ended(daemon, "go")
        assert (run.record.state, run.steps["b"].output) == ("success", "failed")
        run = await ended(daemon, "handled")
        assert (run.record.state, run.steps["b"].output) == ("success", "mended")
        run = await ended(daemon, "unneeded")
        assert (run.record.state, run.steps["mend"].state) == ("success", "skipped")


async def test_a_step_is_tried_again_and_last_by_another_agent(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.flows.step.FIRST_PAUSE_S", 0.01)
    flow(paths, "flow", {"name": "a", "prompt": "x", "max_retry": 1, "fallback_agent": "other"})
    asked: list[str] = []

    def refuse(body: dict[str, object]) -> object:
        asked.append("ops")
        return Fault(status=400)

    async with running(paths, refuse, other=[say("from other")]) as daemon:  # type: ignore[arg-type]
        run = await ended(daemon)
        assert run.record.state == "success", run.record.message
        assert run.steps["a"].output == "from other"
        assert (run.steps["a"].attempt, run.steps["a"].tries, run.steps["a"].agent) == (3, 2, "other")
        assert len(asked) >= 2


async def test_what_changed_something_is_not_tried_again_by_a_prompt(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    flow(paths, "flow", {"name": "a", "prompt": "x", "max_retry": 3})
    script: list[Answer] = [call("probe_add", {"path": str(tmp_path / "out")}), Fault(status=400)]
    async with running(paths, script) as daemon:
        run = await ended(daemon)
        assert (run.steps["a"].state, run.steps["a"].tries) == ("failed", 1)
        assert lines(tmp_path / "out") == ["ran"]


async def test_inputs_are_read_and_what_cannot_run_is_refused(paths: Paths) -> None:
    flow(paths, "flow", {"name": "a"} | echo("{inputs.n}"), inputs={"n": {"type": "integer"}})
    flow(paths, "bad", {"name": "a", "call": "probe.nothing"})
    async with running(paths) as daemon:
        assert (await ended(daemon, n="7")).steps["a"].output == "7"
        for inputs in ({}, {"n": "x"}, {"n": 1, "m": 2}):
            with pytest.raises(InvalidArgument):
                await daemon.flows.run("flow", inputs, ME.uid)
        with pytest.raises(NotFound):
            await daemon.flows.run("none", {}, ME.uid)
        with pytest.raises(
            ConfigError, match=r"bad\.toml:3: step a: the agent ops has no action probe\.nothing"
        ):
            await daemon.flows.run("bad", {}, ME.uid)
        assert any("bad.toml:3" in one for one in daemon.problems())
        assert len(daemon.history.queries.state("flow_runs")) == 1


async def test_flows_that_run_each_other_are_refused(paths: Paths) -> None:
    flow(paths, "one", {"name": "a", "flow": "two"})
    flow(paths, "two", {"name": "a", "flow": "one"})
    async with running(paths) as daemon:
        with pytest.raises(ConfigError, match="run each other"):
            await daemon.flows.run("one", {}, ME.uid)


async def test_a_failed_nested_run_fails_the_step_and_goes_on_with_it(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    target = tmp_path / "dir"
    target.mkdir()
    flow(paths, "below", {"name": "read"} | echo("x"), {"name": "add"} | add(target))
    flow(paths, "flow", {"name": "nested", "flow": "below"})
    async with running(paths) as daemon:
        run = await ended(daemon)
        nested = run.steps["nested"].nested
        assert (run.record.state, run.steps["nested"].code) == ("failed", "child_failed")
        target.rmdir()
        run = await over(await daemon.flows.resume(run.record.id))
        assert run.record.state == "success", run.record.message
        assert run.steps["nested"].nested == nested
        assert lines(target) == ["ran"]


async def test_undoing_is_offered_when_a_later_step_fails(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    out = tmp_path / "out"
    undo = {"call": "probe.add", "args": {"path": str(out), "line": "undone {first.status}"}}
    flow(
        paths,
        "flow",
        {"name": "first", "undo": undo} | add(out),
        {"name": "second", "undo": undo} | add(out, "second"),
        {"name": "third"} | add(tmp_path),
    )
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await answer(daemon, run, "second/undo", "no")
        await answer(daemon, run, "first/undo")
        await over(run)
        assert run.record.state == "failed"
        assert run.record.message.startswith("The step third failed")
        assert lines(out) == ["ran", "second", "undone success"]
        assert states(run)["second/undo"] == "failed"


async def test_a_schema_is_asked_of_outputs(paths: Paths) -> None:
    schema = {"type": "object", "required": ["n"]}
    flow(paths, "good", {"name": "a", "schema": schema} | echo('{{"n": 1}}'))
    flow(paths, "bad", {"name": "a", "schema": schema} | echo("prose"))
    flow(paths, "asked", {"name": "a", "schema": schema, "prompt": "x"}, {"name": "b"} | echo("{a.json.n}"))
    async with running(paths, [say('{"n": 4}')]) as daemon:
        assert (await ended(daemon, "good")).record.state == "success"
        run = await ended(daemon, "bad")
        assert (run.steps["a"].state, run.steps["a"].code) == ("failed", "answer_misfit")
        assert (await ended(daemon, "asked")).steps["b"].output == "4"


async def test_a_run_begins_at_a_step_with_the_outputs_of_another(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    out = tmp_path / "out"
    flow(paths, "flow", {"name": "a"} | add(out), {"name": "b"} | echo("x"), {"name": "c"} | add(out, "c"))
    async with running(paths) as daemon:
        run = await ended(daemon)
        copy = await over(await daemon.flows.fork(run.record.id, "c", ME.uid, inputs={}))
        assert lines(out) == ["ran", "c", "c"]
        assert copy.record.copied_from == run.record.id
        assert copy.steps["b"].output == "x"
        with pytest.raises(NotFound):
            await daemon.flows.fork(run.record.id, "nothing", ME.uid, inputs={})


async def test_rerun_runs_a_step_and_all_behind_it(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    out = tmp_path / "out"
    flow(
        paths,
        "flow",
        {"name": "a"} | add(out, "a"),
        {"name": "b"} | add(out, "b"),
        {"name": "c"} | echo("old"),
    )
    async with running(paths) as daemon:
        run = await ended(daemon)
        flow(
            paths,
            "flow",
            {"name": "a"} | add(out, "a"),
            {"name": "b"} | add(out, "B"),
            {"name": "c"} | echo("new"),
        )
        await daemon.reload()
        run = await over(await daemon.flows.rerun(run.record.id, "b"))
        assert (lines(out), run.steps["c"].output, run.steps["b"].attempt) == (["a", "b", "b"], "old", 2)
        run = await over(await daemon.flows.rerun(run.record.id, "b", new=True))
        assert (lines(out), run.steps["c"].output) == (["a", "b", "b", "B"], "new")
        events = daemon.history.queries.select(Filter(topic="flow.step", type="success"), limit=1000)
        assert [e.data["attempt"] for e in events if e.data and e.data["step"] == "b"] == [1, 2, 3]


async def test_runs_are_read_back_after_they_ended(paths: Paths) -> None:
    flow(paths, "flow", {"name": "a"} | echo("x"))
    async with running(paths) as daemon:
        run = await ended(daemon)
        await until(lambda: not daemon.flows.runs)
        assert daemon.flows.record(run.record.id) == run.record
        assert daemon.flows.stored.records() == [run.record]
        assert (
            RunRecord.from_dict(daemon.history.queries.state_of("flow_runs", run.record.session))
            == run.record
        )
        with pytest.raises(NotFound):
            daemon.flows.record("run_0000000000000000")


async def test_a_pattern_that_takes_too_long_fails_the_step(paths: Paths) -> None:
    flow(
        paths,
        "flow",
        {"name": "look"} | echo("a" * 60),
        {"name": "do", "when": {"step": "look", "matches": "(a+)+$x"}} | echo("x"),
    )
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert (run.record.state, run.steps["do"].code) == ("failed", "limit_exceeded")


@pytest.mark.parametrize("how", ["resume", "rerun"])
async def test_what_was_undone_runs_again_before_a_later_step_does(
    paths: Paths, tmp_path: Path, how: str
) -> None:
    allow(paths)
    out, target = tmp_path / "out", tmp_path / "dir"
    target.mkdir()
    undo = {"call": "probe.add", "args": {"path": str(out), "line": "undone"}}
    flow(paths, "flow", {"name": "first", "undo": undo} | add(out), {"name": "second"} | add(target))
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await answer(daemon, run, "first/undo")
        await over(run)
        target.rmdir()
        step = ["second"] if how == "rerun" else []
        run = await over(await getattr(daemon.flows, how)(run.record.id, *step))
        assert run.record.state == "success", run.record.message
        assert lines(out) == ["ran", "undone", "ran"]
        assert "first/undo" not in stored(daemon, run)


async def test_long_outputs_are_cut_and_the_run_goes_on(paths: Paths) -> None:
    flow(
        paths,
        "flow",
        {"name": "say", "prompt": "x"},
        {"name": "each", "for_each": ["a", "b"], "prompt": "{item}"},
    )
    async with running(paths, [say("x" * (2 << 20))]) as daemon:
        run = await ended(daemon)
        assert run.record.state == "success", run.record.message
        assert len(run.steps["say"].output) < 140_000
        assert "bytes left out" in run.steps["say"].output
        assert len(run.steps["each"].output) < 1_100_000


async def test_text_from_outside_taints_the_run_above_too(paths: Paths) -> None:
    flow(paths, "below", {"name": "read"} | echo("from outside"))
    flow(paths, "flow", {"name": "nested", "flow": "below"})
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert run.record.state == "success"
        value = daemon.history.queries.state_of("sessions", run.session.id)
        assert (run.session.record.tainted, value["tainted"]) == (True, True)
