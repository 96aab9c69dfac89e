"""`lactl eval`: how well an agent answers cases, and whether a change made it better."""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.beginning import only_one
from lightagentd.cli.event_source import oldest_first
from lightagentd.cli.help import TRIALS_FAILED
from lightagentd.cli.options import Group, Settings, agent_names, files, model_names, names_of
from lightagentd.cli.output import Columns, as_json, cell, listing, print_json, say, table, told, warn
from lightagentd.cli.terminal import is_dumb, is_terminal
from lightagentd.cli.trace_name import trace_ids, whole_trace
from lightagentd.cli.when import ago, moment
from lightagentd.cli.whole_file import new_file
from lightagentd.errors import InvalidArgument, LightagentError, NotFound, PermissionDenied

if TYPE_CHECKING:
    from lightagentd.assessment.daemon import Connect
    from lightagentd.assessment.figures import Compared, OfModel
    from lightagentd.assessment.runner import Plan

run_ids = names_of("Evals.List", "id")
_BAR = 30
_GOOD = "passed"

Trials = list[dict[str, Any]]


@click.group("eval", cls=Group)
def command() -> None:
    """Run assessments of agents, compare and show their runs, and make cases."""


_OUTPUTS = (
    click.option("--junit", metavar="FILE", type=click.Path(), help="Write JUnit's XML for a CI."),
    click.option("--html", metavar="FILE", type=click.Path(), help="Write one page that needs no network."),
)


def _outputs(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in _OUTPUTS:
        function = option(function)
    return function


@command.command("run")
@click.argument("cases", metavar="[FILE|FOLDER]", required=False, shell_complete=files)
@click.option("--agent", metavar="NAME", shell_complete=agent_names, help="The agent that is assessed.")
@click.option(
    "--model",
    "models",
    metavar="MODEL",
    multiple=True,
    shell_complete=model_names,
    help="A model of the agent's; may be repeated. Without it, its first.",
)
@click.option(
    "-n", "times", type=click.IntRange(1, 1000), default=1, show_default=True, help="How often for each case."
)
@click.option("--case", "only", metavar="PATTERN", multiple=True, help="Only cases with such names.")
@click.option(
    "--at-once", type=click.IntRange(1, 64), default=4, show_default=True, help="So many trials at once."
)
@click.option("--name", metavar="TEXT", default="", help="What the run is called in lists.")
@click.option("--resume", metavar="RUN", shell_complete=run_ids, help="Go on with a run that was cut off.")
@_outputs
@click.pass_obj
def run(
    settings: Settings,
    /,
    cases: str | None,
    agent: str | None,
    models: tuple[str, ...],
    times: int,
    only: tuple[str, ...],
    at_once: int,
    name: str,
    resume: str | None,
    **outputs: str | None,
) -> int:
    """Have an agent answer cases, and say how many answers are right.

    Each case is asked in a session of its own, as often as -n says, for each model. Its calls get the results
    that the case's stubs have; without a stub a call runs only if it observes, so an assessment changes
    nothing. Check commands of cases run as you. lightagent-eval(5) describes the files of cases.

    The columns: case, model, how many trials passed (+ those that say nothing about the agent, such as those
    whose model did not answer), median time, what was wrong. The line 'all' of a model has pass@1 (the share
    of trials that pass) and pass^n (the share of cases whose trials all pass), both with 95 % intervals, what
    it used, and the flaky cases, whose trials differ; on a terminal it stands below as a sentence.

    Trials are stored as they end. After Ctrl-C or a crash, --resume RUN goes on with those that are missing,
    and asks those again that say nothing about the agent.
    The exit status is 82 unless all trials passed.
    """
    from lightagentd.assessment import runner

    if (resume is None) == (cases is None) or (resume is None and agent is None):
        raise click.UsageError("Name the cases and --agent, or a run with --resume.")
    connect = _connect(settings)
    if resume is not None:
        run_id = _whole(settings, resume)
        found, plan, stored = run_async(runner.stored(connect, run_id))
        trials = [one for one in stored if one["state"] in ("passed", "failed")]
        if found["owner"] != os.geteuid():
            raise PermissionDenied(
                f"The run {run_id} is somebody else's, and its check commands would run as you.",
                suggestion="Begin one of your own: lactl eval run",
            )
    else:
        plan = _plan(str(cases), str(agent), models, times, only, name)
        found, trials = run_async(runner.begin(connect, plan)), Trials()
        plan = replace(plan, models=tuple(found["models"]))
    found = _go_on(connect, found, plan, trials, at_once)
    _report(settings, found, trials, **outputs)
    return 0 if all(one["state"] == _GOOD for one in trials) else TRIALS_FAILED


def _plan(
    cases: str, agent: str, models: tuple[str, ...], times: int, only: tuple[str, ...], name: str
) -> Plan:
    """Raises ConfigError, NotFound."""
    from lightagentd.assessment.cases import read_cases
    from lightagentd.assessment.runner import Plan

    path = Path(cases)
    found = read_cases(path)
    if only:
        found = [one for one in found if any(fnmatch.fnmatchcase(one.name, each) for each in only)]
        if not found:
            raise NotFound(f"No case of {path} has such a name: {', '.join(only)}.", field="case")
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    chosen = tuple(dict.fromkeys(models))
    return Plan(
        agent=agent, models=chosen, cases=found, times=times, folder=folder, name=name or path.resolve().stem
    )


def _go_on(
    connect: Connect, found: dict[str, Any], plan: Plan, trials: Trials, at_once: int
) -> dict[str, Any]:
    """Run what is missing; `trials` gets what is new. Raises the error that cut the run off."""
    from lightagentd.assessment import runner

    whole, shown = len(plan.trials), sys.stderr.isatty() and not is_dumb()

    def tell(trial: dict[str, Any]) -> None:
        trials.append(trial)
        if shown:
            _progress(trials, whole)

    if shown:
        _progress(trials, whole)
    done = [one["number"] for one in trials]
    going = runner.go_on(connect, found["id"], plan, done, at_once=at_once, tell=tell)
    try:
        return run_async(going)
    except (LightagentError, KeyboardInterrupt):
        if shown:
            sys.stderr.write("\r\x1b[K")
        warn(
            f"{len(trials)} of {whole} trials are stored.",
            f"Go on with: lactl eval run --resume {found['id']}",
        )
        raise
    finally:
        trials.sort(key=lambda one: int(one["number"]))
        if shown:
            sys.stderr.write("\r\x1b[K")


def _progress(trials: Trials, whole: int) -> None:
    full = _BAR * len(trials) // whole
    passed = sum(one["state"] == _GOOD for one in trials)
    sys.stderr.write(f"\r\x1b[K[{'#' * full}{'.' * (_BAR - full)}] {len(trials)}/{whole}, {passed} passed")
    sys.stderr.flush()


@command.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N")
@click.pass_obj
def list_runs(settings: Settings, limit: int) -> None:
    """List runs, newest first.

    The columns: id, when it began, name, agent, models, cases, how often each is asked, state, and how many
    trials passed, failed, and say nothing. A run that is left can go on: lactl eval run --resume RUN.
    """
    columns: Columns = {
        "ID": "id",
        "TIME": lambda one: ago(one["started_us"]),
        "NAME": "name",
        "AGENT": "agent",
        "MODELS": "models",
        "CASES": "cases",
        "N": "times",
        "STATE": "state",
        "PASSED": "passed",
        "FAILED": "failed",
        "ERRORS": "errors",
    }
    none = "There are no runs. To begin one: lactl eval run FOLDER --agent NAME"
    listing(
        settings,
        settings.call("Evals.List", limit=limit),
        columns,
        spare=("NAME", "N", "TIME", "ERRORS"),
        empty=none,
    )


@command.command("show")
@click.argument("run", metavar="RUN", shell_complete=run_ids)
@_outputs
@click.pass_obj
def show(settings: Settings, /, run: str, **outputs: str | None) -> None:
    """Show a run: each case with each model, what was wrong, and the figures of the models."""
    found, trials = _stored(settings, run)
    _report(settings, found, trials, **outputs)


@command.command("compare")
@click.argument("before", metavar="RUN[:MODEL]", shell_complete=run_ids)
@click.argument("after", metavar="RUN[:MODEL]", shell_complete=run_ids)
@click.pass_obj
def compare(settings: Settings, before: str, after: str) -> None:
    """Say what got better from one run to another, what worse, and how sure that is.

    Compared are the models that both runs have; or one of each, named behind a colon or alone in its run. The
    columns: case, model, passed before, passed after, the difference of the shares with its 95 % interval
    (Newcombe), and a word: better or worse when the interval does not hold 0, else 'not sure'. The line 'all'
    is about all cases that both runs have.
    """
    from lightagentd.assessment.figures import compared

    pairs = _pairs(_models_of(settings, before), _models_of(settings, after))
    found = [(f"{a.model} → {b.model}" if a.model != b.model else a.model, compared(a, b)) for a, b in pairs]
    if settings.json:
        said = [
            {"models": name, "all": whole.to_dict(), "cases": [one.to_dict() for one in cases]}
            for name, (whole, cases) in found
        ]
        print_json(said)
        return
    rows = [(name, one) for name, (whole, cases) in found for one in (*cases, whole)]
    headings = ("CASE", "MODEL", "BEFORE", "AFTER", "DIFFERENCE", "VERDICT")
    table(headings, (_compared_row(name, one) for name, one in rows))


def _compared_row(model: str, one: Compared) -> tuple[object, ...]:
    change = one.difference
    shown = "-" if change is None else f"{change.value:+.2f} ({change.low:+.2f} to {change.high:+.2f})"
    before, after = (f"{share.passed}/{share.of}" for share in (one.before, one.after))
    return one.case, model, before, after, shown, one.verdict


@command.command("check")
@click.argument("cases", metavar="FILE|FOLDER", shell_complete=files)
@click.pass_obj
def check(settings: Settings, cases: str) -> None:
    """Read the files of cases, and list the cases. The daemon need not run.

    The columns: name, how many stubs, how many calls it must make, whether a command and a judge look at it,
    and the prompt. A fault is an error that names file and line.
    """
    from lightagentd.assessment.cases import read_cases

    found = [
        {
            "name": one.name,
            "stubs": len(one.stub),
            "must": len(one.calls.must),
            "check": bool(one.check),
            "judge": one.judge is not None,
            "prompt": one.prompts[0],
        }
        for one in read_cases(Path(cases))
    ]
    columns: Columns = {name.upper(): name for name in ("name", "stubs", "must", "check", "judge", "prompt")}
    listing(settings, found, columns, spare=("CHECK", "JUDGE", "MUST", "STUBS"))


@command.command("add")
@click.argument("trace", shell_complete=trace_ids)
@click.option("--to", "to", metavar="FILE", type=click.Path(), help="Write it behind what is in this file.")
@click.pass_obj
def add(settings: Settings, trace: str, to: str | None) -> None:
    """Make a case of the turn TRACE: its prompt, its calls, and their results as stubs.

    The calls that were made are those that the case asks for. What the answer has to say is for you to write:
    its first sentence, and your note if you rated it, stand there as comments. Without --to it is printed.
    """
    from lightagentd.assessment.cases import read_cases
    from lightagentd.assessment.traces import case_of

    whole = whole_trace(settings, trace)
    rated = [one for one in settings.call("Evals.Ratings", limit=1000) if one["trace_id"] == whole]
    note = "; ".join(f"{one['rating']}. {one['note']}".strip() for one in rated)
    text = case_of(whole, oldest_first(settings, {"trace": whole}), note)
    if to is None:
        if not as_json(settings, {"case": text}):
            say(text, end="")
        return
    path = Path(to)
    if path.exists() and any(one.name == whole for one in read_cases(path)):
        raise InvalidArgument(f"{path} has a case of {whole} already.", field="to")
    try:
        with path.open("a") as file:
            file.write(("\n" if file.tell() else "") + text)
    except OSError as err:
        raise InvalidArgument(f"{path} cannot be written: {err.strerror}.", field="to") from err
    told(settings, {"file": to, "case": whole}, f"{to} has the case {whole} now; say what it expects.", to)


@command.command("rated")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N")
@click.pass_obj
def rated(settings: Settings, limit: int) -> None:
    """List what people said of answers with 'lactl rate', newest first.

    The columns: trace, time, agent, rating, note.
    """
    columns: Columns = {
        "TRACE": "trace_id",
        "TIME": lambda one: ago(one["time_us"]),
        "AGENT": "agent",
        "RATING": "rating",
        "NOTE": "note",
    }
    none = "Nobody rated an answer yet. To do it: lactl rate TRACE good|bad"
    listing(settings, settings.call("Evals.Ratings", limit=limit), columns, spare=("TIME",), empty=none)


def _report(
    settings: Settings, found: dict[str, Any], trials: Trials, *, junit: str | None, html: str | None
) -> None:
    from lightagentd.assessment.figures import of_run
    from lightagentd.assessment.report import junit as as_junit
    from lightagentd.assessment.report import page

    models = of_run(found, trials)
    if html is not None:
        _write(html, page(found, models, trials, moment(found["started_us"])))
    if junit is not None:
        _write(junit, as_junit(found, models))
    if settings.json:
        print_json({"run": found, "models": [one.to_dict() for one in models], "trials": trials})
        return
    headings = ("CASE", "MODEL", "PASSED", "MEDIAN", "WHAT IS WRONG")
    shown = is_terminal()  # where the line of a model would be cut
    table(
        headings, (row for one in models for row in (*_case_rows(one), *([] if shown else [_model_row(one)])))
    )
    for one in models if shown else ():
        _, name, share, median, said = _model_row(one)
        say(f"{name}: {share} passed; {said}; median {median}.")
    say(f"The run is {found['id']}, {found['state']}. To look at it again: lactl eval show {found['id']}")


def _case_rows(model: OfModel) -> list[tuple[object, ...]]:
    from lightagentd.assessment.report import seconds

    rows: list[tuple[object, ...]] = []
    for one in model.cases:
        why = next((trial["why"][0] for trial in one.trials if trial["why"]), "")
        more = "flaky: " if one.flaky else ""
        share = f"{one.share.passed}/{one.share.of}" + (f"+{one.unjudged}" if one.unjudged else "")
        rows.append((one.case, model.model, share, seconds(one.duration_s), f"{more}{why}"))
    return rows


def _model_row(one: OfModel) -> tuple[object, ...]:
    from lightagentd.assessment.report import money, percent, seconds

    said = [f"pass@1 {percent(one.pass_1)}", f"pass^{one.times} {percent(one.pass_all)}"]
    said += [f"{one.total_tokens} tokens", f"cost {money(one.cost)}"]
    said += [f"{one.unjudged} say nothing about the agent"] if one.unjudged else []
    said += [f"flaky: {cell(one.flaky)}"] if one.flaky else []
    share = f"{one.pass_1.passed}/{one.pass_1.of}"
    return "all", one.model, share, seconds(one.duration_s), "; ".join(said)


def _write(name: str, text: str) -> None:
    with new_file(Path(name), force=True) as fd, open(fd, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))


def _stored(settings: Settings, run: str) -> tuple[dict[str, Any], Trials]:
    from lightagentd.assessment.runner import stored

    found, _, trials = run_async(stored(_connect(settings), _whole(settings, run)))
    return found, trials


def _models_of(settings: Settings, named: str) -> list[OfModel]:
    """The figures of RUN, or of the one model in RUN:MODEL. Raises NotFound."""
    from lightagentd.assessment.figures import of_run

    run, _, model = named.partition(":")
    found, trials = _stored(settings, run)
    models = [one for one in of_run(found, trials) if model in ("", one.model)]
    if not models:
        raise NotFound(
            f"The run {found['id']} has no model {model[:60]!r}.",
            field="model",
            suggestion=f"It has: {', '.join(found['models'])}.",
        )
    return models


def _pairs(before: Sequence[OfModel], after: Sequence[OfModel]) -> list[tuple[OfModel, OfModel]]:
    """Raises InvalidArgument."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    pairs = [(one, other) for one in before for other in after if one.model == other.model]
    if not pairs:
        raise InvalidArgument(
            "The runs have no model in common.",
            suggestion="Name one of each: lactl eval compare RUN:MODEL RUN:MODEL",
        )
    return pairs


def _whole(settings: Settings, run: str) -> str:
    return only_one(run, lambda: [one["id"] for one in settings.call("Evals.List", limit=1000)], "runs")


def _connect(settings: Settings) -> Connect:
    from lightagentd.client.aio import AsyncClient

    return lambda: AsyncClient(settings.place, timeout_s=60)
