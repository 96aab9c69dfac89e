"""The store of private keys as files: who finds which key, what a damaged file does, what a crash leaves."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightagentd import errors
from lightagentd.toolkit.crypt import keystore
from lightagentd.toolkit.crypt.keys import generated
from lightagentd.toolkit.crypt.keystore import KeyFacts, KeyStore
from lightagentd.toolkit.crypt.wrapping import CREDENTIAL, Source

SECRET = b"0123456789abcdef0123456789abcdef"
MAKE_FOR_EVER = """
import sys
from pathlib import Path
from lightagentd.toolkit.crypt.keystore import KeyStore
store = KeyStore(Path(sys.argv[1]))
while True:
    print(store.add("ops", 1000, "hmac-sha256", b"s" * 32, "", "").handle, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def credential(tmp_path: Path) -> Path:
    path = tmp_path / CREDENTIAL
    path.write_bytes(b"c" * 40)
    return path


def add(store: KeyStore, agent: str = "ops", owner: int = 1000) -> KeyFacts:
    private, public = generated("ed25519")
    return store.add(agent, owner, "ed25519", private, public, "")


def symmetric(store: KeyStore) -> KeyFacts:
    return store.add("ops", 1000, "hmac-sha256", SECRET, "", "backup")


def file_of(folder: Path, facts: KeyFacts) -> Path:
    return folder / "keys" / str(facts.owner) / facts.agent / facts.handle


def test_a_key_comes_back_as_it_was_stored(folder: Path) -> None:
    private, public = generated("ecdsa-p256")
    made = KeyStore(folder).add("ops", 1000, "ecdsa-p256", private, public, "web")
    found = KeyStore(folder).get("ops", 1000, made.handle)
    assert found.facts == made
    assert found.private == private
    assert (made.public_key, made.label, made.kind) == (public, "web", "ecdsa-p256")
    assert re.fullmatch(keystore.HANDLE, made.handle)


def test_handles_differ_and_the_oldest_key_is_listed_first(folder: Path) -> None:
    store = KeyStore(folder)
    made = [add(store) for _ in range(5)]
    found, problems = store.facts("ops", 1000)
    assert {one.handle for one in found} == {one.handle for one in made}
    assert [one.created for one in found] == sorted(one.created for one in made)
    assert problems == []


def test_other_agents_and_owners_find_no_such_key(folder: Path) -> None:
    store = KeyStore(folder)
    made = add(store, "ops", 1000)
    said = set()
    for agent, owner in (("dev", 1000), ("ops", 1001), ("ops", 0)):
        with pytest.raises(errors.NotFound) as caught:
            store.get(agent, owner, made.handle)
        said.add(str(caught.value.to_dict()).replace(made.handle, "HANDLE"))
        assert store.facts(agent, owner) == ([], [])
    with pytest.raises(errors.NotFound) as caught:
        store.get("ops", 1000, "key_" + "0" * 16)
    said.add(str(caught.value.to_dict()).replace("key_" + "0" * 16, "HANDLE"))
    assert len(said) == 1, "another's key and none at all must read the same"


@pytest.mark.parametrize("agent", ["", "..", "ops/../dev", "Ops", "a" * 32])
def test_what_is_no_agent_has_no_keys(folder: Path, agent: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="belong to an agent"):
        add(KeyStore(folder), agent)
    with pytest.raises(errors.InvalidArgument, match="belong to an agent"):
        KeyStore(folder).get(agent, 1000, "key_" + "0" * 16)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("handle", ["", ".", "..", "../ops", "key_0", "key_" + "G" * 16])
def test_what_is_no_handle_is_no_such_key(folder: Path, handle: str) -> None:
    add(KeyStore(folder))
    with pytest.raises(errors.NotFound, match="no key"):
        KeyStore(folder).get("ops", 1000, handle)


def test_files_are_closed_to_others_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        add(KeyStore(folder))
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert len(modes) == 6  # lock, master key, three folders and the key
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_store_that_is_open_to_others_is_not_used(folder: Path, mode: int) -> None:
    made = add(KeyStore(folder))
    folder.chmod(mode)
    with pytest.raises(errors.ToolError, match=f"not closed to others .*mode {mode:04o}"):
        add(KeyStore(folder))
    with pytest.raises(errors.ToolError, match="not closed to others"):
        KeyStore(folder).get("ops", 1000, made.handle)


def test_neither_file_nor_repr_shows_the_private_part(folder: Path) -> None:
    store = KeyStore(folder)
    made = symmetric(store)
    content = file_of(folder, made).read_bytes()
    for shown in (SECRET, SECRET.hex().encode(), base64.b64encode(SECRET)):
        assert shown not in content
    assert SECRET.decode() not in repr(store.get("ops", 1000, made.handle))
    (master,) = [path for path in folder.iterdir() if path.name == "master.key"]
    assert master.read_bytes() not in repr(vars(store)).encode()


# -- damaged files --


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label", "other"),
        ("created", "2020-01-01T00:00:00+00:00"),
        ("kind", "ed25519"),
        ("public_key", "x"),
        ("agent", "dev"),
        ("owner", 0),
        ("handle", "key_" + "0" * 16),
        ("wrapping_id", "0" * 16),
        ("version", 2),
        ("sealed", base64.b64encode(b"0" * 60).decode()),
        ("sealed", ""),
        ("extra", "x"),
    ],
)
def test_edited_file_is_told_by_its_name_and_left_as_it_is(folder: Path, name: str, value: object) -> None:
    store = KeyStore(folder)
    made, other = symmetric(store), add(store)
    path = file_of(folder, made)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {name: value}))
    edited = path.read_bytes()
    with pytest.raises(errors.ToolError, match=f"keys/1000/ops/{made.handle} of the key store") as caught:
        store.get("ops", 1000, made.handle)
    assert "left as it is" in caught.value.suggestion
    found, (problem,) = store.facts("ops", 1000)
    assert found == [other]
    assert made.handle in problem
    add(store)
    assert path.read_bytes() == edited


def test_every_flipped_bit_of_the_sealed_part_is_seen(folder: Path) -> None:
    store = KeyStore(folder)
    made = symmetric(store)
    path = file_of(folder, made)
    fields = json.loads(path.read_bytes())
    sealed = base64.b64decode(fields["sealed"])
    for at in range(len(sealed)):
        flipped = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        path.write_text(json.dumps(fields | {"sealed": base64.b64encode(flipped).decode()}))
        with pytest.raises(errors.ToolError, match="it was changed"):
            store.get("ops", 1000, made.handle)


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_cut_file_is_told(folder: Path, cut: int) -> None:
    store = KeyStore(folder)
    made = add(store)
    path = file_of(folder, made)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(errors.ToolError, match="no key file of this version, or was cut"):
        store.get("ops", 1000, made.handle)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[]", b"{}", b"[" * 60_000, b" " * 70_000])
def test_file_that_is_something_else_is_told(folder: Path, content: bytes) -> None:
    store = KeyStore(folder)
    made = add(store)
    file_of(folder, made).write_bytes(content)
    with pytest.raises(errors.ToolError, match="cannot be used"):
        store.get("ops", 1000, made.handle)


@pytest.mark.parametrize(("agent", "owner"), [("dev", 1000), ("ops", 1001), ("ops", 1000)])
def test_file_in_the_place_of_another_is_told(folder: Path, agent: str, owner: int) -> None:
    store = KeyStore(folder)
    mine, theirs = add(store), add(store, agent, owner)
    shutil.copy(file_of(folder, mine), file_of(folder, theirs))
    with pytest.raises(errors.ToolError, match="belongs to another handle, agent or owner"):
        store.get(agent, owner, theirs.handle)


@pytest.mark.parametrize(("agent", "owner"), [("dev", 1000), ("ops", 1001)])
def test_file_that_is_moved_and_edited_to_fit_is_told(folder: Path, agent: str, owner: int) -> None:
    store = KeyStore(folder)
    mine, theirs = add(store), add(store, agent, owner)
    fields = json.loads(file_of(folder, mine).read_bytes())
    stolen = fields | {"handle": theirs.handle, "agent": agent, "owner": owner}
    file_of(folder, theirs).write_text(json.dumps(stolen))
    with pytest.raises(errors.ToolError, match="it was changed"):
        store.get(agent, owner, theirs.handle)


def test_link_and_fifo_in_the_place_of_a_key_are_not_followed(folder: Path) -> None:
    store = KeyStore(folder)
    made, other = add(store), add(store)
    path = file_of(folder, made)
    path.unlink()
    path.symlink_to(file_of(folder, other))
    with pytest.raises(errors.ToolError, match="cannot be read"):
        store.get("ops", 1000, made.handle)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(errors.ToolError, match="cut"):
        store.get("ops", 1000, made.handle)


# -- wrapping keys --


def test_master_key_that_is_gone_is_never_made_anew(folder: Path) -> None:
    store = KeyStore(folder)
    made = add(store)
    (folder / "master.key").unlink()
    for use in (lambda: store.get("ops", 1000, made.handle), lambda: add(store)):
        with pytest.raises(
            errors.ToolError, match=r"master\.key of the key store cannot be used: it is gone"
        ):
            use()
    assert not (folder / "master.key").exists()


def test_another_or_a_cut_master_key_is_told(folder: Path) -> None:
    store = KeyStore(folder)
    made = add(store)
    (folder / "master.key").write_bytes(os.urandom(32))
    with pytest.raises(errors.ToolError, match="is another one now"):
        store.get("ops", 1000, made.handle)
    (folder / "master.key").write_bytes(b"short")
    with pytest.raises(errors.ToolError, match="has 5 bytes, and needs 32"):
        store.get("ops", 1000, made.handle)


def test_with_a_credential_the_folder_alone_is_not_enough(folder: Path, credential: Path) -> None:
    made = symmetric(KeyStore(folder, credential))
    assert not (folder / "master.key").exists()
    assert KeyStore(folder, credential).get("ops", 1000, made.handle).private == SECRET
    with pytest.raises(
        errors.ToolError, match=r"cannot be used: the credential lightagent-keys\.wrap is missing"
    ):
        KeyStore(folder).get("ops", 1000, made.handle)
    credential.write_bytes(b"d" * 40)
    with pytest.raises(errors.ToolError, match="credential that it was encrypted with is another one now"):
        KeyStore(folder, credential).get("ops", 1000, made.handle)


def test_without_its_credential_the_store_makes_no_key_with_less(folder: Path, credential: Path) -> None:
    add(KeyStore(folder, credential))
    with pytest.raises(errors.ToolError, match="No key is made: the credential"):
        add(KeyStore(folder))
    assert not (folder / "master.key").exists()


def test_keys_from_before_the_credential_still_work(folder: Path, credential: Path) -> None:
    before = symmetric(KeyStore(folder))
    after = symmetric(KeyStore(folder, credential))
    store = KeyStore(folder, credential)
    assert [one.wrapped for one in store.facts("ops", 1000)[0]].count(Source.FILE) == 1
    for made in (before, after):
        assert store.get("ops", 1000, made.handle).private == SECRET


def test_short_credential_is_refused(folder: Path, credential: Path) -> None:
    credential.write_bytes(b"password")
    with pytest.raises(errors.ToolError, match=r"\(credential\) has 8 bytes, and needs 32"):
        add(KeyStore(folder, credential))
    assert [path.name for path in folder.iterdir()] == ["lock"]


# -- making --


def test_number_of_keys_is_limited_for_each_owner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keystore, "KEYS_LIMIT", 3)
    store = KeyStore(folder)
    for agent in ("ops", "dev", "web"):
        add(store, agent)
    with pytest.raises(errors.LimitExceeded, match="has 3 keys already"):
        add(store, "another")
    assert add(store, owner=1001).owner == 1001


def test_keys_that_are_made_at_once_are_all_there(folder: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: add(KeyStore(folder)), range(40)))
    found, problems = KeyStore(folder).facts("ops", 1000)
    assert {one.handle for one in found} == {one.handle for one in made}
    assert (len(found), problems) == (40, [])


@pytest.mark.parametrize("after", [1, 2, 7, 20, 50])
def test_kill_in_the_middle_of_making_leaves_whole_keys(folder: Path, after: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE_FOR_EVER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = [process.stdout.readline().strip() for _ in range(after)]
    process.send_signal(signal.SIGKILL)
    told += process.stdout.read().split()
    process.stdout.close()
    process.wait()
    store = KeyStore(folder)
    found, problems = store.facts("ops", 1000)
    assert problems == []
    assert set(told) <= {one.handle for one in found}
    assert len(found) - len(told) in (0, 1), "one may be stored and not told"
    add(store)
    assert not list(folder.rglob(".new-*"))


def test_what_a_killed_process_left_is_removed_and_never_a_key(folder: Path) -> None:
    store = KeyStore(folder)
    made = add(store)
    stale = file_of(folder, made).with_name(".new-key_0123456789abcdef")
    stale.write_bytes(b"half")
    assert store.facts("ops", 1000) == ([made], [])
    add(store)
    assert not stale.exists()


def limited(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that can write no file of more than 100 bytes (setrlimit(2))."""
    prepare = (
        "import resource, signal, sys; from pathlib import Path;"
        "from lightagentd.toolkit.crypt.keystore import KeyStore;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); store = KeyStore(Path(sys.argv[1]));"
    )
    return subprocess.run(
        [sys.executable, "-c", prepare + code, str(folder)], capture_output=True, text=True, check=False
    )


def test_key_that_cannot_be_written_is_an_error_and_leaves_nothing(folder: Path) -> None:
    made = limited(folder, "store.add('ops', 1000, 'hmac-sha256', b'SECRET' * 6, '', '')")
    assert "ToolError: The key store cannot be written: File too large." in made.stderr
    assert "SECRETSECRET" not in made.stderr
    assert KeyStore(folder).facts("ops", 1000) == ([], [])
    assert not list(folder.rglob("*key_*"))


Use = Callable[[KeyStore], object]


@pytest.mark.parametrize("use", [add, lambda store: store.facts("ops", 1000)])
def test_store_that_is_not_there_is_an_error(tmp_path: Path, use: Use) -> None:
    with pytest.raises(errors.ToolError, match="cannot be used: No such file or directory"):
        use(KeyStore(tmp_path / "none"))
