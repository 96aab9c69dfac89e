"""Certificates for tests of TLS: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Signs certificates and writes them into a folder, each with its key."""

    def __init__(self, folder: Path, name: str = "Test CA") -> None:
        self._folder = folder
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(self._name, self._key, ca=True)
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, days: int = 30, self_signed: bool = False) -> Path:
        """A certificate for an address or a host name, which ends so many days from now; with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(_name(name), key, days=days, host=name, self_signed=self_signed)
        path = self._folder / f"{name}-{days}-{self_signed}.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return path

    def server(self, name: str = "127.0.0.1", *, days: int = 30, self_signed: bool = False) -> ssl.SSLContext:
        """The context of a server with such a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue(name, days=days, self_signed=self_signed))
        return context

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        days: int = 30,
        host: str = "",
        ca: bool = False,
        self_signed: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        end = now + datetime.timedelta(days=days)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if self_signed else self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - datetime.timedelta(days=1))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if host:
            try:
                alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
            except ValueError:
                alternative = x509.DNSName(host)
            builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        return builder.sign(key if self_signed else self._key, hashes.SHA256())
