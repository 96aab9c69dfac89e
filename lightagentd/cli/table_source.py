"""Reads the table for `lactl models refresh`: from a file, standard input, or a URL that lactl fetches.

From the network only https is accepted, so that nobody on the way can change prices; plain http only from
this machine. Reading stops at `MAX_FILE_BYTES`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightagentd.errors import InvalidArgument, LimitExceeded, NotFound, PermissionDenied, Unavailable
from lightagentd.llm.metadata.table import MAX_FILE_BYTES

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "https://models.dev/api.json"
_TIMEOUT_S = 30.0
_MAX_REDIRECTS = 5
_OFFLINE = "On a machine without network: fetch it elsewhere, and name the file."


def read_source(source: str) -> bytes:
    """The content of a file, of standard input (`-`) or of a URL. Raises LightagentError."""
    if source == "-":
        data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if sys.stdin is not None else b""
        return _bounded(data, "What is on standard input")
    if "://" in source:
        return _fetch(source)
    path = Path(source)
    try:
        with path.open("rb") as file:
            return _bounded(file.read(MAX_FILE_BYTES + 1), str(path))
    except FileNotFoundError as err:
        raise NotFound(f"There is no file {path}.", suggestion="Name a file or a URL.") from err
    except PermissionError as err:
        raise PermissionDenied(f"You cannot read {path}.", suggestion="Use sudo.") from err
    except OSError as err:
        raise InvalidArgument(f"{path} cannot be read: {err.strerror}.", suggestion="Name a file.") from err


def _bounded(data: bytes, what: str) -> bytes:
    if len(data) > MAX_FILE_BYTES:
        raise LimitExceeded(
            f"{what} has more than {MAX_FILE_BYTES >> 20} MiB.",
            suggestion="A table of all models has about 4; leave out the providers that you do not use.",
        )
    return data


def _fetch(url: str) -> bytes:
    import httpx

    try:
        with httpx.Client(timeout=_TIMEOUT_S, headers={"Accept-Encoding": "identity"}) as client:
            asked = httpx.URL(url)
            for _ in range(_MAX_REDIRECTS + 1):
                _check_safe(asked)
                with client.stream("GET", asked) as answer:
                    if answer.has_redirect_location:
                        asked = asked.join(answer.headers["location"])
                        continue
                    return _body(answer, asked)
    except httpx.InvalidURL as err:
        raise InvalidArgument(f"{url!r} is not a URL: {err}.", suggestion=f"Such as {DEFAULT_URL}") from err
    except httpx.HTTPError as err:
        why = str(err) or type(err).__name__
        raise Unavailable(f"{url} cannot be fetched: {why}.", suggestion=_OFFLINE) from err
    raise Unavailable(f"{url} redirects more than {_MAX_REDIRECTS} times.", suggestion="Name another URL.")


def _check_safe(url: httpx.URL) -> None:
    """Raises InvalidArgument."""
    if url.scheme == "https" or (url.scheme == "http" and url.host in ("127.0.0.1", "::1", "localhost")):
        return
    raise InvalidArgument(
        f"{url} is not fetched: what comes without https may have been changed on its way.",
        suggestion="Name an https URL, or fetch it yourself and name the file.",
    )


def _body(answer: httpx.Response, url: httpx.URL) -> bytes:
    """Raises Unavailable, LimitExceeded."""
    if answer.status_code != 200:
        raise Unavailable(
            f"{url} answered with status {answer.status_code}.", suggestion="Name another URL, or a file."
        )
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise Unavailable(
            f"{url} answered in a compressed form, which was not asked for.",
            suggestion="Fetch it yourself, and name the file.",
        )
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) > MAX_FILE_BYTES:
            break
    return _bounded(bytes(data), f"What {url} answers")
