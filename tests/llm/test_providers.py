"""The table of known endpoints: keys are sent where it says, so it is held to what such a table must be."""

from __future__ import annotations

import json
import re
from urllib.parse import urlsplit

import pytest

from lightagentd.config.models import wrong_url
from lightagentd.llm.metadata.facts import SHIPPED_FILE
from lightagentd.llm.providers import KNOWN, KnownProvider, kind_of, known_provider, provider_at
from tests.conftest import REPOSITORY


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_keys_go_over_tls_alone_and_servers_without_one_are_on_this_machine(known: KnownProvider) -> None:
    url = urlsplit(known.base_url)
    assert not wrong_url(known.base_url)
    if known.keys:
        assert url.scheme == "https"
    else:
        assert (url.scheme, url.hostname) == ("http", "127.0.0.1")
    assert known_provider(known.name) is known
    for alias in known.aliases:
        assert known_provider(alias) is known


def test_no_name_means_two_endpoints() -> None:
    names = [name for known in KNOWN for name in (known.name, *known.aliases)]
    assert len(set(names)) == len(names)
    assert "env" not in names
    assert "runbook" not in names


def test_the_names_and_the_variables_are_those_of_the_metadata() -> None:
    shipped = json.loads(SHIPPED_FILE.read_text())
    for known in KNOWN:
        if not known.local:
            assert known.name in shipped
            env, api = shipped[known.name].get("env"), shipped[known.name].get("api")
            assert env is None or set(env) & set(known.keys), known.name
            assert api is None or urlsplit(api).netloc == urlsplit(known.base_url).netloc


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://API.OpenAI.com", "openai"),
        ("https://api.openai.com.evil.example/v1", ""),
        ("https://api.openai.com:8443/v1", ""),
        ("http://127.0.0.1:8080/v1", ""),
    ],
)
def test_an_endpoint_is_told_by_its_host_and_port(url: str, name: str) -> None:
    found = provider_at(url)
    assert (found.name if found else "") == name


@pytest.mark.parametrize(
    ("name", "url", "kind"),
    [
        ("x", "https://h/v1", "openai"),
        ("x", "https://h/v1/chat/completions/", "openai"),
        ("anthropic", "https://h/v1/chat/completions", "openai"),
        ("x", "https://h/openai/v1/responses", "openai-responses"),
        ("x", "https://h/v1/messages", "anthropic"),
        ("x", "https://api.anthropic.com/v1", "anthropic"),
        ("x", "https://api.z.ai/api/anthropic", "anthropic"),
        ("x", "https://anthropic.example/v1", "openai"),
        ("anthropic", "https://gateway.example", "anthropic"),
    ],
)
def test_the_protocol_that_an_address_speaks(name: str, url: str, kind: str) -> None:
    assert kind_of(name, url) == kind


def test_the_manual_names_them_all() -> None:
    manual = (REPOSITORY / "packaging/manual/configuration.py").read_text()
    for known in KNOWN:
        assert re.search(rf"\b{re.escape(known.name)}\b", manual), known.name
        for variable in (*known.keys[:1], *filter(None, [known.address])):
            assert variable in manual, variable
