"""Digests, encodings, signatures and certificates, and keys that a model sees only as handles.

Most actions read their input (text, bytes as base64, or a regular file in pieces) and keep nothing. Those of
the place KEYS run in the one worker with the private keys. They take no path, so that they give no access to
files; to sign a file, `sha256` makes its digest and `sign` signs that. Private keys and HMAC keys never
appear in a result or an error.

The library cryptography is imported when first used, since every worker loads every tool. The work is done in
`lightagentd/toolkit/crypt`: strict encodings (`encodings.py`), public keys and signatures (`signatures.py`),
certificates (`certificates.py`), the TLS handshake that fetches them (`handshake.py`), private keys
(`keys.py`) and where they lie (`keystore.py`, `wrapping.py`), each with its specifications.
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

from pydantic import ConfigDict, Field, field_validator

from lightagentd.errors import NotFound, PermissionDenied
from lightagentd.tool import (
    Args,
    Context,
    Effect,
    InvalidArgument,
    Place,
    Result,
    TimedOut,
    Tool,
    ToolError,
    action,
)
from lightagentd.toolkit.crypt.certificates import WEAK, certificates, explained, key_text
from lightagentd.toolkit.crypt.encodings import decoded, encoded, hex_or_base64
from lightagentd.toolkit.crypt.handshake import trusted_or_not
from lightagentd.toolkit.crypt.keys import fingerprint, fits, generated, signature_of
from lightagentd.toolkit.crypt.keystore import HANDLE, LABEL, KeyFacts, Kind, store_of_environment
from lightagentd.toolkit.crypt.signatures import Message, is_valid, public_key, scheme_of
from lightagentd.toolkit.files.search import open_regular

INPUT_LIMIT_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
KEY_LIMIT_BYTES = 1024 * 1024
PEM_LIMIT_BYTES = 4 * 1024 * 1024
METADATA_LIMIT_CHARS = 16 * 1024
LISTED_LIMIT = 50
"""How many keys stand in the metadata, and how many damaged files in the output."""
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


def _secret(description: str) -> Any:
    """An argument that is never shown: `writeOnly` has the daemon leave it out of what it stores and shows.

    It is no SecretStr, since checked arguments go on as JSON, where that is a row of stars.
    """
    return Field(default=None, description=description, repr=False, json_schema_extra={"writeOnly": True})


class HmacArgs(DigestArgs):
    model_config = ConfigDict(hide_input_in_errors=True)

    key: str | None = _secret("The key as text.")
    key_base64: str | None = _secret("The key as bytes in base64.")
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


class GenerateKeyArgs(Args):
    size_bytes: int = Field(default=32, ge=16, le=64, description="How long the key is.")
    label: str = Field(default="", pattern=f"^{LABEL}$", description="A name to find it by in list_keys.")


class GenerateKeypairArgs(Args):
    algorithm: Literal["ed25519", "ecdsa-p256"] = Field(default="ed25519", description="What it signs with.")
    label: str = Field(default="", pattern=f"^{LABEL}$", description="A name to find it by in list_keys.")


class ListKeysArgs(Args):
    pass


class KeyArgs(Args):
    handle: str = Field(pattern=f"^{HANDLE}$", description="The key, as generate_key or list_keys names it.")


class SignArgs(KeyArgs):
    text: str | None = Field(default=None, description="What to sign, as text (UTF-8).")
    data: str | None = Field(default=None, description="What to sign, as bytes in base64, instead of text.")
    digest: str | None = Field(
        default=None, description="Its SHA-256 in hexadecimal or base64, instead; only for ecdsa-p256."
    )


class VerifyWithKeyArgs(SignArgs):
    signature: str = Field(min_length=1, description="The signature or HMAC, in base64 or hexadecimal.")


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
    """Digests, HMACs, encodings, signatures and certificates. Private keys stay behind handles."""

    name = "crypto"

    @action(timeout_s=300, clean="digests, sizes and what the call names")
    async def sha256(self, ctx: Context, args: DigestArgs) -> Result:
        """Digest text, bytes or a file of any size, with SHA-256 or another algorithm; compare if asked."""
        digest = hashlib.new(args.algorithm.replace("-", "_"), usedforsecurity=False)
        expected = _expected(args, digest.digest_size)
        size = await _feed(args, digest.update)
        return _digest_result(args, args.algorithm, digest.digest(), expected, size)

    @action(timeout_s=300, clean="digests, sizes and what the call names")
    async def hmac(self, ctx: Context, args: HmacArgs) -> Result:
        """Make the HMAC of text, bytes or a file; with `expected` only say whether it is the right one.

        For a key that stays behind a handle, use sign.
        """
        key = await asyncio.to_thread(_hmac_key, args)
        made = hmac.new(key, digestmod=args.algorithm.replace("-", "_"))
        expected = _expected(args, made.digest_size)
        size = await _feed(args, made.update)
        return _digest_result(args, f"hmac-{args.algorithm}", made.digest(), expected, size)

    @action(clean="only what the call itself holds")
    async def encode(self, ctx: Context, args: EncodeArgs) -> Result:
        """Encode text or bytes in base16 (small letters), base32, base58, base64 or base64url."""
        data = _given(args)
        text = await asyncio.to_thread(encoded, args.encoding, data, args.padding)
        return Result(output=text, metadata={"encoding": args.encoding, "size_bytes": len(data)})

    @action(clean="only what the call itself holds")
    async def decode(self, ctx: Context, args: DecodeArgs) -> Result:
        """Decode base16, base32, base58, base64 or base64url; gives text, or base64 if it is not UTF-8."""
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

    @action(timeout_s=300, clean="yes or no, and kinds of keys")
    async def verify(self, ctx: Context, args: VerifyArgs) -> Result:
        """Check a signature (Ed25519, ECDSA P-256, RSA) of text, bytes or a file with a public key.

        For a key behind a handle, use verify_with_key.
        """
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

    @action(place=Place.KEYS, clean="handles and the call's own label")
    async def generate_key(self, ctx: Context, args: GenerateKeyArgs) -> Result:
        """Make a random key for HMACs that stays in the key store; gives its handle."""
        return await _generated(ctx, "hmac-sha256", args.label, args.size_bytes)

    @action(place=Place.KEYS, clean="handles, keys and the call's own label")
    async def generate_keypair(self, ctx: Context, args: GenerateKeypairArgs) -> Result:
        """Make a pair of keys that stays in the key store; gives its handle and the public key."""
        return await _generated(ctx, args.algorithm, args.label)

    @action(place=Place.KEYS, clean="handles, and labels that this agent gave, which are plain words")
    async def list_keys(self, ctx: Context, args: ListKeysArgs) -> Result:
        """List the keys of this agent and user: handles, kinds, labels, fingerprints of public keys."""
        found, problems = await asyncio.to_thread(store_of_environment().facts, ctx.agent, ctx.owner)
        keys = [_key_facts(each) for each in found]
        lines = [
            "  ".join(filter(None, (each["handle"], each["kind"], each["created"], each["label"])))
            + (f"\n  SHA-256 of the public key: {each['fingerprint']}" if each["fingerprint"] else "")
            for each in keys
        ]
        lines += [f"Warning: {problem}" for problem in problems[:LISTED_LIMIT]]
        shown = keys[:LISTED_LIMIT]
        facts = {"keys": shown, "total": len(keys), "damaged": len(problems)}
        return Result(output="\n".join(lines) or "There is no key.", metadata=facts)

    @action(place=Place.KEYS, clean="a key, and a label that is a plain word")
    async def public_key(self, ctx: Context, args: KeyArgs) -> Result:
        """Give the public key of a pair, as PEM."""
        key = await asyncio.to_thread(store_of_environment().get, ctx.agent, ctx.owner, args.handle)
        if not key.facts.public_key:
            raise InvalidArgument(
                f"{args.handle} is a key for HMACs, which has no public part.", field="handle"
            )
        return Result(output=key.facts.public_key, metadata=_key_facts(key.facts))

    @action(place=Place.KEYS, clean="a signature and a handle")
    async def sign(self, ctx: Context, args: SignArgs) -> Result:
        """Sign text, bytes or a SHA-256 with a key of the store; with a key for HMACs, make the HMAC-SHA256.

        Of a file, make the digest with sha256 first, and sign that with an ecdsa-p256 key.
        """
        message, is_digest = _signed(args)
        key = await asyncio.to_thread(store_of_environment().get, ctx.agent, ctx.owner, args.handle)
        made = await asyncio.to_thread(signature_of, key, message, is_digest=is_digest)
        text, kind = base64.b64encode(made).decode(), key.facts.kind
        facts = {"handle": args.handle, "algorithm": kind, "base64": text, "hex": made.hex()}
        return Result(output=f"{text}  {kind} in base64, by {args.handle}", metadata=facts)

    @action(place=Place.KEYS, clean="yes or no, and a handle")
    async def verify_with_key(self, ctx: Context, args: VerifyWithKeyArgs) -> Result:
        """Check a signature or an HMAC of text, bytes or a SHA-256 with a key of the store."""
        message, is_digest = _signed(args)
        given = hex_or_base64(args.signature, "signature")
        key = await asyncio.to_thread(store_of_environment().get, ctx.agent, ctx.owner, args.handle)
        valid = await asyncio.to_thread(fits, key, given, message, is_digest=is_digest)
        kind = key.facts.kind
        what = "HMAC" if kind == "hmac-sha256" else "signature"
        text = f"The {what} is {'valid' if valid else 'NOT valid'} ({kind}, key: {args.handle})."
        return Result(output=text, metadata={"valid": valid, "algorithm": kind, "handle": args.handle})

    @action(taints=True)
    async def certificate(self, ctx: Context, args: CertificateArgs) -> Result:
        """Explain a certificate or a chain: names, issuer, validity, key, fingerprints, extensions."""
        pem = await asyncio.to_thread(_pem, args.pem, args.path, "pem")
        text, facts = await asyncio.to_thread(explained, certificates(pem), [], {})
        return Result(output=text, metadata=facts)

    @action(effect=Effect.REACH, taints=True, host="host")
    async def fetch_certificate(self, ctx: Context, args: FetchArgs) -> Result:
        """Do a TLS handshake with a server: its certificates, and whether this machine trusts them."""
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


# -- keys of the store --


async def _generated(ctx: Context, kind: Kind, label: str, size_bytes: int = 0) -> Result:
    private, public = await asyncio.to_thread(generated, kind, size_bytes)
    store = store_of_environment()
    facts = await asyncio.to_thread(store.add, ctx.agent, ctx.owner, kind, private, public, label)
    told = _key_facts(facts)
    lines = [f"{facts.handle}  {kind}; it stays in the key store, for this agent and user."]
    if public:
        lines += [f"SHA-256 of the public key: {told['fingerprint']}", public.rstrip()]
    return Result(output="\n".join(lines), metadata=told)


def _key_facts(facts: KeyFacts) -> dict[str, Any]:
    return {
        "handle": facts.handle,
        "kind": facts.kind,
        "label": facts.label,
        "created": facts.created,
        "fingerprint": fingerprint(facts.public_key),
        "public_key": facts.public_key,
    }


def _signed(args: SignArgs) -> tuple[bytes, bool]:
    """What is signed, and whether it is a digest."""
    _exactly_one({name: getattr(args, name) for name in ("text", "data", "digest")})
    if args.digest is not None:
        return hex_or_base64(args.digest, "digest"), True
    return _in_bounds(args.text, args.data), False


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
    return _in_bounds(args.text, args.data)


def _in_bounds(text: str | None, data: str | None) -> bytes:
    found = text.encode() if text is not None else decoded("base64", data or "", "data")
    if len(found) > INPUT_LIMIT_BYTES:
        raise InvalidArgument(
            f"The input has {len(found)} bytes, more than {INPUT_LIMIT_BYTES}.",
            field="text" if text is not None else "data",
        )
    return found


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
        key = decoded("base64", args.key_base64, "key_base64", secret=True)
    else:
        key = args.key.encode() if args.key is not None else b""
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
