"""What a daemon that was killed must be able to do after its next start, and what it must still know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from lightagentd.client.blocking import Client
from lightagentd.errors import LightagentError, SessionPaused
from tests.kill.ledger import Known, Ledger
from tests.kill.stage import Stage

PATIENCE_S = 60.0
_AFTER = {
    "granted": ("granted", "used", "lapsed", "expired"),
    "denied": ("denied",),
}


def ask(stage: Stage, ledger: Ledger, *, prompts: bool) -> list[str]:
    """What is wrong, as sentences. With `prompts` every session that can has to take one, too."""
    with stage.daemon.client() as client:
        problems = [*_sessions(client, ledger), *_answers(client, ledger), *_memories(client, ledger)]
        if prompts and not problems:
            problems += _prompts(stage, ledger)
        found = client.call("History.Verify")["verification"]
        if not found["ok"]:
            problems.append(f"the started daemon says that its history is bad: {found}")
    return problems + _ran_twice(stage)


def _sessions(client: Client, ledger: Ledger) -> Iterator[str]:
    """Every session is what was acknowledged, opens, and has the prompts that were taken."""
    there = {one["id"]: one for one in client.call("Sessions.List")["sessions"]}
    for known in list(ledger.sessions.values()):
        if known.id in ledger.expired:
            known.there.possible.append(False)
        if not known.there.settle(known.id in there):
            yield f"the session {known.id} is {'still' if known.id in there else 'not'} there"
        if known.id not in there:
            del ledger.sessions[known.id]
            continue
        shown = client.call("Sessions.Get", session=known.id)["session"]
        if not known.title.settle(shown["title"]):
            yield f"the session {known.id} is called {shown['title']!r}, and should be {known.title.possible}"
        if not known.paused.settle(shown["paused"]):
            yield f"the session {known.id} has paused {shown['paused']}, which was not acknowledged"
        yield from _prompts_there(client, known)


def _prompts_there(client: Client, known: Known) -> Iterator[str]:
    """A prompt is in the queue or in the conversation, but for the moment in which its turn begins."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        queued = client.call("Sessions.Get", session=known.id)["session"]["queued"]
        messages = client.call("Sessions.Messages", session=known.id, limit=1000)["messages"]
        said = {message["content"] for message in messages if message["role"] == "user"}
        missing = [text for text in known.prompts if text not in said]
        if len(missing) <= queued:
            break
        if time.monotonic() > deadline:
            yield f"the session {known.id} lost {len(missing) - queued} prompts, perhaps {missing[0]!r}"
            break
        time.sleep(0.05)
    answers = {message["content"] for message in messages if message["role"] == "assistant"}
    for text in known.answered:
        if f"done with {text.partition(' ')[0]}" not in answers:
            yield f"the session {known.id} lost the answer to {text!r}"


def _answers(client: Client, ledger: Ledger) -> Iterator[str]:
    """Answers that were acknowledged are not asked for again."""
    approvals = {one["id"]: one["state"] for one in client.call("Approvals.List", all=True)["approvals"]}
    inputs = {one["id"]: one for one in client.call("Inputs.List", all=True)["inputs"]}
    for name, answer in ledger.answers.items():
        if name in approvals and approvals[name] not in _AFTER[answer]:
            yield f"the approval {name} was {answer} and is {approvals[name]} now"
        if name in inputs and (inputs[name]["state"], inputs[name]["answer"]) != ("answered", answer):
            yield f"the question {name} was answered and is {inputs[name]['state']} now"
    ledger.answers.clear()


def _memories(client: Client, ledger: Ledger) -> Iterator[str]:
    there = {one["id"] for one in client.call("Memory.List", state="all", limit=1000)["memories"]}
    for name, value in list(ledger.memories.items()):
        if not value.settle(name in there):
            yield f"the memory {name} is {'still' if name in there else 'not'} there"
        if name not in there:
            del ledger.memories[name]
    text = client.call("Memory.GetProfile")["text"]
    if not ledger.profile.settle(text):
        yield f"the profile is {text!r}, which was not acknowledged"


def _prompts(stage: Stage, ledger: Ledger) -> Iterator[str]:
    for known in ledger.living():
        text = f"p{len(known.prompts)}again say"
        try:
            with stage.daemon.client() as client:
                next(client.stream("Sessions.Prompt", session=known.id, text=text))
            known.prompts.append(text)
        except SessionPaused:
            if known.paused.possible == [False]:
                yield f"the session {known.id} refuses a prompt as paused, and is not"
        except LightagentError as err:
            yield f"the session {known.id} takes no prompt: {err}"


def come_to_rest(stage: Stage, ledger: Ledger) -> list[str]:
    """At the end: resume and answer everything, wait until nothing runs, and find every prompt again."""
    problems: list[str] = []
    with stage.daemon.client() as client:
        for known in ledger.living():
            if known.paused.possible == [True]:
                client.call("Sessions.Resume", session=known.id)
                known.paused.settle(False)
                known.paused.possible = [False]
        deadline = time.monotonic() + PATIENCE_S
        while busy := [one for one in client.call("Sessions.List")["sessions"] if one["state"] != "idle"]:
            for asked in client.call("Approvals.List")["approvals"]:
                if asked["state"] == "waiting":
                    client.call("Approvals.Deny", approval=asked["id"])
            for asked in client.call("Inputs.List")["inputs"]:
                client.call("Inputs.Answer", input=asked["id"], text="yes")
            if time.monotonic() > deadline:
                return [f"{len(busy)} sessions do not come to rest, such as {busy[0]}"]
            time.sleep(0.05)
        problems += _sessions(client, ledger)
    return problems


def _ran_twice(stage: Stage) -> list[str]:
    """Commands that ran more often than they were allowed to: each was approved once."""
    return [
        f"the command of {file.name} ran {count} times"
        for file in Path(stage.out).iterdir()
        if not file.name.startswith("written-") and (count := len(file.read_text().splitlines())) > 1
    ]
