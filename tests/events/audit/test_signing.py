"""The key that signs the history: where it comes from, and what openssl(1) says to what it signs."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lightagentd.errors import ConfigError, InvalidArgument, StorageError
from lightagentd.events.audit import signing
from lightagentd.events.audit.signing import (
    checkpoint_text,
    parsed_public,
    public_pem,
    signed_by,
    signing_key,
)

HASH = "9f" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that systemd names to a service with credentials."""
    found = tmp_path / "credentials"
    found.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(found))
    return found


def pem_of(private: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def test_a_key_is_made_once_and_for_the_owner_alone(folder: Path) -> None:
    made = signing_key(folder)
    again = signing_key(folder)
    assert (made.made, again.made) == (True, False)
    assert made.public == again.public
    assert (folder.stat().st_mode & 0o777, (folder / "key.pem").stat().st_mode & 0o777) == (0o700, 0o600)
    assert parsed_public((folder / "public.pem").read_bytes(), "it") == made.public
    assert sorted(path.name for path in folder.iterdir()) == ["key.pem", "public.pem"]


@pytest.mark.parametrize("name", signing.CREDENTIALS)
@pytest.mark.parametrize("form", ["raw", "pem"])
def test_the_credential_goes_before_the_folder(folder: Path, credentials: Path, name: str, form: str) -> None:
    in_folder = signing_key(folder)
    private = Ed25519PrivateKey.generate()
    (credentials / name).write_bytes(private.private_bytes_raw() if form == "raw" else pem_of(private))
    found = signing_key(folder)
    assert found.public == private.public_key().public_bytes_raw() != in_folder.public
    assert found.source == str(credentials / name)
    assert parsed_public((folder / "public.pem").read_bytes(), "it") == found.public


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 31, b"x" * 33, b"not a key", pem_of(ec.generate_private_key(ec.SECP256R1()))],
    ids=["empty", "short", "long", "text", "another-kind"],
)
def test_a_credential_that_is_no_key_is_an_error_and_replaced_by_none(
    folder: Path, credentials: Path, content: bytes
) -> None:
    (credentials / "audit-key").write_bytes(content)
    with pytest.raises(ConfigError, match="holds no Ed25519 key"):
        signing_key(folder)
    assert not (folder / "key.pem").exists()


def test_two_credentials_are_an_error(folder: Path, credentials: Path) -> None:
    for name in signing.CREDENTIALS:
        (credentials / name).write_bytes(os.urandom(32))
    with pytest.raises(ConfigError, match="two credentials"):
        signing_key(folder)


def test_a_broken_key_in_the_folder_is_an_error_and_stays(folder: Path) -> None:
    signing_key(folder)
    (folder / "key.pem").write_bytes(b"broken")
    with pytest.raises(ConfigError, match=r"key\.pem holds no Ed25519 key"):
        signing_key(folder)
    assert (folder / "key.pem").read_bytes() == b"broken"


def test_a_key_that_others_can_read_is_refused(folder: Path) -> None:
    signing_key(folder)
    (folder / "key.pem").chmod(0o640)
    with pytest.raises(ConfigError, match="mode 0600"):
        signing_key(folder)


def test_a_link_in_the_place_of_the_key_is_not_followed(folder: Path, tmp_path: Path) -> None:
    signing_key(folder)
    (folder / "key.pem").rename(tmp_path / "elsewhere")
    (folder / "key.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot be read or made"):
        signing_key(folder)


def test_a_signature_is_of_that_number_and_hash_alone(folder: Path) -> None:
    key = signing_key(folder)
    signature = key.sign(512, HASH)
    assert signed_by(key.public, 512, HASH, signature)
    assert not signed_by(key.public, 513, HASH, signature)
    assert not signed_by(key.public, 512, "9e" + HASH[2:], signature)
    other = bytes([*base64.b64decode(signature)[:-1], 0xFF])  # a signature's last byte is at most 16
    for wrong in ("", "x", base64.b64encode(other).decode(), base64.b64encode(bytes(64)).decode()):
        assert not signed_by(key.public, 512, HASH, wrong)
    assert not signed_by(b"short", 512, HASH, signature)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_openssl_verifies_a_checkpoint_as_the_manual_says(folder: Path, tmp_path: Path) -> None:
    key = signing_key(folder)
    (tmp_path / "text").write_bytes(f"lightagentd checkpoint 1\n512\n{HASH}\n".encode())
    assert (tmp_path / "text").read_bytes() == checkpoint_text(512, HASH)
    (tmp_path / "signature").write_bytes(base64.b64decode(key.sign(512, HASH)))
    (tmp_path / "key.pem").write_text(public_pem(key.public))
    argv = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "key.pem", "-rawin", "-in", "text"]
    done = subprocess.run(
        [*argv, "-sigfile", "signature"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Signature Verified Successfully" in done.stdout) == (0, True), done


def test_a_public_key_is_read_in_each_form(folder: Path) -> None:
    key = signing_key(folder)
    for content in (key.public, key.public_text.encode() + b"\n", public_pem(key.public).encode()):
        assert parsed_public(content, "it") == key.public
    for content in (b"", b"AAAA", pem_of(Ed25519PrivateKey.generate()), b"-----BEGIN PUBLIC KEY-----\nx\n"):
        with pytest.raises(InvalidArgument, match="no public key"):
            parsed_public(content, "it")
