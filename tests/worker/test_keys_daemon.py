"""Private keys with a whole daemon and lactl: they outlive it, and none of its files has one in the clear."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

from lightagentd.toolkit.crypt.keystore import KeyStore
from tests.conftest import DaemonProcess

INLINE = "correct-horse-battery-staple"


def call(daemon: DaemonProcess, action: str, **args: Any) -> dict[str, Any]:
    """The result of an action of crypto, called by the user that runs the tests."""
    done = daemon.lactl("tools", "call", "ops", f"crypto.{action}", "--args", json.dumps(args), "--json")
    results = [event for event in map(json.loads, done.stdout.splitlines()) if event["type"] == "tool_result"]
    assert results, done.stdout + done.stderr
    found: dict[str, Any] = results[0]
    assert found["result"] == "ok", found
    metadata: dict[str, Any] = found["metadata"]
    return metadata


def test_keys_outlive_a_killed_daemon_and_stay_where_they_are(daemon_process: DaemonProcess) -> None:
    daemon_process.start()
    handles = [
        call(daemon_process, "generate_key", label="backup")["handle"],
        call(daemon_process, "generate_keypair", algorithm="ed25519")["handle"],
    ]
    before = [call(daemon_process, "sign", handle=handle, text="x") for handle in handles]
    call(daemon_process, "hmac", key=INLINE, text="x")
    daemon_process.kill()
    daemon_process.start()
    after = [call(daemon_process, "sign", handle=handle, text="x") for handle in handles]
    assert after == before
    for handle, signed in zip(handles, before, strict=True):
        assert call(daemon_process, "verify_with_key", handle=handle, text="x", signature=signed["hex"])[
            "valid"
        ]
    assert {key["handle"] for key in call(daemon_process, "list_keys")["keys"]} == set(handles)
    daemon_process.stop()

    store = KeyStore(daemon_process.paths.keys)
    private = [store.get("ops", os.geteuid(), handle).private[-32:] for handle in handles]
    base = daemon_process.paths.state.parent
    files = [path for path in base.rglob("*") if path.is_file()]
    assert daemon_process.log in files
    whole = b"\n".join(path.read_bytes() for path in files)
    for secret in (*private, INLINE.encode()):
        for form in (secret, secret.hex().encode(), base64.b64encode(secret)):
            assert form not in whole
    assert before[0]["hex"].encode() in whole, "what was asked and answered is in the history"
    assert closed(daemon_process.paths.keys)


def closed(folder: Path) -> bool:
    return not any(stat.S_IMODE(path.lstat().st_mode) & 0o077 for path in (folder, *folder.rglob("*")))
