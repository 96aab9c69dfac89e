"""What waits for a destination, and the messages that are made of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lightagentd.config.notify import Destination, Notify, checked, secrets_of
from lightagentd.errors import ConfigError, StorageError
from lightagentd.notify.messages import message_of
from lightagentd.notify.notices import TEXT_CHARS, Notice, Reader
from lightagentd.notify.outbox import Outbox, quiet_left_s
from lightagentd.notify.transports import signing_key
from lightagentd.redaction import Redactor
from tests.conftest import write

GITHUB = "ghp_" + "a1B2" * 9
"""What looks like a secret."""


def test_when_quiet_hours_end() -> None:
    def left(quiet: str, hour: int, minute: int) -> float:
        return quiet_left_s(quiet, time.mktime((2026, 1, 15, hour, minute, 0, 0, 0, -1)))

    night, noon = "22:00-07:00", "12:00-13:30"
    assert [left(night, *at) for at in ((21, 59), (22, 0), (23, 59), (0, 0), (6, 59), (7, 0))] == [
        *(0.0, 9 * 3600, 7 * 3600 + 60, 7 * 3600, 60, 0.0)
    ]
    assert [left(noon, *at) for at in ((11, 59), (12, 0), (13, 29), (13, 30))] == [0.0, 5400, 60, 0.0]
    assert left("", 3, 0) == 0.0


def test_what_stands_in_a_damaged_file_is_not_guessed(tmp_path: Path) -> None:
    from lightagentd.config.notify import Destination, Notify

    notify = Notify(to={"phone": Destination(kind="ntfy", url="http://127.0.0.1:9/topic")})
    path = tmp_path / "state.json"
    good: dict[str, Any] = {"seq": 1, "told": {}, "to": {}}
    bad: list[Any] = [
        [],
        {},
        {**good, "seq": None},
        {**good, "to": {"phone": {}}},
        {**good, "told": {"health": 3}},
    ]
    for one in bad:
        path.write_text(json.dumps(one))
        with pytest.raises(StorageError, match="is damaged"):
            Outbox(notify, path).load()
    path.write_text(json.dumps(good))
    Outbox(notify, path).load()


def notice(text: str, title: str = "A title", **more: Any) -> Notice:
    return Reader(Redactor()).made("trigger", title, text, number=f"n{hash(text)}", **more)


def test_a_message_fits_and_says_what_it_leaves_out() -> None:
    many = [notice(f"{at} " + "\U0001f600" * 500) for at in range(40)]
    for chosen in (many, many[:1], many[:3]):
        message = message_of(
            "n", chosen, links={}, link="https://example.org/{id}", left_out=7, most_bytes=1000
        )
        assert len(message.text.encode()) <= 1000
        assert "7 older notices were left out" in message.text
        assert not message.whole
    alone = message_of("n", [notice("all")], links={}, link="", left_out=0, most_bytes=1000)
    assert (alone.text, alone.whole) == ("all", True)


def test_nothing_becomes_a_header_or_an_own_line() -> None:
    made = notice("a\r\nBcc: evil@example.org\n\u2028x", "one\r\nBcc: evil@example.org\x00\u202e")
    assert made.title == "one\\x0d Bcc: evil@example.org\\x00\\u202e"
    assert not set(made.text) & set("\r\u2028")
    hidden = Reader(Redactor(["a-secret-of-this-service"])).made(
        "panic", f"by {GITHUB}", "with a-secret-of-this-service", number="n"
    )
    assert "[removed" in hidden.title
    assert "[removed" in hidden.text
    assert not hidden.whole, "nobody allows a call of which a part is left out"
    assert signing_key("plain") == b"plain"
    assert signing_key("whsec_aGVsbG8=") == b"hello"


def test_a_text_of_16_mib_costs_little_and_hides_no_secret_at_its_end() -> None:
    begun = time.process_time()
    made = notice("\u05d0" * (16 << 20))
    assert time.process_time() - begun < 2
    assert (len(made.text), made.whole) == (TEXT_CHARS, False)
    assert "ghp_" not in notice("x" * (TEXT_CHARS - 10) + f" {GITHUB}").text


def test_an_address_that_is_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    file = write(tmp_path / "topic", "https://ntfy.example.org/a-topic-of-anna\n")
    phone = Destination(kind="ntfy", url_file=file, user="root")
    notify = Notify(to={"phone": phone}, answers={"on": True, "approve": ["a.b"]})  # type: ignore[arg-type]
    assert checked(notify).to["phone"].url == "https://ntfy.example.org/a-topic-of-anna"
    assert "a-topic-of-anna" in secrets_of(notify)
    for text in (
        "https://ntfy.example.org/no topic",
        "https://ntfy.example.org/a$secret",
        "file:///a-secret",
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            checked(notify)
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="not both"):
        Destination(kind="ntfy", url="https://ntfy.sh/topic", url_file=file)
    with pytest.raises(ValueError, match="agents may read this file"):
        Notify.model_validate(
            {
                "to": {"phone": {"kind": "ntfy", "url": "https://ntfy.sh/topic", "user": "root"}},
                "answers": {"on": True, "approve": ["a.b"]},
            }
        )
