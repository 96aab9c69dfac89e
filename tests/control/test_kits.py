"""`Kits` over Varlink and D-Bus: the same answers, and who may ask."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest

from lightagentd.bus.connection import Variant, connect
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import LightagentError, PermissionDenied
from lightagentd.host.paths import Paths
from tests.agents.kits.made import dba, everything, folder, tarred
from tests.agents.scripted import ME
from tests.control.dbus.on_the_bus import ROOT, serving
from tests.raw_varlink import Raw, code
from tests.scripted_model import say

KITS = "org.lightagent1.Kits"


def encoded(archive: bytes) -> str:
    return base64.b64encode(archive).decode()


async def test_a_kit_is_added_looked_at_and_removed_over_varlink(daemon: Daemon, paths: Paths) -> None:
    async with Raw(paths.socket) as raw:
        looked = (await raw.call("Kits.Check", archive=encoded(tarred(dba()))))["parameters"]["kit"]
        assert (looked["name"], looked["problems"], looked["added"]) == ("dba", [], False)
        assert code(await raw.call("Kits.Get", name="dba")) == "agent_not_found"
        added = (await raw.call("Kits.Add", archive=encoded(tarred(dba())), name="db"))["parameters"]["kit"]
        assert added == {
            "name": "db",
            "description": "Looks after databases.",
            "folder": str(paths.kits / "db"),
            "added": True,
            "skills": ["db-check"],
            "tools": ["dbstat"],
            "agents": ["reader"],
            "flows": ["nightly.toml"],
            "evals": [],
            "hooks": [],
            "references": ["tables.md"],
            "files": 9,
            "size_bytes": added["size_bytes"],
            "problems": [],
            "warnings": [],
        }
        assert (await raw.call("Kits.Get", name="db"))["parameters"]["kit"] == added
        assert (await raw.call("Kits.List"))["parameters"]["kits"][:-1] == [added]
        tools = (await raw.call("Agents.Tools", name="db"))["parameters"]["tools"]
        assert {"dbstat", "bash"} <= {tool["name"] for tool in tools}
        skills = (await raw.call("Agents.Skills", name="db"))["parameters"]["skills"]
        assert {"db-check", "disk-check"} <= {skill["name"] for skill in skills}
        assert code(await raw.call("Tools.Get", name="dbstat")) == "tool_not_found"
        for archive, name, said in (
            ("!", "", "invalid_argument"),
            ("", "", "invalid_argument"),
            (encoded(tarred(dba())), "../x", "invalid_argument"),
            (encoded(tarred(dba())), "db", "agent_exists"),
            (encoded(tarred({**dba(), "tools/x.py": "import nosuch"})), "", "config_invalid"),
            (encoded(tarred({**dba(), "../../../x": ""})), "", "invalid_argument"),
        ):
            assert code(await raw.call("Kits.Add", archive=archive, name=name)) == said
        assert code(await raw.call("Kits.Remove", name="ops")) == "conflict"
        assert code(await raw.call("Kits.Remove", name="db")) == "ok"
        [ops] = (await raw.call("Kits.List"))["parameters"]["kits"]
        assert (ops["name"], ops["added"], len(ops["flows"])) == ("ops", False, 4)
        assert everything(paths.kits) == [".new"]


async def test_a_kit_is_added_and_removed_over_d_bus(paths: Paths) -> None:
    async with serving(paths, [say("x")]) as (daemon, address), connect(address) as bus:

        async def ask(method: str, signature: str = "", *body: Any) -> Any:
            found = await bus.call("org.lightagent1", ROOT, KITS, method, signature, list(body))
            return found[0] if found else None

        archive = encoded(tarred(dba()))
        added = await ask("Add", "sa{sv}", archive, {"name": Variant("s", "db")})
        assert added["folder"] == str(paths.kits / "db")
        assert [kit["tools"] for kit in await ask("List")] == [["dbstat"], []]
        assert daemon.registry.get("db.reader").state == "running"
        path = f"{ROOT}/agents/db_2ereader"
        get = (path, "org.freedesktop.DBus.Properties", "Get", "ss", ["org.lightagent1.Agent", "Kit"])
        [kit] = await bus.call("org.lightagent1", *get)
        assert kit == "db"
        broken = encoded(tarred({**dba(), "tools/x.py": "import nosuch"}))
        with pytest.raises(LightagentError, match=r"tools/x\.py, line 1: ModuleNotFoundError"):
            await ask("Add", "sa{sv}", broken, {"name": Variant("s", "other")})
        await ask("Add", "sa{sv}", archive, {"name": Variant("s", "db"), "replace": Variant("b", True)})
        await ask("Remove", "s", "db")
        assert [kit["name"] for kit in await ask("List")] == ["ops"]


async def test_only_administrators_bring_programs(daemon: Daemon, paths: Paths) -> None:
    outsider, archive = Caller(uid=ME.uid + 4321, gid=ME.gid + 4321, pid=os.getpid()), encoded(tarred(dba()))
    service = daemon.service
    await service.kits.add(ME, archive=archive)
    outside = folder(paths.config.parent / "else", dba())
    for asked in (
        service.kits.add(outsider, archive=archive, replace=True),
        service.kits.check(outsider, archive=archive),
        service.kits.remove(outsider, "dba"),
        service.agents.create(outsider, name="db", folder=str(outside)),
    ):
        with pytest.raises(PermissionDenied):
            await asked
    assert sorted(daemon.registry.agents) == ["dba", "dba.reader", "ops"]


async def test_an_agent_of_a_folder_takes_nothing_else(daemon: Daemon, paths: Paths) -> None:
    outside = str(folder(paths.config.parent / "else", dba()))
    async with Raw(paths.socket) as raw:
        refused = await raw.call("Agents.Create", name="db", folder=outside, prompt="x")
        assert refused["parameters"]["field"] == "folder"
        made = (await raw.call("Agents.Create", name="db", folder=outside))["parameters"]["agent"]
        assert (made["state"], made["own_tools"]) == ("running", ["dbstat"])
        assert code(await raw.call("Kits.Remove", name="db")) == "conflict"
        assert code(await raw.call("Agents.Delete", name="db")) == "ok"
        assert code(await raw.call("Agents.Get", name="db.reader")) == "agent_not_found"
