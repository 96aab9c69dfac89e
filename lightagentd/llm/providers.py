"""Known endpoints by name: their URL, their protocol, and the variables that hold their key.

This table is code, so that no refreshed data can change where keys are sent. The names are those of the
metadata (`llm.metadata`), and other common ones. A server on this machine is used when a model string names
it, and never unasked.
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
        """Whether it is a server on this machine, which needs no key."""
        return not self.keys


_TABLE = """
openai        https://api.openai.com/v1                              OPENAI_API_KEY -
anthropic     https://api.anthropic.com/v1                           ANTHROPIC_API_KEY -
openrouter    https://openrouter.ai/api/v1                           OPENROUTER_API_KEY -
deepseek      https://api.deepseek.com                               DEEPSEEK_API_KEY -
alibaba       https://dashscope-intl.aliyuncs.com/compatible-mode/v1 DASHSCOPE_API_KEY dashscope,qwen
alibaba-cn    https://dashscope.aliyuncs.com/compatible-mode/v1      DASHSCOPE_API_KEY dashscope-cn
zai           https://api.z.ai/api/paas/v4                           ZAI_API_KEY,ZHIPU_API_KEY z.ai,glm
zhipuai       https://open.bigmodel.cn/api/paas/v4                   ZHIPU_API_KEY,ZHIPUAI_API_KEY zhipu
moonshotai    https://api.moonshot.ai/v1                             MOONSHOT_API_KEY moonshot,kimi
moonshotai-cn https://api.moonshot.cn/v1                             MOONSHOT_API_KEY -
mistral       https://api.mistral.ai/v1                              MISTRAL_API_KEY -
groq          https://api.groq.com/openai/v1                         GROQ_API_KEY -
xai           https://api.x.ai/v1                                    XAI_API_KEY grok
google        https://generativelanguage.googleapis.com/v1beta/openai GEMINI_API_KEY,GOOGLE_API_KEY gemini
togetherai    https://api.together.xyz/v1                            TOGETHER_API_KEY together
cerebras      https://api.cerebras.ai/v1                             CEREBRAS_API_KEY -
fireworks-ai  https://api.fireworks.ai/inference/v1                  FIREWORKS_API_KEY fireworks
ollama        http://127.0.0.1:11434/v1                              - -
llamacpp      http://127.0.0.1:8080/v1                               - llama.cpp
lmstudio      http://127.0.0.1:1234/v1                               - -
vllm          http://127.0.0.1:8000/v1                               - -
litellm       http://127.0.0.1:4000/v1                               - -
"""
"""By line: name, base URL, the variables that may hold the key, and aliases."""
_KINDS: dict[str, HttpKind] = {"anthropic": "anthropic"}
_ADDRESSES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}


def _listed(text: str) -> tuple[str, ...]:
    return () if text == "-" else tuple(text.split(","))


KNOWN: tuple[KnownProvider, ...] = tuple(
    KnownProvider(
        name=name,
        base_url=base_url,
        keys=_listed(keys),
        address=_ADDRESSES.get(name, ""),
        kind=_KINDS.get(name, "openai"),
        aliases=_listed(aliases),
    )
    for name, base_url, keys, aliases in map(str.split, _TABLE.strip().splitlines())
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
    """The endpoint with this URL."""
    return _BY_HOST.get(urlsplit(base_url).netloc.lower())


def unconfigured(name: str, models: Models, *, has_key: bool) -> Provider:
    """A provider without configuration. `has_key`: the environment or the agent has a key for it.

    Raises ConfigError unless it is known and needs nothing but that key.
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
    """The protocol of a URL that ends in the path of its requests; None for another URL."""
    path = urlsplit(base_url).path.rstrip("/")
    return next((kind for ending, kind in _ENDINGS if path.endswith(ending)), None)


def kind_of(name: str, base_url: str) -> HttpKind:
    """The protocol of an endpoint without a configured one: from the URL's end, from `anthropic` in its path,
    as several vendors write it, from the known host or name; otherwise chat completions.
    """
    found = kind_by_ending(base_url)
    if found is None and "anthropic" in urlsplit(base_url).path.split("/"):
        found = "anthropic"
    known = provider_at(base_url) or known_provider(name)
    return found or (known.kind if known is not None else "openai")
