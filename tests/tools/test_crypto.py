"""The tool crypto with real keys, certificates, files and TLS servers on loopback; known answers of RFCs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import hashlib
import hmac
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import ValidationError

from lightagentd import errors
from lightagentd.tool import Effect
from tests.tools.conftest import Call, Load, is_root, open_descriptors

pytestmark = pytest.mark.usefixtures("nothing_left")
DAY = datetime.timedelta(days=1)
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SECRET = "correct-horse-battery"


def pem_of(key: Any) -> str:
    """The public key as PEM."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    text: bytes = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    return text.decode()


def private_pem(key: Any) -> str:
    text: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return text.decode()


@dataclass
class Issued:
    """A certificate with its key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        return self.cert.public_bytes(serialization.Encoding.PEM).decode()


def issue(name: str, issuer: Issued | None = None, *, start_days: int = -1, end_days: int = 30) -> Issued:
    """A CA when nobody issues it, else a server certificate for localhost and 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = issuer.key if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.cert.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start_days * DAY)
        .not_valid_after(now + end_days * DAY + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    usage = dict.fromkeys(
        ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement"], False
    ) | {"encipher_only": False, "decipher_only": False, "digital_signature": True}
    usage |= {"key_cert_sign": issuer is None, "crl_sign": issuer is None}
    builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    if issuer:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return Issued(builder.sign(signer, hashes.SHA256()), key)


# -- digests --


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("sha256", "sha256"),
        ("sha512", "sha512"),
        ("sha3-256", "sha3_256"),
        ("blake2b", "blake2b"),
        ("md5", "md5"),
        ("sha1", "sha1"),
    ],
)
async def test_text_bytes_and_files_have_the_same_digest(
    call: Call, tmp_path: Path, algorithm: str, name: str
) -> None:
    content = "Grüße\n".encode()
    (tmp_path / "f").write_bytes(content)
    inputs = ({"text": "Grüße\n"}, {"data": base64.b64encode(content).decode()}, {"path": f"{tmp_path}/f"})
    results = [await call("crypto", "sha256", algorithm=algorithm, **given) for given in inputs]
    assert {found.metadata["hex"] for found in results} == {hashlib.new(name, content).hexdigest()}
    assert {found.metadata["size_bytes"] for found in results} == {len(content)}


async def test_digest_is_sha256_by_default_and_of_nothing_too(call: Call) -> None:
    result = await call("crypto", "sha256", text="")
    assert result.output == f"{hashlib.sha256(b'').hexdigest()}  sha256 of 0 bytes"


async def test_a_file_larger_than_any_piece_is_read_whole(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(17 * 1024 * 1024)
        file.write(b"end")
    result = await call("crypto", "sha256", path=str(path))
    assert result.metadata["hex"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert result.metadata["size_bytes"] == 17 * 1024 * 1024


async def test_weak_algorithms_are_said_to_be_weak(call: Call) -> None:
    for algorithm in ("md5", "sha1"):
        result = await call("crypto", "sha256", text="x", algorithm=algorithm)
        assert f"{algorithm} is weak" in result.output
        assert result.metadata["weak"]
    assert "weak" not in (await call("crypto", "sha256", text="x")).output


async def test_digest_is_compared_in_hexadecimal_and_base64(call: Call) -> None:
    right = hashlib.sha256(b"x")
    for expected in (right.hexdigest().upper(), base64.b64encode(right.digest()).decode()):
        assert (await call("crypto", "sha256", text="x", expected=expected)).metadata["matches"]
    other = await call("crypto", "sha256", text="y", expected=right.hexdigest())
    assert not other.metadata["matches"]
    assert "does NOT match" in other.output


async def test_expected_value_of_another_length_is_refused(call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="has 16 bytes, and sha256 makes 32") as caught:
        await call("crypto", "sha256", text="x", expected="00" * 16)
    assert caught.value.field == "expected"


@pytest.mark.parametrize("given", [{}, {"text": "a", "data": "YQ=="}, {"text": "", "path": "/etc/hostname"}])
async def test_exactly_one_input_is_needed(call: Call, given: dict[str, str]) -> None:
    with pytest.raises(errors.InvalidArgument, match="exactly one of text, data, path"):
        await call("crypto", "sha256", **given)


async def test_text_above_16_mib_is_refused(call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="more than 16777216"):
        await call("crypto", "sha256", text="x" * (16 * 1024 * 1024 + 1))


async def test_what_is_no_regular_file_is_never_opened(call: Call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, kind in ((tmp_path / "fifo", "fifo"), (tmp_path, "folder"), ("/dev/zero", "character device")):
        with pytest.raises(errors.InvalidArgument, match=f"is a {kind}"):
            await call("crypto", "sha256", path=str(path))
    with pytest.raises(errors.NotFound, match="does not exist"):
        await call("crypto", "sha256", path=f"{tmp_path}/none")
    with pytest.raises(errors.InvalidArgument, match="not an absolute path"):
        await call("crypto", "sha256", path="etc/hostname")


@pytest.mark.skipif(is_root(), reason="root may read every file")
async def test_file_that_may_not_be_read_is_permission_denied(call: Call, tmp_path: Path) -> None:
    (tmp_path / "f").touch(mode=0)
    with pytest.raises(errors.PermissionDenied, match="may not be read"):
        await call("crypto", "sha256", path=f"{tmp_path}/f")


# -- hmac --


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "sha3-256", "blake2b", "sha1"])
async def test_hmac_takes_its_key_as_text_base64_or_file(call: Call, tmp_path: Path, algorithm: str) -> None:
    (tmp_path / "key").write_text(SECRET)
    keys = (
        {"key": SECRET},
        {"key_base64": base64.b64encode(SECRET.encode()).decode()},
        {"key_path": f"{tmp_path}/key"},
    )
    results = [await call("crypto", "hmac", text="msg", algorithm=algorithm, **key) for key in keys]
    right = hmac.new(SECRET.encode(), b"msg", algorithm.replace("-", "_")).hexdigest()
    assert {found.metadata["hex"] for found in results} == {right}
    assert not any(SECRET in f"{found.output}{found.metadata}" for found in results)


async def test_hmac_is_that_of_rfc_4231(call: Call) -> None:
    result = await call("crypto", "hmac", key="Jefe", text="what do ya want for nothing?")
    right = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert result.metadata["hex"] == right


async def test_hmac_that_is_checked_is_not_told(call: Call) -> None:
    right = hmac.new(SECRET.encode(), b"msg", "sha256").hexdigest()
    good = await call("crypto", "hmac", key=SECRET, text="msg", expected=right)
    bad = await call("crypto", "hmac", key=SECRET, text="msg", expected="00" * 32)
    assert good.metadata["matches"]
    assert not bad.metadata["matches"]
    assert right not in f"{bad.output}{bad.metadata}"


async def test_no_error_shows_a_key(call: Call, load: Load) -> None:
    with pytest.raises(errors.InvalidArgument, match="A character at position 8 of 22") as caught:
        await call("crypto", "hmac", key_base64=f"{SECRET}!", text="x")
    assert "'-'" not in caught.value.message
    assert SECRET not in str(caught.value.to_dict())
    with pytest.raises(errors.InvalidArgument) as caught:
        await call("crypto", "hmac", key=SECRET, key_base64=SECRET, text="x")
    assert SECRET not in str(caught.value.to_dict())
    model = load("crypto").actions["hmac"].args_model
    assert SECRET not in repr(model.model_validate({"key": SECRET, "text": "x"}))


async def test_hmac_without_a_key_or_with_an_empty_one_is_refused(call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="exactly one of key, key_base64, key_path"):
        await call("crypto", "hmac", text="x")
    with pytest.raises(errors.InvalidArgument, match="key is empty"):
        await call("crypto", "hmac", key="", text="x")


# -- encodings --


@pytest.mark.parametrize(
    ("encoding", "data", "text"),
    [
        ("base16", b"\x00\xffz", "00ff7a"),
        ("base32", b"foobar", "MZXW6YTBOI======"),
        ("base32", b"fooba", "MZXW6YTB"),
        ("base64", b"fo", "Zm8="),
        ("base64", b"\xfb\xff", "+/8="),
        ("base64url", b"\xfb\xff", "-_8="),
        ("base58", b"Hello World!", "2NEpo7TZRRrLZSi2U"),
        ("base58", b"\x00\x00\x28\x7f\xb4\xcd", "11233QC4"),
        ("base58", b"\x00\x00", "11"),
        ("base64", b"", ""),
        ("base58", b"", ""),
    ],
)
async def test_encodings_are_those_of_their_specifications_both_ways(
    call: Call, encoding: str, data: bytes, text: str
) -> None:
    given = base64.b64encode(data).decode()
    assert (await call("crypto", "encode", encoding=encoding, data=given)).output == text
    assert (await call("crypto", "decode", encoding=encoding, text=text)).metadata["base64"] == given


@pytest.mark.parametrize("encoding", ["base16", "base32", "base58", "base64", "base64url"])
async def test_every_length_comes_back(call: Call, encoding: str) -> None:
    for size in (1, 2, 3, 4, 5, 6, 7, 100):
        given = base64.b64encode(b"\0" + os.urandom(size)).decode()
        text = (await call("crypto", "encode", encoding=encoding, data=given)).output
        assert (await call("crypto", "decode", encoding=encoding, text=text)).metadata["base64"] == given


async def test_text_is_encoded_as_utf_8_and_comes_back_as_text(call: Call) -> None:
    encoded = await call("crypto", "encode", encoding="base64", text="Grüße")
    decoded = await call("crypto", "decode", encoding="base64", text=encoded.output)
    assert decoded.output == "Grüße"
    assert decoded.metadata["utf8"]


async def test_bytes_that_are_not_utf_8_are_said_to_be_and_given_as_base64(call: Call) -> None:
    result = await call("crypto", "decode", encoding="base16", text="ff00")
    assert result.output == "The result is not UTF-8. Its 2 bytes as base64:\n/wA="
    assert not result.metadata["utf8"]


async def test_base64url_goes_without_padding_and_is_read_either_way(call: Call) -> None:
    bare = await call("crypto", "encode", encoding="base64url", text="fo", padding=False)
    assert bare.output == "Zm8"
    for text in ("Zm8", "Zm8="):
        assert (await call("crypto", "decode", encoding="base64url", text=text)).output == "fo"


@pytest.mark.parametrize(
    ("encoding", "text", "message"),
    [
        ("base64", "Zm9v!mFy", r"'!' at position 5 of 8"),
        ("base64", "Zm9v\nYmFy", r"position 5 of 9"),
        ("base64", "Zm=8", r"'=' at position 3"),
        ("base64", "-_8=", r"'-' at position 1"),
        ("base64url", "+/8=", r"'\+' at position 1"),
        ("base64", "Zm8", r"needs 1 '=' from position 4 on, and the text has 0"),
        ("base64", "Zm8==", r"needs 1 '=' from position 4 on, and the text has 2"),
        ("base64", "Zm9vY", r"5 characters are no whole base64"),
        ("base64", "Zm9=", r"position 3 has bits that belong to no byte"),
        ("base64url", "Zm9", r"position 3 has bits that belong to no byte"),
        ("base16", "0g", r"'g' at position 2"),
        ("base16", "000", r"3 characters are no whole base16"),
        ("base32", "mzxw6===", r"'m' at position 1"),
        ("base32", "MZXW61==", r"'1' at position 6"),
        ("base32", "MZXW6", r"needs 3 '='"),
        ("base58", "2NEpo0", r"'0' at position 6"),
        ("base58", "Il", r"'I' at position 1"),
    ],
)
async def test_wrong_text_is_refused_with_the_position(
    call: Call, encoding: str, text: str, message: str
) -> None:
    with pytest.raises(errors.InvalidArgument, match=message) as caught:
        await call("crypto", "decode", encoding=encoding, text=text)
    assert caught.value.field == "text"


async def test_base58_is_bounded(call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match="up to 16384 bytes"):
        await call("crypto", "encode", encoding="base58", text="x" * 16385)
    with pytest.raises(errors.InvalidArgument, match="up to 16384 bytes"):
        await call("crypto", "decode", encoding="base58", text="2" * 30000)


# -- signatures --


async def test_ed25519_signature_is_verified_in_base64_and_hexadecimal(call: Call, tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    signature = key.sign(b"msg")
    (tmp_path / "f").write_bytes(b"msg")
    (tmp_path / "key.pem").write_text(pem_of(key))
    for text in (signature.hex(), base64.b64encode(signature).decode()):
        given = {"path": f"{tmp_path}/f", "public_key_path": f"{tmp_path}/key.pem", "signature": text}
        result = await call("crypto", "verify", **given)
        assert result.metadata == {"valid": True, "algorithm": "ed25519", "from_certificate": False}


async def test_signature_of_another_text_is_not_valid_and_no_error(call: Call) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    result = await call(
        "crypto", "verify", text="other", public_key=pem_of(key), signature=key.sign(b"msg").hex()
    )
    assert result.metadata["valid"] is False
    assert "NOT valid" in result.output


async def test_ecdsa_signature_is_verified_as_der_and_as_two_numbers(call: Call) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    der = key.sign(b"msg", ec.ECDSA(hashes.SHA256()))
    r, s = decode_dss_signature(der)
    for signature in (der, r.to_bytes(32) + s.to_bytes(32)):
        given = {"public_key": pem_of(key), "signature": signature.hex()}
        assert (await call("crypto", "verify", text="msg", **given)).metadata["valid"]
        assert not (await call("crypto", "verify", text="msg", hash="sha512", **given)).metadata["valid"]
    given["signature"] = "00" * 20
    assert not (await call("crypto", "verify", text="msg", **given)).metadata["valid"]


async def test_rsa_signature_is_verified_by_the_algorithm_that_is_named(call: Call) -> None:
    pss = padding.PSS(mgf=padding.MGF1(hashes.SHA384()), salt_length=20)
    given: dict[str, Any] = {"text": "msg", "public_key": pem_of(RSA_KEY), "hash": "sha384"}
    given["signature"] = RSA_KEY.sign(b"msg", pss, hashes.SHA384()).hex()
    assert (await call("crypto", "verify", algorithm="rsa-pss", **given)).metadata["valid"]
    assert not (await call("crypto", "verify", algorithm="rsa-pkcs1", **given)).metadata["valid"]
    given["signature"] = RSA_KEY.sign(b"msg", padding.PKCS1v15(), hashes.SHA384()).hex()
    assert (await call("crypto", "verify", algorithm="rsa-pkcs1", **given)).metadata["valid"]
    with pytest.raises(errors.InvalidArgument, match="does not say which algorithm") as caught:
        await call("crypto", "verify", **given)
    assert "rsa-pss or rsa-pkcs1" in caught.value.suggestion


async def test_key_of_a_certificate_verifies_and_the_result_says_what_was_not_checked(call: Call) -> None:
    made = issue("expired", start_days=-9, end_days=-5)
    signature = made.key.sign(b"msg", ec.ECDSA(hashes.SHA256())).hex()
    result = await call("crypto", "verify", text="msg", public_key=made.pem, signature=signature)
    assert result.metadata["valid"]
    assert "whether the certificate is good was not checked" in result.output


async def test_key_that_does_not_fit_or_is_none_is_refused(call: Call) -> None:
    given = {"text": "msg", "signature": "00"}
    p384 = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(errors.InvalidArgument, match="EC secp384r1 is not supported"):
        await call("crypto", "verify", public_key=pem_of(p384), **given)
    with pytest.raises(errors.InvalidArgument, match=r"RSA 2048 bits: it cannot verify ed25519"):
        await call("crypto", "verify", public_key=pem_of(RSA_KEY), algorithm="ed25519", **given)
    with pytest.raises(errors.InvalidArgument, match="cannot be read"):
        await call("crypto", "verify", public_key="no key", **given)


async def test_private_keys_are_refused_and_not_shown(call: Call, tmp_path: Path) -> None:
    made = issue("test")
    secret = private_pem(made.key)
    (tmp_path / "both.pem").write_text(made.pem + secret)
    for action, given in (
        ("verify", {"text": "x", "signature": "00", "public_key": secret}),
        ("certificate", {"pem": secret}),
        ("certificate", {"path": f"{tmp_path}/both.pem"}),
    ):
        with pytest.raises(errors.InvalidArgument, match="holds a private key") as caught:
            await call("crypto", action, **given)
        assert secret.splitlines()[1] not in str(caught.value.to_dict())


# -- certificates --


async def test_certificate_is_explained(call: Call) -> None:
    authority = issue("Test CA")
    made = issue("web", authority)
    result = await call("crypto", "certificate", pem=made.pem)
    [found] = result.metadata["certificates"]
    assert (found["subject"], found["issuer"]) == ("CN=web", "CN=Test CA")
    assert found["names"] == ["localhost", "127.0.0.1"]
    assert (found["days_left"], found["valid_now"], found["self_signed"]) == (30, True, False)
    assert (found["key"], found["key_bits"], found["signed_with"]) == ("EC secp256r1", 256, "sha256")
    assert found["sha256"] == made.cert.fingerprint(hashes.SHA256()).hex()
    assert found["extensions"]["ca"] is False
    assert found["extensions"]["key_usage"] == ["digital_signature"]
    assert found["extensions"]["extended_key_usage"] == ["server_auth"]
    for line in ("  Names: localhost, 127.0.0.1", "  Key: EC secp256r1", "  Ca: false"):
        assert line in result.output.splitlines()


async def test_chain_is_checked_link_by_link(call: Call, tmp_path: Path) -> None:
    authority, stranger = issue("Test CA"), issue("Test CA")
    made = issue("web", authority)
    (tmp_path / "chain.pem").write_text(f"a comment\n{made.pem}{authority.pem}")
    good = await call("crypto", "certificate", path=f"{tmp_path}/chain.pem")
    bad = await call("crypto", "certificate", pem=made.pem + stranger.pem)
    assert [each["self_signed"] for each in good.metadata["certificates"]] == [False, True]
    assert good.metadata["certificates"][0]["issued_by_next"]
    assert not bad.metadata["certificates"][0]["issued_by_next"]
    assert "the next certificate is not its issuer" in bad.output
    assert "not its issuer" not in good.output


async def test_certificate_that_is_not_valid_now_has_a_warning(call: Call) -> None:
    expired = await call("crypto", "certificate", pem=issue("old", start_days=-9, end_days=-5).pem)
    future = await call("crypto", "certificate", pem=issue("new", start_days=5).pem)
    assert "(expired 5 days ago)" in expired.output
    assert expired.metadata["certificates"][0]["warnings"] == ["it has expired"]
    assert future.metadata["certificates"][0]["warnings"] == ["it is not valid yet"]


async def test_der_file_is_read_and_a_damaged_one_is_refused(call: Call, tmp_path: Path) -> None:
    made = issue("web")
    der = made.cert.public_bytes(serialization.Encoding.DER)
    (tmp_path / "good.der").write_bytes(der)
    (tmp_path / "cut.der").write_bytes(der[:100])
    assert "CN=web" in (await call("crypto", "certificate", path=f"{tmp_path}/good.der")).output
    with pytest.raises(errors.InvalidArgument, match="Certificate 1 cannot be read"):
        await call("crypto", "certificate", path=f"{tmp_path}/cut.der")
    with pytest.raises(errors.InvalidArgument, match="There is no certificate"):
        await call("crypto", "certificate", pem="nothing")
    lines = made.pem.splitlines()
    with pytest.raises(errors.InvalidArgument, match="Certificate 2 cannot be read"):
        await call("crypto", "certificate", pem="\n".join([*lines, lines[0], "AAAA", lines[-1]]))


async def test_control_characters_in_a_name_are_escaped(call: Call) -> None:
    result = await call("crypto", "certificate", pem=issue("evil\x1b[2J\u202e").pem)
    assert "\x1b" not in result.output
    assert "\u202e" not in result.output
    assert "evil" in result.output


async def test_long_chain_is_bounded(call: Call) -> None:
    result = await call("crypto", "certificate", pem=issue("web").pem * 13)
    assert result.output.endswith("3 more certificates are not shown.")
    assert len(result.metadata["certificates"]) == 10
    assert result.metadata["total"] == 13


# -- a server's certificates --


@contextlib.asynccontextmanager
async def tls_server(made: Issued, *chain: Issued, folder: Path) -> AsyncIterator[int]:
    """A TLS server on loopback that shows these certificates; its port."""
    file = folder / "server.pem"
    file.write_text("".join([private_pem(made.key), made.pem, *(each.pem for each in chain)]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    async with plain_server(context) as port:
        yield port


@contextlib.asynccontextmanager
async def plain_server(context: ssl.SSLContext | None, greeting: bytes = b"") -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        with contextlib.suppress(OSError):
            await reader.read()
        writer.transport.abort()

    before = open_descriptors()
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        with contextlib.suppress(TimeoutError):  # what is left then fails the test
            async with asyncio.timeout(10):
                while open_descriptors().keys() - before.keys():
                    await asyncio.sleep(0.01)  # connections close in later rounds of the loop


async def test_trusted_server_shows_its_chain_and_its_protocol(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = issue("Test CA")
    (tmp_path / "ca.pem").write_text(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with tls_server(issue("web", authority), authority, folder=tmp_path) as port:
        result = await call("crypto", "fetch_certificate", host="127.0.0.1", port=port)
        other = await call("crypto", "fetch_certificate", host="127.0.0.1", port=port, server_name="a.test")
    assert result.metadata["trusted"]
    assert result.metadata["protocol"] == "TLSv1.3"
    assert [each["subject"] for each in result.metadata["certificates"]] == ["CN=web", "CN=Test CA"]
    assert "TLSv1.3, TLS_" in result.output
    assert not other.metadata["trusted"]
    assert "not valid for 'a.test'" in other.metadata["verification"]
    assert other.metadata["total"] == 2


async def test_server_that_is_not_trusted_still_shows_its_chain(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    async with tls_server(issue("web", issue("Test CA")), folder=tmp_path) as port:
        result = await call("crypto", "fetch_certificate", host="127.0.0.1", port=port)
    assert not result.metadata["trusted"]
    assert "Verification for 127.0.0.1: FAILED: " in result.output
    assert result.metadata["certificates"][0]["subject"] == "CN=web"


async def test_server_that_says_nothing_times_out(call: Call) -> None:
    async with plain_server(None) as port:
        with pytest.raises(errors.TimedOut, match=r"no TLS handshake within 0\.2 s"):
            await call("crypto", "fetch_certificate", host="127.0.0.1", port=port, timeout_s=0.2)


async def test_server_without_tls_and_a_closed_port_are_errors(call: Call) -> None:
    async with plain_server(None, b"220 mail.example.org ESMTP ready\r\n") as port:
        with pytest.raises(errors.ToolError, match=r"TLS handshake with .* failed: [A-Z]"):
            await call("crypto", "fetch_certificate", host="127.0.0.1", port=port)
    with pytest.raises(errors.ToolError, match="cannot be reached"):
        await call("crypto", "fetch_certificate", host="127.0.0.1", port=port)


@pytest.mark.parametrize("host", ["", "-x", "a b", "a/b", "http://a", "a\n"])
def test_what_is_no_host_is_refused(load: Load, host: str) -> None:
    with pytest.raises(ValidationError):
        load("crypto").actions["fetch_certificate"].args_model.model_validate({"host": host})


def test_effects_and_taints_are_declared(load: Load) -> None:
    actions = load("crypto").actions
    assert {name for name, found in actions.items() if found.effect is Effect.REACH} == {"fetch_certificate"}
    assert {found.effect for found in actions.values()} == {Effect.OBSERVE, Effect.REACH}
    assert {name for name, found in actions.items() if found.taints} == {"certificate", "fetch_certificate"}
