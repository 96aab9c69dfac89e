"""Decides which URLs the tool web may request, and which addresses it may connect to.

The model, the web server and the nameserver all count as attackers. A URL is parsed strictly, its name is
resolved once, and every address is checked. The caller connects only to the addresses from `Guard.addresses`,
so that no second answer of the nameserver is used (DNS rebinding).

Only addresses of the public internet pass; the tables follow IANA's special-purpose registries (RFC 6890).
The administrator lets others in with `LIGHTAGENT_WEB_ALLOW`, entries with commas between them:

    intranet.example            this name, on every port
    intranet.example:8443       this name on one port
    127.0.0.1:8080, [fd12::1]:80, fd12::1
    10.1.0.0/16                 these addresses, whatever name leads to them

A name lets private addresses and this machine's own in, but no link-local, reserved or metadata address,
because the nameserver says what a name leads to; those are let in by their address. The address of a cloud's
metadata service, which hands out credentials, passes only when an entry names that one address.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import os
import re
import socket
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from lightagentd.errors import ConfigError, InvalidArgument, NotFound, PermissionDenied, ToolError

_log = logging.getLogger(__name__)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""From an ASCII host name and a port to addresses as text; raises NotFound, ToolError."""

ALLOW_VARIABLE = "LIGHTAGENT_WEB_ALLOW"
FOLDER_VARIABLE = "LIGHTAGENT_WEB_ALLOW_IN"
"""The folder of the configuration whose `web_allow` counts where the other variable is not set."""
URL_LIMIT_CHARS = 8192
DEFAULT_PORTS = {"http": 80, "https": 443}
_SAFE_PATH = "/%:@!$&'()*+,;=~"
_SAFE_QUERY = _SAFE_PATH + "?"
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

_PRIVATE = {
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by a provider's customers",
    "127.0.0.0/8": "loopback",
    "172.16.0.0/12": "private",
    "192.168.0.0/16": "private",
    "::1/128": "loopback",
    "fc00::/7": "private",
}
"""What an entry with a name lets in, too."""
_SPECIAL = {
    "0.0.0.0/8": "unspecified",
    "169.254.0.0/16": "link-local",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "a 6to4 relay",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/128": "unspecified",
    "2001::/23": "reserved or a tunnel's",
    "2001:db8::/32": "for documentation",
    "2002::/16": "a 6to4 tunnel's",
    "3fff::/20": "for documentation",
    "fe80::/10": "link-local",
    "ff00::/8": "multicast",
}
_KINDS = [(ipaddress.ip_network(text), kind) for text, kind in (_PRIVATE | _SPECIAL).items()]
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Where DNS64 puts IPv4 addresses (RFC 6052)."""
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # most clouds
        "169.254.170.2",  # Amazon ECS
        "169.254.170.23",  # Amazon EKS
        "fd00:ec2::254",  # Amazon
        "fd00:ec2::23",  # Amazon EKS
        "fd20:ce::254",  # Google
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "168.63.129.16",  # Azure; a public address
    )
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A URL that was checked, in parts that need no further parsing."""

    scheme: str
    host: str
    """An ASCII name in lower case without a dot at its end, or an address without brackets."""
    port: int
    path: str
    """Path and query, percent-encoded; it begins with a slash."""

    @property
    def address(self) -> Address | None:
        """The host, if it is an address."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """The value of the header Host (RFC 9110, section 7.2): the scheme's own port is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


def parse_url(url: str) -> Target:
    """The parts of an absolute http or https URL; its fragment is left out.

    Raises InvalidArgument for everything that two programs could read in two ways.
    """
    if len(url) > URL_LIMIT_CHARS:
        raise _bad(url, f"is longer than {URL_LIMIT_CHARS} characters")
    if any(char.isspace() or unicodedata.category(char) in ("Cc", "Cs") for char in url):
        raise _bad(url, "has blanks, line breaks or control characters in it", "Write them as %20 and alike.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as err:
        raise _bad(url, f"cannot be read: {err}") from err
    if parts.scheme not in DEFAULT_PORTS:
        raise _bad(url, "is neither http nor https", "Begin it with https://.")
    if "@" in parts.netloc:
        raise _bad(url, "has a user name in it", "Send credentials in the header Authorization.")
    digits = parts.netloc.rpartition("]")[2].partition(":")[2]
    if port == 0 or (digits and not re.fullmatch("[0-9]+", digits)):
        raise _bad(url, "has no valid port")
    path = quote(parts.path or "/", safe=_SAFE_PATH)
    query = f"?{quote(parts.query, safe=_SAFE_QUERY)}" if parts.query else ""
    return Target(
        scheme=parts.scheme,
        host=_host(url, parts.netloc, parts.hostname or ""),
        port=port or DEFAULT_PORTS[parts.scheme],
        path=path + query,
    )


def _bad(url: str, why: str, suggestion: str = "") -> InvalidArgument:
    return InvalidArgument(f"The URL {url[:200]!r} {why}.", field="url", suggestion=suggestion)


def _host(url: str, netloc: str, host: str) -> str:
    """The host of a URL, whose numbers only have the spelling that every program reads alike."""
    if netloc.startswith("["):
        try:
            if not re.fullmatch(r"\[[0-9A-Fa-f:.]+\](:[0-9]*)?", netloc):
                raise ValueError(netloc)
            return str(ipaddress.IPv6Address(host))
        except ValueError as err:
            raise _bad(url, "has no valid IPv6 address in its brackets") from err
    if not host.isascii():
        host = _ascii(url, host)
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError as err:
            raise _bad(url, "spells an address in an unusual way", "Write it as 192.0.2.1.") from err
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _bad(url, "has no valid host name")
    return host


def _ascii(url: str, host: str) -> str:
    """An international name as the nameservers know it, with the full-width and circled forms undone."""
    import idna  # which httpx needs, too; its tables are large

    host = unicodedata.normalize("NFKC", host)
    if len(host) > 253:
        raise _bad(url, "has no valid host name")
    try:
        return host if host.isascii() else idna.encode(host, uts46=True).decode()
    except UnicodeError as err:
        raise _bad(url, "has no valid host name") from err


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One entry of the list of what is let in: a name or addresses, on one port or (0) on all."""

    name: str = ""
    network: Network | None = None
    port: int = 0

    def covers(self, target: Target, address: Address, *, metadata: bool, private: bool) -> bool:
        """Whether it lets in `address`, which `target` led to."""
        if self.port not in (0, target.port):
            return False
        if self.network is not None:
            return address in self.network and (self.network.num_addresses == 1 or not metadata)
        return self.name == target.host and private and not metadata


def rules_in_force() -> list[Rule]:
    """What the administrator lets in. Raises ConfigError as `parse_rules`."""
    said = os.environ.get(ALLOW_VARIABLE)
    return parse_rules(said if said is not None else _configured(os.environ.get(FOLDER_VARIABLE, "")))


@functools.cache
def _configured(folder: str) -> str:
    """`web_allow` of the configuration in a folder, read once."""
    from lightagentd.config.configuration import load  # only here: few workers ask the web

    try:
        return ",".join(load(Path(folder))[0].worker.web_allow) if folder else ""
    except (ConfigError, OSError) as err:
        _log.warning("no private address can be reached, since the configuration cannot be read: %s", err)
        return ""


def parse_rules(text: str) -> list[Rule]:
    """The entries of LIGHTAGENT_WEB_ALLOW. Raises ConfigError that names the entry at fault."""
    return [_rule(entry.strip()) for entry in text.split(",") if entry.strip()]


def _rule(entry: str) -> Rule:
    try:
        return Rule(network=ipaddress.ip_network(entry))
    except ValueError:
        pass
    try:
        if "/" in entry:
            raise ValueError(entry)
        target = parse_url(f"http://{entry}")
        port = target.port if re.search(r"[^:]:[0-9]+$", entry) else 0
    except (InvalidArgument, ValueError) as err:
        raise ConfigError(
            f"web_allow has the entry {entry!r}, which is no host, host:port or network.",
            suggestion="Write entries such as intranet.example:8443 or 10.1.0.0/16.",
        ) from err
    if target.address is not None:
        return Rule(network=ipaddress.ip_network(target.host), port=port)
    return Rule(name=target.host, port=port)


async def ask_libc(host: str, port: int) -> list[str]:
    """Addresses from the C library (hosts(5), nameservers); a running call cannot be stopped."""
    try:
        found = await asyncio.to_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as err:
        if err.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            raise NotFound(f"The name {host} has no address.", field="url") from err
        raise ToolError(
            f"{host} cannot be resolved: {err.strerror}.",
            suggestion="Check the nameservers in /etc/resolv.conf.",
        ) from err
    return [str(row[4][0]) for row in found]


class Guard:
    """Decides about addresses.

    `resolve` takes the place of the C library's name resolution, for tests and for hosts with another one.
    """

    def __init__(self, rules: Sequence[Rule] = (), *, resolve: Resolve = ask_libc) -> None:
        self._rules = rules
        self._resolve = resolve

    async def addresses(self, target: Target) -> list[Address]:
        """The addresses to connect to, in the resolver's order; IPv4-mapped ones as IPv4.

        One forbidden address refuses the whole name. Raises PermissionDenied, NotFound, ToolError.
        """
        if target.address is not None:
            found = [target.address]
        else:
            found = [_address(text) for text in await self._resolve(target.host, target.port)]
        if not found:
            raise NotFound(f"The name {target.host} has no address.", field="url")
        plain = [getattr(address, "ipv4_mapped", None) or address for address in found]
        for address in plain:
            self._check(target, address)
        return list(dict.fromkeys(plain))

    def _check(self, target: Target, address: Address) -> None:
        kind = kind_of(address)
        metadata = address in _METADATA or _inside(address) in _METADATA
        private = kind in _PRIVATE.values() or kind == _OWN
        if kind and not any(
            rule.covers(target, address, metadata=metadata, private=private) for rule in self._rules
        ):
            where = "" if target.host == str(address) else f"{target.host} leads to "
            raise self._refusal(target, f"{where}{address}, which is {kind}")

    def _refusal(self, target: Target, why: str) -> PermissionDenied:
        return PermissionDenied(
            f"{target.scheme}://{target.authority} may not be asked: {why}.",
            field="url",
            suggestion="Ask a public host. An administrator can add this one to web_allow in [worker] of"
            " lightagentd.toml.",
        )


_OWN = "an address of this machine"


def _address(text: str) -> Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as err:
        raise ToolError(f"The resolver gave {text!r}, which is not an address.") from err


def _inside(address: Address) -> Address | None:
    """The IPv4 address that a NAT64 gateway makes of an IPv6 one."""
    if address.version == 6 and address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def kind_of(address: Address) -> str:
    """Why an address is not one of the public internet; empty if it is one."""
    if address in _METADATA:
        return "a metadata service of a cloud"
    inside = _inside(address)
    if inside is not None:
        kind = kind_of(inside)
        return f"{inside} behind NAT64, {kind}" if kind else ""
    if getattr(address, "scope_id", None):
        return "link-local"
    for network, kind in _KINDS:
        if address in network:
            return kind
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        return "reserved"
    return _OWN if is_own(address) else ""


def is_own(address: Address) -> bool:
    """Whether the address is this machine's: what goes there passes the firewall by.

    The kernel then takes the same address as the source; connecting a datagram socket sends nothing (udp(7)).
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False  # no route there
