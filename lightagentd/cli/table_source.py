"""Reads the table for `lactl models refresh`: from a file, standard input, or a URL that lactl fetches.

From the network only https is accepted, so that nobody on the way can change prices; plain http only from
this machine. Reading stops at `MAX_FILE_BYTES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightagentd.cli.named_file import read_file
from lightagentd.errors import InvalidArgument, MessageTooLarge, Unavailable
from lightagentd.llm.metadata.table import MAX_FILE_BYTES

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "https://models.dev/api.json"
_TIMEOUT_S = 30.0
_MAX_REDIRECTS = 5
_FEWER = "A table of all models has about 4 MiB; leave out the providers that you do not use."
_OFFLINE = "On a machine without network: fetch it elsewhere, and name the file."


def read_source(source: str) -> bytes:
    """The content of a file, of standard input (`-`) or of a URL. Raises LightagentError."""
    return (
        _fetch(source) if "://" in source else read_file(source, max_bytes=MAX_FILE_BYTES, too_large=_FEWER)
    )


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
    """Raises Unavailable, MessageTooLarge."""
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
            raise MessageTooLarge(
                f"What {url} answers is larger than {MAX_FILE_BYTES} bytes.", suggestion=_FEWER
            )
    return bytes(data)
