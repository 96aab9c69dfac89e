"""Finds classes of text for guards: mail addresses, phone and card numbers, IBANs, national ids, addresses.

Each class is a function from a text without disguises (`folding`) to the places found. A match stays in its
line. All of them begin with a sign or digit that is rare in ordinary text, so that such text costs little.
What has a checksum is found only where that is right.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

Span = tuple[int, int]
Numbers = Callable[[], Sequence[tuple[int, int, str]]]
"""Gives what `numbers_in` finds in the text: more than one class needs it."""

SECRET = "secret"  # noqa: S105 - the name of a class
"""The class that the redactor finds, by value, format and context."""

_LOCAL = re.compile(r"[^\s@<>()\[\]{},;:\"'\\/=]{1,64}\Z")
_DOMAIN = re.compile(r"(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}")
_NUMBER = re.compile(r"[0-9](?:[ ()./-]?[0-9]){9,}")
_PHONES = (
    re.compile(r"\+[1-9](?:[ ().\-/]{0,2}\d){6,13}(?!\w)", re.ASCII),
    re.compile(r"00[1-9](?:[ ().\-/]{0,2}\d){6,13}(?!\w)", re.ASCII),
    re.compile(r"0[1-9]\d{0,4}\)?[ /-]{1,3}\d(?:[ -]?\d){4,9}(?!\w)", re.ASCII),
    re.compile(r"[2-9]\d\d(?:\) ?|[-. ])\d{3}[-. ]\d{4}(?![\w-])", re.ASCII),
)
"""With a country code in two ways, in a country with 0 before the area, and in North America."""
_PHONE_DIGITS = 9
_CARD = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[689]\d)\d{11}|35(?:2[89]|[3-8]\d)\d{12}|6(?:011|5\d\d|4[4-9]\d)\d{12}|62\d{14,17}"
    r"|(?:50|5[6-8]|6\d)\d{10,17}"
)
"""The numbers of issuers (ISO/IEC 7812), each with its lengths."""
_FEWEST_DIGITS, _MOST_DIGITS, _MOST_GROUPS = 10, 19, 8
_GROUP = re.compile(r"[0-9]+")
_IBAN = re.compile(r"[0-9]{2}(?<=[A-Za-z]{2}[0-9]{2})(?=(?:[ -]?[A-Za-z0-9]){11})")
_IBAN_COUNTRIES = """
AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20 EG29 ES24 FI18 FO18
FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IS26 IT27 JO30 KW30 KZ20 LB28 LI21 LT20 LU20 LV21 MC27
MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SE24 SI19 SK24 SM27 TN24 TR26
UA29 VG24 XK20
"""
_IBAN_SIZES = {one[:2]: int(one[2:]) for one in _IBAN_COUNTRIES.split()}
"""The lengths of the IBAN registry (ISO 13616) by country."""
_SPACED = re.compile(r"[ -]?([A-Za-z0-9])")
_FISCAL = re.compile(r"[0-9]{2}(?<=[A-Za-z][0-9]{2})[A-Za-z][0-9]{2}[A-Za-z][0-9]{3}[A-Za-z](?![A-Za-z0-9])")
_FISCAL_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_NINO = re.compile(r"[0-9]{2}(?<=[A-Za-z ][0-9]{2}) ?[0-9]{2} ?[0-9]{2} ?[A-Da-d](?![A-Za-z0-9])")
_NINO_BEFORE = re.compile(
    r"(?<![A-Za-z0-9])(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\Z", re.I
)
_SSN = re.compile(r"[0-8][0-9]{2}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?![\w-])", re.ASCII)
_SPANISH = re.compile(r"[0-9](?<![0-9][0-9])[0-9]{6,7}-?[A-Za-z](?![A-Za-z0-9])")
_SPANISH_BEFORE = re.compile(r"(?<![A-Za-z0-9])[XYZxyz]-?\Z")
_SPANISH_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w.]?[0-9])")
_IPV6 = re.compile(r":[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]*")
_HEX = frozenset("0123456789abcdefABCDEF")


def mail_addresses(text: str, _numbers: Numbers) -> Iterator[Span]:
    place = text.find("@")
    while place >= 0:
        local = _LOCAL.search(text, max(0, place - 64), place)
        domain = _DOMAIN.match(text, place + 1)
        if local and domain:
            yield local.start(), domain.end()
        place = text.find("@", place + 1)


def phone_numbers(text: str, _numbers: Numbers) -> Iterator[Span]:
    for form in _PHONES:
        for found in form.finditer(text):
            start = found.start()
            if text[start - 1 : start] == "(" and (")" in found[0] or "+" in found[0]):
                start -= 1
            before = text[start - 1 : start]
            if before.isalnum() or (before and before in "_.+-"):
                continue
            if found[0].startswith(("+", "00")) or sum(map(str.isdigit, found[0])) >= _PHONE_DIGITS:
                yield start, found.end()


def payment_cards(text: str, numbers: Numbers) -> Iterator[Span]:
    """Numbers of an issuer that pass the check of ISO/IEC 7812 (Luhn), in one piece or in groups."""
    for start, end, digits in numbers():
        if _CARD.fullmatch(digits) and _luhn(digits) and _alone(text, start, end):
            yield start, end


def ibans(text: str, _numbers: Numbers) -> Iterator[Span]:
    """Of the length of their country, with right check digits (ISO 13616, ISO 7064 mod 97-10)."""
    for found in _IBAN.finditer(text):
        start = found.start() - 2
        if start < 0 or (start and text[start - 1].isalnum()):
            continue
        size = _IBAN_SIZES.get(text[start : start + 2].upper())
        end, letters = found.start() + 2, text[start : start + 4].upper()
        while size and len(letters) < size and (one := _SPACED.match(text, end)):
            end, letters = one.end(), letters + one[1].upper()
        whole = len(letters) == size and letters.isascii() and not text[end : end + 1].isalnum()
        if whole and int("".join(str(int(one, 36)) for one in letters[4:] + letters[:4])) % 97 == 1:
            yield start, end


def national_ids(text: str, numbers: Numbers) -> Iterator[Span]:
    """Of Germany, France, Spain, Italy, Poland, Sweden, Brazil and China by their checksums; of the USA and
    the United Kingdom, which have none, by their form.
    """
    for found in _SSN.finditer(text):
        if found[0][:3] not in ("000", "666") and not re.match(
            r"[\w-]", text[found.start() - 1 : found.start()]
        ):
            yield found.span()
    for start, end, digits in numbers():
        checks = _NATIONAL.get(len(digits), ())
        if any(check(digits, text[start:end]) for check in checks) and _alone(text, start, end):
            yield start, end
        elif (
            len(digits) == 17
            and text[end : end + 1] in ("X", "x")
            and _alone(text, start, end + 1)
            and _chinese(digits + "X", "")
        ):
            yield start, end + 1
    for found in _SPANISH.finditer(text):
        before = _SPANISH_BEFORE.search(text, max(0, found.start() - 3), found.start())
        start = before.start() if before else found.start()
        number = found[0][:-1].rstrip("-")
        if len(number) == (7 if before else 8) and not text[start - 1 : start].isalnum():
            whole = ("XYZ".index(before[0][0].upper()) if before else 0) * 10**7 + int(number)
            if _SPANISH_LETTERS[whole % 23] == found[0][-1].upper():
                yield start, found.end()
    for found in _FISCAL.finditer(text):
        start = found.start() - 6
        code = text[max(0, start) : found.end()].upper()
        stands_alone = not text[start - 1 : start].isalnum()
        if len(code) == 16 and code.isascii() and code[:6].isalpha() and stands_alone and _italian(code):
            yield start, found.end()
    for found in _NINO.finditer(text):
        if before := _NINO_BEFORE.search(text, max(0, found.start() - 4), found.start()):
            yield before.start(), found.end()


def ip_addresses(text: str, _numbers: Numbers) -> Iterator[Span]:
    """IPv4 in four numbers, and IPv6."""
    for found in _IPV4.finditer(text):
        before = text[found.start() - 1 : found.start()]
        if not (before.isalnum() or before == ".") and all(int(one) < 256 for one in found[0].split(".")):
            yield found.span()
    if text.count(":") < 2:
        return
    for found in _IPV6.finditer(text):
        start = found.start()
        while start and found.start() - start < 4 and text[start - 1] in _HEX:
            start -= 1
        end = start + len(text[start : found.end()].rstrip("."))
        if text[start - 1 : start].isalnum() or text[end : end + 1].isalnum():
            continue
        try:
            ipaddress.IPv6Address(text[start:end])
        except ValueError:
            continue
        if end - start > 2:
            yield start, end


CLASSES: Mapping[str, Callable[[str, Numbers], Iterator[Span]]] = {
    "mail-address": mail_addresses,
    "phone": phone_numbers,
    "payment-card": payment_cards,
    "iban": ibans,
    "national-id": national_ids,
    "ip-address": ip_addresses,
}
"""By the names in the files; SECRET comes beside them."""


def numbers_in(text: str) -> Iterator[tuple[int, int, str]]:
    """The numbers of 10 to 19 digits, in one piece or in up to eight groups with one sign between them:
    where each begins and ends, and its digits.
    """
    for found in _NUMBER.finditer(text):
        groups = [group.span() for group in _GROUP.finditer(text, found.start(), found.end())]
        for first, (start, _) in enumerate(groups):
            size = 0
            for last in range(first, min(first + _MOST_GROUPS, len(groups))):
                begins, end = groups[last]
                size += end - begins
                if size > _MOST_DIGITS:
                    break
                if size >= _FEWEST_DIGITS:
                    yield start, end, "".join(text[one:other] for one, other in groups[first : last + 1])


def _alone(text: str, start: int, end: int) -> bool:
    """Whether no letter or digit stands beside it."""
    return not (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum())


def _luhn(digits: str) -> bool:
    return (
        sum(
            int(one) if place % 2 == 0 else (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)[int(one)]
            for place, one in enumerate(reversed(digits))
        )
        % 10
        == 0
    )


def _german(digits: str, _written: str) -> bool:
    """The tax id: ISO 7064 mod 11,10, and one of the first ten digits is there two or three times."""
    counts = sorted(digits[:10].count(one) for one in set(digits[:10]))
    if digits[0] == "0" or counts[-1] not in (2, 3) or len(counts) < 8:
        return False
    product = 10
    for one in digits[:10]:
        rest = (int(one) + product) % 10 or 10
        product = rest * 2 % 11
    return (11 - product) % 10 == int(digits[10])


def _polish(digits: str, _written: str) -> bool:
    """PESEL: a birthday, and a weighted sum."""
    month, day = int(digits[2:4]) % 20, int(digits[4:6])
    weighted = sum(int(one) * weight for one, weight in zip(digits, (1, 3, 7, 9) * 3, strict=False))
    rest = (weighted - int(digits[10]) * 7) % 10
    return 1 <= month <= 12 and 1 <= day <= 31 and (10 - rest) % 10 == int(digits[10])


def _brazilian(digits: str, written: str) -> bool:
    """CPF, as it is written: 000.000.000-00."""
    if not re.fullmatch(r"\d{3}\.\d{3}\.\d{3}-\d{2}", written):
        return False
    for size in (9, 10):
        rest = sum(int(one) * (size + 1 - place) for place, one in enumerate(digits[:size])) * 10 % 11 % 10
        if rest != int(digits[size]):
            return False
    return True


def _swedish(digits: str, written: str) -> bool:
    """A personal number, as it is written: a birthday, a hyphen, and four digits (Luhn)."""
    if not re.fullmatch(r"(?:\d\d)?\d{6}-\d{4}", written):
        return False
    short = digits[-10:]
    month, day = int(short[2:4]), int(short[4:6])
    return 1 <= month <= 12 and 1 <= day % 60 <= 31 and _luhn(short)


def _french(digits: str, _written: str) -> bool:
    """The NIR: 97 minus the first thirteen digits mod 97 are the last two."""
    return digits[0] in "12" and 97 - int(digits[:13]) % 97 == int(digits[13:])


def _chinese(digits: str, _written: str) -> bool:
    """The resident id (GB 11643): ISO 7064 mod 11-2, and a birthday."""
    weighted = sum(int(one) * pow(2, 17 - place, 11) for place, one in enumerate(digits[:17]))
    dated = digits[6:8] in ("19", "20") and 1 <= int(digits[10:12]) <= 12 and 1 <= int(digits[12:14]) <= 31
    return dated and "10X98765432"[weighted % 11] == digits[17]


def _italian(code: str) -> bool:
    """The codice fiscale: its last letter is the check."""
    values = [int(one) if one.isdigit() else ord(one) - ord("A") for one in code[:15]]
    total = sum(_FISCAL_ODD[one] if place % 2 == 0 else one for place, one in enumerate(values))
    return chr(ord("A") + total % 26) == code[15]


_NATIONAL: dict[int, tuple[Callable[[str, str], bool], ...]] = {
    10: (_swedish,),
    11: (_german, _polish, _brazilian),
    12: (_swedish,),
    15: (_french,),
    18: (_chinese,),
}
