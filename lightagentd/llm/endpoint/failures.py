"""Maps failures of the connection to an endpoint to errors with a code and a suggestion.

httpx gives the kind of failure; its causes have the words of the system and of OpenSSL.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator

import httpx

from lightagentd.errors import (
    ModelCertificate,
    ModelCutOff,
    ModelError,
    ModelGarbled,
    ModelTimedOut,
    ModelUnreachable,
)
from lightagentd.llm.endpoint.refusals import NoModel, ProxyRefused, printable

# X509_verify_cert(3): the codes of the reasons.
_DATES = (9, 10, 11, 12)
_NAMES = (62, 64)
_LATER = "Try again later, or choose another model."


def failure(err: Exception, where: str, proxy: str, *, answering: bool) -> ModelError:
    """The error for an exception of httpx. `where` names model and URL, `proxy` the proxy in use. `answering`
    says whether the head of the answer had arrived.
    """
    if isinstance(err, httpx.TimeoutException):
        return _timed_out(err, where, proxy)
    for cause in _causes(err):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return _tls(cause, where)
    if isinstance(err, httpx.ProxyError):
        return _of_proxy(str(err), where, proxy)
    if isinstance(err, httpx.ConnectError):
        return _not_connected(err, where, proxy)
    said = printable(str(err)).rstrip(".")
    if isinstance(err, httpx.RemoteProtocolError) and not ("disconnected" in said or "closed" in said):
        return ModelGarbled(
            f"What answers for {where} does not speak HTTP as it should: {said}.",
            suggestion="Check the port and the scheme in base_url.",
            reached=True,
        )
    if isinstance(err, httpx.TransportError | OSError) and not isinstance(
        err, httpx.UnsupportedProtocol | httpx.LocalProtocolError
    ):
        when = "in the middle of the answer" if answering else "before the answer"
        why = next(
            (cause.strerror for cause in _causes(err) if isinstance(cause, OSError) and cause.strerror), said
        )
        return ModelCutOff(
            f"The connection to {where} broke off {when}{f': {why}' if why else ''}.",
            suggestion=_LATER,
            reached=True,
        )
    return ModelError(
        f"No request can be made to {where}: {said or type(err).__name__}.",
        suggestion="Correct base_url and headers of the provider.",
    )


def begin(where: str) -> str:
    """The same, for the beginning of a sentence."""
    return where[:1].upper() + where[1:]


def _timed_out(err: httpx.TimeoutException, where: str, proxy: str) -> ModelTimedOut:
    if isinstance(err, httpx.ConnectTimeout):
        through = f" through the proxy {proxy}" if proxy else ""
        return ModelTimedOut(
            f"{begin(where)} did not take the connection{through} in time.",
            suggestion="Check base_url, the network and its firewalls, or set connect_timeout_s.",
        )
    if isinstance(err, httpx.PoolTimeout):
        return ModelTimedOut(f"All connections to {where} are in use.", suggestion=_LATER)
    return ModelTimedOut(
        f"{begin(where)} did not answer in time: it was silent for longer than idle_timeout_s.",
        suggestion="Try again, choose another model, or set idle_timeout_s.",
        reached=True,
    )


def _tls(err: ssl.SSLError, where: str) -> ModelError:
    reason = (err.reason or "").replace("_", " ").lower()
    if isinstance(err, ssl.SSLCertVerificationError):
        suggestion = "If it is right so, name the certificate of who signed it in ca_file of the provider."
        if err.verify_code in _DATES:
            suggestion = "Check this machine's clock, and the dates of the certificate."
        elif err.verify_code in _NAMES:
            suggestion = "Check the host in base_url: the certificate is for another name."
        return ModelCertificate(
            f"The certificate of {where} cannot be trusted: {err.verify_message or reason}.",
            suggestion=suggestion,
        )
    if any(word in reason for word in ("wrong version number", "record layer failure", "http request")):
        return NoModel(
            f"What answers for {where} does not speak TLS.",
            suggestion="If it is on this machine, base_url should begin with http://.",
        )
    if "alert" in reason:
        return ModelCertificate(
            f"{begin(where)} does not take this daemon's certificate, or wants one: {reason}.",
            suggestion="Set client_cert and client_key of the provider to what its owner gave you.",
        )
    return ModelCertificate(
        f"No secure connection to {where} can be made: {reason or 'TLS failed'}.",
        suggestion="Check base_url, ca_file, client_cert and client_key of the provider.",
    )


def _of_proxy(said: str, where: str, proxy: str) -> ModelError:
    status = said[:3]
    kind = ModelUnreachable if status.startswith("5") else ProxyRefused
    suggestion = "Check the provider's proxy; none stands for no proxy."
    if status == "407":
        suggestion = (
            "It wants a user and a password: name it with both in the variable https_proxy of the daemon's"
            " environment, and take proxy out of the provider."
        )
    return kind(f"The proxy {proxy} does not connect to {where}: {printable(said)}.", suggestion=suggestion)


def _not_connected(err: httpx.ConnectError, where: str, proxy: str) -> ModelUnreachable:
    what = f"The proxy {proxy} for {where}" if proxy else begin(where)
    why = printable(str(err)).rstrip(".")
    for cause in _causes(err):
        if isinstance(cause, socket.gaierror):
            return ModelUnreachable(
                f"{what} cannot be reached: its name is not known ({cause.strerror}).",
                suggestion=f"Check the host in {'proxy' if proxy else 'base_url'}, and this machine's DNS.",
            )
        if isinstance(cause, OSError) and cause.strerror:
            why = os.strerror(cause.errno) if cause.errno else cause.strerror
    return ModelUnreachable(
        f"{what} cannot be reached: {why or 'the connection failed'}.",
        suggestion=f"Check {'proxy' if proxy else 'base_url'}, and that something listens there.",
    )


def _causes(err: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, including those in a group."""
    found: list[BaseException] = [err]
    while found:
        cause = found.pop(0)
        yield cause
        led = cause.__cause__
        if led is None and type(cause).__module__.startswith("httpcore"):
            led = cause.__context__  # other errors may have a context from the caller's earlier work
        if led is not None:
            found.append(led)
        if isinstance(cause, BaseExceptionGroup):
            found += cause.exceptions
