"""Guards as files have them, what they find in disguise, and what they do to text that comes in pieces."""

from __future__ import annotations

import base64
import random
import time

import pytest

from lightagentd.errors import ConfigError
from lightagentd.policy.guard_stream import HELD_CHARS, GuardStream
from lightagentd.policy.guards import GuardAction, Guards, On, covering
from lightagentd.policy.looking import judge
from lightagentd.policy.rulefiles import load_texts, template_names
from lightagentd.redaction import Redactor

CARD, MAIL, IBAN = "4111 1111 1111 1111", "jane.doe@example.org", "GB29 NWBK 6016 1331 9268 19"
ALL = '["mail-address", "phone", "payment-card", "iban", "national-id", "ip-address", "secret"]'
ZERO_WIDTH, CYRILLIC_A, CYRILLIC_O = "\u200b", "\u0430", "\u043e"


def guards(*tables: str) -> Guards:
    named = (one if "name =" in one else f'name = "g{number}"\n{one}' for number, one in enumerate(tables))
    return load_texts({"10-a.toml": "".join(f"[[guard]]\n{one}\n" for one in named)}).guards


def redacted(text: str, what: str = f"match = {ALL}") -> str:
    return judge(guards(f'on = "prompt"\naction = "redact"\n{what}'), text, Redactor()).text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"write to {MAIL}, please", "write to [mail address], please"),
        ("call +49 (0)30 123456-78 or (030) 1234567", "call [phone] or [phone]"),
        ("212-555-0123 is one, too", "[phone] is one, too"),
        (f"paid by {CARD}", "paid by [payment card]"),
        ("5555555555554444 378282246310005", "[payment card] [payment card]"),
        (f"to {IBAN} NOW", "to [iban] NOW"),
        ("de89370400440532013000", "[iban]"),
        ("219-09-9999, AB 12 34 56 C", "[national id], [national id]"),
        ("86095742719 44051401359", "[national id] [national id]"),
        ("12345678Z X1234567L RSSMRA85T10A562S", "[national id] [national id] [national id]"),
        ("1 85 05 78 006 084 91", "[national id]"),
        ("111.444.777-35 811228-9874 11010519491231002X", "[national id] [national id] [national id]"),
        ("10.0.0.1 and fe80::1", "[ip address] and [ip address]"),
    ],
)
def test_each_class_is_found_by_its_form_and_its_checksum(text: str, clean: str) -> None:
    assert redacted(text) == clean


def test_what_only_looks_like_one_stays() -> None:
    text = (
        "2026-11-28 04:45:41 01/02/2026 1790000000000000 4111 1111 1111 1112 DE88370400440532013000"
        " user@host v1.2.3.4.5 300.1.1.1 12345678A 00:11:22:33:44:55 std::vec 86095742718 000-12-3456"
    )
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"j{ZERO_WIDTH}ane.d{CYRILLIC_O}e@ex{CYRILLIC_A}mple.org!", "[mail address]!"),
        ("\uff14\uff11\uff11\uff11 1111\u00a01111\u20111111", "[payment card]"),
        ("4\u00ad111 1111 1111 1\ufeff111 ok", "[payment card] ok"),
        ("\u0664\u0661\u0661\u0661 1111 1111 1111", "[payment card]"),
        (f"see {base64.b64encode(f'a {CARD} b'.encode()).decode()} there", "see [payment card] there"),
        (f"u={base64.urlsafe_b64encode(MAIL.encode()).decode()}", "u=[mail address]"),
        ("ordinary text, na\u00efve and \u00bd \u043f\u0440\u0438\u0432\u0435\u0442\u2026",) * 2,
    ],
)
def test_a_disguised_match_is_found_and_replaced_where_it_stands(text: str, clean: str) -> None:
    assert redacted(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(base64.b64encode(CARD.encode())).decode(),  # decoded once only
        CARD.encode().hex(),
        CARD[::-1],
        "four one one one, 1111 1111 1111",
        CARD.replace(" ", "\n"),  # a match stays in its line
        "jane dot doe at example dot org",
        " ".join(CARD.replace(" ", "")),  # in more than eight groups
    ],
)
def test_what_the_manual_says_is_not_found_is_not(text: str) -> None:
    assert redacted(text) == text


def test_patterns_are_words_in_any_case_or_expressions_in_each_line() -> None:
    found = 'pattern = ["project falcon", "re:^KX-[0-9]{4}$"]'
    assert redacted("Project FALC\u041eN: KX-1234\nKX-1234\n", found) == "[g0]: KX-1234\n[g0]\n"
    long_line = "x " * 4000 + "project falcon" + " y" * 4000
    assert redacted(long_line, found) == long_line.replace("project falcon", "[g0]")


def test_secrets_are_those_that_the_redactor_finds() -> None:
    (guard,) = guards('on = "prompt"\nmatch = "secret"\naction = "block"')
    verdict = judge((guard,), "key ghp_abcdefghijklmnopqrstuvwxyz0123456789", Redactor())
    assert verdict.first(GuardAction.BLOCK) is guard
    assert not judge((guard,), "no key here", Redactor()).hits


def test_a_pattern_that_backtracks_for_ever_counts_as_a_match_of_all(tmp_path: object) -> None:
    evil, text = "pattern = 're:(a+)+b'", "a" * 60 + " and more"
    began_s = time.thread_time()
    assert redacted(text, evil) == "[g0]"
    stream = GuardStream(guards(f'on = "answer"\naction = "redact"\n{evil}'))
    assert [stream.feed(f"{text}\nnext\n"), stream.feed("again\n"), stream.finish()] == ["[g0]", "", ""]
    assert time.thread_time() - began_s < 5


@pytest.mark.parametrize(
    ("table", "line", "why"),
    [
        ('action = "redact"\nmatch = "card"', 6, "match: 'card' is no class of text"),
        ('action = "redact"\nexamples.match = []', 2, "match, or pattern, has to say"),
        ('action = "redact"\npattern = "re:("', 6, "pattern: '(' is not a regular expression"),
        ('action = "redact"\npattern = "re:a*"', 6, "pattern: a pattern matches the empty text"),
        ('action = "ask"\nmatch = "phone"', 5, "action: nobody can be asked on prompt"),
        ('action = "block"\nmatch = "phone"\ntag = "x"', 7, "tag: it belongs to guards"),
        ('action = "redact"\nmatch = "phone"\nactoin = "x"', 7, "the key 'actoin' is not known"),
        (
            'action = "redact"\nmatch = "iban"\nexamples.match = ["x"]',
            7,
            "match, example 1: the guard finds nothing",
        ),
        (
            f'action = "redact"\nmatch = "iban"\n[guard.examples]\nnot_match = ["{IBAN}"]',
            7,
            "not_match, example 1: the guard finds something",
        ),
        (
            "action = \"tag\"\npattern = 're:(a+)+b'\nexamples.match = ['" + "a" * 60 + "']",
            7,
            "to look for the patterns takes too long",
        ),
    ],
)
def test_a_guard_that_is_wrong_is_told_with_file_and_line(table: str, line: int, why: str) -> None:
    text = f'\n[[guard]]\nname = "g"\non = "prompt"\n{table}\n'
    with pytest.raises(ConfigError) as caught:
        load_texts({"a.toml": text})
    assert caught.value.message.startswith(f"a.toml:{line}: the guard 'g': ")
    assert why in caught.value.message


def test_rules_and_guards_share_their_names_and_their_files() -> None:
    rule = '[[rule]]\nname = "one"\ndecision = "deny"\n'
    guard = '[[guard]]\nname = "{}"\non = "event"\nmatch = "iban"\naction = "tag"\n'
    found = load_texts({"a.toml": guard.format("two") + rule + guard.format("three")})
    origins = [one.origin for one in found.rules] + [one.origin for one in found.guards]
    assert origins == ["a.toml:6", "a.toml:1", "a.toml:9"]
    with pytest.raises(ConfigError, match=r"a.toml:1: a rule one is in|a rule one is in a.toml:1 already"):
        load_texts({"a.toml": rule + guard.format("one")})


def test_a_guard_covers_who_it_names_and_whom_nobody_knows() -> None:
    (only,) = guards('on = ["memory"]\nmatch = "iban"\naction = "block"\nagent = "web-*"\ncaller = [0]')
    asked = [("web-a", 0), ("ops", 0), ("web-a", 4711), ("", 0), ("web-a", None)]
    assert [bool(covering((only,), On.MEMORY, *one)) for one in asked] == [True, False, False, True, True]
    assert not covering((only,), On.PROMPT, "web-a", 0)


PIECES = [MAIL, CARD, IBAN, "AB 12 34 56 C", "+49 30 123456", "(030) 1234567", "10.0.0.1", "ff::1", "\n"]
PIECES += ["it", "in 2024", "project falcon", "a", "unhappily", "\u200b", "\uff14111", "\u2026", "1 2 3", "."]
PIECES.append(base64.b64encode(MAIL.encode()).decode())


@pytest.mark.parametrize("patterns", ["", '\npattern = "project falcon"'])
def test_text_in_pieces_is_redacted_as_in_one(patterns: str) -> None:
    which = guards(f'on = "answer"\naction = "redact"\nmatch = {ALL}{patterns}')
    made = random.Random(19)
    for _ in range(150):
        text = " ".join(made.choice(PIECES) for _ in range(made.randrange(1, 30)))
        stream, out, place = GuardStream(which), [], 0
        while place < len(text):
            size = made.choice((1, 2, 5, 40))
            out.append(stream.feed(text[place : place + size]))
            place += size
        out.append(stream.finish())
        assert "".join(out) == judge(which, text, Redactor()).text


def test_a_stream_gives_words_soon_and_holds_a_bounded_part() -> None:
    stream = GuardStream(guards(f'on = "answer"\naction = "redact"\nmatch = {ALL}'))
    assert stream.feed("Ordinary words go out soon") == "Ordinary words go out "
    stream.finish()
    for what in (f"match = {ALL}", 'pattern = "project falcon"'):
        stream = GuardStream(guards(f'on = "answer"\naction = "redact"\n{what}'))
        out = 0
        for _ in range(100):
            out += len(stream.feed("1 2 3x" * 100))
        assert 60_000 - out <= HELD_CHARS + 600
    text = "y" * HELD_CHARS + " project falcon " + "z" * 400
    stream = GuardStream(guards('on = "answer"\naction = "redact"\npattern = "project falcon"'))
    out_text = stream.feed(text[: HELD_CHARS + 8]) + stream.feed(text[HELD_CHARS + 8 :] * 1) + stream.finish()
    assert out_text == text.replace("project falcon", "[g0]")


def test_each_template_is_one_line_and_its_examples_hold() -> None:
    names = ["output-redaction", "parameter-limits", "privacy", "sensitive-tools"]
    assert template_names() == names
    for name in names:
        found = load_texts({"a.toml": f'use = "{name}"\n'})
        assert all(rule.name.startswith(name) for rule in found.rules)
        assert all(one.name.startswith(name) for one in found.guards)
        assert all(one.rule.match and one.rule.not_match for one in found.rules)
        assert all(one.guard.examples.match and one.guard.examples.not_match for one in found.guards)
    both = load_texts({"a.toml": 'use = ["privacy"]', "b.toml": 'use = ["privacy", "output-redaction"]'})
    assert [one.name for one in both.guards] == ["privacy-text", "output-redaction"]
    with pytest.raises(ConfigError, match="use names no template"):
        load_texts({"a.toml": 'use = "../secret"'})
