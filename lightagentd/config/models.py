"""Declares the section `[models]` of the configuration, and finds the keys of its endpoints.

The section never holds a key or a password: a provider names a file, a credential of the daemon or an
environment variable. Missing settings may come from the environment; `llm.in_force` merges both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, PrivateAttr, field_validator, model_validator

from lightagentd.config.section import Seconds, Section
from lightagentd.errors import ConfigError
from lightagentd.text.reason import reason

HttpKind = Literal["openai", "openai-responses", "anthropic"]
HTTP_KINDS: tuple[HttpKind, ...] = ("openai", "openai-responses", "anthropic")
"""The kinds of providers that are reached at a URL."""
CREDENTIAL_NAMES = (
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "x-goog-api-key",
    "api-key",
    "api_key",
    "apikey",
    "cookie",
)
"""Headers that hold a key; in a body some servers take it under such a name as well."""
_CREDENTIAL_QUERIES = ("key", "api_key", "api-key", "apikey", "token", "access_token", "sig", "code")
_OWN_FIELDS = ("model", "messages", "input", "system", "instructions", "stream", "tools")
"""Fields of a request that are the daemon's to fill."""
AGENTS_FIELDS = frozenset(
    {
        *_OWN_FIELDS,
        "include",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "output_config",
        "response_format",
        "store",
        "stream_options",
        "temperature",
        "text",
        "thinking",
        "tool_choice",
    }
)
"""Those, and what the daemon or the provider's own table sets: an agent's definition may not."""
_OWN_CLIENT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PORT_MAX = 65_535
_Names = TypeVar("_Names", bound=Iterable[str])


class Price(Section):
    """`[models.prices."PROVIDER/MODEL"]`: what a million tokens cost."""

    prompt: float = Field(default=0.0, ge=0.0)
    """A million tokens of prompts."""
    completion: float = Field(default=0.0, ge=0.0)
    """A million tokens of answers."""
    cached: float | None = Field(default=None, ge=0.0)
    """A million tokens of prompts that the endpoint had cached; without it, as those that it had not."""


class Provider(Section):
    """`[models.providers.NAME]`: an endpoint of models, or a client of your own."""

    kind: str = ""
    """The protocol: `openai` is chat completions, as most servers speak it; `openai-responses` the Responses
    API; `anthropic` the Messages API; `replay` plays recorded answers; `module:Class` is a client of your own
    (see `lightagentd.llm.protocol`). Without it what the name or the end of base_url says, else `openai`."""
    base_url: str = ""
    """Where the endpoint is, up to and with `/v1`. Providers with a well-known name, such as `deepseek`, need
    none."""
    api_key_file: Path | None = None
    """A file that holds the key and nothing else, or the name of a credential of the daemon."""
    api_key_env: str = ""
    """A variable of the daemon's environment that holds the key."""
    headers: dict[str, str] = Field(default_factory=dict)
    """More headers of each request; those that would hold a key are refused."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """More fields of each request's JSON, such as `temperature`; they win over those of the daemon."""
    connect_timeout_s: Seconds = 10.0
    """How long the connection may take."""
    idle_timeout_s: Seconds = 120.0
    """How long the endpoint may be silent, before an answer and in the middle of it."""
    total_timeout_s: Seconds = 900.0
    """How long one answer may take as a whole."""
    max_retries: int = Field(default=4, ge=0, le=20)
    """How often a call is made again that failed in a way that may pass."""
    max_retry_s: Seconds = 60.0
    """How long all waiting between these calls may take; an endpoint that wants more is given up."""
    proxy: str = ""
    """The proxy, `http://HOST:PORT`; without it the one that the environment names, with `none` none at all.
    One that wants a password is named in the environment."""
    ca_file: Path | None = None
    """The certificates that are trusted, instead of the system's. This file and the next two may also be
    named as credentials of the daemon."""
    client_cert: Path | None = None
    """The certificate to show, a PEM file."""
    client_key: Path | None = None
    """Its key, if that is not in the same file."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """How long an answer may be; without it what the model's metadata or the endpoint say."""
    native_tools: bool | None = None
    """Whether the endpoint takes functions; if not, they are described in words and called as JSON. Without
    it what the model's metadata say, and what the endpoint answers."""
    thinking_tokens: int = Field(default=0, ge=0)
    """How much a model may think before it answers (`anthropic`); 0 for not at all."""
    recording: Path | None = None
    """With the kind `replay`: the folder with the recorded answers."""
    context_tokens: int | None = Field(default=None, ge=1000)
    """The window of this endpoint's models: how many tokens a prompt and its answer may have. Without it what
    the model's metadata say; and where they say nothing, a conversation is compacted as if it were 128,000,
    and what is longer even so is left to the endpoint."""
    _given_key: str = PrivateAttr(default="")
    """A key that was given together with the address, in the environment; in no repr and no dump."""

    @field_validator("kind")
    @classmethod
    def _is_kind(cls, kind: str) -> str:
        if kind not in ("", *HTTP_KINDS, "replay") and not _OWN_CLIENT.fullmatch(kind):
            raise ValueError(f"write one of {', '.join(HTTP_KINDS)}, replay, or module:Class of your own")
        return kind

    @field_validator("api_key_env")
    @classmethod
    def _is_variable(cls, name: str) -> str:
        if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", name):
            raise ValueError("it is the name of a variable that holds the key, and not the key itself")
        return name

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if url and (why := wrong_url(url)):
            raise ValueError(why)
        return url

    @field_validator("proxy")
    @classmethod
    def _is_proxy(cls, proxy: str) -> str:
        if proxy not in ("", "none") and (
            why := wrong_url(proxy, schemes=("http", "https", "socks5", "socks5h"))
        ):
            raise ValueError(why)
        return proxy

    @field_validator("headers")
    @classmethod
    def _no_credentials(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if name.lower() in CREDENTIAL_NAMES:
                raise ValueError(f"the header {name!r} would hold a key: use api_key_file or api_key_env")
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not (
                value.isascii() and value.isprintable()
            ):
                raise ValueError(f"the header {name[:40]!r} has characters that no HTTP header can have")
        return headers

    @field_validator("extra_body")
    @classmethod
    def _not_the_daemons(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if why := wrong_fields(fields, _OWN_FIELDS):
            raise ValueError(why)
        return fields

    @field_validator("ca_file", "client_cert", "client_key", "recording")
    @classmethod
    def _from_the_root(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute() and len(path.parts) != 1:
            raise ValueError("write the whole path, from / on")
        return path

    @model_validator(mode="after")
    def _whole(self) -> Provider:
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("client_key is of no use without client_cert")
        return self

    @property
    def over_http(self) -> bool:
        """Whether it is reached at a URL."""
        return not self.kind or self.kind in HTTP_KINDS

    def with_key(self, key: str) -> Provider:
        """The provider with a key that was given together with its address."""
        made = self.model_copy()
        made._given_key = key
        return made


class ModelFacts(Section):
    """`[models.known."PROVIDER/MODEL"]`: what is known of a model, over what the shipped table says."""

    context_tokens: int | None = Field(default=None, ge=1000)
    """The window."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """How long an answer may be."""
    tools: bool | None = None
    """Whether it takes functions."""
    reasoning: bool | None = None
    """Whether it thinks before it answers."""


class Models(Section):
    """`[models]`"""

    default: str = "runbook"
    """The model of agents that name none: `runbook`, or `PROVIDER/MODEL`."""
    fallback: list[str] = Field(default_factory=lambda: ["runbook"])
    """What every agent falls back to behind its own list, when all endpoints before are down: `runbook` takes
    over where it has a runbook for the prompt. `[]` for nothing."""
    look_at: list[str] = Field(default_factory=list, max_length=50)
    """Addresses at which `lactl models` looks for model servers, beside the usual ports of this machine, such
    as `http://gpu1:11434`. What is found there is shown, and used by nobody until it is a provider."""
    record: Path | None = None
    """A folder to which every exchange with a model is written, without secrets; see the kind `replay`."""
    known: dict[str, ModelFacts] = Field(default_factory=dict)
    providers: dict[str, Provider] = Field(default_factory=dict)
    prices: dict[str, Price] = Field(default_factory=dict)

    @field_validator("default")
    @classmethod
    def _is_model(cls, model: str) -> str:
        if why := wrong_model(model):
            raise ValueError(why)
        return model

    @field_validator("fallback", "known", "prices")
    @classmethod
    def _are_models(cls, models: _Names) -> _Names:
        for model in models:
            if why := wrong_model(model):
                raise ValueError(why)
        return models

    @field_validator("look_at")
    @classmethod
    def _are_addresses(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if why := wrong_url(url):
                raise ValueError(why)
            if urlsplit(url).path not in ("", "/") or "?" in url:
                raise ValueError("it is the address of a server alone, such as http://gpu1:11434")
        return urls

    @field_validator("record")
    @classmethod
    def _from_the_root(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError("write the whole path, from / on")
        return path

    @field_validator("providers")
    @classmethod
    def _nameable(cls, providers: dict[str, Provider]) -> dict[str, Provider]:
        for name in providers:
            if not name or "/" in name or name == "runbook":
                raise ValueError(f"no provider can be called {name[:40]!r}")
        return providers


def wrong_model(model: str) -> str:
    """What is wrong with a model string; empty when it is `runbook` or `PROVIDER/MODEL`."""
    provider, slash, name = model.partition("/")
    if model == "runbook" or (slash and provider and name):
        return ""
    return f"{model!r} is not a model: write runbook, or PROVIDER/MODEL"


def wrong_fields(fields: Iterable[str], own: Collection[str]) -> str:
    """Why fields cannot be added to a request, as the rest of a sentence; empty if they can."""
    for name in fields:
        if name.lower() in CREDENTIAL_NAMES:
            return f"the field {name!r} would hold a key: use api_key_file or api_key_env"
        if name in own:
            return f"the field {name!r} is the daemon's own"
    return ""


def wrong_url(url: str, *, schemes: tuple[str, ...] = ("http", "https"), with_password: bool = False) -> str:
    """What is wrong with the URL of an endpoint, without repeating it; empty when nothing is.

    `with_password` says that a user and a password may stand in it.
    """
    if re.search(r"[\s\x00-\x1f\x7f]", url) or not url.isascii():
        return "a URL has no blanks, and no characters beyond ASCII"
    scheme, sep, _ = url.partition("://")
    if not sep or re.search(r"[^A-Za-z0-9+.-]", scheme):
        return f"it has no scheme: write {'https' if len(schemes) == 2 else schemes[0]}:// before it"
    if scheme.lower() not in schemes:
        return f"write {' or '.join(f'{one}://' for one in schemes)}, and no other scheme"
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or 0 < parts.port <= _PORT_MAX
    except ValueError:
        return "its host or its port is no host or port"
    if not port_fits or not parts.hostname:
        return "its host or its port is no host or port"
    if "@" in parts.netloc and not with_password:
        return "a user and a password do not belong into it"
    if parts.fragment or "#" in url:
        return "it ends before any #"
    if any(name.lower() in _CREDENTIAL_QUERIES for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        return "a key does not belong into it: use api_key_file or api_key_env"
    return ""


def api_key(provider: Provider) -> str:
    """The key of a provider, from its file or environment variable, or what the environment gave with its
    address; empty when there is none.

    Raises ConfigError when the file cannot be read or holds no key.
    """
    if provider.api_key_file is not None:
        return read_key(provider.api_key_file)
    if provider._given_key:
        return provider._given_key
    return os.environ.get(provider.api_key_env, "").strip() if provider.api_key_env else ""


def credential(path: Path) -> Path:
    """Where a file lies: a bare name is a systemd credential of the daemon (`LoadCredential=`)."""
    if len(path.parts) == 1:
        return Path(os.environ.get("CREDENTIALS_DIRECTORY", "/run/credentials/lightagentd.service")) / path
    return path


def read_key(path: Path) -> str:
    """A key from a file, or from a credential. Raises ConfigError."""
    path = credential(path)
    try:
        found = path.read_text().split()
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(
            f"The key file {path} cannot be read: {reason(err)}.",
            suggestion="Name a file that the daemon can read.",
        ) from err
    if len(found) != 1:
        raise ConfigError(
            f"The key file {path} must hold one key; it holds {len(found)} words.",
            suggestion="Write the key into it, and nothing else.",
        )
    return found[0]
