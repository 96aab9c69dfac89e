"""The actions of the tool crypto for private keys, checked against the program openssl and the library."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from pydantic import ValidationError

from lightagentd import errors
from lightagentd.tool import Effect, Place
from lightagentd.toolkit.crypt.keystore import KeyStore
from tests.tools.conftest import Call, CallContext, Load

pytestmark = pytest.mark.usefixtures("nothing_left")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
PAIRS = ("ed25519", "ecdsa-p256")
MESSAGE = b"Gr\xc3\xbc\xc3\x9fe\n"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyStore:
    """What the worker of the place KEYS is started with."""
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("LIGHTAGENT_KEYS", str(folder))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    return KeyStore(folder)


async def pair(call: Call, algorithm: str, **more: Any) -> dict[str, Any]:
    return (await call("crypto", "generate_keypair", algorithm=algorithm, **more)).metadata


def openssl(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["openssl", *argv], cwd=cwd, capture_output=True, text=True, check=False)


# -- pairs --


@pytest.mark.parametrize("algorithm", PAIRS)
async def test_pair_is_a_handle_and_a_public_key(call: Call, store: KeyStore, algorithm: str) -> None:
    result = await call("crypto", "generate_keypair", algorithm=algorithm, label="web.example")
    made = result.metadata
    assert (made["kind"], made["label"]) == (algorithm, "web.example")
    assert made["handle"] in result.output
    key = serialization.load_pem_public_key(made["public_key"].encode())
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert made["fingerprint"] == hashlib.sha256(der).hexdigest()
    private = serialization.load_der_private_key(store.get("ops", 1000, made["handle"]).private, None)
    assert isinstance(private, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey)
    assert private.public_key() == key
    assert "PRIVATE" not in f"{result.output}{made}"


@pytest.mark.parametrize("given", [{"text": MESSAGE.decode()}, {"data": base64.b64encode(MESSAGE).decode()}])
async def test_ed25519_signs_the_message_itself(call: Call, given: dict[str, str]) -> None:
    made = await pair(call, "ed25519")
    signed = await call("crypto", "sign", handle=made["handle"], **given)
    signature = base64.b64decode(signed.metadata["base64"])
    assert signed.output.split()[0] == signed.metadata["base64"]
    assert signature.hex() == signed.metadata["hex"]
    assert len(signature) == 64
    key = serialization.load_pem_public_key(made["public_key"].encode())
    assert isinstance(key, ed25519.Ed25519PublicKey)
    key.verify(signature, MESSAGE)
    with pytest.raises(InvalidSignature):
        key.verify(signature, MESSAGE + b"x")


async def test_ecdsa_signs_the_sha256_as_der(call: Call) -> None:
    made = await pair(call, "ecdsa-p256")
    key = serialization.load_pem_public_key(made["public_key"].encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    digest = hashlib.sha256(MESSAGE).digest()
    for given in (
        {"text": MESSAGE.decode()},
        {"digest": digest.hex()},
        {"digest": base64.b64encode(digest).decode()},
    ):
        signed = await call("crypto", "sign", handle=made["handle"], **given)
        signature = bytes.fromhex(signed.metadata["hex"])
        decode_dss_signature(signature)
        key.verify(signature, MESSAGE, ec.ECDSA(hashes.SHA256()))


@needs_openssl
@pytest.mark.parametrize("algorithm", PAIRS)
async def test_openssl_verifies_what_was_signed(call: Call, tmp_path: Path, algorithm: str) -> None:
    made = await pair(call, algorithm)
    signed = await call("crypto", "sign", handle=made["handle"], text=MESSAGE.decode())
    (tmp_path / "key").write_text(made["public_key"])
    (tmp_path / "signature").write_bytes(bytes.fromhex(signed.metadata["hex"]))
    argv = ["pkeyutl", "-verify", "-pubin", "-inkey", "key", "-rawin", "-in", "message"]
    argv += ["-sigfile", "signature", *(["-digest", "sha256"] if algorithm == "ecdsa-p256" else [])]
    for message, verdict in ((MESSAGE, "Signature Verified Successfully"), (b"other", "Failure")):
        (tmp_path / "message").write_bytes(message)
        done = openssl(*argv, cwd=tmp_path)
        assert verdict in done.stdout + done.stderr


@needs_openssl
@pytest.mark.parametrize("algorithm", PAIRS)
async def test_what_openssl_signed_is_verified_with_its_public_key(
    call: Call, tmp_path: Path, algorithm: str
) -> None:
    (tmp_path / "message").write_bytes(MESSAGE)
    made = ["-algorithm", "ed25519"] if algorithm == "ed25519" else ["-algorithm", "EC"]
    made += [] if algorithm == "ed25519" else ["-pkeyopt", "ec_paramgen_curve:P-256"]
    digest = [] if algorithm == "ed25519" else ["-digest", "sha256"]
    assert openssl("genpkey", *made, "-out", "key", cwd=tmp_path).returncode == 0
    assert openssl("pkey", "-in", "key", "-pubout", "-out", "public", cwd=tmp_path).returncode == 0
    argv = ["pkeyutl", "-sign", "-inkey", "key", "-rawin", "-in", "message", "-out", "signature", *digest]
    assert openssl(*argv, cwd=tmp_path).returncode == 0
    signature = base64.b64encode((tmp_path / "signature").read_bytes()).decode()
    given = {"public_key_path": f"{tmp_path}/public", "signature": signature}
    for text, valid in ((MESSAGE.decode(), True), ("other", False)):
        assert (await call("crypto", "verify", text=text, **given)).metadata["valid"] is valid


@pytest.mark.parametrize("algorithm", PAIRS)
async def test_signature_is_verified_by_handle_and_by_public_key(call: Call, algorithm: str) -> None:
    made, other = await pair(call, algorithm), await pair(call, algorithm)
    signed = (await call("crypto", "sign", handle=made["handle"], text="message")).metadata
    for signature in (signed["base64"], signed["hex"]):
        for handle, text, valid in (
            (made["handle"], "message", True),
            (made["handle"], "Message", False),
            (other["handle"], "message", False),
        ):
            found = await call("crypto", "verify_with_key", handle=handle, text=text, signature=signature)
            assert found.metadata["valid"] is valid
            assert ("NOT valid" in found.output) is not valid
    pem = (await call("crypto", "public_key", handle=made["handle"])).output
    assert (await call("crypto", "verify", text="message", public_key=pem, signature=signed["hex"])).metadata[
        "valid"
    ]


async def test_file_is_signed_by_its_digest(call: Call, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(100_000))
    made = await pair(call, "ecdsa-p256")
    digest = (await call("crypto", "sha256", path=f"{tmp_path}/f")).metadata["hex"]
    signed = (await call("crypto", "sign", handle=made["handle"], digest=digest)).metadata
    given = {"public_key": made["public_key"], "signature": signed["base64"]}
    assert (await call("crypto", "verify", path=f"{tmp_path}/f", **given)).metadata["valid"]
    given = {"handle": made["handle"], "digest": digest, "signature": signed["base64"]}
    assert (await call("crypto", "verify_with_key", **given)).metadata["valid"]


@pytest.mark.parametrize("signature", ["00", "00" * 64, "00" * 72])
@pytest.mark.parametrize("algorithm", PAIRS)
async def test_no_signature_at_all_is_not_valid(call: Call, algorithm: str, signature: str) -> None:
    made = await pair(call, algorithm)
    found = await call("crypto", "verify_with_key", handle=made["handle"], text="x", signature=signature)
    assert not found.metadata["valid"]


# -- symmetric keys --


async def test_symmetric_key_makes_the_hmac_of_rfc_2104(call: Call, store: KeyStore) -> None:
    made = await call("crypto", "generate_key", size_bytes=48)
    handle = made.metadata["handle"]
    assert made.metadata["public_key"] == made.metadata["fingerprint"] == ""
    private = store.get("ops", 1000, handle).private
    assert len(private) == 48
    signed = (await call("crypto", "sign", handle=handle, text="msg")).metadata
    assert signed["algorithm"] == "hmac-sha256"
    assert signed["hex"] == hmac.digest(private, b"msg", "sha256").hex()
    assert private.hex() not in f"{made.output}{made.metadata}{signed}"


async def test_hmac_is_verified_by_handle_and_the_right_one_is_not_told(call: Call) -> None:
    handle = (await call("crypto", "generate_key")).metadata["handle"]
    right = (await call("crypto", "sign", handle=handle, text="msg")).metadata["hex"]
    good = await call("crypto", "verify_with_key", handle=handle, text="msg", signature=right)
    bad = await call("crypto", "verify_with_key", handle=handle, text="msg", signature="00" * 32)
    assert (good.metadata["valid"], bad.metadata["valid"]) == (True, False)
    assert right not in f"{bad.output}{bad.metadata}"


async def test_symmetric_key_has_no_public_part(call: Call) -> None:
    handle = (await call("crypto", "generate_key")).metadata["handle"]
    with pytest.raises(errors.InvalidArgument, match="no public part"):
        await call("crypto", "public_key", handle=handle)


@pytest.mark.parametrize("size", [0, 15, 65, 1 << 40])
async def test_size_of_a_symmetric_key_is_bounded(call: Call, size: int) -> None:
    with pytest.raises(ValidationError):
        await call("crypto", "generate_key", size_bytes=size)


# -- what is asked for --


@pytest.mark.parametrize("kind", ["ed25519", "hmac-sha256"])
async def test_digest_is_for_ecdsa_only(call: Call, kind: str) -> None:
    made = await (
        call("crypto", "generate_key") if kind == "hmac-sha256" else call("crypto", "generate_keypair")
    )
    with pytest.raises(errors.InvalidArgument, match="works on the data, not on a digest") as caught:
        await call("crypto", "sign", handle=made.metadata["handle"], digest="00" * 32)
    assert caught.value.field == "digest"


async def test_digest_of_another_length_is_refused(call: Call) -> None:
    made = await pair(call, "ecdsa-p256")
    with pytest.raises(errors.InvalidArgument, match="has 20 bytes, and SHA-256 makes 32"):
        await call("crypto", "sign", handle=made["handle"], digest="00" * 20)


@pytest.mark.parametrize("given", [{}, {"text": "a", "data": "YQ=="}, {"text": "a", "digest": "00" * 32}])
async def test_exactly_one_thing_is_signed(call: Call, given: dict[str, str]) -> None:
    made = await pair(call, "ecdsa-p256")
    with pytest.raises(errors.InvalidArgument, match="exactly one of text, data, digest"):
        await call("crypto", "sign", handle=made["handle"], **given)


@pytest.mark.parametrize("path", ["path", "key_path", "public_key_path"])
async def test_files_cannot_be_named(call: Call, path: str) -> None:
    made = await pair(call, "ed25519")
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        await call("crypto", "sign", handle=made["handle"], text="x", **{path: "/etc/hostname"})


@pytest.mark.parametrize("label", ["a b", "a\nb", "\x1b[31m", "x" * 41, "ü", "a\n"])
async def test_label_is_one_plain_word(call: Call, label: str) -> None:
    with pytest.raises(ValidationError):
        await call("crypto", "generate_key", label=label)


async def test_keys_are_listed_with_what_may_be_told(call: Call) -> None:
    assert (await call("crypto", "list_keys")).output == "There is no key."
    made = await pair(call, "ed25519", label="web")
    key = (await call("crypto", "generate_key", label="backup")).metadata
    listed = await call("crypto", "list_keys")
    assert {each["handle"]: each for each in listed.metadata["keys"]} == {
        made["handle"]: made,
        key["handle"]: key,
    }
    assert made["fingerprint"] in listed.output
    assert "backup" in listed.output
    assert listed.metadata["total"] == 2


async def test_damaged_key_is_listed_as_a_warning_beside_the_others(call: Call, store: KeyStore) -> None:
    made, broken = await pair(call, "ed25519"), await pair(call, "ed25519")
    (path,) = Path(os.environ["LIGHTAGENT_KEYS"]).rglob(broken["handle"])
    path.write_bytes(b"")
    listed = await call("crypto", "list_keys")
    assert [each["handle"] for each in listed.metadata["keys"]] == [made["handle"]]
    assert listed.metadata["damaged"] == 1
    assert f"Warning: The file keys/1000/ops/{broken['handle']}" in listed.output
    with pytest.raises(errors.ToolError, match="cut"):
        await call("crypto", "sign", handle=broken["handle"], text="x")


async def test_call_for_another_user_or_agent_finds_nothing(call: Call, context: CallContext) -> None:
    made = await pair(call, "ed25519")
    for agent, owner in (("dev", 1000), ("ops", 0)):
        context.agent, context.owner = agent, owner
        with pytest.raises(errors.NotFound, match="There is no key"):
            await call("crypto", "sign", handle=made["handle"], text="x")
        assert (await call("crypto", "list_keys")).metadata["total"] == 0


async def test_worker_without_a_store_says_so(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTAGENT_KEYS")
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    with pytest.raises(errors.ToolError, match="no key store"):
        await call("crypto", "generate_key")


def test_what_needs_private_keys_is_declared_for_their_place(load: Load) -> None:
    actions = load("crypto").actions
    found = {name for name, each in actions.items() if each.place is Place.KEYS}
    assert found == {
        *("generate_key", "generate_keypair", "list_keys"),
        *("public_key", "sign", "verify_with_key"),
    }
    assert {actions[name].effect for name in found} == {Effect.OBSERVE}


# -- secrets in arguments --


def test_inline_keys_are_marked_as_never_to_be_shown(load: Load) -> None:
    schema = load("crypto").actions["hmac"].args_model.model_json_schema()
    marked = {name for name, each in schema["properties"].items() if each.get("writeOnly")}
    assert marked == {"key", "key_base64"}


def test_checked_arguments_still_hold_the_key(load: Load) -> None:
    model = load("crypto").actions["hmac"].args_model
    checked = model.model_validate({"key": "correct-horse", "text": "x"})
    assert checked.model_dump(mode="json")["key"] == "correct-horse"
    assert "correct-horse" not in repr(checked)


def test_wrong_argument_beside_a_key_does_not_show_it(load: Load) -> None:
    model = load("crypto").actions["hmac"].args_model
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"key": ["correct-horse"], "text": "x"})
    assert "correct-horse" not in str(caught.value)


# -- encodings --


RFC_4648 = {
    "base64": ("", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"),
    "base64url": ("", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"),
    "base32": ("", "MY======", "MZXQ====", "MZXW6===", "MZXW6YQ=", "MZXW6YTB", "MZXW6YTBOI======"),
    "base16": ("", "66", "666f", "666f6f", "666f6f62", "666f6f6261", "666f6f626172"),
}
"""Section 10: of "", "f", "fo" ... "foobar". This tool writes base16 in small letters, and reads both."""


@pytest.mark.parametrize("encoding", RFC_4648)
async def test_encodings_have_the_vectors_of_rfc_4648_for_text_and_bytes(call: Call, encoding: str) -> None:
    for size, right in enumerate(RFC_4648[encoding]):
        text = "foobar"[:size]
        given = base64.b64encode(text.encode()).decode()
        assert (await call("crypto", "encode", encoding=encoding, text=text)).output == right
        assert (await call("crypto", "encode", encoding=encoding, data=given)).output == right
        decoded = await call("crypto", "decode", encoding=encoding, text=right)
        assert (decoded.output, decoded.metadata["base64"]) == (text, given)


async def test_base64url_has_its_own_alphabet_and_base16_is_read_in_capitals(call: Call) -> None:
    data = bytes(range(256))
    given = base64.b64encode(data).decode()
    for encoding, right in (
        ("base64", given),
        ("base64url", base64.urlsafe_b64encode(data).decode()),
        ("base32", base64.b32encode(data).decode()),
        ("base16", base64.b16encode(data).decode().lower()),
    ):
        assert (await call("crypto", "encode", encoding=encoding, data=given)).output == right
        assert (await call("crypto", "decode", encoding=encoding, text=right)).metadata["base64"] == given
    capitals = base64.b16encode(data).decode()
    assert (await call("crypto", "decode", encoding="base16", text=capitals)).metadata["base64"] == given
