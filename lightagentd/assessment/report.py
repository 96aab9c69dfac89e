"""The report of a run as one page of HTML, and as JUnit's XML for a CI.

The page needs no network and runs no script: its policy allows nothing but its own style. All texts in it
are escaped; they come from models and machines.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from lightagentd.assessment.figures import OfCase, OfModel, Trials
from lightagentd.assessment.statistics import Share
from lightagentd.assessment.trial import ERROR, FAILED, JUDGE_FAILED, PASSED

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  color: #1d2125; background: #fff }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d8dde3; vertical-align: top }
th { font-weight: 600 } td.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { position: relative; width: 12rem; height: .9rem; background: #eceff2; border-radius: 2px }
.bar i { position: absolute; top: 0; bottom: 0; left: 0; background: #3b7dd8; border-radius: 2px }
.bar b { position: absolute; top: .38rem; height: .14rem; background: #1d2125 }
.bad { color: #a11 } .odd { color: #8a5a00 }
pre { background: #f5f7f9; padding: .6rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere }
details { border: 1px solid #d8dde3; border-radius: 4px; padding: .4rem .8rem; margin: .5rem 0 }
summary { cursor: pointer } h1 { font-size: 1.4rem } h2 { font-size: 1.15rem; margin-top: 2rem }
@media (prefers-color-scheme: dark) { body { color: #e4e7ea; background: #16191c } pre { background: #1f2428 }
  .bar { background: #2b3136 } .bar b { background: #e4e7ea } th, td, details { border-color: #353c42 }
  .bad { color: #ff8a80 } .odd { color: #ffc14d } }
"""
_WORDS = {PASSED: "passed", FAILED: "failed", JUDGE_FAILED: "the judge failed", ERROR: "not judged"}


def page(run: Mapping[str, Any], models: Sequence[OfModel], trials: Trials, begun: str) -> str:
    """The page; `begun` is when the run began, as people read it."""
    title = f"Assessment of {run['agent']}"
    about = f"{run['id']}, {begun}: {run['cases']} cases, {run['times']} times each. {_left(run)}"
    bad = [one for one in trials if one["state"] != PASSED]
    parts = [
        f"<h1>{_text(title)}</h1><p>{_text(about)}</p>",
        _models(models),
        *(_cases(one) for one in models),
        "<h2>What did not pass</h2>" if bad else "<h2>Everything passed</h2>",
        *(_trial(one, run["times"]) for one in bad),
        "<p>The intervals are Wilson's, of 95 %. pass@1 is the share of trials that pass, pass^n that of the"
        " cases whose trials all pass.</p>",
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def junit(run: Mapping[str, Any], models: Sequence[OfModel]) -> str:
    """The XML that CIs read: a suite for each model, a test for each trial."""
    root = ElementTree.Element("testsuites", name=_xml(f"{run['agent']} {run['id']}"))
    for model in models:
        trials = model.trials
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_xml(model.model),
            tests=str(len(trials)),
            failures=str(sum(one["state"] == FAILED for one in trials)),
            errors=str(sum(one["state"] in (ERROR, JUDGE_FAILED) for one in trials)),
            time=f"{sum(one['duration_ms'] for one in trials) / 1000:.3f}",
        )
        for case in model.cases:
            for at, trial in enumerate(case.trials, 1):
                _junit_trial(suite, case, at, trial)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def percent(share: Share) -> str:
    """A share with its interval, as people read it."""
    if share.value is None:
        return "-"
    low, high = share.interval
    return f"{100 * share.value:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def money(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:.4g}"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} s"


def _left(run: Mapping[str, Any]) -> str:
    there = run["passed"] + run["failed"] + run["errors"]
    whole = run["cases"] * run["times"] * len(run["models"])
    return "" if there >= whole else f"It is not done: {there} of {whole} trials are there."


def _models(models: Sequence[OfModel]) -> str:
    head = "<tr><th>Model<th>pass@1<th><th>pass^n<th>Not judged<th>Tokens<th>Cost<th>Median<th>Flaky</tr>"
    rows = [
        f"<tr><td>{_text(one.model)}<td>{percent(one.pass_1)}<td>{_bar(one.pass_1)}<td>{percent(one.pass_all)}"
        f'<td class="n">{one.unjudged}<td class="n">{one.total_tokens}<td class="n">{money(one.cost)}'
        f'<td class="n">{seconds(one.duration_s)}<td class="odd">{_text(", ".join(one.flaky))}</tr>'
        for one in models
    ]
    return f"<table>{head}{''.join(rows)}</table>"


def _cases(model: OfModel) -> str:
    rows = [
        f'<tr><td>{_text(one.case)}<td class="n">{one.share.passed}/{one.share.of}<td>{_bar(one.share)}'
        f'<td class="n">{seconds(one.duration_s)}<td class="odd">{_remark(one)}</tr>'
        for one in model.cases
    ]
    head = "<tr><th>Case<th>Passed<th><th>Median<th></tr>"
    return f"<h2>{_text(model.model)}</h2><table>{head}{''.join(rows)}</table>"


def _remark(case: OfCase) -> str:
    said = ["flaky"] if case.flaky else []
    return ", ".join([*said, *([f"{case.unjudged} not judged"] if case.unjudged else [])])


def _bar(share: Share) -> str:
    """The share as a bar, and its interval as a line over it."""
    low, high = share.interval
    wide = 100 * (share.value or 0.0)
    return (
        f'<div class="bar"><i style="width:{wide:.1f}%"></i>'
        f'<b style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></b></div>'
    )


def _trial(trial: Mapping[str, Any], times: int) -> str:
    at = f", {trial['number'] % times + 1} of {times}" if times > 1 else ""
    kind = "bad" if trial["state"] == FAILED else "odd"
    why = "".join(f"<li>{_text(one)}" for one in trial["why"])
    score = "" if trial["score"] is None else f"<p>Judge: {trial['score']:g}. {_text(trial['reason'])}</p>"
    calls = "".join(map(_call, trial["calls"]))
    where = f"{trial['session']} {trial['trace_id']}".strip()
    return (
        f'<details><summary><span class="{kind}">{_WORDS[trial["state"]]}</span> {_text(trial["case"])} '
        f"with {_text(trial['model'])}{at}</summary><ul>{why}</ul>{score}{calls}"
        f"<p>Answer:</p><pre>{_text(trial['answer'])}</pre><p>{_text(where)}</p></details>"
    )


def _call(call: Mapping[str, Any]) -> str:
    stub = " (stub)" if call.get("stub") else ""
    said = f"{call['tool']}.{call['action']} {json.dumps(call.get('args'), ensure_ascii=False)}"
    result = f"{call['result']}{stub}: {call.get('text', '')}"
    return f"<pre>{_text(said)}\n→ {_text(result)}</pre>"


def _text(value: Any) -> str:
    return html.escape(_xml(str(value)))


def _junit_trial(suite: ElementTree.Element, case: OfCase, at: int, trial: Mapping[str, Any]) -> None:
    name = f"{case.case} [{at}]" if len(case.trials) > 1 else case.case
    duration = f"{trial['duration_ms'] / 1000:.3f}"
    test = ElementTree.SubElement(
        suite, "testcase", name=_xml(name), classname=_xml(case.model), time=duration
    )
    if trial["state"] == PASSED:
        return
    kind = "failure" if trial["state"] == FAILED else "error"
    why = _xml(" ".join(trial["why"]))
    said = ElementTree.SubElement(test, kind, message=why[:500], type=trial["state"])
    said.text = _xml("\n".join([*trial["why"], "", trial["answer"]]))


def _xml(text: str) -> str:
    """Without the characters that XML and HTML cannot have."""
    return _NOT_XML.sub("\ufffd", text)
