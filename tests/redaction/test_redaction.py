"""Secrets that must not reach the history or the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightagentd.events.history import NewEvent
from lightagentd.events.model import dump_json, within
from lightagentd.redaction import Redactor
from tests.events.stored import opened, raw_events

BODY = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ+/" for _ in range(6)])
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----"

SECRETS = [
    ("private-key", PEM),
    ("private-key", PEM.replace("RSA PRIVATE", "PRIVATE")),
    ("private-key", PEM.replace("RSA", "OPENSSH").replace("\n", "\\n")),
    ("private-key", PEM.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK")),
    ("api-key", "sk-" + "a1B2" * 12),
    ("api-key", "sk-ant-api03-" + "x" * 40),
    ("github-token", "ghp_" + "a" * 36),
    ("github-token", "github_pat_" + "1A_" * 20),
    ("aws-key", "AKIAIOSFODNN7EXAMPLE"),
    ("slack-token", "xoxb-123456789012-abcdef"),
]


@pytest.mark.parametrize(("kind", "secret"), SECRETS)
def test_a_well_known_key_format_is_removed_and_its_kind_named(kind: str, secret: str) -> None:
    redactor = Redactor()
    assert redactor.text(f"before {secret} after") == f"before [removed: {kind}] after"
    assert redactor.suspects(dump_json({"deep": [{"text": secret}]}))


@pytest.mark.parametrize(
    "header", ["Authorization: Bearer abcdefgh", "authorization: bearer a.b-c_d~e", "Bearer " + "q" * 30]
)
def test_a_bearer_token_is_removed_and_the_header_stays(header: str) -> None:
    name, _, token = header.rpartition(" ")
    assert Redactor().text(f"curl -H '{header}'") == f"curl -H '{name} [removed: bearer]'"
    assert token not in Redactor().text(header)


@pytest.mark.parametrize(
    "text",
    [
        "check disk-usage and task-list, through the night",
        "ask-me-anything-about-the-very-long-kebab-case",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "the bearer of this letter",
        "AKIA",
        "ghp_short",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert Redactor(["0123456789"]).text(text) == text


def test_a_key_whose_end_was_cut_off_is_removed_too() -> None:
    cut = PEM[:200]
    assert Redactor().text(f"{cut}\n[... 900 bytes left out ...]") == (
        "[removed: private-key]\n[... 900 bytes left out ...]"
    )


def test_a_key_does_not_swallow_what_stands_between_it_and_another() -> None:
    assert Redactor().text(f"a {PEM} b {PEM} c") == "a [removed: private-key] b [removed: private-key] c"


def test_text_that_was_made_to_be_slow_is_not() -> None:
    # Each begins a key and ends none; a pattern that looks for the end from each takes minutes.
    Redactor().text("-----BEGIN PRIVATE KEY-----" * 20_000)
    Redactor().text("-----BEGIN PRIVATE KEY----- " + "a" * 500_000 + " sk-" + "-sk" * 100_000)


def test_credentials_are_removed_by_value_at_any_depth_and_in_keys() -> None:
    redactor = Redactor(["hunter2hunter2"])
    value: Any = {
        "a": ["x hunter2hunter2 y", {"b": ("hunter2hunter2",)}],
        "hunter2hunter2": 1,
        "n": [1, 2.5, None, True],
    }
    assert redactor.value(value) == {
        "a": ["x [removed: credential] y", {"b": ["[removed: credential]"]}],
        "[removed: credential]": 1,
        "n": [1, 2.5, None, True],
    }


def test_a_credential_that_is_part_of_another_does_not_leave_its_rest() -> None:
    for order in (["abcdefgh", "abcdefgh-1234"], ["abcdefgh-1234", "abcdefgh"]):
        assert Redactor(order).text("key abcdefgh-1234") == "key [removed: credential]"


def test_short_values_are_not_searched_for() -> None:
    assert Redactor(["", "disk"]).text("check disk") == "check disk"


@pytest.mark.parametrize("secret", ['quo"ted\\secret', "tab\tand\nline", "ümlaut-漢字", "plain-secret"])
async def test_no_form_of_a_secret_reaches_the_store(tmp_path: Path, secret: str) -> None:
    redactor = Redactor([secret])
    async with opened(tmp_path / "history", redactor=redactor) as history:
        with within(correlation_id=f"for {secret}"):
            [event] = await history.append(
                NewEvent(topic="agent.message", type="message", data={"deep": [{"text": f"<{secret}>"}]})
            )
    assert event.data == {"deep": [{"text": "<[removed: credential]>"}]}
    assert event.correlation_id == "for [removed: credential]"
    with raw_events(tmp_path / "history") as txn:
        for _, record in txn.cursor():
            assert dump_json(secret)[1:-1] not in record


async def test_a_secret_that_is_learned_later_is_removed_from_then_on(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        for _ in range(2):
            await history.append(
                NewEvent(topic="agent.message", type="message", data={"text": "learned-later"})
            )
            history.redactor.add("learned-later")
        texts = [event.data["text"] for event in history.queries.range() if event.data]
    assert texts == ["learned-later", "[removed: credential]"]
