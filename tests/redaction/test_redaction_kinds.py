"""Every kind of secret, alone, in JSON, in the middle of other text, in pieces; and what must stay."""

from __future__ import annotations

import base64
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightagentd.events.model import dump_json
from lightagentd.redaction import MARKER, Redactor, Stream
from tests.secrets.samples import Sample, samples

KEY = bytes(range(32))
ORDINARY = (Path(__file__).parents[1] / "secrets" / "ordinary.txt").read_text()[:-1].split("\n%%\n")
"""What commands print that has words in it which stand beside secrets elsewhere, and has none."""
SAMPLES = samples(20_261_122)
DIGITS = re.compile(" [0-9a-f]{8}]$")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda one: one.name)
@pytest.mark.parametrize("seed", range(3))
def test_each_kind_is_removed_wherever_it_stands(sample: Sample, seed: int) -> None:
    found = next(one for one in samples(seed) if one.name == sample.name)
    redactor = Redactor(key=KEY)
    for text in (
        found.text,
        f"before\n{found.text}\nafter",
        f"\x1b[0m\n{found.text}",
        f"  {found.text}\n",
        json.dumps({"a": found.text}),
        json.dumps(json.dumps({"a": f"x\n{found.text}"})),
    ):
        cleaned = redactor.text(text)
        assert found.secret.split("\n")[0][-20:] not in cleaned, cleaned
        assert not [trace for trace in found.traces() if trace in cleaned], cleaned
        assert MARKER.search(cleaned)
        assert redactor.text(cleaned) == cleaned, "a mark is taken for a secret"
        assert redactor.suspects(dump_json({"deep": [{"text": text}]}))
    guessed = "password" in sample.kind or len(found.secret) < 16
    assert guessed or f"[removed: {sample.kind} " in redactor.text(found.text)
    assert re.search(rf"\[removed: {sample.kind}[ \]]", redactor.text(found.text))


def test_there_are_at_least_25_kinds() -> None:
    assert len({one.name for one in SAMPLES}) >= 25
    assert len({one.kind for one in SAMPLES}) >= 20


def test_equal_secrets_have_equal_marks_and_another_key_gives_another() -> None:
    for one, other in zip(samples(1), samples(2), strict=True):
        redactor = Redactor(key=KEY)
        first = MARKER.findall(redactor.text(one.text))
        assert first == MARKER.findall(redactor.text(f"again\n{one.text}"))
        if not any(DIGITS.search(each) for each in first):
            continue  # it could be guessed
        assert first != MARKER.findall(redactor.text(other.text)), one.name
        assert first != MARKER.findall(Redactor(key=bytes(32)).text(one.text)), one.name


def test_no_mark_confirms_a_guess() -> None:
    redactor = Redactor(["hunter2hunter2"], key=KEY)
    for secret, guess in (
        ("db password=tr0ub4dor&3correcthorsebattery", "db password=tr0ub4dor&4correcthorsebattery"),
        ("curl -u ops:Winter-2026 http://a", "curl -u ops:Summer-2026 http://a"),
        ("it is hunter2hunter2", "it is hunter2hunter2"),
    ):
        assert "[removed: " in redactor.text(secret)
        assert redactor.text(secret) == redactor.text(guess)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_pieces_put_together_are_what_becomes_of_the_whole(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    chosen = [one.text for one in rng.sample(samples(seed % 7), 5)] + rng.choices(ORDINARY, k=5)
    chosen += [
        "credential with-several words",
        "-----BEGIN RSA PRIVATE KEY",
        "\t",
        "password:",
        "\r\n",
        "\u017fecret",
    ]
    rng.shuffle(chosen)
    whole = "".join(one + rng.choice(["\n", " ", "\n\n", "  ", ""]) for one in chosen)
    redactor = Redactor(["credential with-several words", "A-known-value-1"], key=KEY)
    stream = Stream(redactor)
    given_out, rest = "", whole
    while rest:
        size = rng.choice([1, 2, 5, 20, 300])
        given_out += stream.feed(rest[:size])
        rest = rest[size:]
    given_out += stream.finish()
    assert given_out == redactor.text(whole)


def test_ordinary_text_flows_word_by_word() -> None:
    stream = Stream(Redactor(["a known value"]))
    assert stream.feed("The disk ") == "The disk "
    assert stream.feed("is nearly fu") == "is nearly "
    assert stream.feed("ll. Look") == "full. "
    assert stream.feed("\n") == "Look\n"
    assert stream.feed("password=") == ""
    assert stream.feed("hunter2") == ""
    assert stream.feed(" x\nnext ") == "password=[removed: password] x\nnext "


def test_known_values_are_found_in_their_other_forms() -> None:
    value = 'kn0wn "value" / with+odd=chars?'
    redactor = Redactor([value], key=KEY)
    known = Sample(name="", kind="", text=value, secret=value)
    mark = redactor.text(value)
    assert MARKER.fullmatch(mark)
    for trace in known.traces():
        if trace != value.split()[-1]:
            assert mark in redactor.text(f"<{trace}>"), trace
    for size in range(4):
        encoded = base64.b64encode(b"u" * size + value.encode() + b"tail").decode()
        assert mark in redactor.text(encoded)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_output_stays_as_it_is(text: str) -> None:
    redactor = Redactor(["A-known-value-1"], key=KEY)
    assert redactor.text(text) == text
    assert redactor.value({"output": text, "lines": text.split("\n")}) == {
        "output": text,
        "lines": text.split("\n"),
    }


HOSTILE = [
    "a", "=", ":", "-", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "password", "password=",
    "password:", "token", "eyJ", "-eyJ", "eyJa.", "sk-", " sk-", "SG.", "ab://", "a://b:", "://", "@",
    "$6$", "<password", "<a password>", "secret_key", "mysql ", "mysql -", "curl -u a", "login x ",
    "login a password ", "machine ", '"password":"', "'", "\\", "\\n", '\\"', "Cookie: a=", "Bearer ",
    "authorization:", "hooks.slack.com/services/", ":*:", "a:543", "Private-Lines: 1\n", "AAAA\n", " ",
    "\t", 'name="', "--password ", "password is ", "token for x ", "(", "&token=", "ab://a:a/", "echo a | ",
    "echo 'a", "login -p", 'psk "', "a_token_b_", "a_token ", "'password',", '"d": "a', "sk_a", "1//0",
    "a:::", "LS0tLS1CRUdJTiBSU0Eg", "-----BEGIN PRIVATE KEY-----\nVersion: a\n", "<secret><![CDATA[",
    "requirepass ",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_takes_a_moment_and_not_for_ever(piece: str) -> None:
    """A pattern whose time grew with the square of the text would not come to an end here."""
    text = piece * (200_000 // len(piece))
    redactor = Redactor()
    assert isinstance(redactor.result(text), str)
    stream = Stream(redactor)
    assert "".join(
        [*(stream.feed(text[at : at + 4096]) for at in range(0, len(text), 4096)), stream.finish()]
    )


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_pause_in_the_middle_of_a_word_lets_no_more_out_than_a_few_characters(seed: int) -> None:
    rng = random.Random(seed)
    found = rng.choice(samples(seed % 7))
    known = "A-known-value-1"
    whole = f"some words {found.text}\nand {known} then"
    stream = Stream(Redactor([known], key=KEY))
    given_out, rest = "", whole
    while rest:
        size = rng.choice([1, 2, 3, 8, 20])
        given_out += stream.feed(rest[:size])
        rest = rest[size:]
        if rng.random() < 0.5:
            given_out += stream.pause()
    given_out += stream.finish()
    assert found.secret.split("\n")[0][-20:] not in given_out
    assert known[8:] not in given_out
    assert given_out.startswith("some words ")
    assert given_out.endswith(" then")


def test_a_short_word_goes_out_when_nothing_follows() -> None:
    stream = Stream(Redactor(key=KEY))
    assert [stream.feed("I th"), stream.pause(), stream.pause(), stream.feed("ink "), stream.finish()] == [
        "I ",
        "th",
        "",
        "ink ",
        "",
    ]
    assert stream.feed("password=a") + stream.pause() == ""
    stream.finish()
    assert stream.feed("thinkings") + stream.pause() == ""
