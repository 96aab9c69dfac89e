"""Reads and explains X.509 certificates: names, validity, key, fingerprints, extensions, weaknesses.

Nothing here decides whether a certificate is trusted. The library cryptography is imported when first used,
since every worker loads every tool. Specification: RFC 5280.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lightagentd.errors import InvalidArgument
from lightagentd.text.visible import visible

if TYPE_CHECKING:
    from cryptography import x509

CHAIN_LIMIT = 10
NAMES_LIMIT = 50
WEAK = {"md5", "sha1"}
"""Digests that prove nothing any more, by the names that the library and the tool give them."""
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def certificates(data: bytes) -> list[x509.Certificate]:
    """The certificates of a PEM text in order, or the one of a DER file."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    blocks = CERTIFICATE.findall(data)
    der = not blocks and data.startswith(b"\x30")
    found = []
    for number, block in enumerate(blocks or ([data] if der else []), start=1):
        try:
            found.append((x509.load_der_x509_certificate if der else x509.load_pem_x509_certificate)(block))
        except (ValueError, UnsupportedAlgorithm) as err:
            raise InvalidArgument(f"Certificate {number} cannot be read: it is damaged or was cut.") from err
    if not found:
        raise InvalidArgument(
            "There is no certificate.", suggestion="PEM begins with -----BEGIN CERTIFICATE-----."
        )
    return found


def explained(
    found: list[x509.Certificate], lines: list[str], facts: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The text, which begins with the lines, and the facts with those of each certificate added.

    Raises InvalidArgument when a field of a certificate is malformed.
    """
    shown = found[:CHAIN_LIMIT]
    described = []
    for at, cert in enumerate(shown):
        try:
            described.append(_described(cert))
        except ValueError as err:  # fields are decoded when they are looked at
            raise InvalidArgument(
                f"Certificate {at + 1} cannot be read: a field of it is malformed."
            ) from err
    for at, each in enumerate(described):
        if at + 1 < len(found):
            each["issued_by_next"] = _issued(found[at], found[at + 1])
        lines += ([""] if lines else []) + _certificate_lines(at + 1, each)
    if len(found) > len(shown):
        lines.append(f"{len(found) - len(shown)} more certificates are not shown.")
    return "\n".join(lines), {**facts, "certificates": described, "total": len(found)}


def _issued(cert: x509.Certificate, issuer: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        cert.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _shown(text: str) -> str:
    return visible(text.encode("utf-8", "backslashreplace"), keep=" ")[:500]


def _described(cert: x509.Certificate) -> dict[str, Any]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import rsa

    now = datetime.now(UTC)
    start, end = cert.not_valid_before_utc, cert.not_valid_after_utc
    warnings = []
    if now < start:
        warnings.append("it is not valid yet")
    if now > end:
        warnings.append("it has expired")
    try:
        key = cert.public_key()
        key_kind, key_bits = key_text(key), getattr(key, "key_size", None)
        if isinstance(key, rsa.RSAPublicKey) and key.key_size < 2048:
            warnings.append(f"its RSA key of {key.key_size} bits is too short")
        signed_with = cert.signature_hash_algorithm.name if cert.signature_hash_algorithm else "its key alone"
    except (ValueError, UnsupportedAlgorithm):
        key_kind, key_bits, signed_with = "of an unknown kind", None, "an unknown algorithm"
    self_signed = _issued(cert, cert)
    if signed_with in WEAK and not self_signed:
        warnings.append(f"it is signed with {signed_with}, which is weak")
    extensions, names = _extensions(cert, warnings)
    return {
        "subject": _shown(cert.subject.rfc4514_string()),
        "issuer": _shown(cert.issuer.rfc4514_string()),
        "serial": f"{cert.serial_number:x}",
        "names": names[:NAMES_LIMIT],
        "names_total": len(names),
        "not_before": start.isoformat(),
        "not_after": end.isoformat(),
        "days_left": math.floor((end - now).total_seconds() / 86400),
        "valid_now": start <= now <= end,
        "key": key_kind,
        "key_bits": key_bits,
        "signed_with": signed_with,
        "self_signed": self_signed,
        "sha256": cert.fingerprint(hashes.SHA256()).hex(),
        "sha1": cert.fingerprint(hashes.SHA1()).hex(),  # noqa: S303 - a name for the certificate, as others show it
        "extensions": extensions,
        "warnings": warnings,
    }


def _extensions(cert: x509.Certificate, warnings: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The extensions of interest as text, and the subject's alternative names."""
    from cryptography import x509

    try:
        known = [each.value for each in cert.extensions]
    except (ValueError, x509.DuplicateExtension) as err:
        warnings.append(f"its extensions cannot be read ({type(err).__name__})")
        return {}, []
    said: dict[str, Any] = {}
    names: list[str] = []
    for value in known:
        match value:
            case x509.SubjectAlternativeName():
                names = [_general_name(each) for each in value]
            case x509.BasicConstraints():
                said["ca"], said["path_length"] = value.ca, value.path_length
            case x509.KeyUsage():
                said["key_usage"] = _usages(value)
            case x509.ExtendedKeyUsage():
                said["extended_key_usage"] = [_usage_name(each) for each in value][:20]
            case x509.SubjectKeyIdentifier():
                said["subject_key_id"] = value.digest.hex()
            case x509.AuthorityKeyIdentifier() if value.key_identifier:
                said["authority_key_id"] = value.key_identifier.hex()
            case x509.AuthorityInformationAccess():
                said["authority_info"] = [_general_name(each.access_location) for each in value][:10]
            case x509.CRLDistributionPoints():
                points = [_general_name(name) for each in value for name in each.full_name or []]
                said["crl"] = points[:10]
    return said, names


def _general_name(name: x509.GeneralName) -> str:
    from cryptography import x509

    value = name.value
    text = value.rfc4514_string() if isinstance(value, x509.Name) else str(value)
    kinds = {"DNSName": "", "IPAddress": "", "RFC822Name": "mail:", "UniformResourceIdentifier": ""}
    kind = type(name).__name__
    return kinds.get(kind, f"{kind}:") + _shown(text)


def _usages(value: x509.KeyUsage) -> list[str]:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
    )
    found = [name for name in names if getattr(value, name)]
    if value.key_agreement:
        found += [name for name in ("encipher_only", "decipher_only") if getattr(value, name)]
    return found


def _usage_name(oid: x509.ObjectIdentifier) -> str:
    from cryptography.x509.oid import ExtendedKeyUsageOID

    known = {
        value.dotted_string: name.lower()
        for name, value in vars(ExtendedKeyUsageOID).items()
        if hasattr(value, "dotted_string")
    }
    return known.get(oid.dotted_string, oid.dotted_string)


def _certificate_lines(number: int, each: dict[str, Any]) -> list[str]:
    days = each["days_left"]
    left = f"{days} days left" if days >= 0 else f"expired {-days} days ago"
    signer = "self-signed" if each["self_signed"] else f"signed with {each['signed_with']}"
    lines = [
        f"Certificate {number}: {each['subject'] or '(no subject)'}",
        f"  Issuer: {each['issuer'] or '(no issuer)'} ({signer})",
    ]
    if each["names"]:
        more = each["names_total"] - len(each["names"])
        lines.append(f"  Names: {', '.join(each['names'])}" + (f" and {more} more" if more else ""))
    lines += [
        f"  Valid: {each['not_before']} to {each['not_after']} ({left})",
        f"  Key: {each['key']}",
        f"  Serial: {each['serial']}",
        f"  SHA-256: {each['sha256']}",
        f"  SHA-1: {each['sha1']}",
    ]
    for key, value in each["extensions"].items():
        if value is not None and value != []:
            text = ", ".join(value) if isinstance(value, list) else str(value).lower()
            lines.append(f"  {key.replace('_', ' ').capitalize()}: {text}")
    if each.get("issued_by_next") is False:
        lines.append("  Warning: the next certificate is not its issuer.")
    return lines + [f"  Warning: {warning}." for warning in each["warnings"]]


def key_text(key: Any) -> str:
    """Such as `RSA 2048 bits`, `EC secp256r1`, `Ed25519`."""
    kind = type(key).__name__.removesuffix("PublicKey").lstrip("_")
    if hasattr(key, "curve"):
        return f"EC {key.curve.name}"
    return f"{kind} {key.key_size} bits" if hasattr(key, "key_size") else kind
