"""`lactl plan`: have an agent draft a plan, look at it, and have it applied."""

from __future__ import annotations

import time
from typing import Any

import click

from lightagentd.cli.options import Group, Settings, files
from lightagentd.cli.output import cell, fields, print_json, say, warn
from lightagentd.cli.plan_file import read_plan
from lightagentd.cli.question import (
    REQUESTS,
    ask,
    how_to_answer,
    is_about_call,
    may_answer,
    question_lines,
    visible,
)
from lightagentd.cli.session_name import session_argument, whole_session
from lightagentd.cli.terminal import DIM, GREEN, RED, is_terminal, style
from lightagentd.cli.turn_lines import plan_lines
from lightagentd.cli.when import duration
from lightagentd.client.blocking import Client
from lightagentd.errors import Cancelled, DaemonUnreachable, PlanConflict, SessionNotFound

_COLOURS = {"done": GREEN, "failed": RED, "running": DIM, "skipped": DIM}


@click.group("plan", cls=Group)
def command() -> None:
    """Draft a plan with an agent, look at it, and apply it.

    \b
      lactl plan begin ops       from now on prompts draft a plan
      lactl prompt ops "move the logs of nginx"   (needs a language model)
      lactl plan show ops        look at it; prompt again to revise it
      lactl plan apply ops       task by task

    SESSION is an id, the beginning of one, or the name of an agent for your current session with it. While
    the plan is drafted nothing runs in the session but what observes.
    """


@command.command("show")
@session_argument
@click.pass_obj
def show(settings: Settings, session: str) -> None:
    """Show the plan of SESSION, and how far it is applied.

    In a pipe: its phase, title and note by name, then a line for each task with its id, state, text, check
    and note.
    """
    _print(settings, settings.call("Plans.Get", session=whole_session(settings, session)))


@command.command("begin")
@session_argument
@click.pass_obj
def begin(settings: Settings, session: str) -> None:
    """Begin to draft a plan in SESSION.

    Prompts draft it and revise it from now on, and nothing runs but what observes; a call that runs already
    is not stopped. With an agent with which you have no session yet, one begins.
    """
    _print(settings, settings.call("Plans.Begin", session=_session(settings, session)))


@command.command("set")
@session_argument
@click.argument("file", metavar="FILE", shell_complete=files)
@click.pass_obj
def set_plan(settings: Settings, session: str, file: str) -> None:
    """Replace the plan of SESSION by that in FILE, or in standard input if FILE is '-'.

    JSON: {"title": "...", "tasks": [{"id": "...", "text": "...", "check": "..."}]}, where id and check may be
    left out. Or Markdown: a line '# TITLE', and for each task a line '- [ ] TEXT' and, if it has a check, an
    indented line 'check: COMMAND'. A check is a shell command that only observes.
    """
    plan = read_plan(file)
    _print(settings, settings.call("Plans.Set", session=_session(settings, session), plan=plan))


@command.command("apply")
@session_argument
@click.option("--retry", is_flag=True, help="Try the task again at which it stopped.")
@click.option("--skip", is_flag=True, help="Go on without the task at which it stopped.")
@click.option("--abort", is_flag=True, help="Drop what is left of the plan.")
@click.option("--digest", metavar="DIGEST", help="Apply it only if it is the one with this digest.")
@click.option("--no-wait", is_flag=True, help="Do not watch it.")
@click.pass_obj
def apply(settings: Settings, /, session: str, digest: str | None, no_wait: bool, **chosen: bool) -> None:
    """Apply the plan of SESSION task by task, and watch it.

    A line for each task has its id, its state, how long it took, and its text. A task is done when its turn
    ended without an error and its check passed; at the first that failed it stops, and goes on with --retry,
    --skip or --abort. Calls that need to be allowed are asked about on the terminal if you may allow them.
    Prompts of yours go between two tasks.

    What you read may have been revised since: the digest that 'lactl plan show' ends with, given as --digest,
    makes sure that just that is applied.

    The exit status is 0 when the plan is completed (or was aborted as you said), and 73 when it stopped at a
    task. Ctrl-C stops watching; the plan goes on.
    """
    choices = [name for name, given in chosen.items() if given]
    if len(choices) > 1:
        raise click.UsageError("--retry, --skip and --abort cannot be used together.")
    choice = choices[0] if choices else None
    whole = whole_session(settings, session)
    if no_wait or choice == "abort":
        _print(settings, settings.call("Plans.Apply", session=whole, choice=choice, digest=digest))
        return
    try:
        plan = _Watch(settings, whole).until_it_rests(choice, digest)
    except KeyboardInterrupt:
        warn("The plan goes on.", f"Look: lactl plan show {whole}; leave it: lactl plan end {whole}")
        raise
    if settings.json:
        print_json(plan)
    else:
        say(cell(plan["note"]))
    if plan["phase"] == "off":
        raise Cancelled("The plan was ended before it was completed.")
    if plan["phase"] != "completed":
        raise PlanConflict(
            f"The plan stopped at the task {plan['stopped_at']}, which failed.",
            suggestion=f"Go on with: lactl plan apply {whole} --retry, or --skip, or --abort",
        )


@command.command("end")
@session_argument
@click.pass_obj
def end(settings: Settings, session: str) -> None:
    """Leave plan mode in SESSION: the plan is dropped, and a task that runs is cancelled."""
    _print(settings, settings.call("Plans.End", session=whole_session(settings, session)))


class _Watch:
    """Watches a plan while it is applied, and reports the progress of each task."""

    def __init__(self, settings: Settings, session: str) -> None:
        self._settings = settings
        self._session = session
        self._begun_s: dict[str, float] = {}
        self._told: dict[str, tuple[str, str]] = {}
        """The state of each task that was told, and the turn that it was about."""

    def until_it_rests(self, choice: str | None, digest: str | None) -> dict[str, Any]:
        """Apply the plan, and return it once it is completed, stopped or ended. Raises DaemonUnreachable."""
        first, current = "", False
        with self._settings.client() as client:
            for reply in client.stream("Sessions.Watch", session=self._session):
                event = reply["event"]
                if event is None:
                    break
                if not first:  # the daemon's first word: from here on nothing is missed
                    self._told = _states(self._settings.call("Plans.Get", session=self._session))
                    plan = self._settings.call(
                        "Plans.Apply", session=self._session, choice=choice, digest=digest
                    )
                    self._show(plan)
                    if plan["phase"] != "applying":
                        return dict(plan)
                    first = next(task["trace_id"] for task in plan["tasks"] if task["state"] == "running")
                elif event["type"] == "plan":
                    plan = event["plan"]
                    current = current or any(task["trace_id"] == first for task in plan["tasks"])
                    if not current and plan["phase"] != "off":
                        continue  # it is older than the request
                    self._show(plan)
                    if plan["phase"] != "applying" or plan["stopped_at"]:
                        return dict(plan)
                else:
                    self._other(client, event)
        raise DaemonUnreachable(
            f"The daemon stopped, or the session {self._session} was deleted, while its plan was applied.",
            suggestion=f"After the daemon's next start the plan goes on: lactl plan show {self._session}",
        )

    def _show(self, plan: dict[str, Any]) -> None:
        """A line for each task whose state is new."""
        for task in plan["tasks"]:
            key, state = task["id"], task["state"]
            if state == "pending" or self._told.get(key) == (state, task["trace_id"]):
                continue
            self._told[key] = (state, task["trace_id"])
            if state == "running":
                self._begun_s[key] = time.monotonic()
            if not self._settings.json:
                self._line(task)

    def _line(self, task: dict[str, Any]) -> None:
        begun_s = self._begun_s.get(task["id"])
        took = "-"
        if begun_s is not None and task["state"] != "running":
            took = duration((time.monotonic() - begun_s) * 1000)
        words = [task["id"], task["state"], took, task["text"].splitlines()[0]]
        if task["note"]:
            words.append(task["note"])
        if not is_terminal():
            say("\t".join(cell(word) for word in words))
        else:
            state = style(f"{task['state']:8}", _COLOURS[task["state"]])
            say(f"{cell(words[0]):>4}  ", state, f"{took:>7}  {'  '.join(cell(word) for word in words[3:])}")

    def _other(self, client: Client, event: dict[str, Any]) -> None:
        kind, event = event["type"], self._settings.asked(event)
        if kind in REQUESTS and may_answer(self._settings, event) and not self._settings.json:
            for line in question_lines(event, folded=True):
                say(line)
            ask(self._settings, client, event)
        elif kind in REQUESTS:
            if is_about_call(event):
                what = f"until somebody allows {visible(event['tool'])}.{visible(event['action'])}."
                what += f" {visible(event['problem'])}" if event.get("problem") else ""
            else:
                what = f"for an answer: {cell(visible(event['question']))}"
            warn(f"The task waits {what}", how_to_answer(event))
        elif kind == "session" and (event.get("session_info") or {}).get("paused"):
            warn(
                "The session is paused: the next task waits.",
                f"Go on with: lactl sessions resume {self._session}",
            )


def _states(plan: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {task["id"]: (task["state"], task["trace_id"]) for task in plan["tasks"]}


def _session(settings: Settings, name: str) -> str:
    """Like `whole_session`, but begins a session with an agent that the caller has none with."""
    try:
        return whole_session(settings, name)
    except SessionNotFound:
        if name not in {agent["name"] for agent in settings.call("Agents.List")}:
            raise
    return str(settings.call("Sessions.Create", agent=name)["id"])


def _print(settings: Settings, plan: dict[str, Any]) -> None:
    if settings.json:
        print_json(plan)
    elif is_terminal():
        lines = plan_lines(plan) if plan["tasks"] else [cell(plan["note"])]
        for line in lines:
            say(line)
        if plan["phase"] == "ready":
            say(style(f"digest {plan['digest']}", DIM))
    else:
        shown = ("session", "phase", "title", "stopped_at", "note", "digest")
        fields((name, plan[name]) for name in shown)
        for task in plan["tasks"]:
            words = (task["id"], task["state"], task["text"], task["check"], task["note"])
            say("\t".join(["task", *(cell(word) for word in words)]))
