"""Attacks with signatures: none, others', used, altered, and for something else than what was read."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from lightagentd.signed.grant import Grant

from .stage import STATE, WORKERS, Stage, attack, control, eventually, put, systemctl

KEY = Path("/var/lib/lightagent-approver/key")


def grant_of(statement: Any, **changes: Any) -> Grant:
    """A grant as the approver makes it, with a number that it never gave."""
    made = Grant(
        digest=statement.digest,
        agent=statement.agent,
        effect=statement.effect,
        owner=statement.owner,
        by=0,
        series="f" * 16,
        number=time.time_ns(),
        expires_us=time.time_ns() // 1000 + 300_000_000,
    )
    return replace(made, **changes)


def approvers_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(KEY.read_bytes())


def forged(text: str, key: Ed25519PrivateKey) -> dict[str, str]:
    """Some text with a right signature of a key."""
    signature = key.sign(b"lightagentd grant 1\0" + text.encode())
    return {"grant": text, "signature": base64.b64encode(signature).decode()}


@control("a command that a person approved, with its signature")
def signed(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    stage.run(wanted, stage.granted(wanted))


@control("a grant with the approver's real key, as the attacks below make theirs")
def really_signed(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    stage.run(wanted, grant_of(wanted).signed(approvers_key()))


@control("files, with the signature of a person")
def signed_file(stage: Stage, mark: Path) -> None:
    args = {
        "path": str(mark),
        "content": "x",
        "mode": "",
        "encoding": "utf-8",
        "expect_sha256": "",
        "parents": False,
    }
    wanted = stage.statement("file", "write", args)
    stage.run(wanted, stage.granted(wanted))


@attack("run a command without any signature")
def unsigned(stage: Stage, mark: Path) -> None:
    stage.run(stage.touch(mark))


@attack("say in the call that it was granted, with empty, false and nested signatures")
def empty_signature(stage: Stage, mark: Path) -> None:
    for one in (
        {"grant": "", "signature": ""},
        {"grant": True},
        {"granted": "yes"},
        {"grant": {"by": 0}},
        [1],
        "yes",
        7,
    ):
        stage.run(stage.touch(mark), signed=one)  # type: ignore[arg-type]


@attack("sign with a key of the attacker's own")
def own_key(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    stage.run(wanted, grant_of(wanted).signed(Ed25519PrivateKey.generate()))


@attack("sign with the key that signs the daemon's history")
def audit_key(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    for path in (*(STATE / "audit").glob("*"), STATE / "approvals.key", STATE / "redaction.key"):
        raw = path.read_bytes() if path.exists() else b""
        if len(raw) == 32:
            stage.run(wanted, grant_of(wanted).signed(Ed25519PrivateKey.from_private_bytes(raw)))


@attack("have the key store sign a grant, with a key of the agent's")
def key_store(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    text = grant_of(wanted).signed(Ed25519PrivateKey.generate())["grant"]
    made = _by_keys(stage, "generate_keypair", {"algorithm": "ed25519"})
    handle = re.search(r"key_[0-9a-z]+", str(made))
    if handle is None:
        raise LookupError(str(made))
    data = base64.b64encode(b"lightagentd grant 1\0" + text.encode()).decode()
    said = str(_by_keys(stage, "sign", {"handle": handle[0], "data": data}))
    for signature in re.findall(r"[A-Za-z0-9+/]{86}==", said):
        stage.run(wanted, {"grant": text, "signature": signature})
    if not re.search(r"[A-Za-z0-9+/]{86}==", said) and "ApprovalRequired" not in said:
        raise LookupError(said)


def _by_keys(stage: Stage, action: str, args: dict[str, Any]) -> Any:
    """What the key store does for the daemon."""
    call = stage.call(stage.statement("crypto", action, args)) | {"effect": "observe"}
    return stage.hear(
        stage.unit.varlink(
            path=f"{WORKERS}/keys.sock",
            method="org.lightagent1.Worker.Call",
            parameters={"call": call, "context": {}},
            more=True,
        )
    )


@attack("run an approver of its own, and use what that signs")
def own_approver(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    key = Ed25519PrivateKey.generate()
    folder = STATE / "own-approver"
    raw = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    stage.unit.write(path=str(folder / "public"), text=key.public_key().public_bytes_raw().decode("latin-1"))
    for env in ("LIGHTAGENT_APPROVER_DIR", "STATE_DIRECTORY", "CREDENTIALS_DIRECTORY"):
        stage.unit.run(argv=["true"], env={env: str(folder)})
    stage.run(wanted, grant_of(wanted).signed(Ed25519PrivateKey.from_private_bytes(raw)), keys=[str(folder)])
    stage.run(wanted, grant_of(wanted).signed(key))


@attack("use the signature of another call")
def another_call(stage: Stage, mark: Path) -> None:
    other = stage.command("true")
    grant = stage.granted(other)
    stage.run(stage.touch(mark), grant)
    stage.run(stage.touch(mark, call_id=other.call_id), grant)


@attack("use what was granted to another agent")
def another_agents(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark, agent="web")
    grant = stage.granted(wanted)
    stage.run(wanted, grant, worker="ops")
    stage.run(wanted, grant, worker="ops", agent="ops")


@attack("send an agent's granted call to another agent's worker")
def another_agents_worker(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    grant = stage.granted(wanted)
    stage.run(wanted, grant, worker="web")
    stage.run(wanted, grant, worker="web", agent="web")


@attack("name the agent as its members and look-alikes are named")
def names_of_members(stage: Stage, mark: Path) -> None:
    for name in ("ops.x", "ops/x", "ops\0", "ops ", "OPS", "\uff4fps", "..", ""):
        wanted = stage.touch(mark, agent=name)
        grant = stage.granted(wanted)
        stage.run(wanted, grant)
        stage.run(replace(wanted, agent="ops"), grant)
    wanted = stage.touch(mark, agent="ops.x")
    stage.run(wanted, grant_of(wanted, agent="ops").signed(Ed25519PrivateKey.generate()))


@attack("say of a granted call that it is another user's")
def another_owner(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark, owner=1000)
    stage.run(wanted, stage.granted(wanted), owner=0)


@attack("run a granted call twice, the second time on another connection")
def twice(stage: Stage, mark: Path) -> bool:
    wanted = stage.command(f"echo >> {mark}-twice")
    grant = stage.granted(wanted)
    for _ in range(3):
        stage.run(wanted, grant)
    return Path(f"{mark}-twice").read_text() != "\n"


@attack("run a granted call twenty times at the same moment")
def at_once(stage: Stage, mark: Path) -> bool:
    wanted = stage.command(f"echo >> {mark}-once")
    message = {"call": stage.call(wanted, stage.granted(wanted)), "context": {}}
    text = json.dumps({"method": "org.lightagent1.Worker.Call", "more": True, "parameters": message}) + "\0"
    stage.unit.at_once(path=f"{WORKERS}/change@ops.sock", texts=[text] * 20)
    return Path(f"{mark}-once").read_text() != "\n"


@attack("run it again after the worker has been told to end, and was killed")
def after_restarts(stage: Stage, mark: Path) -> bool:
    wanted = stage.command(f"echo >> {mark}-again")
    grant = stage.granted(wanted)
    stage.run(wanted, grant)
    stage.ask("Retire")
    stage.run(wanted, grant)
    systemctl("kill", "--signal=KILL", "lightagent-change@ops.service")
    eventually(lambda: systemctl("is-active", "lightagent-change@ops.service") != "active")
    stage.run(wanted, grant)
    return Path(f"{mark}-again").read_text() != "\n"


@attack("ask the approver for the signature again, and under other terms")
def signature_again(stage: Stage, mark: Path) -> bool:
    wanted = stage.command(f"echo >> {mark}-more")
    request = stage.register(wanted)
    stage.yes(request, wanted.digest)
    stage.run(wanted, stage.signature(request))
    stage.register(wanted, request)
    stage.run(wanted, stage.signature(request))
    stage.register(
        wanted.on_terms({"confirm_within_s": 5, "check": "", "inverse": f"echo >> {mark}-more"}), request
    )
    stage.run(wanted, stage.signature(request))
    return Path(f"{mark}-more").read_text() != "\n"


@attack("use a signature whose time is over")
def too_late(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    for ago_us in (1, 1_000_000, 10**12):
        end = time.time_ns() // 1000 - ago_us
        stage.run(wanted, grant_of(wanted, expires_us=end).signed(approvers_key()))


@attack("use a signature from another time, as after a clock was wrong")
def too_early(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    for end in (time.time_ns() // 1000 + 86_400_000_000, 1 << 62, 1 << 80, -(1 << 70)):
        stage.run(wanted, grant_of(wanted, expires_us=end).signed(approvers_key()))


def _changed(stage: Stage, mark: Path, **changes: Any) -> None:
    """A call that is not the granted one in one thing, which alone would make the mark."""
    approved = stage.touch(mark)
    stage.run(replace(approved, **changes), stage.granted(approved))


@attack("change the arguments of a granted call: the command, an added word, a character")
def other_arguments(stage: Stage, mark: Path) -> None:
    approved = stage.command("true")
    for command in (f"touch {mark}", f"true; touch {mark}", f"true\ntouch {mark}", f"true \0; touch {mark}"):
        stage.run(replace(approved, args={**approved.args, "command": command}), stage.granted(approved))
    less = {"command": f"touch {mark}"}
    stage.run(replace(approved, args=less), stage.granted(approved))


@attack("change the working directory of a granted call")
def other_folder(stage: Stage, mark: Path) -> None:
    approved = stage.command(f"touch {mark.name}")
    stage.run(replace(approved, args={**approved.args, "cwd": str(mark.parent)}), stage.granted(approved))


@attack("change the tool, the action, the trigger, the session, the id or the kit of a granted call")
def other_facts(stage: Stage, mark: Path) -> None:
    for name, value in {
        "tool": "bash.",
        "action": "exec ",
        "trigger": "schedule",
        "session": "ses_1",
        "call_id": "call_1",
        "kit": "/usr/share/lightagentd",
        "expected": {"x": 1},
        "confirm_within_s": 5,
        "check": "true",
        "inverse": "true",
    }.items():
        _changed(stage, mark, **{name: value})


@attack("have what reads be a change: an approval with the effect observe or reach, for change")
def other_effect(stage: Stage, mark: Path) -> None:
    for effect in ("observe", "reach", "", "CHANGE"):
        wanted = stage.touch(mark, effect=effect)
        stage.run(wanted, stage.granted(wanted))


@attack("call it observe at the worker for change, where nothing would have to be asked")
def as_observe(stage: Stage, mark: Path) -> None:
    stage.run(stage.touch(mark), effect="observe")
    stage.run(
        stage.command(f"touch {mark}", args={"command": f"touch {mark}", "effect": "observe"}),
        effect="observe",
    )
    stage.run(stage.touch(mark), effect="reach")


@attack("have a file changed under a granted call: the state that it rests on is another one")
def other_state(stage: Stage, mark: Path) -> bool:
    target = Path(f"{mark}-file")
    put(target, "before")
    args = {"path": str(target), "old": "b", "new": "x", "all": True}
    approved = stage.statement(
        "file", "edit", args, expected={"kind": "file", "sha256": "0" * 64, "mode": 0o644}
    )
    stage.run(approved, stage.granted(approved))
    stage.run(replace(approved, expected={}), stage.granted(approved))
    return target.read_text() != "before"


@attack("flip each bit of a grant and of its signature, one after the other")
def bits(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    whole = grant_of(wanted, expires_us=time.time_ns() // 1000 - 1).signed(approvers_key())
    text = whole["grant"].encode()
    for at in range(0, len(text), 3):
        other = bytes([*text[:at], text[at] ^ (1 << (at % 7)), *text[at + 1 :]]).decode("latin-1")
        stage.run(wanted, {**whole, "grant": other})
    raw = base64.b64decode(whole["signature"])
    for at in range(0, len(raw), 4):
        other_raw = bytes([*raw[:at], raw[at] ^ 1, *raw[at + 1 :]])
        stage.run(wanted, {**whole, "signature": base64.b64encode(other_raw).decode()})


@attack("change the number, the end, the digest and the owner of a used grant")
def other_numbers(stage: Stage, mark: Path) -> bool:
    wanted = stage.command(f"echo >> {mark}-number")
    whole = stage.granted(wanted)
    stage.run(wanted, whole)
    grant = json.loads(whole["grant"])
    for name, value in {"number": grant["number"] + 1, "series": "0" * 16, "expires_us": 1 << 60}.items():
        altered = json.dumps({**grant, name: value}, sort_keys=True, separators=(",", ":"))
        stage.run(wanted, {**whole, "grant": altered})
    stage.run(wanted, {**whole, "grant": whole["grant"] + " "})
    stage.run(wanted, {**whole, "signature": whole["signature"] + "\n"})
    stage.run(wanted, {**whole, "signature": whole["signature"].rstrip("=")})
    return Path(f"{mark}-number").read_text() != "\n"


@attack(
    "sign what is no grant, with the real key: other types, huge numbers, NaN, duplicate and missing keys"
)
def odd_grants(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    plain = asdict(grant_of(wanted))
    texts = [json.dumps({**plain, "expires_us": value}) for value in (float("nan"), 1e300, "9", True, None)]
    texts += [json.dumps({**plain, "number": value}) for value in (1.5, "1", [1], True)]
    texts += [json.dumps({name: one for name, one in plain.items() if name != left}) for left in plain]
    texts += [
        json.dumps({**plain, "digest": "0" * 64})[:-1] + f', "digest": "{"0" * 63}"}}',
        "[]",
        "null",
        "{" * 900,
    ]
    texts += [json.dumps({**plain, "number": 0})[:-1] + ', "number": ' + "9" * 1900 + "}"]
    for text in texts:
        stage.run(wanted, forged(text, approvers_key()))


@attack("have arguments that are written the same: composed letters, look-alikes, NUL, other numbers")
def alike(stage: Stage, mark: Path) -> None:
    pairs = (
        ("\u00e9", "e\u0301"),
        ("\u0430", "a"),
        ("\u212b", "\u00c5"),
        ("x", "x\u200b"),
        ("x", "x\0"),
        ("ﬁ", "fi"),
    )
    for shown, ran in pairs:
        approved = stage.command(f"touch {mark}{shown}")
        stage.run(
            replace(approved, args={**approved.args, "command": f"touch {mark}{ran}; touch {mark}"}),
            stage.granted(approved),
        )
        other = {**approved.args, "command": f"touch {mark}{ran}"}
        stage.run(replace(approved, args=other), stage.granted(approved))
    if any(mark.parent.glob(f"{mark.name}*")):
        mark.touch()
    approved = stage.command("sleep 0", args={**stage.command("x").args, "timeout_s": 1})
    for other_s in (1.0000000001, True, "1"):
        stage.run(
            stage.touch(mark, args={**approved.args, "timeout_s": other_s, "command": f"touch {mark}"}),
            stage.granted(approved),
        )


@attack("say a key of the message twice: once as approved, once as it is to run")
def twice_in_json(stage: Stage, mark: Path) -> None:
    approved = stage.command("true")
    call = json.dumps(stage.call(approved, stage.granted(approved)))
    doubled = call[:-1] + f', "args": {{"command": "touch {mark}", "cwd": "/", "effect": "change"}}}}'
    reversed_ = '{"args": {"command": "touch ' + str(mark) + '", "cwd": "/", "effect": "change"}, ' + call[1:]
    for text in (doubled, reversed_):
        whole = (
            '{"method": "org.lightagent1.Worker.Call", "more": true, "parameters": {"context": {}, "call": '
            + text
            + "}}\0"
        )
        stage.hear(stage.unit.send(path=f"{WORKERS}/change@ops.sock", text=whole))


@attack("bring back an older state of the daemon, and use its signatures again")
def daemons_restore(stage: Stage, mark: Path) -> bool:
    wanted = stage.command(f"echo >> {mark}-restored")
    grant = stage.granted(wanted)
    subprocess.run(["tar", "-C", str(STATE), "-cf", "/var/tmp/state.tar", "."], check=True)
    stage.run(wanted, grant)
    subprocess.run(["tar", "-C", str(STATE), "-xf", "/var/tmp/state.tar"], check=True)
    stage.ask("Retire")
    stage.run(wanted, grant)
    Path("/var/tmp/state.tar").unlink()
    return Path(f"{mark}-restored").read_text() != "\n"


@attack("use up a number again after an administrator brought back an older state of the approver")
def approvers_restore(stage: Stage, mark: Path) -> bool:
    folder = KEY.parent
    wanted = stage.command(f"echo >> {mark}-numbers")
    request = stage.register(wanted)
    shutil.copytree(folder, "/var/tmp/approver")
    stage.yes(request, wanted.digest)
    stage.run(wanted, stage.signature(request))
    systemctl("stop", "lightagent-approver.service")
    subprocess.run(["cp", "-a", "/var/tmp/approver/requests", str(folder / "requests")], check=True)
    subprocess.run(["chown", "lightagent-approver:", str(folder / "requests")], check=True)
    systemctl("start", "lightagent-approver.service")
    stage.yes(request, wanted.digest)
    stage.run(wanted, stage.signature(request))
    shutil.rmtree("/var/tmp/approver")
    return Path(f"{mark}-numbers").read_text() != "\n"


@attack("use a signature after its tool's file was replaced by another version")
def other_tool_file(stage: Stage, mark: Path) -> None:
    path = Path("/etc/lightagentd/tools/attacked.py")
    text = (
        "from lightagentd.tool import Args, Context, Effect, Result, Tool, action\nimport os\n\n\n"
        'class Attacked(Tool):\n    """Is attacked."""\n\n    name = "attacked"\n\n'
        "    @action(effect=Effect.CHANGE)\n    async def go(self, ctx: Context, args: Args) -> Result:\n"
        '        """Go."""\n        os.system(COMMAND)\n        return Result(output="done")\n'
    )
    put(path, text + 'COMMAND = "true"\n')
    stage.ask("Retire")
    approved = stage.statement(
        "attacked", "go", {}, tool_sha256=hashlib.sha256(path.read_bytes()).hexdigest()
    )
    grants = [stage.granted(approved) for _ in range(2)]
    stage.run(approved, grants[0])
    put(path, text + f'COMMAND = "touch {mark}"\n')
    stage.run(approved, grants[1])
    stage.ask("Retire")
    stage.run(approved, grants[1])
    path.unlink()
    stage.ask("Retire")


@attack("use a signature of the approver's key before an administrator made a new one")
def old_key(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    grant = stage.granted(wanted)
    systemctl("stop", "lightagent-approver.service")
    KEY.unlink()
    systemctl("start", "lightagent-approver.service")
    stage.run(wanted, grant)
