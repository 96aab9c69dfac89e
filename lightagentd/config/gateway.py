"""Declares the section `[gateway]` of the configuration: where `lightagent-gateway.service` listens, and what
one token may use of it.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from lightagentd.config.section import Seconds, Section
from lightagentd.errors import ConfigError
from lightagentd.limits import MAX_MESSAGE_BYTES

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+)):(\d{1,5})")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_ORIGIN = re.compile(r"https?://[^\s/@?#*]+")
_HOST = re.compile(r"[^\s/@?#*:]+|\[[0-9a-fA-F:.]+\]")


def _address(text: str) -> str:
    if (found := _ADDRESS.fullmatch(text)) is None or not 0 < int(found[3]) < 1 << 16:
        raise ValueError("write HOST:PORT, such as 127.0.0.1:8330 or [::1]:8330")
    return text


def _origin(text: str) -> str:
    if _ORIGIN.fullmatch(text) is None:
        raise ValueError(
            "write http:// or https:// and a host, such as https://chat.example.org, and no path or *"
        )
    return text


def _host(text: str) -> str:
    if _HOST.fullmatch(text) is None:
        raise ValueError("write a host without scheme, port and path, such as agents.example.org")
    return text


Origin = Annotated[str, Field(max_length=255), AfterValidator(_origin)]
HostName = Annotated[str, Field(max_length=255), AfterValidator(_host)]


class Gateway(Section):
    """`[gateway]`: what `lightagent-gateway.service` serves over HTTP besides its Unix socket."""

    listen: list[Annotated[str, AfterValidator(_address)]] = Field(default_factory=list)
    """Addresses `HOST:PORT` (`[::1]:8443` for IPv6) to listen on too. One that is not of this machine alone
    (127.0.0.0/8, ::1, localhost) needs a certificate."""
    tls_certificate: Path | None = None
    """The certificate with its chain (PEM); a bare name is a credential of the service (`LoadCredential=`).
    With it, every address speaks TLS."""
    tls_key: Path | None = None
    """Its key (PEM), named likewise."""
    hosts: list[HostName] = Field(default_factory=list)
    """Names by which clients may call the gateway, besides localhost and the addresses it listens on: what a
    request has as `Host`, without the port. Others are refused, so that no web page can reach the gateway
    by a name of its own."""
    origins: list[Origin] = Field(default_factory=list)
    """Web pages that may use the gateway from a browser (`https://chat.example.org`); a request of any other
    page is refused."""
    public_url: str = Field(default="", pattern=r"^(https?://[^\s/@?#]+)?/?$", max_length=255)
    """The address by which people who are away reach the gateway (`https://agents.example.org`), for the
    links of `[notify.answers]`; its host counts as one of `hosts`."""
    max_connections: int = Field(default=512, ge=1, le=65_536)
    """HTTP connections at once. When there are so many, the one that has been idle longest is closed."""
    header_timeout_s: Seconds = 10.0
    """How long the head of a request may take to arrive."""
    body_timeout_s: Seconds = 30.0
    """How long its body may take."""
    idle_timeout_s: Seconds = 60.0
    """How long a connection may have no request."""
    write_timeout_s: Seconds = 30.0
    """How long a client may read nothing while it is sent something; then it is taken to be gone."""
    request_bytes: int = Field(default=8 << 20, ge=1024, le=MAX_MESSAGE_BYTES)
    """The largest body of a request, unless its token says less."""
    requests_per_minute: int = Field(default=240, ge=1, le=1_000_000)
    """How many requests one token may make in a minute, unless the token says less."""
    streams: int = Field(default=16, ge=1, le=10_000)
    """How many turns may run for one token at once, unless the token says less."""
    max_streams: int = Field(default=256, ge=1, le=10_000)
    """How many turns may run for all of them."""
    bytes_per_minute: int = Field(default=64 << 20, ge=1024, le=1 << 40)
    """How much one token may send and be sent in a minute."""
    tokens_per_day: int = Field(default=0, ge=0)
    """How many tokens of models the turns of one token may use on one day (UTC), unless the token says less;
    0 for no limit. The daemon counts them, also across restarts. Turns that run when it is reached end as
    they would."""
    on_disconnect: Literal["cancel", "continue"] = "cancel"
    """What becomes of a turn whose client hangs up."""
    client_tools: bool = False
    """Whether clients may bring tools of their own: the agent may answer with a call of one, for the client
    to run. Needs a model that can answer with JSON that fits a schema."""
    open_metrics: bool = False
    """Whether `/metrics` has the figures of the gateway itself (none of the daemon's) without a token."""


def addresses(gateway: Gateway) -> list[tuple[str, int]]:
    """The addresses to listen on. Raises ConfigError for one that needs a certificate and has none."""
    if (gateway.tls_certificate is None) != (gateway.tls_key is None):
        raise ConfigError("[gateway] needs both tls_certificate and tls_key, or neither.")
    found = [_split(address) for address in gateway.listen]
    for host, port in found:
        if gateway.tls_certificate is None and not _is_loopback(host):
            raise ConfigError(
                f"[gateway] listen: {host}:{port} is for other machines too, and there is no certificate.",
                suggestion="Name tls_certificate and tls_key, or listen on 127.0.0.1 behind a proxy.",
            )
    return found


def allowed_hosts(gateway: Gateway) -> frozenset[str]:
    """What a request may have as `Host`, in lower case and without the port."""
    listening = [f"[{host}]" if ":" in host else host for host, _ in map(_split, gateway.listen)]
    public = re.sub(r":\d*$", "", gateway.public_url.rstrip("/").partition("//")[2])
    names = (*LOOPBACK_NAMES, *listening, *gateway.hosts, *([public] if public else []))
    return frozenset(name.lower().rstrip(".") for name in names)


def _split(address: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(address)
    assert found is not None  # the section has checked it
    return found[1] or found[2], int(found[3])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
