"""`tools/udev.py` on the devices of this machine; events are real ones, which root asks the kernel for."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from lightagentd import errors
from tests.tools.conftest import TOOLS, Call, CallContext, Load

pytestmark = pytest.mark.usefixtures("nothing_left")
NULL = Path("/sys/devices/virtual/mem/null")
has_udev = Path("/run/udev/control").exists()
needs_null = pytest.mark.skipif(not NULL.is_dir(), reason="/sys has no device null here")
needs_lo = pytest.mark.skipif(not Path("/sys/class/net/lo").exists(), reason="no interface lo here")
needs_events = pytest.mark.skipif(
    not os.access(NULL / "uevent", os.W_OK), reason="only root, with a writable /sys, can ask for an event"
)


@pytest.fixture
def module(load: Load) -> ModuleType:
    """The tool's module, for what this machine's hardware cannot show."""
    return sys.modules[type(load("udev").tool).__module__]


def names(result: Any) -> list[str]:
    return [device["sys_name"] for device in result.metadata["devices"]]


@needs_null
async def test_list_of_a_subsystem_has_its_devices_alone(call: Call) -> None:
    result = await call("udev", "list", subsystem="mem")
    assert {"null", "zero"} <= set(names(result))
    assert {device["subsystem"] for device in result.metadata["devices"]} == {"mem"}
    assert "/sys/devices/virtual/mem/null" in result.output


@needs_null
async def test_list_takes_a_glob_for_names(call: Call) -> None:
    assert names(await call("udev", "list", subsystem="mem", sys_name="n?ll")) == ["null"]


@needs_null
async def test_list_by_properties_needs_all_of_them(call: Call) -> None:
    both = {"DEVNAME": "/dev/nu*", "SUBSYSTEM": "mem"}
    assert names(await call("udev", "list", properties=both)) == ["null"]
    assert names(await call("udev", "list", properties={**both, "MAJOR": "99"})) == []


@needs_lo
async def test_list_below_a_parent_has_it_and_no_others(call: Call) -> None:
    result = await call("udev", "list", parent="/sys/class/net/lo")
    assert names(result) == ["lo"]


async def test_list_stops_at_its_limit_and_counts_the_rest(call: Call) -> None:
    result = await call("udev", "list", limit=1)
    total = result.metadata["total"]
    assert total > 1
    assert len(result.metadata["devices"]) == 1
    assert f"{total} devices. {total - 1} more are not shown." in result.output


async def test_list_stops_when_its_time_is_up_and_says_so(call: Call, context: CallContext) -> None:
    context.timeout_s = 0
    result = await call("udev", "list")
    assert not result.metadata["complete"]
    assert "Stopped when the time was up" in result.output


@pytest.mark.skipif(Path("/run/udev/data").is_dir(), reason="udev's database is there")
async def test_list_by_tag_says_that_the_database_is_missing(call: Call) -> None:
    result = await call("udev", "list", tag="systemd")
    assert names(result) == []
    assert "udevd does not run on this machine" in result.output


@needs_null
@pytest.mark.parametrize("device", ["/sys/class/mem/null", "/dev/null", "null"])
async def test_info_finds_a_device_by_path_file_and_name(call: Call, device: str) -> None:
    data = (await call("udev", "info", device=device)).metadata
    assert data["sys_path"] == str(NULL)
    assert data["node"] == "/dev/null"
    assert data["number"] == "1:3"
    assert data["properties"]["SUBSYSTEM"] == "mem"


@needs_lo
async def test_info_shows_attributes_and_leaves_out_those_that_do_something(call: Call) -> None:
    result = await call("udev", "info", device="lo", subsystem="net")
    assert result.metadata["attributes"]["address"] == "00:00:00:00:00:00"
    assert "uevent" not in result.metadata["attributes"]
    assert "  address=00:00:00:00:00:00" in result.output


@needs_lo
async def test_info_of_a_device_of_another_subsystem_is_not_found(call: Call) -> None:
    with pytest.raises(errors.NotFound, match="no device lo in block"):
        await call("udev", "info", device="lo", subsystem="block")


@pytest.mark.parametrize(
    "device", ["/sys/devices/none", "/dev/none", "/dev/", "none", "n*l", "a\x1bb", "nu\\ll"]
)
async def test_info_of_a_device_that_is_not_there_is_not_found(call: Call, device: str) -> None:
    with pytest.raises(errors.NotFound) as caught:
        await call("udev", "info", device=device)
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("device", ["/etc/passwd", "/sys/../etc", "/sys/class/../../etc"])
async def test_info_refuses_paths_outside_of_sys_and_dev(call: Call, device: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="not a path in /sys or /dev"):
        await call("udev", "info", device=device)


async def test_info_of_an_ambiguous_name_asks_for_the_subsystem(call: Call) -> None:
    listed = (await call("udev", "list", limit=1000)).metadata["devices"]
    places: dict[str, set[str]] = {}
    for device in listed:
        places.setdefault(device["sys_name"], set()).add(device["subsystem"])
    twice = [name for name, found in places.items() if len(found) > 1]
    if not twice:
        pytest.skip("all names differ on this machine")
    with pytest.raises(errors.InvalidArgument, match="is the name of") as caught:
        await call("udev", "info", device=twice[0])
    assert caught.value.field == "subsystem"


async def test_usb_lists_every_device_of_the_machine_or_says_that_there_is_none(call: Call) -> None:
    folder = Path("/sys/bus/usb/devices")
    real = [entry.name for entry in folder.iterdir() if ":" not in entry.name] if folder.is_dir() else []
    result = await call("udev", "usb")
    assert sorted(names(result)) == sorted(real)
    assert real or "There is no USB on this machine" in result.output


def test_usb_tree_puts_devices_below_their_hub(module: ModuleType) -> None:
    def device(name: str, parent: str, product: str, speed: str, *drivers: str) -> dict[str, Any]:
        return {
            "sys_name": name, "parent": parent, "vendor_id": "1d6b", "product_id": "0002",
            "vendor": "", "product": product, "speed_mbit": speed, "drivers": list(drivers),
        }  # fmt: skip

    rows = [
        device("1-1.2", "1-1", "Keyboard", "1.5", "usbhid"),
        device("usb2", "", "", "5000"),
        device("1-1", "usb1", "Hub", "480", "hub"),
        device("usb1", "", "Host", "480", "hub"),
    ]
    assert module._usb_tree(rows) == [
        "usb1 1d6b:0002 Host, 480 Mbit/s, hub",
        "  1-1 1d6b:0002 Hub, 480 Mbit/s, hub",
        "    1-1.2 1d6b:0002 Keyboard, 1.5 Mbit/s, usbhid",
        "usb2 1d6b:0002 (no name), 5000 Mbit/s",
    ]


async def test_pci_lists_every_slot_with_its_ids_and_driver(call: Call) -> None:
    folder = Path("/sys/bus/pci/devices")
    real = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    result = await call("udev", "pci")
    assert [device["slot"] for device in result.metadata["devices"]] == real
    for device in result.metadata["devices"]:
        path = folder / device["slot"]
        assert (path / "vendor").read_text().strip() == f"0x{device['vendor_id']}"
        assert (path / "driver").exists() == bool(device["driver"])


def test_names_come_from_the_id_file(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pci.ids"
    file.write_bytes(
        b"# ids\n8086  Intel\n\t0d57  Bridge\n\t\t0001 0002  Sub\n1af4  Red \xff Hat\nC 01  Disk\n"
    )
    monkeypatch.setitem(module.IDS, "pci", (str(tmp_path / "none"), str(file)))
    wanted = {("8086", "0d57"), ("1af4", "1041"), ("ffff", "0001")}
    assert module._names("pci", wanted) == {
        ("8086", "0d57"): ("Intel", "Bridge"),
        ("1af4", "1041"): ("Red \ufffd Hat", ""),
    }


async def test_block_has_every_device_with_the_size_of_sys(call: Call) -> None:
    real = {
        entry.name: int((entry / "size").read_text()) * 512 for entry in Path("/sys/class/block").iterdir()
    }
    result = await call("udev", "block", empty=True)
    assert {device["name"]: device["size_bytes"] for device in result.metadata["devices"]} == real
    shown = await call("udev", "block")
    assert {device["name"] for device in shown.metadata["devices"]} == {name for name in real if real[name]}


async def test_block_names_filesystem_and_mount_points(call: Call) -> None:
    number = Path("/").stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not link.exists():
        pytest.skip("the root filesystem lies on no block device of its own")
    devices = {device["name"]: device for device in (await call("udev", "block")).metadata["devices"]}
    root = devices[link.resolve().name]
    assert root["filesystem"]
    assert "/" in root["mount_points"] or Path("/proc/1/root").exists()


def test_mount_points_with_spaces_are_decoded(module: ModuleType) -> None:
    assert module._unescape(r"/mnt/a\040b\134c") == r"/mnt/a b\c"


@needs_events
async def test_monitor_shows_an_event_of_the_kernel_at_once(call: Call, context: CallContext) -> None:
    watch = asyncio.create_task(
        call("udev", "monitor", source="kernel", subsystem="mem", events=2, seconds=20)
    )
    async with asyncio.timeout(15):
        while not context.shown:  # until the monitor listens
            (NULL / "uevent").write_text("change")
            await asyncio.sleep(0.02)
        (NULL / "uevent").write_text("change")
        result = await watch
    assert context.shown[0] == ("stdout", f"change mem {NULL} (/dev/null)\n")
    assert result.metadata["stopped"] == "events"
    assert result.metadata["count"] == 2
    assert result.metadata["events"][0]["action"] == "change"
    assert "2 events from kernel; stopped by events." in result.output


@needs_events
async def test_monitor_leaves_out_other_subsystems(call: Call) -> None:
    watch = asyncio.create_task(call("udev", "monitor", source="kernel", subsystem="none_such", seconds=0.3))
    while not watch.done():
        (NULL / "uevent").write_text("change")
        await asyncio.sleep(0.02)
    assert watch.result().metadata["events"] == []


async def test_monitor_ends_after_its_seconds(call: Call) -> None:
    result = await call("udev", "monitor", source="kernel", subsystem="none_such", seconds=0.05)
    assert result.metadata["stopped"] == "time"
    assert "0 events from kernel; stopped by time." in result.output


async def test_monitor_ends_before_the_call_has_no_time_left(call: Call, context: CallContext) -> None:
    context.timeout_s = 1.05
    async with asyncio.timeout(10):
        result = await call("udev", "monitor", source="kernel", subsystem="none_such", seconds=60)
    assert result.metadata["stopped"] == "time"


async def test_monitor_that_is_cancelled_lets_go_of_its_socket(call: Call) -> None:
    selector = vars(asyncio.get_running_loop())["_selector"]
    before = len(selector.get_map())
    watch = asyncio.create_task(call("udev", "monitor", source="kernel", subsystem="none_such"))
    async with asyncio.timeout(10):
        while len(selector.get_map()) == before:
            await asyncio.sleep(0.01)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert len(selector.get_map()) == before


@pytest.mark.skipif(has_udev, reason="udevd runs on this machine")
async def test_monitor_of_udev_without_udevd_names_the_other_source(call: Call) -> None:
    with pytest.raises(errors.ToolError, match="udevd does not run") as caught:
        await call("udev", "monitor", source="udev")
    assert "source=kernel" in caught.value.suggestion


@pytest.mark.skipif(has_udev, reason="udevd runs on this machine")
async def test_monitor_takes_the_kernels_events_where_udevd_does_not_run(call: Call) -> None:
    result = await call("udev", "monitor", subsystem="none_such", seconds=0.05)
    assert result.metadata["source"] == "kernel"


@pytest.mark.parametrize(
    "arguments", [{"seconds": 61}, {"seconds": 0}, {"events": 1001}, {"events": 0}, {"source": "other"}]
)
async def test_monitor_without_bounds_is_refused(call: Call, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        await call("udev", "monitor", **arguments)


async def test_every_result_can_be_sent_as_json(call: Call) -> None:
    for action in ("list", "usb", "pci", "block"):
        result = await call("udev", action)
        json.dumps(result.metadata)
        assert result.output.isprintable() or "\n" in result.output


def test_strange_names_cannot_make_up_lines(module: ModuleType) -> None:
    assert module._text("evil\n\x1b[2J\udcff") == "evil\\n\\x1b[2J\\xff"


def test_loading_the_tools_imports_neither_pyudev_nor_systemd(load: Load) -> None:
    """Every worker loads every tool, and most never call these."""
    code = (
        "import sys; from pathlib import Path; from lightagentd.worker.loader import load_tool\n"
        f"for name in ('udev', 'journal'): assert load_tool(Path({str(TOOLS)!r}, name + '.py')).tool\n"
        "print(sorted({'pyudev', 'systemd.journal', 'systemd._reader'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_all_actions_only_observe(load: Load) -> None:
    assert {action.effect for action in load("udev").actions.values()} == {"observe"}
