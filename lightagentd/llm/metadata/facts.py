"""Looks up facts about a model in the configuration, the refreshed table and the shipped table.

The first source with a value counts; `[models.known]` and `[models.prices]` count field by field. The shipped
table is `models.json` beside this module (`SNAPSHOT`). `lactl models refresh` stores the refreshed one in the
state folder. Only the providers that were asked about are kept in memory.

A model is found by its exact name. These variants count as the same model: another name of the provider, or a
provider of any name whose URL is that of a known one (`llm.providers`); a date at the end (`-20250929`,
`-2024-08-06`, `@20250929`), which names one release of a model; `:latest`, which is Ollama's default tag; and
`litellm/PROVIDER/MODEL`, as LiteLLM names models, without its price. Everything else is unknown: a wrong
window loses text, and a wrong price a budget.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd.config.configuration import Models
from lightagentd.errors import InvalidArgument
from lightagentd.host.atomic_file import write_whole
from lightagentd.llm.metadata.price import FREE, Price
from lightagentd.llm.metadata.table import (
    LONG_PROMPT,
    MAX_TABLE_CHARS,
    Reading,
    Table,
    read_table,
    table_text,
)
from lightagentd.llm.providers import known_provider, provider_at
from lightagentd.text.reason import reason

SNAPSHOT = "2026-08-18"
"""The day on which the facts in `models.json` were gathered."""
SHIPPED_FILE = Path(__file__).with_name("models.json")
CONFIGURATION, REFRESHED, SHIPPED, LOCAL = "configuration", "refreshed", "shipped", "local"
"""Where a fact is from; `local` is the price of what runs on this machine."""
_DATED = re.compile(r"(?:[-@]20\d{2}-?[01]\d-?[0-3]\d)$")
_MAX_CACHED = 4096
_TABLE_MODE = 0o600


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about one model; unknown ones are None or empty. Dates are YYYY, YYYY-MM or YYYY-MM-DD."""

    model: str
    """The model string that was asked about."""
    name: str = ""
    """As its provider calls it."""
    context_tokens: int | None = None
    """The window: a prompt and its answer."""
    input_tokens: int | None = None
    """How long a prompt may be, where that is less than the window."""
    max_output_tokens: int | None = None
    tools: bool | None = None
    reasoning: bool | None = None
    attachments: bool | None = None
    """Whether it takes images or files."""
    price: Price | None = None
    knowledge: str = ""
    """Until when it knows what happened."""
    released: str = ""
    status: str = ""
    """`alpha`, `beta` or `deprecated`; empty for a model like any other."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """For each field that is known, where it is from."""

    @property
    def window_tokens(self) -> int | None:
        """The window to keep to: a request within it exceeds neither the limit of the prompt nor that of the
        whole.
        """
        known = [size for size in (self.context_tokens, self.input_tokens) if size is not None]
        return min(known, default=None)

    @property
    def origin(self) -> str:
        """The source of most facts; empty when nothing is known."""
        for place in (REFRESHED, SHIPPED, CONFIGURATION, LOCAL):
            if place in self.origins.values():
                return place
        return ""


@dataclass(frozen=True, kw_only=True)
class _Found:
    """An entry of a table. `priced`: its price is that of the requested model."""

    entry: Mapping[str, Any]
    origin: str
    priced: bool = True


class Metadata:
    """Looks up facts. Nothing is read before the first lookup.

    The first read of a provider takes some milliseconds, so `load` reads those in use in a thread. The daemon
    owns it; it lives as long as the daemon.
    """

    def __init__(self, models: Models, refreshed: Path | None = None, shipped: Path = SHIPPED_FILE) -> None:
        """`refreshed` is the file of the refreshed table, which need not exist."""
        self._models = models
        self._files = {REFRESHED: refreshed, SHIPPED: shipped}
        self._providers: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._facts: dict[str, Facts | None] = {}
        self.problem = ""
        """Why the refreshed table is not used, as a sentence."""

    def take(self, models: Models) -> None:
        """Replace the configuration."""
        self._models = models
        self._facts.clear()

    def load(self, models: list[str]) -> None:
        """Read the data for these models; for a thread."""
        for model in models:
            self.facts(model)

    def facts(self, model: str) -> Facts | None:
        """The facts about a model; None when there are none."""
        if model not in self._facts:
            if len(self._facts) >= _MAX_CACHED:
                self._facts.clear()
            self._facts[model] = self._look(model)
        return self._facts[model]

    def price(self, model: str) -> Price | None:
        """The prices of a model; None when they are unknown."""
        facts = self.facts(model)
        return facts.price if facts is not None else None

    def known_of(self, provider: str) -> list[Facts]:
        """All models of a provider in the tables or the configuration, ordered by name."""
        names: set[str] = set()
        for origin in (REFRESHED, SHIPPED):
            names |= self._provider(origin, self._table_name(provider)).keys()
        for configured in (*self._models.known, *self._models.prices):
            of, _, name = configured.partition("/")
            if of == provider:
                names.add(name)
        found = (self._look(f"{provider}/{name}") for name in sorted(names))
        return [facts for facts in found if facts is not None]

    def providers(self) -> list[str]:
        """The names of the providers that the tables know."""
        names: set[str] = set()
        for origin in (REFRESHED, SHIPPED):
            names |= self._read(origin).keys()
        return sorted(names)

    def store(self, text: str) -> Reading:
        """Store a new refreshed table; for a thread. Call `taken` afterwards.

        Raises InvalidArgument, and OSError when it cannot be written.
        """
        file = self._files[REFRESHED]
        if file is None:
            raise InvalidArgument("This daemon keeps no table of models.")
        if len(text) > MAX_TABLE_CHARS:
            raise InvalidArgument(
                f"The table of models has more than {MAX_TABLE_CHARS >> 20} MiB.",
                field="data",
                suggestion="Send it with: lactl models refresh FILE, which leaves out what is not needed.",
            )
        reading = read_table(text, strict=True)
        write_whole(file, table_text(reading.table).encode(), mode=_TABLE_MODE)
        return reading

    def taken(self) -> None:
        """The refreshed table was replaced: forget the cached data."""
        self._providers.clear()
        self._facts.clear()
        self.problem = ""

    def _look(self, model: str) -> Facts | None:
        provider, _, name = model.partition("/")
        if not name:
            return None
        found = self._find(provider, name)
        values, origins = _of_entry(found) if found else ({}, {})
        configured = dict(self._configured(model))
        if "price" not in configured and "price" not in values and self._is_local(provider):
            values["price"], origins["price"] = FREE, LOCAL
        values |= configured
        origins |= dict.fromkeys(configured, CONFIGURATION)
        return Facts(model=model, origins=origins, **values) if values else None

    def _configured(self, model: str) -> Iterator[tuple[str, Any]]:
        known = self._models.known.get(model)
        if known is not None:
            yield from ((name, value) for name, value in known if value is not None)
        price = self._models.prices.get(model)
        if price is not None:
            yield "price", Price(prompt=price.prompt, completion=price.completion, cached=price.cached)

    def _find(self, provider: str, name: str) -> _Found | None:
        provider = self._table_name(provider)
        for spelling in _spellings(name):
            for origin in (REFRESHED, SHIPPED):
                entry = self._provider(origin, provider).get(spelling)
                if entry is not None:
                    return _Found(entry=entry, origin=origin)
        vendor, _, rest = name.partition("/")
        if provider == "litellm" and rest and vendor != "litellm":
            passed = self._find(vendor, rest)
            return _Found(entry=passed.entry, origin=passed.origin, priced=False) if passed else None
        return None

    def _table_name(self, provider: str) -> str:
        """The name of a provider in the tables."""
        configured = self._models.providers.get(provider)
        known = provider_at(configured.base_url) if configured is not None else None
        known = known or known_provider(provider)
        return known.name if known is not None else provider

    def _is_local(self, provider: str) -> bool:
        """Whether it is a server on this machine that runs models itself; LiteLLM only forwards calls."""
        known = known_provider(provider)
        if known is None or not known.local or known.name == "litellm":
            return False
        configured = self._models.providers.get(provider)
        base_url = configured.base_url if configured is not None else ""
        return _is_loopback(urllib.parse.urlsplit(base_url or known.base_url).hostname or "")

    def _provider(self, origin: str, provider: str) -> Mapping[str, Any]:
        """The models of a provider in one of the tables."""
        key = (origin, provider)
        if key not in self._providers:
            of = self._read(origin).get(provider)
            if len(self._providers) >= _MAX_CACHED:
                self._providers.clear()
            self._providers[key] = of["models"] if of else {}
        return self._providers[key]

    def _read(self, origin: str) -> Table:
        """A whole table; empty when it is missing, or is broken, which is a problem."""
        file = self._files[origin]
        if file is None:
            return {}
        try:
            with file.open("rb") as opened:
                data = opened.read(4 * MAX_TABLE_CHARS + 1)
            if len(data) > 4 * MAX_TABLE_CHARS:
                raise InvalidArgument("The table of models is too large.")
            return read_table(data, strict=False).table
        except FileNotFoundError:
            return {}
        except (OSError, InvalidArgument) as err:
            said = reason(err)
            self.problem = f"{file} is not used, and the facts about models are older: {said.rstrip('.')}."
            return {}


def _spellings(name: str) -> Iterator[str]:
    """The name and its known variants, the closest first."""
    yield name
    plain = name.removesuffix(":latest")
    if plain != name:
        yield plain
    undated = _DATED.sub("", plain)
    if undated and undated != plain:
        yield undated


def _of_entry(found: _Found) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of `Facts` in an entry, and the source of each."""
    entry = found.entry
    limit, cost = entry.get("limit", {}), entry.get("cost")
    values = {
        "name": entry.get("name"),
        "context_tokens": limit.get("context"),
        "input_tokens": limit.get("input"),
        "max_output_tokens": limit.get("output"),
        "tools": entry.get("tool_call"),
        "reasoning": entry.get("reasoning"),
        "attachments": entry.get("attachment"),
        "price": _price(cost) if cost and found.priced else None,
        "knowledge": entry.get("knowledge"),
        "released": entry.get("release_date"),
        "status": entry.get("status"),
    }
    values = {name: value for name, value in values.items() if value is not None}
    return values, dict.fromkeys(values, found.origin)


def _price(cost: Mapping[str, Any]) -> Price:
    longer = cost.get(LONG_PROMPT)
    return Price(
        prompt=cost["input"],
        completion=cost["output"],
        cached=cost.get("cache_read"),
        cache_write=cost.get("cache_write"),
        over_200k=_price(longer) if longer else None,
    )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host))
