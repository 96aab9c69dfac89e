"""Digests, encodings, signatures and certificates; nothing here makes, keeps or shows a private key.

Each call reads what it is given (text, bytes as base64, or a regular file in pieces) and keeps nothing. The
library cryptography is imported when first used, since every worker loads every tool. Keys of an HMAC never
stand in a result or in an error. The work is done in `worker/crypt/`: strict encodings (`encodings.py`),
public keys and signatures (`signatures.py`), certificates (`certificates.py`), and the TLS handshake that
fetches them (`handshake.py`), each with its specifications.
"""

import asyncio
import base64
import errno
import hashlib
import hmac
import os
import re
from collections.abc import Callable
from typing import Any, BinaryIO, Literal

from pydantic import Field, SecretStr, field_validator

from lightagentd.errors import NotFound, PermissionDenied
from lightagentd.tool import Args, Context, Effect, InvalidArgument, Result, TimedOut, Tool, ToolError, action
from lightagentd.worker.crypt.certificates import WEAK, certificates, explained, key_text
from lightagentd.worker.crypt.encodings import decoded, encoded, hex_or_base64
from lightagentd.worker.crypt.handshake import trusted_or_not
from lightagentd.worker.crypt.signatures import Message, is_valid, public_key, scheme_of
from lightagentd.worker.files.search import open_regular

INPUT_LIMIT_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
KEY_LIMIT_BYTES = 1024 * 1024
PEM_LIMIT_BYTES = 4 * 1024 * 1024
METADATA_LIMIT_CHARS = 16 * 1024
HOST = r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]{0,251}[A-Za-z0-9_.])?|::1?"
_WEAK_NOTE = "{} is weak: use it only to compare with old checksums, never to prove where data comes from."

Algorithm = Literal["sha256", "sha512", "sha3-256", "blake2b", "md5", "sha1"]
Encoding = Literal["base16", "base32", "base58", "base64", "base64url"]


class InputArgs(Args):
    text: str | None = Field(default=None, description="The input as text (UTF-8).")
    data: str | None = Field(default=None, description="The input as bytes in base64, instead of text.")
    path: str | None = Field(
        default=None, description="The absolute path of a file to read, instead of text."
    )


class DigestArgs(InputArgs):
    algorithm: Algorithm = Field(default="sha256", description="md5 and sha1 are weak: only for comparing.")
    expected: str = Field(default="", description="Compare with this value, in hexadecimal or base64.")


class HmacArgs(DigestArgs):
    key: SecretStr | None = Field(default=None, description="The key as text.")
    key_base64: SecretStr | None = Field(default=None, description="The key as bytes in base64.")
    key_path: str | None = Field(
        default=None, description="A file whose exact bytes are the key, a last line break included."
    )


class EncodeArgs(Args):
    encoding: Encoding = Field(description="What to encode to.")
    text: str | None = Field(default=None, description="The input as text (UTF-8).")
    data: str | None = Field(default=None, description="The input as bytes in base64, instead of text.")
    padding: bool = Field(default=True, description="For base64url: end with = where the length needs it.")


class DecodeArgs(Args):
    encoding: Encoding = Field(description="What the text is encoded in.")
    text: str = Field(description="The encoded text, without blanks or line breaks.")


class VerifyArgs(InputArgs):
    signature: str = Field(min_length=1, description="The signature in base64 or hexadecimal.")
    public_key: str | None = Field(default=None, description="A public key or a certificate, as PEM text.")
    public_key_path: str | None = Field(default=None, description="A PEM file, instead of public_key.")
    algorithm: Literal["", "ed25519", "ecdsa-p256", "rsa-pss", "rsa-pkcs1"] = Field(
        default="", description="For an RSA key it must be named; else the key says it."
    )
    hash: Literal["sha256", "sha384", "sha512"] = Field(
        default="sha256", description="What was signed by ECDSA or RSA."
    )


class CertificateArgs(Args):
    pem: str | None = Field(default=None, description="One certificate or a chain, as PEM text.")
    path: str | None = Field(default=None, description="A certificate file (PEM or DER), instead of pem.")


class FetchArgs(Args):
    host: str = Field(min_length=1, description="A host name or an address.")
    port: int = Field(default=443, ge=1, le=65535, description="A port where the server speaks TLS at once.")
    server_name: str = Field(default="", description="The name to ask for and to check; default: the host.")
    timeout_s: float = Field(default=10, ge=0.1, le=25, description="How long to wait in all.")

    @field_validator("host", "server_name")
    @classmethod
    def _is_host(cls, host: str) -> str:
        if host and not re.fullmatch(HOST, host):
            raise ValueError("not a host name or an address")
        return host


class Crypto(Tool):
    """Digests, HMACs, encodings, signatures and certificates. Private keys are never read or shown."""

    name = "crypto"

    @action(timeout_s=300)
    async def sha256(self, ctx: Context, args: DigestArgs) -> Result:
        """Digest text, bytes or a file of any size, with SHA-256 or another algorithm; compare if asked."""
        del ctx
        digest = hashlib.new(args.algorithm.replace("-", "_"), usedforsecurity=False)
        expected = _expected(args, digest.digest_size)
        size = await _feed(args, digest.update)
        return _digest_result(args, args.algorithm, digest.digest(), expected, size)

    @action(timeout_s=300)
    async def hmac(self, ctx: Context, args: HmacArgs) -> Result:
        """Make the HMAC of text, bytes or a file; with `expected` only say whether it is the right one."""
        del ctx
        key = await asyncio.to_thread(_hmac_key, args)
        made = hmac.new(key, digestmod=args.algorithm.replace("-", "_"))
        expected = _expected(args, made.digest_size)
        size = await _feed(args, made.update)
        return _digest_result(args, f"hmac-{args.algorithm}", made.digest(), expected, size)

    @action()
    async def encode(self, ctx: Context, args: EncodeArgs) -> Result:
        """Encode text or bytes in base16 (small letters), base32, base58, base64 or base64url."""
        del ctx
        data = _given(args)
        text = await asyncio.to_thread(encoded, args.encoding, data, args.padding)
        return Result(output=text, metadata={"encoding": args.encoding, "size_bytes": len(data)})

    @action()
    async def decode(self, ctx: Context, args: DecodeArgs) -> Result:
        """Decode base16, base32, base58, base64 or base64url; gives text, or base64 if it is not UTF-8."""
        del ctx
        data = await asyncio.to_thread(decoded, args.encoding, args.text, "text")
        facts: dict[str, Any] = {"encoding": args.encoding, "size_bytes": len(data)}
        encoded = base64.b64encode(data).decode()
        if len(encoded) <= METADATA_LIMIT_CHARS:
            facts["base64"] = encoded
        try:
            return Result(output=data.decode(), metadata={**facts, "utf8": True})
        except UnicodeDecodeError:
            said = f"The result is not UTF-8. Its {len(data)} bytes as base64:\n{encoded}"
            return Result(output=said, metadata={**facts, "utf8": False})

    @action(timeout_s=300)
    async def verify(self, ctx: Context, args: VerifyArgs) -> Result:
        """Check a signature (Ed25519, ECDSA P-256, RSA) of text, bytes or a file with a public key."""
        del ctx
        pem = await asyncio.to_thread(_pem, args.public_key, args.public_key_path, "public_key")
        key, from_certificate = public_key(pem)
        scheme = scheme_of(key, args.algorithm)
        signature = hex_or_base64(args.signature, "signature")
        message = Message(scheme, args.hash)
        await _feed(args, message.update)
        valid = is_valid(key, scheme, args.hash, signature, message.result())
        how = scheme if scheme == "ed25519" else f"{scheme} with {args.hash}"
        text = f"The signature is {'valid' if valid else 'NOT valid'} ({how}, key: {key_text(key)})."
        if from_certificate:
            text += " Only the certificate's key was used; whether the certificate is good was not checked."
        facts = {"valid": valid, "algorithm": scheme, "from_certificate": from_certificate}
        return Result(output=text, metadata=facts)

    @action(taints=True)
    async def certificate(self, ctx: Context, args: CertificateArgs) -> Result:
        """Explain a certificate or a chain: names, issuer, validity, key, fingerprints, extensions."""
        del ctx
        pem = await asyncio.to_thread(_pem, args.pem, args.path, "pem")
        text, facts = await asyncio.to_thread(explained, certificates(pem), [], {})
        return Result(output=text, metadata=facts)

    @action(effect=Effect.REACH, taints=True, host="host")
    async def fetch_certificate(self, ctx: Context, args: FetchArgs) -> Result:
        """Do a TLS handshake with a server: its certificates, and whether this machine trusts them."""
        del ctx
        name = args.server_name or args.host
        try:
            async with asyncio.timeout(args.timeout_s):
                peer, failure = await trusted_or_not(args.host, args.port, name)
        except TimeoutError as err:
            raise TimedOut(
                f"{args.host} port {args.port} made no TLS handshake within {args.timeout_s:g} s.",
                suggestion="Check host and port: a server that does not speak TLS may just wait.",
            ) from err
        said = f"FAILED: {failure}" if failure else "the certificate is trusted and fits the name"
        lines = [
            f"{args.host} port {args.port} ({peer.address}): {peer.protocol}, {peer.cipher}",
            f"Verification for {name}: {said}.",
        ]
        facts: dict[str, Any] = {"address": peer.address, "protocol": peer.protocol, "cipher": peer.cipher}
        facts |= {"trusted": not failure, "verification": failure or "ok"}
        text, facts = await asyncio.to_thread(explained, certificates(peer.chain), lines, facts)
        return Result(output=text, metadata=facts)


# -- what is given --


def _open(path: str, field: str) -> BinaryIO:
    """A regular file; nothing else is opened, since that can block or do something."""
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"{path!r} is not an absolute path.", field=field, suggestion="Begin with /.")
    try:
        return os.fdopen(open_regular(path), "rb")
    except OSError as err:
        raise _file_error(path, field, err) from err


def _file_error(path: str, field: str, err: OSError) -> Exception:
    if err.errno == 0:
        return InvalidArgument(f"{path} is a {err.strerror}, not a regular file.", field=field)
    if err.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"{path} does not exist.", field=field, suggestion="List its folder.")
    if err.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(f"{path} may not be read by this user.", field=field)
    return ToolError(f"{path} cannot be read: {err.strerror}.", field=field)


def _small_file(path: str, limit_bytes: int, field: str) -> bytes:
    with _open(path, field) as file:
        try:
            data = file.read(limit_bytes + 1)
        except OSError as err:
            raise _file_error(path, field, err) from err
    if len(data) > limit_bytes:
        raise InvalidArgument(f"{path} has more than {limit_bytes} bytes.", field=field)
    return data


def _exactly_one(found: dict[str, Any]) -> None:
    given = [name for name, value in found.items() if value is not None]
    if len(given) != 1:
        raise InvalidArgument(
            f"Give exactly one of {', '.join(found)}, not {' and '.join(given) or 'none'}.",
            field=given[-1] if given else next(iter(found)),
        )


def _given(args: InputArgs | EncodeArgs) -> bytes:
    """The input that stands in the arguments themselves."""
    _exactly_one({name: getattr(args, name) for name in ("text", "data", "path") if hasattr(args, name)})
    data = args.text.encode() if args.text is not None else decoded("base64", args.data or "", "data")
    if len(data) > INPUT_LIMIT_BYTES:
        raise InvalidArgument(
            f"The input has {len(data)} bytes, more than {INPUT_LIMIT_BYTES}.",
            field="text" if args.text is not None else "data",
        )
    return data


async def _feed(args: InputArgs, update: Callable[[bytes], object]) -> int:
    """Give the whole input to `update`, a file in pieces (so that a cancel counts); the size in bytes."""
    if args.path is None or args.text is not None or args.data is not None:
        data = _given(args)
        await asyncio.to_thread(update, data)
        return len(data)
    size = 0
    with _open(args.path, "path") as file:
        try:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                await asyncio.to_thread(update, piece)
                size += len(piece)
        except OSError as err:
            raise _file_error(args.path, "path", err) from err
    return size


def _hmac_key(args: HmacArgs) -> bytes:
    _exactly_one({name: getattr(args, name) for name in ("key", "key_base64", "key_path")})
    if args.key_path is not None:
        key = _small_file(args.key_path, KEY_LIMIT_BYTES, "key_path")
    elif args.key_base64 is not None:
        key = decoded("base64", args.key_base64.get_secret_value(), "key_base64", secret=True)
    else:
        key = args.key.get_secret_value().encode() if args.key is not None else b""
    if not key:
        raise InvalidArgument("The key is empty.", field="key", suggestion="Give the key of the HMAC.")
    return key


def _expected(args: DigestArgs, size: int) -> bytes | None:
    if not args.expected:
        return None
    found = hex_or_base64(args.expected, "expected")
    if len(found) != size:
        raise InvalidArgument(
            f"The expected value has {len(found)} bytes, and {args.algorithm} makes {size}.",
            field="expected",
            suggestion="Name the algorithm that it was made with.",
        )
    return found


def _digest_result(args: DigestArgs, what: str, made: bytes, expected: bytes | None, size: int) -> Result:
    of = args.path or f"{size} bytes"
    facts: dict[str, Any] = {"algorithm": args.algorithm, "size_bytes": size, "weak": args.algorithm in WEAK}
    if expected is not None:
        facts["matches"] = hmac.compare_digest(made, expected)
        lines = [f"The {what} of {of} {'matches' if facts['matches'] else 'does NOT match'}."]
    else:
        lines = [f"{made.hex()}  {what} of {of}"]
    if expected is None or not isinstance(args, HmacArgs):  # the right HMAC is not told to whoever guesses
        facts |= {"hex": made.hex(), "base64": base64.b64encode(made).decode()}
    if facts["weak"]:
        lines.append(_WEAK_NOTE.format(args.algorithm))
    return Result(output="\n".join(lines), metadata=facts)


def _pem(text: str | None, path: str | None, field: str) -> bytes:
    """The bytes of a PEM text or file. One that has a private key is refused, without showing any of it."""
    _exactly_one({field: text, "path" if field == "pem" else f"{field}_path": path})
    if path is not None:
        data = _small_file(path, PEM_LIMIT_BYTES, "path" if field == "pem" else f"{field}_path")
    else:
        data = (text or "").encode()
    if len(data) > PEM_LIMIT_BYTES:
        raise InvalidArgument(f"The PEM text has more than {PEM_LIMIT_BYTES} bytes.", field=field)
    if re.search(rb"PRIVATE KEY", data):
        raise InvalidArgument(
            f"{path or 'The text'} holds a private key, which this tool does not take.",
            field=field,
            suggestion="Give only the certificate or the public key.",
        )
    return data
