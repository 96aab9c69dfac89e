"""What a worker for change looks at before it runs a call: it believes no word of the daemon about that.

A call runs with a signature of the approver under exactly this statement, used once; where a rule of root's
allows it; or where an earlier call promised it (`promised`). The worker reads the rules and the approver's
public key for itself, from folders that the daemon cannot write, and its agent is the instance of its unit.
Who prompted, what began the turn and what the session has seen is the daemon's word: without a signature a
rule that allows counts only where it asks for none of that (`even_if_tainted`, or `trust_daemon_taint` in the
configuration; no `caller`, no `trigger`), and one that denies or asks counts whatever it says about them.
What rests on the daemon's word beyond that, such as the folders of skills, the worker finds out by itself.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightagentd.config.terms import TERMS, Terms
from lightagentd.errors import (
    ApprovalMismatch,
    ApprovalRequired,
    Conflict,
    InvalidArgument,
    LightagentError,
    Panicked,
    PermissionDenied,
    PolicyDenied,
    StorageError,
    WorkerUnavailable,
)
from lightagentd.events.journal.journal_socket import SOCKET
from lightagentd.host.paths import kit_folders
from lightagentd.policy.decide import SCRIPTS, SHELLS
from lightagentd.signed.grant import Grant
from lightagentd.signed.numbers import Numbers
from lightagentd.signed.public_keys import PUBLIC
from lightagentd.signed.statement import Statement
from lightagentd.text.readable import visible
from lightagentd.text.reason import reason
from lightagentd.tool import Action, Effect
from lightagentd.toolkit.files import bound
from lightagentd.toolkit.files.changes import UNDOES
from lightagentd.worker import promised, ways
from lightagentd.worker.call import GOES_ON, Call
from lightagentd.worker.calls import check_args
from lightagentd.worker.loader import LoadedTool, ToolFiles
from lightagentd.worker.own_rules import OwnRules, is_on_terms_of
from lightagentd.worker.promised import Promises
from lightagentd.worker.trusted import check_trusted
from lightagentd.worker.witness import Witness

APPROVER = Path("/var/lib/lightagent-approver")
PANIC = "panic"
DAEMON_USER = "lightagent"
LONGEST_S = 86_400.0
RESERVED = frozenset(
    {"credentials", "skills", "own_skills", "must_keep", "survey", "snapshot", "watch_again"}
)
"""What a tool is told beside what it expects: nobody may call that expected."""
_CALL_ID = re.compile(r"call_[0-9a-f]{16}")
_WORD = re.compile(r"[A-Za-z0-9_.:@/-]{0,100}")
Before = Callable[[], Awaitable[dict[str, Any]]]
"""Gives what the tool's preview says of the state now."""


@dataclass(frozen=True, kw_only=True)
class Permit:
    """A call that may run: what its tool is given and expects, and by what it may, as the record says."""

    call: Call
    statement: Statement
    given: dict[str, Any]
    expected: dict[str, Any]
    by: dict[str, Any]


def checked_call(found: Any, agent: str) -> Call:
    """A call as an honest daemon makes it. Raises InvalidArgument, PermissionDenied."""
    call = Call.of(found)
    if call.agent != agent:
        raise PermissionDenied(f"This is the worker of {agent} and of no other agent.")
    if call.effect is not Effect.CHANGE:
        raise PermissionDenied(f"The worker for change runs no call that is to {call.effect}.")
    words = (call.session, call.trigger, *call.above)
    if not _CALL_ID.fullmatch(call.call_id) or not all(
        isinstance(one, str) and _WORD.fullmatch(one) for one in words
    ):
        raise InvalidArgument("The id of a call, or of whom it is for, is not what it has to be.")
    if not 0 < call.timeout_s <= LONGEST_S:
        raise InvalidArgument("The time of a call is not what it can be.", field="timeout_s")
    if call.terms.keys() != {*TERMS} or call.expected.keys() & RESERVED:
        raise InvalidArgument("A call has other terms, or expects other things, than it can.")
    if (call.resumed is not None) != (GOES_ON in call.expected):
        raise InvalidArgument("A call goes on with an answer, and only so.")
    if call.resumed is not None and call.resumed.keys() != {"state", "answer"}:
        raise InvalidArgument("A call goes on with other things than it can.")
    return call


class Verifier:
    """Of one worker. Its owner calls `close`."""

    def __init__(
        self, agent: str, *, state: Path, config: Path, approver: Path = APPROVER, journal: Path = SOCKET
    ) -> None:
        """`state` is the worker's own folder, `config` that of the configuration, `approver` the approver's,
        which holds its public key and the mark of the emergency stop.
        """
        self.agent = agent
        self.witness = Witness(agent, state, journal)
        self._state, self._config, self._approver = state, config, approver
        self._kept = _Kept(state)
        self._rules = OwnRules(config)

    def check_place(self, tool: str, kit: str, tools: ToolFiles) -> None:
        """Before a tool is loaded: its file, if it is one of all agents, and else its kit have to be root's,
        and the kit this agent's. Raises PermissionDenied.
        """
        if (shared := tools.unread(tool)) is not None:
            check_trusted(shared, f"the tool {tool}")
        if kit and tool not in [*tools] and kit not in self._kits():
            raise PermissionDenied(
                f"The worker for change does not load {tool[:60]} from {kit[:200]}.",
                suggestion="Put the kit into /etc/lightagentd/agent, as root.",
            )

    def _kits(self) -> set[str]:
        """Where a kit of this agent is, if it is root's."""
        return {str(folder) for folder in kit_folders(self.agent, self._config)}

    async def permit(
        self, call: Call, action: Action, args: dict[str, Any], tool: LoadedTool, before: Before
    ) -> Permit:
        """Decide on a checked call (`checked_call`) with checked arguments, and use up what lets it run.

        Raises PolicyDenied, ApprovalMismatch, ApprovalRequired, and others where it cannot be told.
        """
        statement = self._statement(call, args, tool.sha256)
        self._check_stopped()
        effect = args.get("effect") if action.effect is None else action.effect
        if effect != Effect.CHANGE:
            raise PermissionDenied(f"{call.tool}.{call.action} does not change anything: it is not run here.")
        if (call.tool, call.action) in SCRIPTS:
            await asyncio.to_thread(self._check_script, call.kit, str(args.get("name", "")))
        terms = Terms.of(call.terms)
        rest = None if call.resumed is None else self._rest_of(call, call.resumed, statement)
        by = await self._allowed(call, action, statement, terms)
        if rest is not None:
            self._forget_promise(promised.REST, call.call_id)
        elif terms is not None:
            await self._promise_back(call, args, terms, before)
        expected = call.expected if rest is None else rest["expected"]
        given = self._given(call, terms)
        permit = Permit(call=call, statement=statement, given=given, expected=expected, by=by)
        await self._tell_begun(permit)
        return permit

    async def _allowed(
        self, call: Call, action: Action, statement: Statement, terms: Terms | None
    ) -> dict[str, Any]:
        """By what a call may run, which is used up. Raises as `permit`."""
        decided = self._rules.ruling(statement, signed=bool(call.signed or call.takes_back))
        if call.takes_back:
            if terms is not None:
                raise InvalidArgument("What takes a change back is not taken back itself.")
            self._take_back(call, action, statement.args)
            return {"takes_back": call.takes_back}
        if call.resumed is None and (self._state / "undo" / f"{call.call_id}.json").exists():
            raise Conflict(f"The call {call.call_id} has run already.")
        if call.signed:
            await self._check_bound(call, statement.args)
            grant = self._granted(call, statement)
            return {"user": grant.by, "series": grant.series, "number": grant.number}
        if decided is None or not (call.resumed or is_on_terms_of(decided, call.terms)):
            raise ApprovalRequired(
                f"{call.tool}.{call.action} needs a person's approval: no rule allows it"
                f"{'' if decided is None else ' on these terms'} by itself.",
                suggestion="Ask for it again.",
            )
        return {"rule": decided[0]}

    def _rest_of(self, call: Call, resumed: dict[str, Any], statement: Statement) -> dict[str, Any]:
        """The promise that a call goes on, with the question that it asked, and the answer that is signed.
        Raises PolicyDenied, StorageError.
        """
        with self._kept as kept:
            rest = kept.promises.rest_of(call.call_id, _digest_of_rest(statement), resumed["state"])
        if call.expected != {GOES_ON: {"question": rest["question"], "answer": resumed["answer"]}}:
            raise PolicyDenied(f"The call {call.call_id} does not go on: that is not what it asked.")
        return rest

    def _take_back(self, call: Call, action: Action, args: dict[str, Any]) -> None:
        """Use up a promise to take a change back. Raises PolicyDenied, InvalidArgument, StorageError."""
        with self._kept as kept:
            promises = kept.promises
            back = promises.back_of(call.takes_back)
            same = (back["tool"], back["action"]) == (call.tool, call.action)
            if not same or check_args(action, back["args"]).model_dump(mode="json") != args:
                raise PolicyDenied(
                    f"{call.tool}.{call.action} does not take back the change of the call {call.takes_back}.",
                    suggestion=promised.ONLY,
                )
            promises.begin_back(call.takes_back)

    def ended(self, permit: Permit, event: dict[str, Any]) -> None:
        """The call went well, or asks a person with whose answer it may go on. Raises StorageError,
        LimitExceeded.
        """
        if event["kind"] == "asked":
            with self._kept as kept:
                call_id, digest = permit.statement.call_id, _digest_of_rest(permit.statement)
                kept.promises.promise_rest(call_id, digest, event, permit.expected)
        elif taken := permit.by.get("takes_back"):
            self._forget_promise(promised.BACK, taken)

    def keep(self, call_id: str) -> None:
        """A change has been confirmed. Raises StorageError."""
        self._forget_promise(promised.BACK, call_id)

    async def _tell_begun(self, permit: Permit) -> None:
        """Raises WorkerUnavailable, StorageError; then the call does not run."""
        name = f"{permit.statement.tool}.{permit.statement.action}"
        try:
            await self.witness.tell("begun", f"{name} begins", **_told(permit.statement), by=permit.by)
        except LightagentError:
            self._not_begun(permit)
            raise

    async def tell_ended(self, permit: Permit, result: str) -> None:
        """`result` is ok, asked, or the code of an error."""
        name = f"{permit.statement.tool}.{permit.statement.action}"
        message = f"{name} ended: {result}"
        await self.witness.tell_if_possible("ended", message, **_told(permit.statement), result=result)

    async def tell_refused(self, call: Any, err: LightagentError) -> None:
        """A call that does not run, as far as it is known."""
        found = call if isinstance(call, dict) else {}
        told = {name: str(found.get(name, ""))[:100] for name in ("call_id", "tool", "action")}
        message = f"{told['tool']}.{told['action']} is refused: {err.message}"
        by = {"takes_back": str(back)[:100]} if (back := found.get("takes_back")) else {}
        record = {**told, "digest": "", "result": err.code, "by": by}
        await self.witness.tell_if_possible("refused", visible(message), **record)

    def _not_begun(self, permit: Permit) -> None:
        """The call does not run after all. Raises StorageError."""
        if permit.statement.confirm_within_s and permit.call.resumed is None:
            self._forget_promise(promised.BACK, permit.statement.call_id)

    def _forget_promise(self, kind: promised.Kind, call_id: str) -> None:
        with self._kept as kept:
            kept.promises.over(kind, call_id)

    async def _promise_back(self, call: Call, args: dict[str, Any], terms: Terms, before: Before) -> None:
        """Raises Conflict, InvalidArgument, StorageError."""
        found = await before() if ways.needs_preview(terms, call.tool) else {}
        try:
            back = ways.way_back(terms, call.tool, call.action, call.call_id, args, found)
        except (ValueError, KeyError, TypeError) as err:
            raise InvalidArgument(f"The inverse call cannot be made: {err}.", field="inverse") from err
        with self._kept as kept:
            kept.promises.promise_back(call.call_id, back, terms.within_s)

    def _statement(self, call: Call, args: dict[str, Any], tool_sha256: str) -> Statement:
        return Statement(
            agent=self.agent,
            tool=call.tool,
            action=call.action,
            effect=Effect.CHANGE.value,
            args=args,
            tool_sha256=tool_sha256,
            call_id=call.call_id,
            session=call.session,
            owner=call.owner,
            trigger=call.trigger,
            kit=call.kit,
            above=call.above,
            expected=call.expected,
            **call.terms,
        )

    def _given(self, call: Call, terms: Terms | None) -> dict[str, Any]:
        """What the tool is told beside what it expects: secrets and names are the daemon's, no more."""
        found: dict[str, Any] = {}
        credentials, skills = call.given.get("credentials"), call.given.get("skills")
        if isinstance(credentials, dict) and all(isinstance(one, str) for one in credentials.values()):
            found["credentials"] = credentials
        if isinstance(skills, list):
            found["skills"] = [one for one in skills if isinstance(one, str)]
        if call.kit in self._kits() and call.tool == "skill":
            found["own_skills"] = f"{call.kit}/skills"
        if ways.must_keep(terms, call.tool):
            found["must_keep"] = True
        return found

    @property
    def stopped(self) -> bool:
        """Whether an administrator has stopped everything, as the approver keeps it."""
        return (self._approver / PANIC).exists()

    def _check_stopped(self) -> None:
        """Raises Panicked."""
        if self.stopped:
            raise Panicked(
                "An administrator has stopped everything.",
                suggestion="Nothing runs until an administrator says: lactl panic --off",
            )

    def _check_script(self, kit: str, name: str) -> None:
        """Raises PermissionDenied unless a skill, in each folder that may have it, is root's alone."""
        shared = os.environ.get("LIGHTAGENT_SKILLS", "").split(":")
        for folder in filter(None, [f"{kit}/skills" if kit else "", *shared]):
            path = Path(folder, name)
            if path.parent == Path(folder) and path.exists():
                check_trusted(path, f"the skill {name}")

    async def _check_bound(self, call: Call, args: dict[str, Any]) -> None:
        """A signature binds a shell command to the files that it names and that others can write. It has to
        hold all of them: the daemon may have left one out. Raises Conflict, ApprovalMismatch.
        """
        if (call.tool, call.action) == ("file", "undo") and UNDOES not in call.expected:
            raise ApprovalMismatch("Who approved this was not told which file it puts back.")
        if (call.tool, call.action) not in SHELLS:
            return
        owner = 0 if call.owner == _daemon_uid() else call.owner
        command, cwd = str(args.get("command", "")), str(args.get("cwd", "/"))
        _, now = await asyncio.to_thread(bound.facts, command, cwd, owner)
        seen = call.expected.get("files")
        missing = {*now.get("files", {})} - {*(seen if isinstance(seen, dict) else ())}
        if not call.expected.get("folder") and bound.others_write(cwd, {0, owner}):
            missing.add(cwd)
        if missing:
            raise Conflict(
                f"Others can write {min(missing)}, and who approved the command was not told its content.",
                suggestion="Put it into a folder of root's, look at it, and ask again.",
            )

    def _granted(self, call: Call, statement: Statement) -> Grant:
        """Use up the signature of a call. Raises ApprovalMismatch, StorageError."""
        grant = Grant.verified(call.signed, self._public())
        signed = (grant.digest, grant.agent, grant.effect, grant.owner)
        if signed != (statement.digest, self.agent, statement.effect, statement.owner):
            raise ApprovalMismatch(
                f"What is about to run is not what was approved: {call.tool}.{call.action}.",
                suggestion="Nothing was run. If the tool's file has changed: lactl reload, and ask again.",
            )
        with self._kept as kept:
            kept.numbers.use(grant, call.call_id)
        return grant

    def _public(self) -> list[bytes]:
        """Raises WorkerUnavailable."""
        try:
            return [(self._approver / PUBLIC).read_bytes()]
        except OSError as err:
            raise WorkerUnavailable(
                f"The approver's public key cannot be read: {reason(err, at=True)}.",
                suggestion="It makes one when it starts: systemctl start lightagent-approver.service",
            ) from err

    def close(self) -> None:
        self._kept.close()
        self.witness.close()


class _Kept:
    """What one worker keeps on the disk. It is read when it is first needed, and again after a block in which
    that failed: somebody may have mended the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: Numbers | None = None
        self._promises: Promises | None = None

    @property
    def numbers(self) -> Numbers:
        """Raises StorageError."""
        if self._numbers is None:
            self._numbers = Numbers(self._folder)
        return self._numbers

    @property
    def promises(self) -> Promises:
        """Raises StorageError."""
        if self._promises is None:
            self._promises = Promises(self._folder)
        return self._promises

    def __enter__(self) -> _Kept:
        return self

    def __exit__(self, _kind: object, err: BaseException | None, _trace: object) -> None:
        if isinstance(err, StorageError):
            self.close()

    def close(self) -> None:
        for one in (self._numbers, self._promises):
            if one is not None:
                one.close()
        self._numbers = self._promises = None


def _told(statement: Statement) -> dict[str, Any]:
    """What a record says of a call, without its arguments."""
    names = ("call_id", "tool", "action")
    return {**{name: getattr(statement, name) for name in names}, "digest": statement.digest}


def _daemon_uid() -> int | None:
    try:
        return pwd.getpwnam(DAEMON_USER).pw_uid
    except KeyError:
        return None


def _digest_of_rest(statement: Statement) -> str:
    """That of a call that goes on: what it rested on is behind it."""
    return replace(statement, expected={}, confirm_within_s=0, check="", inverse="").digest
