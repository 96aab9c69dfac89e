"""The worker that holds the private keys, as the daemon starts it: whom it serves, and what it can do.

The tests run as whoever runs them, root or not, with every sandbox of this machine and without one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from lightagentd.config import configuration
from lightagentd.errors import InvalidArgument, NotFound, PermissionDenied, WorkerUnavailable
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect, Place
from lightagentd.toolkit.crypt.keystore import KeyStore
from lightagentd.toolkit.crypt.wrapping import CREDENTIAL
from lightagentd.worker import places, sandbox
from lightagentd.worker.pool import Pool
from tests.worker import running
from tests.worker.conftest import ABI, CONFINED
from tests.worker.running import a_call, events, shell

PROBE = Path(__file__).with_name("keys_probe.py")
in_module_loop = pytest.mark.asyncio(loop_scope="module")
ROOT = os.geteuid() == 0
WITH_KEYS = (*ABI, "none") if ROOT else tuple(ABI)
"""Without a sandbox, an ordinary user has no key store."""


async def keys_call(
    pool: Pool,
    action: str,
    /,
    *,
    tool: str = "crypto",
    agent: str = "ops",
    owner: int = 1000,
    place: Place | None = Place.KEYS,
    **args: Any,
) -> dict[str, Any]:
    call = a_call(tool, action, effect=Effect.OBSERVE, agent=agent, timeout_s=30.0, **args)
    call = replace(call, place=place, owner=owner)
    return [event async for event in pool.call(call)][-1]


async def new_key(pool: Pool, **more: Any) -> str:
    return str((await keys_call(pool, "generate_keypair", **more))["metadata"]["handle"])


@contextlib.asynccontextmanager
async def a_pool(paths: Paths, kind: str) -> AsyncIterator[Pool]:
    """A pool with a sandbox of `KINDS`, or with `none`."""
    pool = Pool(configuration.Worker(max_per_effect=1, sandbox="none" if kind == "none" else "auto"), paths)
    await pool.start()
    if kind != "none":
        backend = await sandbox.choose("auto", paths, landlock_abi=ABI[kind])
        if not backend.enforced:
            await pool.close()
            pytest.skip(f"no sandbox here: {backend.reason}")
        running.local(pool).backend = backend
    try:
        yield pool
    finally:
        await pool.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys_paths() -> AsyncIterator[Paths]:
    with running.folders() as made:
        shutil.copy(PROBE, made.config / "tools/keys_probe.py")
        (made.state / "history").write_text("of everybody")
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WITH_KEYS)
async def keys_pool(request: pytest.FixtureRequest, keys_paths: Paths) -> AsyncIterator[Pool]:
    async with a_pool(keys_paths, request.param) as pool:
        await keys_call(pool, "list_keys")
        for effect in CONFINED if request.param != "none" else (Effect.OBSERVE,):
            await shell(pool, "true", effect)  # its processes must not count as left over by a test
        yield pool


async def test_an_ordinary_user_without_a_sandbox_has_no_key_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tools could read the keys."""
    with running.folders() as paths:
        async with a_pool(paths, "none") as pool:
            monkeypatch.setattr(os, "geteuid", lambda: 1000)
            assert any("no key store" in limit for limit in places.limits(pool.backend))
            with pytest.raises(WorkerUnavailable, match="no key store"):
                await keys_call(pool, "generate_keypair")
        assert not paths.keys.exists()


@pytest.fixture
async def own_pool() -> AsyncIterator[Pool]:
    """For tests that start workers and connections of their own."""
    with running.folders() as paths:
        async with a_pool(paths, "this_kernel") as pool:
            yield pool


confined = pytest.mark.parametrize("keys_pool", list(ABI), indirect=True)
"""For what only a sandbox gives."""


async def test_a_key_outlives_its_worker(own_pool: Pool) -> None:
    handle = await new_key(own_pool)
    first = await keys_call(own_pool, "sign", handle=handle, text="x")
    (before,) = [one.pid for one in own_pool.workers() if one.where is Place.KEYS]
    await own_pool.end_idle_now()
    again = await keys_call(own_pool, "sign", handle=handle, text="x")
    (after,) = [one.pid for one in own_pool.workers() if one.where is Place.KEYS]
    assert before != after
    assert again["metadata"] == first["metadata"]  # Ed25519 signs the same in the same way


@in_module_loop
async def test_all_agents_share_one_worker_and_none_of_their_keys(keys_pool: Pool) -> None:
    ops, dev = await new_key(keys_pool, agent="ops"), await new_key(keys_pool, agent="dev")
    assert len([one for one in keys_pool.workers() if one.where is Place.KEYS]) == 1
    for agent, owner, handle in (("dev", 1000, ops), ("ops", 1000, dev), ("ops", 1001, ops)):
        for action in ("sign", "verify_with_key", "public_key"):
            more: dict[str, Any] = {} if action == "public_key" else {"text": "x"}
            more |= {"signature": "00"} if action == "verify_with_key" else {}
            with pytest.raises(NotFound, match=f"There is no key '{handle}'"):
                await keys_call(keys_pool, action, agent=agent, owner=owner, handle=handle, **more)
        listed = await keys_call(keys_pool, "list_keys", agent=agent, owner=owner)
        assert handle not in str(listed)


async def test_ending_an_agent_leaves_the_worker_of_all(own_pool: Pool) -> None:
    await new_key(own_pool, agent="ops")
    await own_pool.end_agent("ops")
    assert [one.where for one in own_pool.workers() if one.where is Place.KEYS] == [Place.KEYS]


async def test_calls_of_several_agents_run_at_once_and_all_keys_are_there(own_pool: Pool) -> None:
    agents = [f"a{number}" for number in range(4)] * 3
    made = await asyncio.gather(*(new_key(own_pool, agent=agent) for agent in agents))
    assert len(set(made)) == len(agents)
    for agent in set(agents):
        listed = await keys_call(own_pool, "list_keys", agent=agent)
        mine = {handle for handle, owner in zip(made, agents, strict=True) if owner == agent}
        assert mine <= {key["handle"] for key in listed["metadata"]["keys"]}


@pytest.mark.parametrize(
    ("action", "args"),
    [
        ("generate_key", {}),
        ("generate_keypair", {}),
        ("list_keys", {}),
        ("public_key", {"handle": "key_" + "0" * 16}),
        ("sign", {"handle": "key_" + "0" * 16, "text": "x"}),
        ("verify_with_key", {"handle": "key_" + "0" * 16, "text": "x", "signature": "00"}),
    ],
)
@in_module_loop
async def test_no_other_worker_runs_what_needs_keys(
    keys_pool: Pool, keys_paths: Paths, action: str, args: dict[str, Any]
) -> None:
    before = sorted(keys_paths.state.rglob("*"))
    with pytest.raises(PermissionDenied, match=f"crypto.{action} does not run in the worker of an effect"):
        await keys_call(keys_pool, action, place=None, owner=0, **args)
    with pytest.raises(PermissionDenied):
        await keys_pool.check("ops", Effect.OBSERVE, "crypto", action, args)
    assert sorted(keys_paths.state.rglob("*")) == before


@pytest.mark.parametrize(
    ("tool", "action", "args"),
    [
        ("bash", "exec", {"command": "id"}),
        ("file", "read", {"path": "/etc/hostname"}),
        ("crypto", "sha256", {"path": "/etc/hostname"}),
        ("crypto", "hmac", {"key_path": "/etc/hostname", "text": "x"}),
        ("web", "get", {"url": "http://127.0.0.1/"}),
    ],
)
@in_module_loop
async def test_the_worker_for_keys_runs_nothing_else(
    keys_pool: Pool, tool: str, action: str, args: dict[str, Any]
) -> None:
    with pytest.raises(PermissionDenied, match=f"{tool}.{action} does not run in the worker for keys"):
        await keys_call(keys_pool, action, tool=tool, **args)
    with pytest.raises(PermissionDenied):
        await keys_pool.check("ops", Effect.OBSERVE, tool, action, args, place=Place.KEYS)


@in_module_loop
async def test_it_checks_arguments_as_any_worker_does(keys_pool: Pool) -> None:
    checked = await keys_pool.check("ops", Effect.OBSERVE, "crypto", "generate_key", {}, place=Place.KEYS)
    assert checked.args == {"size_bytes": 32, "label": ""}
    with pytest.raises(InvalidArgument, match=r"crypto\.sign: handle"):
        await keys_pool.check(
            "ops", Effect.OBSERVE, "crypto", "sign", {"handle": "../x", "text": "x"}, place=Place.KEYS
        )


def no_path(arguments: dict[str, Any]) -> bool:
    return not [name for name in arguments if "path" in name or "file" in name]


@in_module_loop
async def test_no_action_for_keys_takes_a_path(keys_pool: Pool) -> None:
    (crypto,) = [tool for tool in await keys_pool.describe() if tool["name"] == "crypto"]
    found = {each["name"]: each["schema"] for each in crypto["actions"] if each["place"] == "keys"}
    assert set(found) == {
        *("generate_key", "generate_keypair", "list_keys"),
        *("public_key", "sign", "verify_with_key"),
    }
    assert all(no_path(schema.get("properties", {})) for schema in found.values())


@in_module_loop
async def test_nothing_that_comes_out_has_a_private_key(
    keys_pool: Pool, keys_paths: Paths, capfd: pytest.CaptureFixture[str]
) -> None:
    said, handles = [], []
    for action in ("generate_key", "generate_keypair"):
        made = await keys_call(keys_pool, action, label=f"of-{action}")
        handles.append(made["metadata"]["handle"])
        said.append(made)
    for handle in handles:
        signed = await keys_call(keys_pool, "sign", handle=handle, text="x")
        given: dict[str, Any] = {"handle": handle, "text": "x", "signature": signed["metadata"]["hex"]}
        said += [signed, await keys_call(keys_pool, "verify_with_key", **given)]
        wrongs: list[dict[str, Any]] = [{"digest": "00"}, {"data": "!"}, {}]
        for wrong in wrongs:
            with pytest.raises(InvalidArgument) as caught:
                await keys_call(keys_pool, "sign", handle=handle, **wrong)
            said.append(caught.value.to_dict())
        with contextlib.suppress(InvalidArgument):
            said.append(await keys_call(keys_pool, "public_key", handle=handle))
    said.append(await keys_call(keys_pool, "list_keys"))
    captured = capfd.readouterr()
    (worker,) = [one for one in keys_pool.workers() if one.where is Place.KEYS]
    shown = [str(said), captured.out, captured.err]
    for process in [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(True)]:
        shown.append(str(process.cmdline()))
        with contextlib.suppress(psutil.AccessDenied):  # the worker is closed even to its own user
            shown.append(str(process.environ()))
    whole = "\n".join(shown)
    for handle in handles:
        private = KeyStore(keys_paths.keys).get("ops", 1000, handle).private
        secret = private[-32:]  # of the DER of a pair, its secret number or seed
        for form in (secret.hex(), base64.b64encode(secret).decode(), base64.b64encode(private).decode()):
            assert form not in whole
    assert "PRIVATE" not in whole


# -- what a taken over tool could do there --


@in_module_loop
async def test_it_starts_no_program(keys_pool: Pool) -> None:
    tried = ["/bin/sh", "/bin/true", "/usr/bin/python3", "/usr/bin/env"]
    assert (await keys_call(keys_pool, "start", tool="keys_probe", paths=tried))["output"] == ""


@in_module_loop
async def test_it_opens_no_socket(keys_pool: Pool) -> None:
    assert (await keys_call(keys_pool, "connect", tool="keys_probe"))["output"] == ""


@confined
@in_module_loop
async def test_it_writes_to_its_folder_alone(keys_pool: Pool, keys_paths: Paths) -> None:
    tried = ["/", "/tmp", "/var/tmp", "/run", "/dev/shm", "/etc", str(Path.home())]
    tried += [str(path) for path in (keys_paths.config, keys_paths.state, keys_paths.runtime)]
    own = str(keys_paths.keys)
    said = await keys_call(keys_pool, "write", tool="keys_probe", paths=[*tried, own])
    (keys_paths.keys / "written-by-keys-probe").unlink()
    assert said["output"].split() == [own]


@confined
@in_module_loop
async def test_it_does_not_see_the_other_state_of_the_daemon(keys_pool: Pool, keys_paths: Paths) -> None:
    tried = [str(keys_paths.state / "history"), "/etc/passwd"]
    assert (await keys_call(keys_pool, "read", tool="keys_probe", paths=tried))["output"] == "/etc/passwd"


@in_module_loop
async def test_it_has_no_privileges_and_leaves_no_core(keys_pool: Pool) -> None:
    await new_key(keys_pool)
    (worker,) = [one for one in keys_pool.workers() if one.where is Place.KEYS]
    top = psutil.Process(worker.pid)
    last = [top, *top.children(recursive=True)][-1].pid
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{last}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == int(status["CapAmb"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split()[0] == str(os.geteuid())
    assert psutil.Process(last).rlimit(psutil.RLIMIT_CORE) == (0, 0)


# -- what other workers see of it --


@confined
@pytest.mark.parametrize("effect", CONFINED)
@in_module_loop
async def test_no_shell_sees_the_key_store(keys_pool: Pool, keys_paths: Paths, effect: Effect) -> None:
    handle = await new_key(keys_pool)
    look = (
        f"ls -A {keys_paths.keys}; cat {keys_paths.keys}/master.key; find {keys_paths.state} -name {handle}"
    )
    said = await shell(keys_pool, look, effect)
    assert handle not in said.replace(look, "")
    assert "No such file or directory" in said
    for path in (keys_paths.keys / "master.key", keys_paths.keys / "keys/1000/ops" / handle):
        with pytest.raises(NotFound):
            await events(keys_pool, "file", "read", effect=Effect.OBSERVE, path=str(path))


@pytest.mark.parametrize("keys_pool", ["none"], indirect=True)
@pytest.mark.skipif(not ROOT, reason="without a sandbox, an ordinary user's tools are that user")
@in_module_loop
async def test_without_a_sandbox_the_modes_keep_the_tools_of_root_out(
    keys_pool: Pool, keys_paths: Paths
) -> None:
    await new_key(keys_pool)
    said = await shell(keys_pool, f"cat {keys_paths.keys}/master.key && echo read")
    assert "Permission denied" in said
    assert "read\n" not in said


@confined
@in_module_loop
async def test_no_shell_looks_into_the_worker_for_keys(keys_pool: Pool) -> None:
    await new_key(keys_pool)
    (worker,) = [one for one in keys_pool.workers() if one.where is Place.KEYS]
    top = psutil.Process(worker.pid)
    for process in [top, *top.children(recursive=True)]:
        for name in ("mem", "environ", "maps"):
            said = await shell(keys_pool, f"head -c 1 /proc/{process.pid}/{name} >/dev/null && echo read")
            assert "read\n" not in said
        await shell(keys_pool, f"kill -9 {process.pid}")
    await new_key(keys_pool)
    (same,) = [one for one in keys_pool.workers() if one.where is Place.KEYS]
    assert same.pid == worker.pid


# -- limits and credentials --


@in_module_loop
async def test_status_says_what_a_plain_child_does_not_keep(keys_pool: Pool) -> None:
    said = " ".join(places.limits(keys_pool.backend))
    assert ("Private keys are kept by a plain process" in said) == (keys_pool.backend.name == "none")
    if keys_pool.backend.name == "none":
        assert said in " ".join(keys_pool.backend.limits)
        assert ("can read the key store" in said) == (not ROOT)


@pytest.mark.parametrize("kind", ["this_kernel", "none"])
async def test_the_credential_of_the_daemon_wraps_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / CREDENTIAL).write_bytes(os.urandom(32))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with running.folders() as paths:
        async with a_pool(paths, kind) as pool:
            handle = await new_key(pool)
            assert await keys_call(pool, "sign", handle=handle, text="x")
        names = [path.name for path in paths.keys.iterdir()]
        assert sorted(names) == ["keys", "lock", "wrapped-by-credential"]
        assert KeyStore(paths.keys, tmp_path / CREDENTIAL).get("ops", 1000, handle)
