"""The files of the worker units against the code that rests on them. That they work is in tests/e2e."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightagentd.config import configuration
from lightagentd.errors import WorkerUnavailable
from lightagentd.tool import Effect, Place
from lightagentd.worker import first_units, room, sandbox, units
from lightagentd.worker.pool import Pool
from tests.worker import running

UNITS = Path(__file__).resolve().parents[2] / "units"
RULES = UNITS.parent / "packaging/polkit/lightagentd.rules"
CONFINED = ("observe", "reach")


def lines(unit: str, key: str) -> list[str]:
    """The values of a setting, in the order of the file."""
    found = [line.partition("=") for line in (UNITS / unit).read_text().splitlines()]
    return [value for name, sep, value in found if sep and name == key]


@pytest.mark.parametrize("effect", CONFINED)
def test_run_is_the_same_allow_list_as_in_bwrap(effect: str) -> None:
    unit = f"lightagent-{effect}@.service"
    bound = [value.removeprefix("-") for value in lines(unit, "BindReadOnlyPaths")]
    allowed = sandbox.RUN_ALLOWED + (sandbox.RUN_ALLOWED_REACH if effect == "reach" else ())
    assert bound == ["/run/lightagent-bus/%i:/run/dbus", *allowed, "/var/lib/lightagentd/kits"]
    run, _, state = lines(unit, "TemporaryFileSystem")
    assert run.startswith("/run:ro")
    assert state.startswith("/var/lib/lightagentd:ro,mode=0711")  # nothing else of it, and no names
    assert any(value.startswith(f"{sandbox.SCRATCH}:rw") for value in lines(unit, "TemporaryFileSystem"))


@pytest.mark.parametrize("effect", CONFINED)
def test_limit_of_processes_is_the_one_that_commands_stay_below(effect: str) -> None:
    assert lines(f"lightagent-{effect}@.service", "LimitNPROC") == [str(sandbox.PROCESSES)]


def test_observe_and_reach_differ_in_the_network_and_in_what_could_be_sent() -> None:
    files = [(UNITS / f"lightagent-{effect}@.service").read_text().splitlines() for effect in CONFINED]
    kinds = [
        {
            line.partition("=")[0]
            for line in set(own) - set(other)
            if line and not line.startswith("#") and CONFINED[at] not in line
        }
        for at, (own, other) in enumerate([files, files[::-1]])
    ]
    assert kinds[0] <= {"InaccessiblePaths"} | {
        "Description",
        "Conflicts",
        "RestrictAddressFamilies",
        "CapabilityBoundingSet",
        "IPAddressDeny",
    }
    reach = {
        "Description",
        "Conflicts",
        "RestrictAddressFamilies",
        "CapabilityBoundingSet",
        "AmbientCapabilities",
    }
    assert kinds[1] <= reach | {"BindReadOnlyPaths", "ProtectProc"}


@pytest.mark.parametrize("effect", [*CONFINED, "change"])
def test_every_worker_has_cgroups_for_its_calls_and_ends_with_the_daemon(effect: str) -> None:
    service, socket = f"lightagent-{effect}@.service", f"lightagent-{effect}@.socket"
    assert (lines(service, "Delegate"), lines(service, "DelegateSubgroup")) == (["yes"], ["worker"])
    for unit in (service, socket):
        assert lines(unit, "PartOf") == ["lightagentd.service"]
        assert lines(unit, "Before") == ["lightagentd.service"]  # so that it stops after it
    name = units.socket_of(Effect(effect), "%i")
    assert lines(socket, "ListenStream") == [str(name)]
    assert (lines(socket, "SocketUser"), lines(socket, "SocketMode")) == (["lightagent"], ["0600"])


def test_only_change_is_for_an_administrator_to_enable() -> None:
    enabled = [path.name for path in UNITS.iterdir() if path.is_file() and "[Install]" in path.read_text()]
    others = [
        "lightagent-gateway.service",
        "lightagent-gateway.socket",
        "lightagent-health.timer",
        "lightagent-prompt@.timer",
        "lightagent-telemetry.service",
        "lightagentd.service",
        "lightagentd.socket",
    ]
    first = ["lightagent-approver.service", "lightagent-away.service", "lightagent-change@.socket"]
    assert sorted(enabled) == [*first, *others]


@pytest.mark.parametrize("place", [Place.KEYS, Place.INSPECT])
def test_socket_of_a_place_is_where_the_daemon_looks(place: Place) -> None:
    unit = units.name_of(place, "", "socket")
    assert lines(unit, "ListenStream") == [str(units.socket_of(place))]
    assert any(unit in value.split() for value in lines("lightagentd.service", "Wants"))


def test_what_is_begun_first_is_what_the_sandbox_is_proved_in() -> None:
    first = [units.name_of(effect, units.DESCRIBING[effect], "service") for effect in units.STARTED]
    assert tuple(first) == first_units.FIRST


def test_every_number_is_that_of_a_user_who_is_in_no_group_of_the_system() -> None:
    text = (UNITS / "sysusers.d/lightagentd.conf").read_text()
    users = re.findall(r"^u +lightagent-w(\S+) +-:lightagent-worker ", text, re.MULTILINE)
    assert users == [*units.DESCRIBING.values(), *units.NUMBERS]
    assert not re.search(r"^m +lightagent-", text, re.MULTILINE)
    most = configuration.Worker.model_fields["max_workers"].metadata
    assert max(one.le for one in most if hasattr(one, "le")) + room.ROOT_RESERVE <= len(units.NUMBERS)
    for effect, other in (CONFINED, CONFINED[::-1]):
        service = f"lightagent-{effect}@.service"
        assert lines(service, "User") == lines("lightagent-bus@.service", "User") == ["lightagent-w%i"]
        assert lines(service, "Conflicts") == [f"lightagent-{other}@%i.service"]


def test_rule_allows_exactly_the_names_that_agents_have() -> None:
    confined, worker = (re.compile(rule) for rule in re.findall(r"/(\^lightagent.*\$)/", RULES.read_text()))
    for effect in Effect:
        numbers = (*units.DESCRIBING.values(), *units.NUMBERS)
        for instance in ("ops", "a", "a-1", "x" * 31) if effect is Effect.CHANGE else numbers:
            assert worker.match(units.name_of(effect, instance, "service"))
            assert not worker.match(units.name_of(effect, instance, "socket"))
            for kind in ("socket", "service"):
                name = units.name_of(effect, instance, kind)
                assert bool(confined.match(name)) == (effect in CONFINED), name
    for name in (
        "lightagent-change@ops.socket",
        "lightagent-observe@.socket",
        "lightagent-observe@ops.socket",
        "lightagent-observe@07.socket.d",
        "lightagent-observe@x.service/../ssh.service",
        "lightagent-observe@007.service",
        "lightagent-change@" + "x" * 32 + ".service",
        "x-lightagent-observe@07.service",
        "lightagent-keys.socket",
    ):
        assert not confined.match(name), name
        assert not worker.match(name), name


async def test_pool_does_not_start_where_units_are_wanted_and_cannot_be_had() -> None:
    with running.folders() as paths:
        pool = Pool(configuration.Worker(sandbox="systemd"), paths)
        with pytest.raises(WorkerUnavailable, match="units"):
            await pool.start()
        await pool.close()
