"""Asks for the addresses of a name: as programs do, or of one name server by a datagram (RFC 1035, 4)."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time

from report import plural

_TIMEOUT_S = 3.0
_CODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
_A, _IN, _RECURSION, _IS_REPLY = 1, 1, 0x0100, 0x8000


def query(name: str, number: int) -> bytes:
    """The datagram. Raises UnicodeError for what is not a name."""
    parts = name.rstrip(".").encode("idna").split(b".")
    labels = b"".join(bytes([len(part)]) + part for part in parts)
    return struct.pack(">6H", number, _RECURSION, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", _A, _IN)


def reply(data: bytes, number: int) -> str:
    """`NOERROR with 2 records`, `NXDOMAIN`; raises ValueError where it is no answer to this question."""
    if len(data) < 12:
        raise ValueError("a reply of a few bytes")
    got, flags, _, answers, _, _ = struct.unpack(">6H", data[:12])
    if got != number or not flags & _IS_REPLY:
        raise ValueError("a reply to another question")
    code = _CODES.get(flags & 15, f"code {flags & 15}")
    if code == "NOERROR":
        return f"NOERROR with {plural(answers, 'record')}" if answers else "NOERROR without an address (IPv4)"
    return code


def ask_server(server: str, name: str, port: int = 53) -> tuple[bool, str]:
    """Whether a server knows the name, and what it said or why it said nothing."""
    number, started = secrets.randbelow(1 << 16), time.monotonic()
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as plain:
            plain.settimeout(_TIMEOUT_S)
            plain.connect((server, port))
            plain.send(query(name, number))
            words = reply(plain.recv(4096), number)
    except TimeoutError:
        return False, f"no answer within {_TIMEOUT_S:.0f} s"
    except ConnectionRefusedError:
        return False, "refused: nothing listens on its port 53"
    except (OSError, ValueError, UnicodeError) as err:
        return False, getattr(err, "strerror", None) or str(err)
    return words.startswith("NOERROR"), f"{words} in {1000 * (time.monotonic() - started):.0f} ms"


def resolve(name: str, timeout_s: float) -> tuple[list[str], str]:
    """The addresses that programs get, by nsswitch.conf, or why there are none; waits no longer."""
    found: list[str] = []
    problems: list[str] = []

    def ask() -> None:
        try:
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            found.extend(dict.fromkeys(str(row[4][0]) for row in rows))
        except (OSError, UnicodeError) as err:
            problems.append(getattr(err, "strerror", None) or str(err))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        return [], f"no answer within {timeout_s:.0f} s"
    return found, problems[0] if problems else ""
