"""Has a client's person answer what a call waits for: a form for an approval or an agent's question.

The form of an approval shows all that would run, or is not shown: then the person has to look with lactl. The
daemon decides whether the user who runs this server may answer, and takes the answer for the call that was
shown and no other.
"""

from __future__ import annotations

import json
from typing import Any

from lightagentd.client.approver import Question
from lightagentd.config.terms import words as confirm_words
from lightagentd.errors import LightagentError
from lightagentd.mcp_server.request import Connect, called
from lightagentd.signed import shown
from lightagentd.text.readable import visible, warnings

_MOST_CHARS = 8000
"""A longer question is not asked in a form: its end might be out of sight."""
_AUTHENTICATE_S = 330.0
"""Longer than the daemon waits for a person who authenticates."""


def question_id(event: dict[str, Any]) -> str:
    return str(event.get("approval") or event.get("input"))


def form(event: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters of `elicitation/create` for an event that asks; None for what cannot be asked so."""
    field: dict[str, Any]
    if event["type"] == "approval_requested":
        if not (event.get("may_answer") or event.get("must_authenticate")):
            return None
        name, text = "allow", _call_text(event)
        field = {"type": "boolean", "title": "Allow it, once", "description": "Whether exactly this may run."}
    else:
        name, text = "answer", visible(event["question"])
        field = {"type": "string", "title": "Answer"}
        if event["choices"]:
            field["enum"] = event["choices"]
    if len(text) > _MOST_CHARS:
        return None
    schema = {"type": "object", "properties": {name: field}, "required": [name]}
    return {"message": text, "requestedSchema": schema}


def _call_text(event: dict[str, Any]) -> str:
    if isinstance(event, Question):
        lines = [one.text for one in shown.lines(event["request"])]
        return "\n".join(["May this run?", *lines, *_ending(event)])
    args = event["args"] if isinstance(event["args"], dict) else {"arguments": event["args"]}
    folder = {"in the folder": event["cwd"]} if event.get("cwd") else {}
    lines = [f"May {visible(event['tool'])}.{visible(event['action'])} run? [{visible(event['effect'])}]"]
    for name, value in (folder | args).items():
        text = visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        lines.append(f"  {visible(name)}: " + text.replace("\n", "\n    | "))
    if event["preview"]:
        lines += ["What it would do:", *(f"  {line}" for line in visible(event["preview"]).split("\n"))]
    if takes_back := confirm_words(event):
        lines.append(takes_back.replace("\n", "\n    | "))
    lines.append(f"Asked by the rule {visible(event['rule'])}: {visible(event['reason'])}")
    lines += warnings(args | {name: event[name] for name in ("check", "inverse") if event.get(name)})
    return "\n".join([*lines, *_ending(event)])


def _ending(event: dict[str, Any]) -> list[str]:
    return ["An administrator must authenticate then."] if event.get("must_authenticate") else []


def how_to_answer(event: dict[str, Any]) -> str:
    """What a person can do about it without the client."""
    name = question_id(event)
    if event["type"] == "approval_requested":
        call, why = f"{event['tool']}.{event['action']}", event.get("problem") or event["reason"]
        return (
            f"{call} did not run yet: it needs a person's approval. {why}\n"
            f"Look: lactl approvals show {name}. Allow it: lactl approve {name}. Refuse it: lactl deny {name}"
        )
    return f"The agent asks: {event['question']}\nAnswer it with: lactl answer {name} TEXT"


async def is_open(connect: Connect, event: dict[str, Any]) -> bool:
    """Whether the daemon still waits for the answer: the event that says otherwise may be on its way. Raises
    LightagentError.
    """
    if event["type"] == "approval_requested":
        found = (await called(connect, "Approvals.Get", approval=question_id(event)))["approval"]
    else:
        found = (await called(connect, "Inputs.Get", input=question_id(event)))["input"]
    return bool(found["state"] == "waiting")


async def answer(connect: Connect, event: dict[str, Any], given: dict[str, Any]) -> str:
    """Tell the daemon what the person said, an ElicitResult. Gives why it still waits, if it does."""
    action, content, name = given.get("action"), given.get("content"), question_id(event)
    accepted = content if action == "accept" and isinstance(content, dict) else {}
    try:
        if event["type"] != "approval_requested":
            if isinstance(text := accepted.get("answer"), str) and text.strip():
                await called(connect, "Inputs.Answer", input=name, text=text)
                return ""
        elif accepted.get("allow") is True:
            client = connect()
            client.interactive, client.timeout_s = True, _AUTHENTICATE_S
            async with client:
                await client.approve(event)
            return ""
        elif action == "decline" or accepted.get("allow") is False:
            async with connect() as client:
                await client.deny(event)
            return ""
    except LightagentError as err:
        return err.message
    return "It was not answered."
