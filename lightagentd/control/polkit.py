"""Asks polkit whether a caller may do something: the first of the daemon's deciders (`authz.Authority`).

The daemon owns the `Polkit`. It caches no answer, since rules and authentications change at any time. A
caller on the bus is identified by its unique name. A caller on the control socket is identified by a
descriptor of its process (pidfd) and its uid, never by a process number that may be reused. The caller says
whether a person may be asked for a password (`varlink/interaction.py`); a check ends when the caller hangs
up.

While polkit runs, any error refuses the call. A lost bus refuses too, since polkit cannot be asked without
it. Where polkit does not run, or no bus ever exists, the next decider is asked. Interface:
org.freedesktop.PolicyKit1.Authority (https://polkit.pages.freedesktop.org/polkit/)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from lightagentd.bus.connection import CALL_TIMEOUT_S, Bus, Variant
from lightagentd.bus.errors import Masked, NoSuchName
from lightagentd.control.authz import INTERACTION, Caller
from lightagentd.control.bus_link import BusLink
from lightagentd.errors import (
    AuthorizationRequired,
    LightagentError,
    LimitExceeded,
    PermissionDenied,
    Unavailable,
)
from lightagentd.policy.operation import Operation
from lightagentd.text.agent_name import NAME
from lightagentd.text.reason import reason

_T = TypeVar("_T")

ACTION_PREFIX = "org.lightagent1."
DIALOG_TIMEOUT_S = 300.0
"""How long a person gets to authenticate."""
LOOK_TIMEOUT_S = 2.0
BUS_PATIENCE_S = 5.0
"""How long a caller waits for a connection to the bus that is being made."""
CHECKS, CHECKS_EACH = 48, 8
"""How many checks that ask nobody run at a time, in all and of one user; more wait for their turn."""
DIALOGS, DIALOGS_EACH = 48, 4
"""The same of those that may ask a person; more are refused. A connection may wait for 128 answers at a time
(`max_replies_per_connection`, dbus-daemon(1)), and no dialog shall keep others from being asked about."""

_BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
_NAME = "org.freedesktop.PolicyKit1"
_PATH = "/org/freedesktop/PolicyKit1/Authority"
_INTERFACE = "org.freedesktop.PolicyKit1.Authority"
_ALLOW_USER_INTERACTION = 1
_FIRST_WITH_PIDFD = 124
"""The version of polkit since which a process can be named by a pidfd."""
_MESSAGES = {
    Operation.INSPECT: "Authentication is required to look at the AI agent $(agent)",
    Operation.PROMPT: "Authentication is required to prompt the AI agent $(agent)",
    Operation.APPROVE: "Authentication is required to approve what the AI agent $(agent) asks to do",
    Operation.MANAGE_AGENTS: "Authentication is required to manage the AI agent $(agent)",
}
"""What a dialog says where the call is about one agent; polkit puts its name in."""


@dataclass(frozen=True, kw_only=True)
class _Authority:
    """The polkit that runs at present."""

    bus: Bus
    owner: str
    """Its unique name: what is asked there goes to no other version, and to nobody else."""
    takes_pidfd: bool


@dataclass(frozen=True, kw_only=True)
class _Answer:
    authorized: bool
    challenge: bool
    """Somebody could be asked."""
    dismissed: bool
    """Somebody was, and would not answer."""


class _NotThere(Exception):
    """polkit does not run here, and cannot be started."""


class Polkit:
    """Decides by CheckAuthorization on the system bus."""

    def __init__(
        self,
        link: BusLink,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        dialog_timeout_s: float = DIALOG_TIMEOUT_S,
    ) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._dialog_timeout_s = dialog_timeout_s
        self._known: _Authority | None = None
        self._finding = asyncio.Lock()
        self._checks = _Room(CHECKS, CHECKS_EACH)
        self._dialogs = _Room(DIALOGS, DIALOGS_EACH)
        self._ids = itertools.count(1)
        self._reached = False
        """It did run, at some time."""
        self._looking: asyncio.Task[None] | None = None
        self.problem = ""
        """What was wrong with polkit when it was last asked, as a sentence."""

    def look_soon(self) -> None:
        """Like `look`, but nobody waits for it."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self.look(), name="polkit-look")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def look(self) -> None:
        """Update `problem`; starts polkit if needed."""
        if (bus := self._link.bus) is None:
            return  # the link says what is wrong
        with contextlib.suppress(_NotThere, PermissionDenied):
            async with self._failing_closed(LOOK_TIMEOUT_S):
                self._known = None
                await self._authority(bus)

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool | None:
        """Implements `authz.Decider`. Raises AuthorizationRequired when `ask` is set and a person would have
        to be asked, but the caller allows no interaction or nothing can ask.
        """
        bus = await self._bus()
        if bus is None:
            return None
        interactive = ask and INTERACTION.get()
        try:
            if interactive:
                async with (
                    self._dialogs.place_now(caller.uid),
                    self._failing_closed(self._dialog_timeout_s),
                ):
                    answer = await self._check(bus, caller, operation, agent, interactive=True)
            else:
                async with self._failing_closed(self._timeout_s), self._checks.place(caller.uid):
                    answer = await self._check(bus, caller, operation, agent, interactive=False)
        except _NotThere:
            return None
        if ask and not answer.authorized:
            _explain(answer, operation, interactive=interactive)
        return answer.authorized

    async def _bus(self) -> Bus | None:
        """The bus; None if there never is one. Raises PermissionDenied if it was lost: the group rule could
        otherwise allow what polkit forbids.
        """
        bus = await self._link.settled(BUS_PATIENCE_S)
        if bus is None and (self._reached or self._link.expected):
            why = self._link.problem or "the bus does not answer"
            raise PermissionDenied(
                f"polkit cannot be asked whether you may do this, as the daemon is not on the bus: {why}",
                suggestion="Look at it with: systemctl status dbus. Until then, use sudo.",
            )
        return bus

    @contextlib.asynccontextmanager
    async def _failing_closed(self, timeout_s: float) -> AsyncIterator[None]:
        """Turn every failure in the block except `_NotThere` into a refusal, and keep `problem`."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except (NoSuchName, Masked) as err:
            self.problem = f"polkit does not run here, so the rule of the group applies: {err.message}"
            raise _NotThere from err
        except _CallerGone:
            raise
        except (LightagentError, OSError) as err:  # TimeoutError is an OSError
            why = f"no answer within {timeout_s:g} s" if isinstance(err, TimeoutError) else reason(err)
            raise self._failed(why) from err
        self.problem = ""

    def _failed(self, why: str) -> PermissionDenied:
        self.problem = f"polkit cannot be asked, so only root may do anything: {why}"
        return PermissionDenied(
            f"polkit cannot be asked whether you may do this: {why}",
            suggestion="Look at it with: systemctl status polkit. Until then, use sudo.",
        )

    async def _authority(self, bus: Bus) -> _Authority:
        """The polkit that runs at present, started if needed. Raises NoSuchName, Masked and others."""
        async with self._finding:
            if self._known is None or self._known.bus is not bus:
                try:
                    [owner] = await bus.call(*_BUS, "GetNameOwner", "s", [_NAME])
                except NoSuchName:
                    await bus.call(*_BUS, "StartServiceByName", "su", [_NAME, 0])
                    [owner] = await bus.call(*_BUS, "GetNameOwner", "s", [_NAME])
                found = await bus.properties(owner, _PATH, _INTERFACE)
                version = str(found.get("BackendVersion", ""))
                takes_pidfd = version.isdecimal() and int(version) >= _FIRST_WITH_PIDFD
                self._known = _Authority(bus=bus, owner=owner, takes_pidfd=takes_pidfd)
                self._reached = True
            return self._known

    async def _check(
        self, bus: Bus, caller: Caller, operation: Operation, agent: str, *, interactive: bool
    ) -> _Answer:
        authority = await self._authority(bus)
        try:
            return await self._ask(authority, caller, operation, agent, interactive=interactive)
        except NoSuchName:  # it has restarted meanwhile
            if self._known is authority:
                self._known = None
            return await self._ask(
                await self._authority(bus), caller, operation, agent, interactive=interactive
            )

    async def _ask(
        self, authority: _Authority, caller: Caller, operation: Operation, agent: str, *, interactive: bool
    ) -> _Answer:
        details = {}
        if NAME.fullmatch(agent):  # no other agent can be there, and no other text gets into a dialog
            details["agent"] = agent
            if operation in _MESSAGES:
                details["polkit.message"] = _MESSAGES[operation]
        check_id = f"lightagentd-{next(self._ids)}" if interactive else ""
        flags = _ALLOW_USER_INTERACTION if interactive else 0
        with _subject(caller, takes_pidfd=authority.takes_pidfd) as (subject, fds):
            args = [subject, ACTION_PREFIX + operation, details, flags, check_id]
            asking = authority.bus.call(
                authority.owner,
                _PATH,
                _INTERFACE,
                "CheckAuthorization",
                "(sa{sv})sa{ss}us",
                args,
                timeout_s=self._dialog_timeout_s if interactive else self._timeout_s,
                fds=fds,
            )
            if interactive:
                asking = _while_there(authority, caller, check_id, asking)
            try:
                [[authorized, challenge, said]] = await asking
            except _CallerGone:
                raise
            except LightagentError as err:
                if await _ended(authority.bus, caller, fds):
                    raise _CallerGone("The program that asks has ended.") from err
                raise
        return _Answer(
            authorized=authorized is True,
            challenge=challenge is True,
            dismissed=bool(said.get("polkit.dismissed")),
        )


class _CallerGone(PermissionDenied):
    """The caller hung up."""


def _explain(answer: _Answer, operation: Operation, *, interactive: bool) -> None:
    """Raises an error that says more than a plain no."""
    action = ACTION_PREFIX + operation
    if answer.dismissed:
        raise PermissionDenied(
            f"The authentication for {action} was dismissed.", suggestion="Try again, or use sudo."
        )
    if answer.challenge and not interactive:
        raise AuthorizationRequired(
            f"This needs {action}, for which polkit asks an administrator to authenticate.",
            suggestion="Use lactl on a terminal, allow interactive authorization in the call, or use sudo.",
        )
    if answer.challenge:
        raise AuthorizationRequired(
            f"This needs {action}, for which polkit asks an administrator to authenticate, and there is "
            "nothing to ask him with: no authentication agent answers for this program.",
            suggestion="Use lactl on a terminal with pkttyagent installed, start one with 'pkttyagent "
            "--process PID', or use sudo.",
        )


@contextlib.contextmanager
def _subject(caller: Caller, *, takes_pidfd: bool) -> Iterator[tuple[list[Any], list[int]]]:
    """The subject of the check in polkit's form, and its descriptors."""
    if caller.bus_name:
        yield ["system-bus-name", {"name": Variant("s", caller.bus_name)}], []
        return
    if caller.process is None or not takes_pidfd:
        raise Unavailable("it cannot be told for certain which process asks (that needs polkit 124)")
    try:
        pidfd = caller.process.open_pidfd()
    except OSError as err:
        raise _CallerGone("The program that asks has ended.") from err
    try:
        yield ["unix-process", {"pidfd": Variant("h", 0), "uid": Variant("i", caller.uid)}], [pidfd]
    finally:
        os.close(pidfd)


async def _while_there(
    authority: _Authority, caller: Caller, check_id: str, asking: Coroutine[Any, Any, _T]
) -> _T:
    """Wait for polkit's answer, but only while the caller waits. Giving up also ends the check in polkit.
    Raises PermissionDenied when the caller is gone.
    """
    check = asyncio.create_task(asking, name=f"polkit {check_id}")
    gone = asyncio.create_task(_gone(authority.bus, caller), name=f"caller of {check_id}")
    try:
        await asyncio.wait({check, gone}, return_when=asyncio.FIRST_COMPLETED)
        if check.done():
            return check.result()
        gone.result()  # raises if the caller cannot be watched
        raise _CallerGone("The caller has gone while polkit asked.")
    finally:
        if not check.done():
            authority.bus.tell(
                authority.owner, _PATH, _INTERFACE, "CancelCheckAuthorization", "s", [check_id]
            )
        for task in (check, gone):
            task.cancel()
        await asyncio.wait({check, gone})


async def _gone(bus: Bus, caller: Caller) -> None:
    """Wait until the caller is gone."""
    if caller.process is not None:
        await caller.process.gone.wait()
        return
    name = caller.bus_name
    async with bus.signals(sender=_BUS[0], member="NameOwnerChanged", arg0=name) as changes:
        [there] = await bus.call(*_BUS, "NameHasOwner", "s", [name])
        while there:
            there = (await anext(changes)).args[2]


async def _ended(bus: Bus, caller: Caller, pidfds: Sequence[int]) -> bool:
    """Whether polkit could say nothing of the caller because it is gone, and not because of itself."""
    if not caller.bus_name:
        poller = select.poll()
        for pidfd in pidfds:
            poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(0))
    [there] = await bus.call(*_BUS, "NameHasOwner", "s", [caller.bus_name])
    return not there


class _Room:
    """Limits concurrent checks, for each user and in total, so that no user takes the others' places."""

    def __init__(self, total: int, each: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._each = each
        self._own: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    def _of(self, uid: int) -> asyncio.Semaphore:
        return self._own.setdefault(uid, asyncio.Semaphore(self._each))

    @contextlib.asynccontextmanager
    async def place(self, uid: int) -> AsyncIterator[None]:
        """A place for the length of the block. Waits until one is free."""
        async with self._of(uid), self._total:
            yield

    @contextlib.asynccontextmanager
    async def place_now(self, uid: int) -> AsyncIterator[None]:
        """The same, without waiting. Raises LimitExceeded when none is free."""
        if self._of(uid).locked() or self._total.locked():
            raise LimitExceeded(
                "Too many questions for authentication are open.",
                suggestion="Answer or close those that are open, then try again.",
            )
        async with self.place(uid):
            yield
