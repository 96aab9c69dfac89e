"""Endpoints that are known by a name: where they are, how they speak, and what variable holds their key.

This table is code, and nothing that is refreshed can change it: it says where keys are sent. The names are
those of the metadata (`llm.metadata`), with those beside them that people use. What listens on this machine
is used when a model string names it, and never unasked.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from lightagentd.config.models import HttpKind, Models, Provider
from lightagentd.errors import ConfigError

RUNBOOK = "runbook"
"""The model that is embedded, and no provider."""


@dataclass(frozen=True, kw_only=True)
class KnownProvider:
    """One endpoint. `keys` are the variables that may hold its key, the usual one first; `address` that which
    may name another URL for this key.
    """

    name: str
    base_url: str
    keys: tuple[str, ...] = ()
    address: str = ""
    kind: HttpKind = "openai"
    aliases: tuple[str, ...] = ()

    @property
    def local(self) -> bool:
        """Whether it is a server on this machine, which wants no key."""
        return not self.keys


KNOWN: tuple[KnownProvider, ...] = (
    KnownProvider(
        name="openai",
        base_url="https://api.openai.com/v1",
        keys=("OPENAI_API_KEY",),
        address="OPENAI_BASE_URL",
    ),
    KnownProvider(
        name="anthropic",
        base_url="https://api.anthropic.com/v1",
        keys=("ANTHROPIC_API_KEY",),
        address="ANTHROPIC_BASE_URL",
        kind="anthropic",
    ),
    KnownProvider(name="openrouter", base_url="https://openrouter.ai/api/v1", keys=("OPENROUTER_API_KEY",)),
    KnownProvider(name="deepseek", base_url="https://api.deepseek.com", keys=("DEEPSEEK_API_KEY",)),
    KnownProvider(
        name="alibaba",
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        keys=("DASHSCOPE_API_KEY",),
        aliases=("dashscope", "qwen"),
    ),
    KnownProvider(
        name="alibaba-cn",
        base_url="https://dashscope.aliyuncs.com/compatible-mode/v1",
        keys=("DASHSCOPE_API_KEY",),
        aliases=("dashscope-cn",),
    ),
    KnownProvider(
        name="zai",
        base_url="https://api.z.ai/api/paas/v4",
        keys=("ZAI_API_KEY", "ZHIPU_API_KEY"),
        aliases=("z.ai", "glm"),
    ),
    KnownProvider(
        name="zhipuai",
        base_url="https://open.bigmodel.cn/api/paas/v4",
        keys=("ZHIPU_API_KEY", "ZHIPUAI_API_KEY"),
        aliases=("zhipu",),
    ),
    KnownProvider(
        name="moonshotai",
        base_url="https://api.moonshot.ai/v1",
        keys=("MOONSHOT_API_KEY",),
        aliases=("moonshot", "kimi"),
    ),
    KnownProvider(name="moonshotai-cn", base_url="https://api.moonshot.cn/v1", keys=("MOONSHOT_API_KEY",)),
    KnownProvider(name="mistral", base_url="https://api.mistral.ai/v1", keys=("MISTRAL_API_KEY",)),
    KnownProvider(name="groq", base_url="https://api.groq.com/openai/v1", keys=("GROQ_API_KEY",)),
    KnownProvider(name="xai", base_url="https://api.x.ai/v1", keys=("XAI_API_KEY",), aliases=("grok",)),
    KnownProvider(
        name="google",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        aliases=("gemini",),
    ),
    KnownProvider(
        name="togetherai",
        base_url="https://api.together.xyz/v1",
        keys=("TOGETHER_API_KEY",),
        aliases=("together",),
    ),
    KnownProvider(name="cerebras", base_url="https://api.cerebras.ai/v1", keys=("CEREBRAS_API_KEY",)),
    KnownProvider(
        name="fireworks-ai",
        base_url="https://api.fireworks.ai/inference/v1",
        keys=("FIREWORKS_API_KEY",),
        aliases=("fireworks",),
    ),
    KnownProvider(name="ollama", base_url="http://127.0.0.1:11434/v1"),
    KnownProvider(name="llamacpp", base_url="http://127.0.0.1:8080/v1", aliases=("llama.cpp",)),
    KnownProvider(name="lmstudio", base_url="http://127.0.0.1:1234/v1"),
    KnownProvider(name="vllm", base_url="http://127.0.0.1:8000/v1"),
    KnownProvider(name="litellm", base_url="http://127.0.0.1:4000/v1"),
)
_BY_NAME = {name: known for known in KNOWN for name in (known.name, *known.aliases)}
_BY_HOST = {
    urlsplit(known.base_url).netloc: known
    for known in reversed(KNOWN)
    if not known.local  # what listens on a port of this machine may be anything
}
_ENDINGS: tuple[tuple[str, HttpKind], ...] = (
    ("/chat/completions", "openai"),
    ("/responses", "openai-responses"),
    ("/v1/messages", "anthropic"),
)


def known_provider(name: str) -> KnownProvider | None:
    """The endpoint with this name."""
    return _BY_NAME.get(name)


def provider_at(base_url: str) -> KnownProvider | None:
    """The endpoint that a URL leads to."""
    return _BY_HOST.get(urlsplit(base_url).netloc.lower())


def unconfigured(name: str, models: Models, *, has_key: bool) -> Provider:
    """A provider that nobody configured. `has_key`: somebody brings a key for it.

    Raises ConfigError unless it is known, and needs no key but that.
    """
    known = known_provider(name)
    configured = ", ".join(sorted(models.providers)) or "none"
    if name == RUNBOOK:
        raise ConfigError(
            "The embedded model has no models below it.", suggestion="Write runbook, and nothing behind it."
        )
    if known is None:
        raise ConfigError(
            f"The provider {name!r} is not configured, so its models have no endpoint.",
            suggestion=f"Add [models.providers.{name}] with base_url; configured are: {configured}.",
        )
    if known.name in models.providers:
        return models.providers[known.name]
    if not known.local and not has_key:
        raise ConfigError(
            f"There is no key for the provider {name!r}.",
            suggestion=f"Set {known.keys[0]} in the environment of the daemon, or add"
            f" [models.providers.{name}] with api_key_file; configured are: {configured}.",
        )
    return Provider(kind=known.kind, base_url=known.base_url)


def kind_by_ending(base_url: str) -> HttpKind | None:
    """The protocol of a URL that names what is to be posted to; None for one that ends before that."""
    path = urlsplit(base_url).path.rstrip("/")
    return next((kind for ending, kind in _ENDINGS if path.endswith(ending)), None)


def kind_of(name: str, base_url: str) -> HttpKind:
    """The protocol of an endpoint, when nobody says it: what the URL's end says, then `anthropic` in its
    path, as several vendors write it; then what is known of the host or of the name; else chat completions.
    """
    found = kind_by_ending(base_url)
    if found is None and "anthropic" in urlsplit(base_url).path.split("/"):
        found = "anthropic"
    known = provider_at(base_url) or known_provider(name)
    return found or (known.kind if known is not None else "openai")
