"""The commands about the turn, the agent and the chat itself; `commands` has their names.

Each takes the conversation and its argument as typed, and raises LightagentError.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.cli.attaching import attachment
from lightagentd.cli.output import cell, table_lines
from lightagentd.cli.plan_file import read_plan
from lightagentd.cli.question import question_lines
from lightagentd.cli.turn_lines import plan_lines
from lightagentd.cli.usage import money
from lightagentd.cli.when import duration, size
from lightagentd.errors import ConfirmationRequired, Conflict, InvalidArgument, NotFound, from_dict

if TYPE_CHECKING:
    from lightagentd.cli.chatting.conversation import Conversation

_PLAN_CHOICES = {"apply": None, "retry": "retry", "skip": "skip", "abort": "abort"}


async def usage(chat: Conversation, argument: str) -> None:
    """What the session used."""
    takes_nothing(argument, "usage")
    found = await chat.daemon.call("Usage.Get", scope="session", name=chat.session)
    if not found:
        chat.say("Nothing was used yet.")
    for used in found:
        chat.say(
            f"{used['turns']} turns, {used['steps']} steps, {used['calls']} calls, "
            f"{duration(used['wall_ms'])}",
            f"{used['total_tokens']} tokens: {used['prompt_tokens']} of prompts "
            f"({used['cached_tokens']} cached), {used['completion_tokens']} of answers",
            f"cost: {money(used)}",
        )
        if used["steps_without_usage"]:
            chat.say(f"{used['steps_without_usage']} steps are not in it: the endpoint did not count.")
    for limit in await chat.daemon.call("Usage.Budgets", session=chat.session):
        chat.say(
            f"limit of a {cell(limit['scope'])}: "
            f"{limit['used']:g} of {limit['limit']:g} {cell(limit['what'])}"
        )


async def model(chat: Conversation, argument: str) -> None:
    """The agent's model, and how it is changed; or another one for the session."""
    if "/" in argument or argument in ("runbook", "default"):
        wanted = "" if argument == "default" else argument
        found = await chat.daemon.call("Sessions.SetModel", session=chat.session, model=wanted)
        chat.say(f"{cell(found['model'] or 'the model of the agent')} is asked first from now on.")
        return
    here = await chat.daemon.call("Sessions.Get", session=chat.session)
    found = await chat.daemon.call("Agents.Get", name=argument or chat.agent)
    then = f", then {', '.join(found['fallback'])}" if found["fallback"] else ""
    chat.say(f"{found['name']}: {found['model']}{then}")
    if here["model"]:
        chat.say(f"This session asks {cell(here['model'])} first; /model default ends that.")
    chat.say(
        "For this session: /model MODEL. For all of them, set model in"
        f" {found['origin']} (a copy below /etc/lightagentd/agent/{found['name']} if that is the shipped"
        " one), then run: lactl reload"
    )


async def tools(chat: Conversation, argument: str) -> None:
    """The tools that the agent has, or one of them."""
    if argument:
        found = await chat.daemon.call("Tools.Get", name=argument)
        chat.say(f"{found['name']}: {found['description']}")
        actions = [(one["name"], one["effect"] or "by call", one["description"]) for one in found["actions"]]
        chat.show(table_lines(("ACTION", "EFFECT", "DESCRIPTION"), actions))
        return
    agent = await chat.daemon.call("Agents.Get", name=chat.agent)
    listed = await chat.daemon.call("Tools.List")
    own = [one for one in listed if not agent["tools"] or one["name"] in agent["tools"]]
    rows = [(one["name"], one["problem"] or one["description"]) for one in own]
    chat.show(table_lines(("TOOL", "DESCRIPTION"), rows))


async def skills(chat: Conversation, argument: str) -> None:
    """The skills, or one of them."""
    if argument:
        found = await chat.daemon.call("Skills.Get", name=argument)
        chat.say(f"{found['name']}: {found['description']}")
        chat.say(*(f"  such as: {prompt}" for prompt in found["prompts"]))
        return
    listed = await chat.daemon.call("Skills.List")
    rows = [(one["name"], one["problem"] or one["description"]) for one in listed]
    chat.show(table_lines(("SKILL", "DESCRIPTION"), rows))


async def plan(chat: Conversation, argument: str) -> None:
    """Everything about the session's plan."""
    verb, _, rest = argument.partition(" ")
    session, before = chat.session, chat.transcript.plan_told
    if verb in ("", "progress", "show"):
        found = await chat.daemon.call("Plans.Get", session=session)
    elif verb == "on":
        found = await chat.daemon.call("Plans.Begin", session=session)
    elif verb == "off":
        found = await chat.daemon.call("Plans.End", session=session)
    elif verb in _PLAN_CHOICES:
        # Only the plan that was shown; without a digest the daemon applies the present one.
        read = chat.transcript.plan_shown or None
        found = await chat.daemon.call(
            "Plans.Apply", session=session, choice=_PLAN_CHOICES[verb], digest=read
        )
    elif verb == "set" and rest:
        path = str(Path(rest.strip()).expanduser())
        value = await asyncio.to_thread(read_plan, path)
        found = await chat.daemon.call("Plans.Set", session=session, plan=value)
    else:
        raise InvalidArgument(
            f"/plan does not take {argument[:60]!r}.",
            suggestion="It takes: on, off, progress, apply, retry, skip, abort, set FILE.",
            field="plan",
        )
    if chat.transcript.told_of_plan(found) and chat.transcript.plan_told != before and verb in ("on", "set"):
        return  # the event that it made has been shown
    if found["phase"] == "off":
        chat.say("There is no plan. /plan on begins one: prompts draft it then.")
    else:
        chat.transcript.plan_shown = found["digest"]
        chat.say(*plan_lines(found))


async def approve(chat: Conversation, argument: str) -> None:
    """Allow a call that waits."""
    await _rule(chat, "Approvals.Approve", argument, asks=True)


async def confirm(chat: Conversation, argument: str) -> None:
    """Keep a change that takes itself back otherwise; without its call, the only one that waits."""
    waiting = await chat.daemon.call("Confirmations.List")
    ids = [one["id"] for one in waiting if one["id"].startswith(argument)]
    if argument and not ids:
        ids = [argument]  # the daemon knows what became of it
    if len(ids) != 1:
        chat.say(
            *(
                f"{one['id']}  {cell(one['tool'])}.{cell(one['action'])}  {one['left_s']:.0f}s"
                for one in waiting
            )
        )
        chat.say("Name one: /confirm CALL" if ids else "No change waits to be confirmed.")
        return
    found = await chat.daemon.call("Confirmations.Confirm", call_id=ids[0])
    chat.say(f"Confirmed: the change of {cell(found['tool'])}.{cell(found['action'])} stays.")


async def deny(chat: Conversation, argument: str) -> None:
    """Refuse a call that waits."""
    await _rule(chat, "Approvals.Deny", argument)


async def _rule(chat: Conversation, method: str, argument: str, *, asks: bool = False) -> None:
    open_ones = await chat.daemon.call("Approvals.List")
    approval, note = _pick(chat, open_ones, argument, "apr_", "No call of this session waits for a yes.")
    found = await chat.daemon.call("Approvals.Get", approval=approval)
    given: dict[str, Any] = {"note": note or None}
    if asks and approval != argument.partition(" ")[0]:  # another question may have taken the place of one
        if chat.questions.is_open(approval) or not chat.screen.can_ask:
            raise ConfirmationRequired(
                f"Only its whole id says that {approval} is meant.",
                suggestion=f"Read it, and answer y, or write: /approve {approval}",
            )
        found = await chat.daemon.client().question(found)
        chat.show([*question_lines(found, folded=True)])
        if not await chat.questions.confirm("Allow it, once?"):
            chat.say("It goes on waiting.")
            return
        given["digest"] = found["digest"]
    found = await chat.daemon.answer(method, found, **given)
    word = "Allowed, once" if found["state"] == "granted" else "Refused"
    chat.say(f"{word}: {cell(found['tool'])}.{cell(found['action'])}")


async def answer(chat: Conversation, argument: str) -> None:
    """Answer a question of the agent."""
    open_ones = await chat.daemon.call("Inputs.List")
    name, text = _pick(chat, open_ones, argument, "inp_", "No question of this session waits for an answer.")
    if not text:
        raise InvalidArgument("The answer is empty.", suggestion="Write: /answer TEXT", field="text")
    await chat.daemon.call("Inputs.Answer", input=name, text=text)


def _pick(
    chat: Conversation, open_ones: list[dict[str, Any]], argument: str, prefix: str, none: str
) -> tuple[str, str]:
    """The selected question, and the other words; without an id, the only question of this session."""
    word, _, rest = argument.partition(" ")
    if word.startswith(prefix):
        ids = [one["id"] for one in open_ones if one["id"].startswith(word)]
        if len(ids) == 1:
            return str(ids[0]), rest.strip()
        if ids:
            raise InvalidArgument(f"{len(ids)} begin with {word!r}.", suggestion="Write more of the id.")
        return word, rest.strip()  # the daemon knows what became of it
    ids = [one["id"] for one in open_ones if one["session"] == chat.session]
    if not ids:
        raise NotFound(none, suggestion="See 'lactl approvals' and 'lactl inputs' for all that waits.")
    if len(ids) > 1:
        raise Conflict(f"{len(ids)} wait in this session.", suggestion=f"Name one: {', '.join(ids)}")
    return str(ids[0]), argument


async def undo(chat: Conversation, argument: str) -> None:
    """Undo a change of a file. The undo is a call of its own, and may need approval."""
    shown = ("tool_call", "tool_output", "tool_result", "approval_requested", "approval_answered", "notice")
    transcript = chat.transcript
    stream = chat.daemon.stream("Undo.Run", call_id=argument or None, agent=chat.agent)
    async with aclosing(stream) as replies:
        async for reply in replies:
            event = await chat.daemon.asked(reply["event"])
            if event["type"] in shown:
                transcript.show(event)
            elif event["type"] == "done":
                chat.say(*(event.get("text") or "").strip().split("\n"))
            elif event["type"] == "error":
                transcript.progress.end(event["trace_id"])
                raise from_dict(event)
    transcript.progress.end(event["trace_id"])


async def attach(chat: Conversation, argument: str) -> None:
    """Keep a file for the next prompt."""
    if not argument:
        raise InvalidArgument("/attach needs a file.", suggestion="Write: /attach FILE", field="attachments")
    if argument == "-":
        raise InvalidArgument("Standard input is what is typed here.", suggestion="Write: /attach FILE")
    path = Path(argument)
    try:
        path = path.expanduser()
    except RuntimeError as err:
        raise NotFound(f"There is no folder for {argument}.", suggestion="Check the path.") from err
    found = await asyncio.to_thread(attachment, str(path))
    chat.attached.append(found)
    chat.say(f"{cell(found['name'])} ({size(len(found['text'].encode()))}) goes with the next prompt.")


async def exit_(chat: Conversation, argument: str) -> None:
    """Leave."""
    takes_nothing(argument, "exit")
    chat.leave()


def takes_nothing(argument: str, name: str) -> None:
    """Raises InvalidArgument if there is an argument."""
    if argument:
        raise InvalidArgument(f"/{name} takes nothing.", suggestion=f"Write: /{name}")
