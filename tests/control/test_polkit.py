"""What polkit is asked, and what becomes of its answers: a real bus, with a polkit that tests write down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lightagentd.bus.connection import Bus, Call, Reply, connect
from lightagentd.control import polkit as polkit_module
from lightagentd.control.authz import INTERACTION, Authority, Caller
from lightagentd.control.bus_link import BusLink
from lightagentd.control.polkit import CHECKS_EACH, DIALOGS, DIALOGS_EACH, Polkit
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import AuthorizationRequired, LimitExceeded, PermissionDenied
from lightagentd.host.paths import Paths
from lightagentd.host.peer import Peer
from lightagentd.policy.operation import Operation
from tests.agents.scripted import until
from tests.conftest import REPOSITORY
from tests.control.dbus.on_the_bus import open_bus
from tests.control.test_authz import NOBODY, OtherUser, needs_root, open_paths
from tests.fake_systemd import private_bus
from tests.raw_varlink import code
from tests.scripted_polkit import CHALLENGE, NAME, NO, YES, Answer, Check, ScriptedPolkit, always

__all__ = ["open_paths"]  # a fixture

UID = 4711
ALLOW = "allowInteractiveAuthentication"


@pytest.fixture
def address() -> Iterator[str]:
    with private_bus() as found:
        yield found


@pytest.fixture
async def link(address: str) -> AsyncIterator[BusLink]:
    found = BusLink(address)
    await found.start(30)
    yield found
    await found.close()


@pytest.fixture
async def peer(address: str) -> AsyncIterator[Bus]:
    """A caller's connection."""
    async with connect(address) as bus:
        yield bus


def on_bus(bus: Bus, uid: int = UID) -> Caller:
    return Caller(uid=uid, gid=uid, pid=1, bus_name=bus.unique_name)


@contextlib.contextmanager
def on_socket() -> Iterator[Caller]:
    """A caller who came over a Unix socket: this process, with another uid."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = Peer.of(ours)
        assert found.process is not None
        yield Caller(uid=UID, gid=UID, pid=found.pid, process=found.process)
        found.process.close()


@contextlib.contextmanager
def interaction(allowed: bool = True) -> Iterator[None]:
    token = INTERACTION.set(allowed)
    try:
        yield
    finally:
        INTERACTION.reset(token)


class Everybody:
    """A weaker rule behind polkit."""

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        return True


async def ask(
    polkit: Polkit, caller: Caller, operation: Operation = Operation.APPROVE, agent: str = "ops"
) -> bool | None:
    return await polkit.allows(caller, operation, agent=agent, ask=True)


# What it is asked


async def test_a_caller_on_the_bus_is_named_by_his_connection(address: str, link: BusLink, peer: Bus) -> None:
    async with ScriptedPolkit(always(YES)).on(address) as scripted:
        assert await ask(Polkit(link), on_bus(peer)) is True
    [check] = scripted.checks
    assert (check.kind, check.subject) == ("system-bus-name", {"name": peer.unique_name})
    assert (check.action, check.details["agent"]) == ("org.lightagent1.approve", "ops")
    assert check.details["polkit.message"].endswith("what the AI agent $(agent) asks to do")
    assert (check.flags, check.check_id) == (0, "")


async def test_a_caller_on_the_socket_is_named_by_a_descriptor_and_the_uid_of_the_kernel(
    address: str, link: BusLink
) -> None:
    async with ScriptedPolkit(always(YES)).on(address) as scripted:
        with on_socket() as caller:
            assert await ask(Polkit(link), caller) is True
    [check] = scripted.checks
    assert (check.kind, check.subject) == ("unix-process", {"pidfd": 0, "uid": UID})


async def test_a_process_is_not_guessed_where_polkit_takes_no_descriptor(
    address: str, link: BusLink, peer: Bus
) -> None:
    for version in ("122", "0.105", ""):
        async with ScriptedPolkit(always(YES), version=version).on(address) as scripted:
            polkit = Polkit(link)
            with on_socket() as caller, pytest.raises(PermissionDenied, match="which process asks"):
                await ask(polkit, caller)
            assert scripted.checks == []
            assert await ask(polkit, on_bus(peer)) is True


async def test_who_hung_up_before_is_not_asked_about(address: str, link: BusLink) -> None:
    async with ScriptedPolkit(always(YES)).on(address) as scripted:
        with on_socket() as caller:
            assert caller.process is not None
            caller.process.gone.set()
            with pytest.raises(PermissionDenied, match="has ended"):
                await ask(Polkit(link), caller)
        assert scripted.checks == []


@pytest.mark.parametrize(
    "agent", ["", "Ops", "ops\n", "ops $(cmdline)", "ops\0", "\ud800", "é", "a" * 32, "-", "../ops"]
)
async def test_no_text_but_an_agents_name_gets_into_the_details(
    address: str, link: BusLink, peer: Bus, agent: str
) -> None:
    async with ScriptedPolkit(always(YES)).on(address) as scripted:
        assert await ask(Polkit(link), on_bus(peer), agent=agent) is True
    assert [check.details for check in scripted.checks] == [{}]


async def test_a_person_is_asked_only_when_the_caller_allows_it_and_the_operation_begins(
    address: str, link: BusLink, peer: Bus
) -> None:
    async with ScriptedPolkit(always(YES)).on(address) as scripted:
        polkit = Polkit(link)
        for allowed in (False, True):
            for begins in (False, True):
                with interaction(allowed):
                    await polkit.allows(on_bus(peer), Operation.PROMPT, agent="", ask=begins)
    assert [check.interactive for check in scripted.checks] == [False, False, False, True]


# What becomes of the answer


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_plain_no_is_no(address: str, link: BusLink, peer: Bus, allowed: bool) -> None:
    async with ScriptedPolkit(always(NO)).on(address):
        with interaction(allowed):
            assert await ask(Polkit(link), on_bus(peer)) is False


async def test_a_question_that_may_not_be_asked_is_an_error_of_its_own(
    address: str, link: BusLink, peer: Bus
) -> None:
    async with ScriptedPolkit(always(CHALLENGE)).on(address):
        polkit = Polkit(link)
        with pytest.raises(AuthorizationRequired, match=r"org\.lightagent1\.approve"):
            await ask(polkit, on_bus(peer))
        assert await polkit.allows(on_bus(peer), Operation.APPROVE, agent="ops", ask=False) is False


async def test_a_question_that_nobody_is_there_to_answer_says_so(
    address: str, link: BusLink, peer: Bus
) -> None:
    async with ScriptedPolkit(always(CHALLENGE)).on(address):
        with interaction(), pytest.raises(AuthorizationRequired, match="no authentication agent") as caught:
            await ask(Polkit(link), on_bus(peer))
    assert "pkttyagent" in caught.value.suggestion


async def test_a_question_that_was_dismissed_is_refused(address: str, link: BusLink, peer: Bus) -> None:
    dismissed: Answer = (False, True, {"polkit.dismissed": "true"})
    async with ScriptedPolkit(always(dismissed)).on(address):
        with interaction(), pytest.raises(PermissionDenied, match="dismissed") as caught:
            await ask(Polkit(link), on_bus(peer))
    assert caught.value.code == "permission_denied"


async def test_who_may_administer_sees_all_and_nobody_is_asked_for_that(
    address: str, link: BusLink, peer: Bus
) -> None:
    async def only_inspect(check: Check) -> Answer:
        return YES if check.action.endswith(".inspect") else CHALLENGE

    async with ScriptedPolkit(only_inspect).on(address) as scripted:
        with interaction():
            authority = Authority(Polkit(link))
            admitted = await authority.admit(on_bus(peer), Operation.INSPECT)
            assert (await authority.viewing(await authority.viewing(admitted))).viewer == UID
        assert [(check.action.rpartition(".")[2], check.interactive) for check in scripted.checks] == [
            ("inspect", True),
            ("administer", False),
        ]


# Where polkit is not there, or does not work


async def test_without_a_bus_or_without_polkit_the_next_decider_is_asked(
    address: str, link: BusLink, peer: Bus
) -> None:
    assert await ask(Polkit(BusLink("")), on_bus(peer)) is None
    polkit = Polkit(link)
    assert await ask(polkit, on_bus(peer)) is None
    assert "polkit does not run here" in polkit.problem
    async with ScriptedPolkit(always(NO)).on(address):
        assert await ask(polkit, on_bus(peer)) is False
        assert polkit.problem == ""
    await polkit.look()
    assert "polkit does not run here" in polkit.problem


async def test_a_bus_that_is_gone_refuses_where_one_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polkit_module, "BUS_PATIENCE_S", 0.5)
    nobody = Caller(uid=UID, gid=UID, pid=1, bus_name=":1.1")
    yes = Authority(Polkit(BusLink("")), Everybody())
    assert await yes.may(nobody, Operation.INSPECT)
    never_there = BusLink(f"unix:path={tmp_path}/nothing")
    await never_there.start(30)
    for link in (never_there, BusLink(never_there.kind)):  # the first attempt failed, or did not end
        authority = Authority(Polkit(link), Everybody())
        with pytest.raises(PermissionDenied, match="not on the bus") as caught:
            await authority.admit(nobody, Operation.INSPECT)
        assert "systemctl status dbus" in caught.value.suggestion
        assert not await authority.may(nobody, Operation.INSPECT)
        assert (await authority.admit(Caller(uid=0, gid=0, pid=1), Operation.INSPECT)).viewer is None
    await never_there.close()


async def test_a_bus_that_is_gone_refuses_where_polkit_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BusLink, "expected", False)
    with private_bus() as address:
        link = BusLink(address)
        await link.start(30)
        polkit = Polkit(link)
        async with connect(address) as peer, ScriptedPolkit(always(YES)).on(address):
            assert await ask(polkit, on_bus(peer)) is True
        lost = on_bus(peer)
        assert link.bus is not None
        bus = link.bus
    await bus.wait_lost()
    await until(lambda: link.bus is None)
    with pytest.raises(PermissionDenied, match="not on the bus"):
        await ask(polkit, lost)
    assert await ask(Polkit(link), lost) is None
    await link.close()


async def test_who_calls_before_the_bus_is_there_waits_for_polkit(
    address: str, peer: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = asyncio.Event()

    async def prepare(_: Bus) -> None:
        await going_on.wait()

    link = BusLink(address)
    link.on_connect(prepare)
    await link.start(0.01)
    async with ScriptedPolkit(always(NO)).on(address) as scripted:
        asking = asyncio.create_task(
            Authority(Polkit(link), Everybody()).may(on_bus(peer), Operation.INSPECT)
        )
        await asyncio.sleep(0)
        going_on.set()
        assert await asking is False
        assert len(scripted.checks) == 1
    await link.close()


@needs_root
async def test_status_of_root_does_not_wait_for_polkit(
    open_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_bus() as address:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        async with connect(address) as hung, Daemon(open_paths) as daemon:
            asked: asyncio.Queue[str] = asyncio.Queue()

            async def hang(call: Call) -> Reply:
                asked.put_nowait(call.member)
                await asyncio.Event().wait()
                return Reply()

            hung.serve(hang, 16)
            await hung.request_name(NAME)
            monkeypatch.setattr(polkit_module, "LOOK_TIMEOUT_S", 3600.0)
            me = Caller(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())
            async with asyncio.timeout(120):  # what it took before was never
                for _ in range(3):
                    assert (await daemon.service.manager.status(me)).state == "running"
            assert await asked.get() == "GetAll"
            assert asked.empty()


async def test_a_polkit_that_was_restarted_is_asked(address: str, link: BusLink, peer: Bus) -> None:
    polkit = Polkit(link)
    for answer, verdict in ((YES, True), (NO, False), (YES, True)):
        async with ScriptedPolkit(always(answer)).on(address):
            assert await ask(polkit, on_bus(peer)) is verdict
    assert await ask(polkit, on_bus(peer)) is None


@pytest.mark.parametrize(
    "error", ["org.freedesktop.PolicyKit1.Error.Failed", "org.freedesktop.PolicyKit1.Error.NotAuthorized"]
)
async def test_an_error_of_polkit_refuses(address: str, link: BusLink, peer: Bus, error: str) -> None:
    async with ScriptedPolkit(always(error)).on(address):
        polkit = Polkit(link)
        with pytest.raises(PermissionDenied, match="it does not work") as caught:
            await ask(polkit, on_bus(peer))
        assert "systemctl status polkit" in caught.value.suggestion
        assert "polkit cannot be asked" in polkit.problem
        assert not await Authority(polkit).may(on_bus(peer), Operation.INSPECT)


CALLER = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.connect(sys.argv[2]); input()"


@pytest.mark.parametrize("way", ["bus", "socket"])
async def test_a_caller_that_ends_in_a_check_says_nothing_of_polkit(
    address: str, link: BusLink, tmp_path: Path, way: str
) -> None:
    async with contextlib.AsyncExitStack() as held:
        if way == "bus":
            bus = await held.enter_async_context(connect(address))
            caller = on_bus(bus)

            async def end() -> None:
                await held.aclose()
        else:
            listener = held.enter_context(socket.create_server(str(tmp_path / "s"), family=socket.AF_UNIX))
            client = held.enter_context(socket.socket(socket.AF_UNIX))
            argv = [sys.executable, "-c", CALLER, str(client.fileno()), str(tmp_path / "s")]
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.PIPE, pass_fds=[client.fileno()]
            )
            sock = held.enter_context(listener.accept()[0])
            found = Peer.of(sock)
            assert found.process is not None
            held.callback(found.process.close)
            caller = Caller(uid=UID, gid=UID, pid=found.pid, process=found.process)

            async def end() -> None:
                await process.communicate(b"\n")

        async def answer(_: Check) -> str:
            await end()
            return "org.freedesktop.PolicyKit1.Error.Failed"

        async with ScriptedPolkit(answer).on(address):
            polkit = Polkit(link)
            with pytest.raises(PermissionDenied, match="has ended"):
                await ask(polkit, caller)
            assert polkit.problem == ""


async def never(_: Check) -> Answer:
    await asyncio.Event().wait()
    return YES


async def test_no_answer_refuses(address: str, link: BusLink, peer: Bus) -> None:
    async with ScriptedPolkit(never).on(address) as scripted:
        polkit = Polkit(link, timeout_s=0.5, dialog_timeout_s=0.5)
        with pytest.raises(PermissionDenied, match="polkit cannot be asked"):
            await ask(polkit, on_bus(peer))
        with interaction(), pytest.raises(PermissionDenied, match="polkit cannot be asked"):
            await ask(polkit, on_bus(peer))
        await scripted.until(lambda: scripted.cancelled)
        assert scripted.cancelled == [scripted.checks[-1].check_id]


async def test_polkit_that_ends_while_it_is_asked_refuses(address: str, link: BusLink, peer: Bus) -> None:
    polkit = Polkit(link)
    async with ScriptedPolkit(never).on(address) as scripted:
        with interaction():
            asking = asyncio.create_task(ask(polkit, on_bus(peer)))
        await scripted.until(lambda: scripted.checks)
    with pytest.raises(PermissionDenied, match="polkit cannot be asked"):
        await asking


# Whoever does not wait any more


async def test_a_call_that_is_cancelled_ends_the_question(address: str, link: BusLink, peer: Bus) -> None:
    async with ScriptedPolkit(never).on(address) as scripted:
        with interaction():
            asking = asyncio.create_task(ask(Polkit(link), on_bus(peer)))
        await scripted.until(lambda: scripted.checks)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await scripted.until(lambda: scripted.cancelled)
        assert scripted.cancelled == [scripted.checks[0].check_id]


async def test_a_caller_who_leaves_the_bus_ends_the_question(address: str, link: BusLink) -> None:
    async with ScriptedPolkit(never).on(address) as scripted:
        async with connect(address) as leaving:
            with interaction():
                asking = asyncio.create_task(ask(Polkit(link), on_bus(leaving)))
            await scripted.until(lambda: scripted.checks)
        with pytest.raises(PermissionDenied, match="has gone"):
            await asking
        await scripted.until(lambda: scripted.cancelled)


async def test_a_caller_who_hangs_up_ends_the_question(address: str, link: BusLink) -> None:
    async with ScriptedPolkit(never).on(address) as scripted:
        with on_socket() as caller:
            with interaction():
                asking = asyncio.create_task(ask(Polkit(link), caller))
            await scripted.until(lambda: scripted.checks)
            assert caller.process is not None
            caller.process.gone.set()
            with pytest.raises(PermissionDenied, match="has gone"):
                await asking
        await scripted.until(lambda: scripted.cancelled)


# Many at a time


async def test_open_questions_hold_up_nobody_else(address: str, link: BusLink, peer: Bus) -> None:
    async def slow_to_people(check: Check) -> Answer:
        return await never(check) if check.interactive else YES

    async with ScriptedPolkit(slow_to_people).on(address) as scripted:
        polkit = Polkit(link)
        asking = []
        with interaction():
            for place in range(DIALOGS):
                person = on_bus(peer, UID + place // DIALOGS_EACH)
                asking.append(asyncio.create_task(ask(polkit, person)))
            await scripted.until(lambda: len(scripted.checks) == DIALOGS)
            for uid in (UID, UID - 1):
                with pytest.raises(LimitExceeded):
                    await ask(polkit, on_bus(peer, uid))
        assert await ask(polkit, on_bus(peer)) is True
        assert await ask(polkit, on_bus(peer, UID - 1)) is True
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await scripted.until(lambda: len(scripted.cancelled) == DIALOGS)


async def test_a_thousand_checks_of_one_user_leave_room_for_another(
    address: str, link: BusLink, peer: Bus
) -> None:
    room = asyncio.Event()

    async def held(check: Check) -> Answer:
        if check.action.endswith(".approve"):
            await room.wait()
        return YES

    async with ScriptedPolkit(held).on(address) as scripted:
        polkit = Polkit(link)
        many = [asyncio.create_task(ask(polkit, on_bus(peer))) for _ in range(1000)]
        await scripted.until(lambda: len(scripted.checks) == CHECKS_EACH)
        assert await ask(polkit, on_bus(peer, UID + 1), Operation.INSPECT) is True
        assert len(scripted.checks) == CHECKS_EACH + 1
        room.set()
        assert await asyncio.gather(*many) == [True] * 1000


# The daemon


@needs_root
async def test_a_call_over_the_socket_says_whether_a_person_may_be_asked(
    open_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def person(check: Check) -> Answer:
        return YES if check.interactive or check.action.endswith(".inspect") else CHALLENGE

    with private_bus() as address:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        async with ScriptedPolkit(person).on(address) as scripted, Daemon(open_paths) as daemon:
            open_paths.socket.chmod(0o666)
            async with OtherUser(open_paths.socket, NOBODY) as nobody:
                assert code(await nobody.call("Manager.GetStatus")) == "ok"
                assert code(await nobody.call("Manager.Reload")) == "authorization_required"
                assert code(await nobody.call("Manager.Reload", **{ALLOW: False})) == "authorization_required"
                assert code(await nobody.call("Manager.Reload", **{ALLOW: None})) == "authorization_required"
                assert code(await nobody.call("Manager.Reload", **{ALLOW: True})) == "ok"
                assert code(await nobody.call("Manager.Reload")) == "authorization_required"
                wrong = await nobody.call("Manager.Reload", **{ALLOW: 1})
                assert wrong["error"] == "org.varlink.service.InvalidParameter"
                streamed = await nobody.replies("Policy.Replay", more=True, days=1, **{ALLOW: True})
                assert code(streamed[-1]) != "authorization_required"
            assert {check.subject["uid"] for check in scripted.checks} == {NOBODY}
            assert daemon.polkit is not None
            assert daemon.polkit.problem == ""


@needs_root
async def test_a_caller_who_hangs_up_while_a_person_is_asked_changes_nothing(
    open_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def person(check: Check) -> Answer:
        return await never(check) if check.interactive else NO

    with private_bus() as address:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        async with ScriptedPolkit(person).on(address) as scripted, Daemon(open_paths) as daemon:
            open_paths.socket.chmod(0o666)
            async with OtherUser(open_paths.socket, NOBODY) as nobody:
                call = asyncio.create_task(nobody.call("Agents.Stop", name="ops", **{ALLOW: True}))
                await scripted.until(lambda: any(check.interactive for check in scripted.checks))
                nobody.kill()
                await asyncio.wait([call])
                await scripted.until(lambda: scripted.cancelled)
            assert daemon.registry.get("ops").state == "running"


@needs_root
async def test_polkit_is_asked_on_the_system_bus_alone(open_paths: Paths) -> None:
    with open_bus() as address:
        drop_in = open_paths.config / "lightagentd.toml.d" / "50-bus.toml"
        drop_in.write_text(f'[daemon]\nbus = "{address}"\n')
        async with ScriptedPolkit(always(YES)).on(address) as scripted, Daemon(open_paths):
            open_paths.socket.chmod(0o666)
            async with OtherUser(open_paths.socket, NOBODY) as nobody:
                assert code(await nobody.call("Manager.Reload")) == "permission_denied"
        assert scripted.checks == []


def test_actions_and_their_owner_are_declared() -> None:
    from xml.etree import ElementTree

    policy = ElementTree.parse(REPOSITORY / "packaging/polkit/org.lightagent1.policy").getroot()
    actions = {action.get("id"): action for action in policy.iter("action")}
    assert set(actions) == {f"org.lightagent1.{operation}" for operation in Operation}
    for name, action in actions.items():
        to_both = name in ("org.lightagent1.approve", "org.lightagent1.administer")
        owners = "unix-user:lightagent" + " unix-user:lightagent-approver" * to_both
        assert [(one.get("key"), one.text) for one in action.iter("annotate")] == [
            ("org.freedesktop.policykit.owner", owners)
        ]
        assert action.findtext("description")
        assert (action.findtext("message") or "").startswith("Authentication is required to ")
        assert [one.text for one in action.iterfind("defaults/*")] == [
            "auth_admin",
            "auth_admin",
            "auth_admin_keep",
        ]
