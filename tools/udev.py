"""Devices as the kernel and udev know them: list, details, USB, PCI, block devices, and what changes.

Everything is read with pyudev from /sys, and from udev's database below /run/udev where udevd runs; without
it names, filesystems and tags that only the database has are missing, and the answers say so. The monitor
needs a netlink socket and nothing else. pyudev is imported when first used, since every worker loads every
tool; each call has a context of its own, in a thread of its own.
"""

import asyncio
import fnmatch
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lightagentd.errors import NotFound
from lightagentd.tool import Args, Context, InvalidArgument, Result, Tool, ToolError, action

CONTROL = Path("/run/udev/control")
"""The socket of a udevd that runs."""
DATABASE = Path("/run/udev/data")
SECTOR_BYTES = 512
"""The unit of `size` in /sys/block, whatever the device's own sectors are."""
VALUE_CHARS = 200
ATTRIBUTES_SHOWN = 60
LIST_S = 15.0
UNREAD = re.compile(
    r"(uevent|dev|subsystem|driver|config|rom|vpd|remove|rescan|reset.*|resource.*|descriptors|power/.*|trace/.*)"
)
"""Attributes that are binary, that are known already, or whose reading is slow or does something."""
IDS = {
    "pci": ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids"),
    "usb": ("/usr/share/hwdata/usb.ids", "/usr/share/misc/usb.ids", "/var/lib/usbutils/usb.ids"),
}
PCI_CLASSES = {
    0x01: "storage", 0x02: "network", 0x03: "display", 0x04: "multimedia", 0x05: "memory", 0x06: "bridge",
    0x07: "communication", 0x08: "system", 0x09: "input", 0x0A: "docking station", 0x0B: "processor",
    0x0C: "serial bus", 0x0D: "wireless", 0x0F: "satellite", 0x10: "encryption", 0x11: "signal processing",
    0x12: "accelerator",
}  # fmt: skip
_NO_UDEV = "udevd does not run on this machine, or its database /run/udev is not visible: "


class NoArgs(Args):
    pass


class ListArgs(Args):
    subsystem: str = Field(default="", max_length=64, description="Such as block, net, usb, pci, tty, input.")
    properties: dict[str, str] = Field(
        default={}, max_length=10, description="Only with these properties; values may be globs."
    )
    sys_name: str = Field(default="", max_length=255, description="A glob for the name, such as sd*.")
    parent: str = Field(default="", max_length=1024, description="Only this device and those below it.")
    tag: str = Field(default="", max_length=64, description="Only with this tag of udev's, such as systemd.")
    limit: int = Field(default=100, ge=1, le=1000, description="How many are shown.")


class InfoArgs(Args):
    device: str = Field(
        min_length=1, max_length=1024, description="A path in /sys or /dev, or a name such as sda or eth0."
    )
    subsystem: str = Field(default="", max_length=64, description="Where a name alone is ambiguous.")


class BlockArgs(Args):
    empty: bool = Field(default=False, description="Show devices of size 0 too, such as unused loop devices.")


class MonitorArgs(Args):
    seconds: float = Field(default=10, gt=0, le=60, description="How long to watch.")
    events: int = Field(default=100, ge=1, le=1000, description="Stop after so many events.")
    subsystem: str = Field(default="", max_length=64, description="Only devices of this subsystem.")
    source: Literal["", "kernel", "udev"] = Field(
        default="", description="Events before or after udev's rules; udev by default where udevd runs."
    )


class Udev(Tool):
    """Devices of this machine: what there is, how they hang together, and what is plugged in or out."""

    name = "udev"

    @action(taints=True)
    async def list(self, ctx: Context, args: ListArgs) -> Result:
        """List devices by subsystem, name, property, parent or tag."""
        seconds = min(LIST_S, ctx.timeout_s * 0.7)
        return await asyncio.to_thread(_list, args, time.monotonic() + seconds)

    @action(taints=True)
    async def info(self, ctx: Context, args: InfoArgs) -> Result:
        """Show one device: driver, device file, parents, properties and attributes."""
        return await asyncio.to_thread(_info, args)

    @action(taints=True)
    async def usb(self, ctx: Context, args: NoArgs) -> Result:
        """Show the tree of USB devices with vendor, product, speed and driver."""
        return await asyncio.to_thread(_usb)

    @action(taints=True)
    async def pci(self, ctx: Context, args: NoArgs) -> Result:
        """List the PCI devices with class, vendor, device and driver."""
        return await asyncio.to_thread(_pci)

    @action(taints=True)
    async def block(self, ctx: Context, args: BlockArgs) -> Result:
        """List block devices with size, model, filesystem, mount points, kind of disk and parents."""
        return await asyncio.to_thread(_block, args)

    @action(timeout_s=75.0, taints=True)
    async def monitor(self, ctx: Context, args: MonitorArgs) -> Result:
        """Watch devices come, go and change for some seconds; each event is shown at once."""
        source = args.source or ("udev" if CONTROL.exists() else "kernel")
        if source == "udev" and not CONTROL.exists():
            raise ToolError(
                f"{_NO_UDEV}it sends no events.",
                suggestion="Watch the kernel's events with source=kernel.",
            )
        with _libudev() as pyudev:
            events, why = await _watch(ctx, args, pyudev, source)
        lines = [_event_line(event) for event in events]
        noun = "event" if len(events) == 1 else "events"
        lines.append(f"{len(events)} {noun} from {source}; stopped by {why}.")
        if not events and _in_user_namespace():
            lines.append("This worker is in a user namespace, where the kernel may send it no events.")
        metadata = {"events": events, "count": len(events), "source": source, "stopped": why}
        return Result(output="\n".join(lines), metadata=metadata)


@contextmanager
def _libudev() -> Iterator[Any]:
    """The module pyudev; a library that is missing or that fails is a ToolError."""
    try:
        import pyudev
    except ImportError as err:
        raise ToolError(
            f"The library for devices cannot be used: {err}.",
            suggestion="Install libudev1 and the Python package pyudev.",
        ) from err
    try:
        yield pyudev
    except pyudev.DeviceNotFoundError as err:
        raise NotFound(
            f"There is no such device: {_text(str(err))}.", suggestion="List the devices."
        ) from err
    except OSError as err:
        raise ToolError(f"The devices cannot be read: {err.strerror or err}.") from err


async def _watch(
    ctx: Context, args: MonitorArgs, pyudev: Any, source: str
) -> tuple[list[dict[str, Any]], str]:
    """The events, and what ended the watch: `time`, `events` or `overflow`."""
    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source)
    if source == "udev" and args.subsystem:
        monitor.filter_by(args.subsystem)
    monitor.start()
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    found: list[dict[str, Any]] = []
    loop.add_reader(monitor.fileno(), ready.set)
    try:
        async with asyncio.timeout(max(0.05, min(args.seconds, ctx.timeout_s - 1))):
            while len(found) < args.events:
                await ready.wait()
                ready.clear()
                while len(found) < args.events and (device := monitor.poll(0)) is not None:
                    if not args.subsystem or device.subsystem == args.subsystem:
                        found.append(_event(device))
                        ctx.progress(_event_line(found[-1]) + "\n")
                    await asyncio.sleep(0)  # a storm of events must leave room for the call's timeout
    except TimeoutError:
        return found, "time"
    except OSError as err:
        if not found:
            raise
        ctx.progress(f"Events were lost: {err.strerror}\n", "stderr")
        return found, "overflow"
    finally:
        loop.remove_reader(monitor.fileno())
    return found, "events"


def _event(device: Any) -> dict[str, Any]:
    known = _properties(device)
    hidden = ("ACTION", "DEVPATH", "SUBSYSTEM", "SEQNUM", "USEC_INITIALIZED")
    shown = {key: value for key, value in known.items() if key not in hidden}
    return {
        "action": _text(str(device.action)),
        "subsystem": _text(device.subsystem or ""),
        "sys_path": _text(device.sys_path),
        "seqnum": device.sequence_number,
        "properties": dict([*shown.items()][:20]),
    }


def _event_line(event: dict[str, Any]) -> str:
    node = event["properties"].get("DEVNAME")
    return f"{event['action']} {event['subsystem'] or '?'} {event['sys_path']}" + (
        f" ({node})" if node else ""
    )


def _in_user_namespace() -> bool:
    """The first namespace maps all ids onto themselves (user_namespaces(7))."""
    try:
        return Path("/proc/self/uid_map").read_text("ascii").split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def _list(args: ListArgs, deadline: float) -> Result:
    with _libudev() as pyudev:
        context = pyudev.Context()
        found = context.list_devices()
        if args.subsystem:
            found.match_subsystem(args.subsystem)
        if args.sys_name:
            found.match_sys_name(args.sys_name)
        if args.tag:
            found.match_tag(args.tag)
        if args.parent:
            found.match_parent(_find(pyudev, context, args.parent, ""))
        rows: list[dict[str, Any]] = []
        total, late = 0, False
        for device in found:
            if late := time.monotonic() > deadline:
                break
            if args.properties and not _has(_properties(device), args.properties):
                continue
            total += 1
            if total <= args.limit:
                rows.append(_brief(device))
    lines = [
        f"{row['subsystem']:<12} {row['sys_name']:<16} {row['node'] or '-':<16} {row['driver'] or '-':<12}"
        f" {row['sys_path']}"
        for row in rows
    ]
    lines.append(
        f"{total} devices." + (f" {total - len(rows)} more are not shown." if total > len(rows) else "")
    )
    if late:
        lines.append("Stopped when the time was up: not all devices were looked at.")
    if (args.tag or args.properties) and not DATABASE.is_dir():
        lines.append(f"{_NO_UDEV}tags and the properties that udev's rules add are missing.")
    return Result(output="\n".join(lines), metadata={"devices": rows, "total": total, "complete": not late})


def _has(known: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(key in known and fnmatch.fnmatchcase(known[key], glob) for key, glob in wanted.items())


def _brief(device: Any) -> dict[str, Any]:
    return {
        "sys_name": _text(device.sys_name),
        "subsystem": _text(device.subsystem or ""),
        "type": _text(device.device_type or ""),
        "node": _text(device.device_node or ""),
        "driver": _text(device.driver or ""),
        "sys_path": _text(device.sys_path),
    }


def _info(args: InfoArgs) -> Result:
    with _libudev() as pyudev:
        device = _find(pyudev, pyudev.Context(), args.device, args.subsystem)
        data = _brief(device) | {
            "number": _number(device),
            "links": sorted(_text(link) for link in device.device_links)[:50],
            "tags": sorted(map(_text, device.tags)),
            "parents": [_text(parent.sys_path) for parent in device.ancestors],
            "properties": _properties(device),
            "attributes": _attributes(device),
        }
    lines = [f"{data['sys_name']} ({data['subsystem'] or 'no subsystem'}): {data['sys_path']}"]
    lines += [f"{key}: {data[key]}" for key in ("type", "driver", "node", "number") if data[key]]
    lines += [f"{key}: {', '.join(data[key])}" for key in ("links", "tags", "parents") if data[key]]
    for key in ("properties", "attributes"):
        lines.append(f"{key}:")
        lines += [f"  {name}={value}" for name, value in data[key].items()]
    if not DATABASE.is_dir():
        lines.append(f"{_NO_UDEV}links, tags and the properties that udev's rules add are missing.")
    return Result(output="\n".join(lines), metadata=data)


def _find(pyudev: Any, context: Any, name: str, subsystem: str) -> Any:
    """A device by path in /sys, device file or name. Raises NotFound and InvalidArgument."""
    if name.startswith("/dev/"):
        return pyudev.Devices.from_device_file(context, name)
    if name.startswith("/"):
        if ".." in name.split("/") or not name.startswith("/sys/"):
            raise InvalidArgument(f"{_text(name)} is not a path in /sys or /dev.", field="device")
        return pyudev.Devices.from_path(context, name)
    found = context.list_devices()
    found.match_sys_name(re.sub(r"([\[*?\\])", r"\\\1", name))
    if subsystem:
        found.match_subsystem(subsystem)
    devices = [device for device in found if device.sys_name == name]
    if not devices:
        raise NotFound(
            f"There is no device {_text(name)}{f' in {_text(subsystem)}' if subsystem else ''}.",
            suggestion="List the devices with udev list.",
            field="device",
        )
    if len(devices) > 1:
        places = ", ".join(sorted({_text(device.subsystem or "?") for device in devices}))
        raise InvalidArgument(
            f"{_text(name)} is the name of {len(devices)} devices, in {places}.",
            suggestion="Give the subsystem or the path in /sys.",
            field="subsystem",
        )
    return devices[0]


def _properties(device: Any) -> dict[str, str]:
    try:
        return {_text(key): _text(value)[:VALUE_CHARS] for key, value in sorted(device.properties.items())}
    except (OSError, KeyError):  # it is gone meanwhile
        return {}


def _attributes(device: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    names = [name for name in device.attributes.available_attributes if not UNREAD.fullmatch(name)]
    for name in sorted(names, key=lambda name: (name.count("/"), name)):
        if len(found) == ATTRIBUTES_SHOWN:
            break
        if value := _attribute(device, name):
            found[_text(name)] = value
    return found


def _attribute(device: Any, name: str) -> str:
    """Empty for one that is not there, or that this user may not read."""
    try:
        value = device.attributes.get(name)
    except (OSError, KeyError):
        return ""
    return "" if value is None else _text(value.decode("utf-8", "backslashreplace").strip())[:VALUE_CHARS]


def _number(device: Any) -> str:
    return _attribute(device, "dev")


def _usb() -> Result:
    with _libudev() as pyudev:
        devices = pyudev.Context().list_devices(subsystem="usb", DEVTYPE="usb_device")
        rows = [_usb_row(device) for device in devices]
    names = _names("usb", {(row["vendor_id"], row["product_id"]) for row in rows})
    for row in rows:
        vendor, product = names.get((row["vendor_id"], row["product_id"]), ("", ""))
        row["vendor"], row["product"] = row["vendor"] or vendor, row["product"] or product
    lines = _usb_tree(rows)
    lines.append(
        f"{len(rows)} USB devices." if rows else "There is no USB on this machine, or no driver for it."
    )
    return Result(output="\n".join(lines), metadata={"devices": rows})


def _usb_row(device: Any) -> dict[str, Any]:
    parent = device.find_parent("usb", "usb_device")
    drivers = {child.driver for child in device.children if child.device_type == "usb_interface"}
    known = _properties(device)
    return {
        "sys_name": _text(device.sys_name),
        "parent": "" if parent is None else _text(parent.sys_name),
        "vendor_id": _attribute(device, "idVendor"),
        "product_id": _attribute(device, "idProduct"),
        "vendor": _attribute(device, "manufacturer") or known.get("ID_VENDOR_FROM_DATABASE", ""),
        "product": _attribute(device, "product") or known.get("ID_MODEL_FROM_DATABASE", ""),
        "serial": _attribute(device, "serial"),
        "speed_mbit": _attribute(device, "speed"),
        "drivers": sorted(_text(driver) for driver in drivers if driver),
    }


def _usb_tree(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each device, below the hub that it is plugged into."""
    names = {row["sys_name"] for row in rows}
    below: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["sys_name"], reverse=True):
        below.setdefault(row["parent"] if row["parent"] in names else "", []).append(row)
    lines: list[str] = []
    todo = [(row, 0) for row in below.get("", [])]
    while todo:
        row, level = todo.pop()
        what = _joined(row["vendor"], row["product"])
        speed = f", {row['speed_mbit']} Mbit/s" if row["speed_mbit"] else ""
        drivers = f", {'+'.join(row['drivers'])}" if row["drivers"] else ""
        lines.append(
            f"{'  ' * level}{row['sys_name']} {row['vendor_id']}:{row['product_id']} {what}{speed}{drivers}"
        )
        todo += [(child, level + 1) for child in below.get(row["sys_name"], [])]
    return lines


def _pci() -> Result:
    with _libudev() as pyudev:
        rows = [_pci_row(device) for device in pyudev.Context().list_devices(subsystem="pci")]
    rows.sort(key=lambda row: row["slot"])
    names = _names("pci", {(row["vendor_id"], row["device_id"]) for row in rows})
    for row in rows:
        vendor, device = names.get((row["vendor_id"], row["device_id"]), ("", ""))
        row["vendor"], row["device"] = row["vendor"] or vendor, row["device"] or device
    lines = [
        f"{row['slot']} {row['class']}: {_joined(row['vendor'], row['device'])}"
        f" [{row['vendor_id']}:{row['device_id']}]" + (f", driver {row['driver']}" if row["driver"] else "")
        for row in rows
    ]
    lines.append(f"{len(rows)} PCI devices." if rows else "There is no PCI on this machine.")
    if rows and not any(row["vendor"] for row in rows):
        lines.append(
            "Names are missing: there is neither udev's database nor a file pci.ids on this machine."
        )
    return Result(output="\n".join(lines), metadata={"devices": rows})


def _pci_row(device: Any) -> dict[str, Any]:
    code = _attribute(device, "class").removeprefix("0x")
    known = _properties(device)
    base = int(code[:2], 16) if re.fullmatch(r"[0-9a-f]{6}", code) else -1
    return {
        "slot": _text(device.sys_name),
        "class": known.get("ID_PCI_CLASS_FROM_DATABASE") or PCI_CLASSES.get(base, f"class {code}"),
        "class_id": code,
        "vendor_id": _attribute(device, "vendor").removeprefix("0x"),
        "device_id": _attribute(device, "device").removeprefix("0x"),
        "vendor": known.get("ID_VENDOR_FROM_DATABASE", ""),
        "device": known.get("ID_MODEL_FROM_DATABASE", ""),
        "driver": _text(device.driver or ""),
    }


def _names(bus: str, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Names of vendors and products from the file pci.ids or usb.ids, where the machine has one."""
    path = next((Path(name) for name in IDS[bus] if Path(name).is_file()), None)
    if path is None or not wanted:
        return {}
    found: dict[tuple[str, str], tuple[str, str]] = {}
    vendor_id = vendor = ""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if match := re.match(r"([0-9a-f]{4})  (.*)", line):
                    vendor_id, vendor = match[1], _text(match[2])
                    found |= {key: (vendor, "") for key in wanted if key[0] == vendor_id}
                elif line.startswith("C "):
                    break  # the classes come last
                elif (match := re.match(r"\t([0-9a-f]{4})  (.*)", line)) and (vendor_id, match[1]) in wanted:
                    found[vendor_id, match[1]] = (vendor, _text(match[2]))
    except OSError:
        return {}
    return found


def _block(args: BlockArgs) -> Result:
    mounts = _mounts()
    with _libudev() as pyudev:
        rows = [_block_row(device, mounts) for device in pyudev.Context().list_devices(subsystem="block")]
    rows.sort(
        key=lambda row: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", row["name"])]
    )
    shown = [row for row in rows if row["size_bytes"] or args.empty]
    lines = []
    for row in shown:
        spin = {True: "rotating", False: "not rotating"}.get(row["rotational"], "")
        facts = [
            _size(row["size_bytes"]), row["type"], row["model"], spin,
            "read-only" if row["read_only"] else "",
            " ".join(filter(None, (row["filesystem"], row["label"]))),
            f"on {', '.join(row['mount_points'])}" if row["mount_points"] else "",
            f"lies on {', '.join(row['parents'])}" if row["parents"] else "",
        ]  # fmt: skip
        lines.append(f"{row['name']}: {', '.join(filter(None, facts))}")
    hidden = len(rows) - len(shown)
    lines.append(f"{len(shown)} block devices." + (f" {hidden} of size 0 are not shown." if hidden else ""))
    if not DATABASE.is_dir():
        lines.append(f"{_NO_UDEV}filesystems are known only of what is mounted.")
    return Result(
        output="\n".join(lines), metadata={"devices": shown, "empty": hidden if not args.empty else 0}
    )


def _block_row(device: Any, mounts: dict[str, list[tuple[str, str]]]) -> dict[str, Any]:
    known, name = _properties(device), _text(device.sys_name)
    disk = device.find_parent("block") if device.device_type == "partition" else None
    here = mounts.get(_number(device), []) + mounts.get(f"/dev/{name}", [])
    sectors = _attribute(device, "size")
    backing = _attribute(device, "loop/backing_file")
    below = [_text(entry.name) for entry in _entries(Path(device.sys_path, "slaves"))]
    whole = device if disk is None else disk
    rotational = _attribute(whole, "queue/rotational")
    return {
        "name": name,
        "node": _text(device.device_node or ""),
        "type": _text(device.device_type or ""),
        "size_bytes": int(sectors) * SECTOR_BYTES if sectors.isdigit() else 0,
        "model": _attribute(whole, "device/model")
        or known.get("ID_MODEL", "")
        or _attribute(device, "dm/name"),
        "rotational": {"1": True, "0": False}.get(rotational),
        "removable": _attribute(whole, "removable") == "1",
        "read_only": _attribute(device, "ro") == "1",
        "filesystem": known.get("ID_FS_TYPE") or next((kind for kind, _ in here), ""),
        "label": known.get("ID_FS_LABEL", ""),
        "uuid": known.get("ID_FS_UUID", ""),
        "mount_points": sorted({folder for _, folder in here})[:20],
        "parents": sorted(
            ([] if disk is None else [_text(disk.sys_name)]) + below + ([backing] if backing else [])
        ),
    }


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _mounts() -> dict[str, list[tuple[str, str]]]:
    """Filesystem and folder of each mount, by device number and by device file.

    A sandbox has a mount table of its own; the machine's is that of its first process.
    """
    text = ""
    for pid in ("1", "self"):
        try:
            text = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "backslashreplace")
        except OSError:
            continue
        break
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        columns, tail = left.split(), right.split()
        if len(columns) < 6 or len(tail) < 2:
            continue
        entry = (_text(tail[0]), _text(_unescape(columns[4])))
        for key in (columns[2], _unescape(tail[1])):
            found.setdefault(key, []).append(entry)
    return found


def _unescape(text: str) -> str:
    """Space, tab, newline and backslash are octal in the table (proc_pid_mountinfo(5))."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _text(text: str) -> str:
    """Control characters and bytes that are not UTF-8 escaped: a device may call itself what it likes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    )


def _joined(vendor: str, product: str) -> str:
    return f"{vendor} {product}".strip() or "(no name)"


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.4g} TiB"
