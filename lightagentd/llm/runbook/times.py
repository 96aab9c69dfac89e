"""Takes times out of a prompt and normalizes them: `today`, `yesterday 14:00`, `-2h`, `boot` or a date.

It reads English, German, French, Spanish and Portuguese. Weekdays and months are counted back from `now`,
local time. The shapes of the values are those of `lightagentd.skills`. A prompt has one time: days and clock
times that stand apart are put together, and a clock time beats a word such as lunch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

_NUMBERS = {
    word: number
    for number, words in {
        1: "a an one ein eine einer einem einen un une una uno um uma",
        2: "two couple zwei paar deux dos par dois duas",
        3: "three few drei trois tres três",
        4: "four vier quatre cuatro quatro",
        5: "five fünf cinq cinco",
        6: "six sechs seis",
        7: "seven sieben sept siete sete",
        8: "eight acht huit ocho oito",
        10: "ten zehn dix diez dez",
        12: "twelve zwölf douze doce doze",
        15: "fifteen fünfzehn quinze quince",
        20: "twenty zwanzig vingt veinte vinte",
        30: "thirty dreißig dreissig trente treinta trinta",
    }.items()
    for word in words.split()
}
_SPANS = {
    "s": "s|secs?|seconds?|sek|sekunden?|secondes?|segundos?",
    "min": "m|mins?|minutes?|minuten?|minutos?",
    "h": "h|hrs?|hours?|std|stunden?|heures?|horas?",
    "d": "d|days?|tage?n?|jours?|d[ií]as?",
    "w": "w|wks?|weeks?|wochen?|semaines?|semanas?",
    "mo": "months?|monate?n?|mois|mes|meses|m[eê]s",
}
_WEEKDAYS = (
    "monday|montag|lundi|lunes|segunda(?:-feira)?",
    "tuesday|dienstag|mardi|martes|ter[cç]a(?:-feira)?",
    "wednesday|mittwoch|mercredi|mi[eé]rcoles|quarta(?:-feira)?",
    "thursday|donnerstag|jeudi|jueves|quinta(?:-feira)?",
    "friday|freitag|vendredi|viernes|sexta(?:-feira)?",
    "saturday|samstag|sonnabend|samedi|s[aá]bado",
    "sunday|sonntag|dimanche|domingo",
)
_MONTHS = (
    "jan(?:uary|uar|vier|eiro)?|j[aä]nner|enero",
    "feb(?:ruary|ruar|rero)?|f[eé]v(?:rier|ereiro)?",
    "mar(?:ch|s|zo|ço)?|märz",
    "apr(?:il)?|avr(?:il)?|abril",
    "may|mai|mayo|maio",
    "june?|juni|juin|junio|junho",
    "july?|juli|juillet|julio|julho",
    "aug(?:ust)?|ao[uû]t|agosto",
    "sept?(?:ember|embre|iembre)?|setembro",
    "o[ck]t(?:ober|obre|ubre)?|outubro",
    "nov(?:ember|embre|iembre|embro)?",
    "de[cz](?:ember|embro)?|d[eé]cembre|diciembre",
)
_N = r"(?P<n>\d{1,4}|" + "|".join(sorted(_NUMBERS, key=len, reverse=True)) + ")"
_COUNT = rf"(?:(?:an?|un|ein)\s+(?=couple|few|paar?\b))?{_N}(?:\s+(?:of|de))?"
_SPAN = f"(?P<span>{'|'.join(_SPANS.values())})"
_MONTH, _WEEKDAY = f"(?P<month>{'|'.join(_MONTHS)})", f"(?P<weekday>{'|'.join(_WEEKDAYS)})"
_SINCE = (
    r"since|from|after|as of|starting|beginning|seit|ab|nach|vo[nm]|depuis|d[eè]s|apr[eè]s|desde|"
    r"a partir d[eao]"
)
_THE = r"the|de[nmr]|das|die|le|la|les|ces|las|los|el|as|os|o|a"
_LEAD = (
    rf"\b(?:(?:{_SINCE}|in|within|over|during|for|on|of|am|im|über|während|pendant|dans|durante|en|n[ao]s?)\s+"
    rf"(?:(?:{_THE})\s+)?|(?:{_THE})\s+)"
)
_LAST = (
    r"(?:last|past|previous|recent|letzte[nrms]?|vergangene[nrms]?|derni[eè]re?s?|[uú]ltim[oa]s?|"
    r"pasad[oa]s?|passad[oa]s?)"
)
_THIS = r"(?:this|current|diese[nrms]?|cette|ce|n?est[ae])"
_BOOT = (
    r"(?:(?:re)?boot(?:ed|ing|s|ens?)?|start ?up|restart(?:ed)?|neustart|hochfahren|systemstart|"
    r"(?:re)?d[eé]marrage|arranque|reinicio|rein[ií]cio|(?:re)?inicializa[cç][aã]o)"
)
_OF_BOOT = r"(?:the|this|it|we|i|machine|server|box|system|was|dem|le|el|o|a|most recent|latest)"
_TODAY = (
    r"today(?:'s)?|this (?:morning|afternoon|evening)|tonight|"
    r"heute(?: (?:morgen|früh|vormittag|nachmittag|abend))?|aujourd'?hui|ce (?:matin|soir)|"
    r"cet apr[eè]s-midi|hoy|hoje(?: (?:de|[aà]) (?:manh[aã]|tarde|noite))?|"
    r"esta (?:ma[nñ]ana|tarde|noche|manh[aã]|noite)|midnight|mitternacht|minuit|medianoche|meia-noite"
)
_YESTERDAY = (
    r"yesterday(?:'s)?(?:\s+(?:morning|afternoon|evening|night))?|last night|overnight|"
    r"(?:during|in) the night|heute nacht|gestern(?: (?:morgen|früh|vormittag|nachmittag|abend|nacht))?|"
    r"letzten? nacht|über nacht|(?P<hier>hier)(?P<part> (?:matin|soir|apr[eè]s-midi))?|"
    r"(?:la )?nuit derni[eè]re|cette nuit|ayer(?: por la (?:ma[nñ]ana|tarde|noche))?|anoche|"
    r"ontem(?: (?:de|[aà]) (?:manh[aã]|tarde|noite))?"
)
_TWO_DAYS = r"(?:the )?day before yesterday|vorgestern|avant-hier|anteayer|antes de ayer|anteontem"
_TAKEN = "\0"
_FRENCH = re.compile(
    r"\b(?:depuis|les|des|du|est|quoi|qui|quelles?|une?|pourquoi|erreurs?|matin|soir|dans)\b|d'"
)
_AM = (
    r"(?:in the|this) morning|de la ma[nñ]ana|da manh[aã]|du matin|morgens|früh|nachts|"
    r"de la madrugada|da madrugada"
)
_PM = (
    r"(?:in the|this) (?:afternoon|evening)|de la (?:tarde|noche)|da (?:tarde|noite)|"
    r"de l'apr[eè]s-midi|du soir|nachmittags|abends"
)
_SUFFIX = r"(?: ?(?P<suffix>[ap]m|[ap]\.m\.|uhr|h|o'clock))?"
_HOUR = r"(?P<hour>\d\d?)(?:[:h](?P<minute>[0-5]\d)(?::[0-5]\d(?:[.,]\d+)?)?|\.(?P<dotted>[0-5]\d)(?= ?uhr))?"
_CLOCK = rf"(?<![\d:.]){_HOUR}{_SUFFIX}(?: (?:(?P<am>{_AM})|(?P<pm>{_PM})))?(?![\w%]|[:.]\d)"
_NOON = r"noon|midday|mittags?|midi|mediod[ií]a|meio-dia"
_LUNCH = r"lunch(?: ?time| break)?|mittagspause|mittagessen|d[eé]jeuner|almuerzo|almo[cç]o"
_AT = (
    rf"\b(?:{_SINCE}|around|at|about|between|um|gegen|zwischen|à|vers|entre|sobre|hacia|a|às|"
    r"por volta d[ae]s?)\s+"
    r"(?:(?:about|around|las?|les|às|as|um|der|the|le|el|o)\s+)?"
)
_RANGE = (
    r"\b(?:between|from|zwischen|von|entre|de|das)\s+(?:las?\s+|as\s+)?"
    r"(?P<hour0>\d\d?)(?:[:h](?P<minute0>[0-5]\d))?(?: ?(?P<suffix0>[ap]m|uhr|h))?"
    r"\s*(?:and|to|till|until|-|\u2013|und|bis|et|à|y|e|a|às)\s*(?:las?\s+|as\s+)?"
)


@dataclass(frozen=True, kw_only=True)
class _Time:
    """A time of a prompt, or a part of one."""

    span: tuple[int, int] = (0, 0)
    whole: str = ""
    """A value, such as `-2h`, which nothing completes."""
    day: str = ""
    clock: str = ""
    vague: bool = False
    """The clock time is that of a meal."""


class Extraction(Protocol):
    """A prompt whose arguments are replaced as they are found; see `placeholders`."""

    text: str

    def take(
        self, pattern: str | re.Pattern[str], kind: str, value: Callable[[re.Match[str]], str | None]
    ) -> None: ...


def take_dates(found: Extraction, now: datetime | None = None) -> None:
    """Dates that have a shape of their own, such as `2025-01-31 14:00`, and the stamps of logs."""
    now = now or datetime.now().astimezone()
    for pattern in _DATES if any(map(str.isdigit, found.text)) else ():
        found.take(pattern, "time", lambda match: _dated(match, now))


def take_times(found: Extraction, now: datetime) -> None:
    """All other times. They are one: each gets the value that they have together."""
    times = _times(found.text, now)
    if not times:
        return
    value, spans = _together(times), {time.span for time in times}
    texts = sorted({found.text[start:end] for start, end in spans}, key=len, reverse=True)
    found.take(
        "|".join(map(re.escape, texts)), "time", lambda match: value if match.span() in spans else None
    )


def _together(times: Sequence[_Time]) -> str:
    clocks = [time for time in times if time.clock]
    clock = next((time for time in clocks if not time.vague), clocks[0] if clocks else None)
    day = next((time.day for time in times if time.day), "today")
    whole = next((time for time in times if time.whole), None)
    if whole is not None and (clock is None or clock.vague or whole.span < clock.span):
        return whole.whole
    return day if clock is None else f"{day} {clock.clock}"


def _times(text: str, now: datetime) -> list[_Time]:
    """The times of a text, in its order; what one rule has found, the later ones do not see."""
    times: list[_Time] = []
    for pattern, time_of in _RULES:
        found = []
        for match in pattern.finditer(text):
            time = time_of(match, now)
            if time is not None and (
                pattern not in _BESIDE_DAYS or any(other.day or other.vague for other in times)
            ):
                start, end = match.span("only" if "only" in pattern.groupindex else 0)
                lead = _LEAD_BEFORE.search(text, max(0, start - _LONGEST_LEAD), start)
                found.append(replace(time, span=(lead.start() if lead else start, end)))
        for time in found:
            start, end = time.span
            text = f"{text[:start]}{_TAKEN * (end - start)}{text[end:]}"
        times += found
    return sorted(times, key=lambda time: time.span)


def _dated(match: re.Match[str], now: datetime) -> str | None:
    """A date with or without a year, and with a clock time where one stands behind it, in local time."""
    parts = match.groupdict()
    month, day, year = parts["month"], int(parts["day"]), parts.get("year")
    number = int(month) if month.isdigit() else _place(month, _MONTHS) + 1
    if number > 12 and match.string[match.end("day")] == "/":
        number, day = day, number
    clock, zone = parts.get("clock") or "", parts.get("zone") or ""
    try:
        date = datetime(int(year or now.year), number, day)  # noqa: DTZ001  # what the prompt means is local time
        if zone:
            date = datetime.fromisoformat(f"{date:%Y-%m-%d}T{clock:0>5}{zone}").astimezone(now.tzinfo)
            clock = f"{date:%H:%M}"
        if not year and date.date() > now.date():
            date = date.replace(year=now.year - 1)
    except ValueError:
        return None
    return f"{date:%Y-%m-%d} {clock:0>5}" if clock else f"{date:%Y-%m-%d}"


def _span(match: re.Match[str], _: datetime) -> _Time | None:
    count, words = (match["n"] or "").lower(), match["span"].lower()
    if len(words) == 1 and not count.isdigit():
        return None
    number = int(count) if count.isdigit() else _NUMBERS.get(count, 1)
    span = list(_SPANS)[_place(words, tuple(_SPANS.values()))]
    if span in ("w", "mo"):
        number, span = number * (7 if span == "w" else 30), "d"
    return _Time(whole=f"-{number}{span}") if number else None


def _span_before(match: re.Match[str], now: datetime) -> _Time | None:
    """`vor 2 Stunden`, `for 2 hours`. `depuis 9h` is a clock time, and `in a minute` is none at all."""
    before = match["before"].lower()
    if before in ("depuis", "desde") and match["span"].lower() == "h":
        return None
    is_one = match["n"].lower() in ("a", "an", "one", "1")
    return None if is_one and before in ("in", "for", "over", "during") else _span(match, now)


def _clock(match: re.Match[str], _: datetime) -> _Time | None:
    """A clock time; of two the first one, which is in the same half of the day if it can be."""
    hour, minute, suffix = int(match["hour"]), match["minute"] or match["dotted"], match["suffix"]
    half = "pm" if match["pm"] else "am" if match["am"] else (suffix or "").lower().replace(".", "")
    if not (minute or half):
        return None
    if "hour0" in match.re.groupindex:
        first, minute = int(match["hour0"]), match["minute0"]
        half = (match["suffix0"] or ("am" if half == "pm" and first % 12 > hour % 12 else half)).lower()
        hour = first
    if half in ("am", "pm"):
        if suffix and suffix[0] in "aApP" and not 1 <= hour <= 12:
            return None
        if hour <= 12:
            hour = hour % 12 + (12 if half == "pm" else 0)
    return _Time(clock=f"{hour:02}:{minute or '00'}") if hour < 24 else None


def _hour(match: re.Match[str], _: datetime) -> _Time | None:
    return _Time(clock=f"{int(match['hour']):02}:00") if int(match["hour"]) < 24 else None


def _yesterday(match: re.Match[str], _: datetime) -> _Time | None:
    is_german = (
        match["hier"] is not None and match["part"] is None and not _FRENCH.search(match.string.lower())
    )
    return None if is_german else _Time(day="yesterday")


def _weekday(match: re.Match[str], now: datetime) -> _Time:
    name = match.groupdict().get("weekday")
    number = _place(name, _WEEKDAYS) if name else 5
    return _ago((now.weekday() - number) % 7 or 7, now)


def _ago(days: int, now: datetime) -> _Time:
    return _Time(day=f"{now - timedelta(days=days):%Y-%m-%d}")


def _date(match: re.Match[str], now: datetime) -> _Time | None:
    day = _dated(match, now)
    return None if day is None else _Time(day=day)


def _place(word: str, patterns: Sequence[str]) -> int:
    return next(at for at, pattern in enumerate(patterns) if re.fullmatch(pattern, word, re.IGNORECASE))


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_STAMP = (
    r"(?:[ T,]+(?:at |um |à )?(?P<clock>\d\d?:\d\d)(?::\d\d(?:[.,]\d+)?)?(?P<zone>Z|[+-]\d\d:?\d\d)?"
    r"(?: uhr)?)?"
)
_DATES = (
    rf"(?:{_LEAD})?\b(?P<year>\d{{4}})(?P<mark>[-/.])(?P<month>\d\d)(?P=mark)(?P<day>\d\d){_STAMP}(?![\w/])",
    rf"(?:{_LEAD})?\b(?P<day>\d\d?)(?P<mark>[./-])(?P<month>\d\d?)(?P=mark)(?P<year>\d{{4}}){_STAMP}(?![\w/])",
    rf"\b(?:{_SINCE}|am|le|dia)\s+(?:dem\s+)?(?P<day>\d\d?)\.(?P<month>\d\d?)\.{_STAMP}(?![\w/])",
    rf"(?:{_LEAD})?\b{_MONTH} +(?P<day>\d\d?) +(?P<clock>\d\d:\d\d):\d\d(?!\w)",
)
_LEAD_BEFORE, _LONGEST_LEAD = _compiled(f"{_LEAD}$"), 30
_ON = (
    rf"\b(?:{_SINCE}|on|am|le|el|dia|last|this|letzte[nrm]?)\s+"
    r"(?:(?:the|dem|le|la|el|o|a|last|this|letzte[nm]?)\s+)?"
)
_WEEK = "(?P<span>week|month|woche|monat|semaine|mois|semana|mes|m[eê]s)"
_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], datetime], _Time | None]], ...] = tuple(
    (_compiled(pattern), time_of)
    for pattern, time_of in (
        (_RANGE + _CLOCK, _clock),
        (
            rf"\b(?:{_LAST}\s+|vor\s+|il y a\s+|hace\s+|h[aá]\s+|an?\s+|einer\s+|une\s+){{0,3}}"
            r"(?:half an hour|half[ -]hour|halbe[nr]? stunde|demi-heure|media hora|meia hora)(?:\s+ago)?\b",
            lambda *_: _Time(whole="-30min"),
        ),
        (rf"\b{_COUNT}\s+{_LAST}\s+{_SPAN}\b", _span),
        (rf"\b{_LAST}(?:\s+{_COUNT})?[\s-]*{_SPAN}\b", _span),
        (rf"\b{_COUNT}\s*{_SPAN}\s+(?:ago|zuvor|atr[aá]s)\b", _span),
        (
            r"\b(?P<before>vor|il y a|(?:desde )?hace|(?:desde )?h[aá]|faz|seit|depuis|since|desde|in|for|"
            rf"over|within|during|past)\s+{_COUNT}\s*{_SPAN}\b",
            _span_before,
        ),
        (rf"(?<![\w./-])-(?P<n>\d{{1,4}}){_SPAN}(?![\w-])", _span),
        (r"\b(?P<n>24|48|72)\s*(?P<span>hours?|hrs?|h)\b", _span),
        (rf"\b(?:{_THIS}|the)\s+{_WEEK}(?P<n>)\b", _span),
        (rf"\b{_WEEK}\s+{_LAST}(?P<n>)\b", _span),
        (
            rf"\b(?:since|seit|depuis|desde)\s+(?:(?:{_OF_BOOT}|{_LAST})\s+){{0,4}}{_BOOT}\b|"
            r"\bsince (?:it|the (?:box|machine|server|system)) (?:came|went|got) (?:back )?up\b|"
            r"\b(?:this|current|diesem) boot\b",
            lambda *_: _Time(whole="boot"),
        ),
        (r"\b(?P<only>after (?:the )?(?:last )?)(?:re)?boot\b", lambda *_: _Time(whole="boot")),
        (_AT + _CLOCK, _clock),
        (rf"(?:{_AT})?\b(?:{_NOON})\b", lambda *_: _Time(clock="12:00")),
        (rf"{_AT}(?:{_LUNCH})\b", lambda *_: _Time(clock="12:00", vague=True)),
        (r"\b(?:since|after)\s+(?P<hour>\d\d?)(?![\w:%.]|\s*(?:percent|mb|gb))", _hour),
        (rf"\b(?:{_TWO_DAYS})\b", lambda _, now: _ago(2, now)),
        (rf"\b(?:d')?(?:{_YESTERDAY})\b", _yesterday),
        (rf"\b(?:{_TODAY})\b", lambda *_: _Time(day="today")),
        (
            rf"\b(?:(?:{_LAST}|{_THIS})\s+)?(?:weekend|wochenende|week-end|fi[nm] de semana)\b",
            _weekday,
        ),
        (rf"{_ON}{_WEEKDAY}(?: {_LAST})?\b", _weekday),
        (rf"{_ON}{_MONTH}\.?\s+(?P<day>\d\d?)(?:st|nd|rd|th)?(?:,?\s+(?P<year>\d{{4}}))?\b", _date),
        (
            rf"{_ON}(?P<day>\d\d?)(?:st|nd|rd|th|er)?\.?\s+(?:(?:of|de)\s+)?{_MONTH}"
            r"(?:\s+(?:de )?(?P<year>\d{4}))?\b",
            _date,
        ),
        (_CLOCK, _clock),
        (r"\b(?:at|um|gegen|à|às|as|a las)\s+(?P<hour>\d\d?)(?![\w:%.])", _hour),
    )
)
"""What is looked for, in this order."""
_BESIDE_DAYS = {pattern for pattern, _ in _RULES[-2:]}
"""Rules for clock times that no word marks as such: they count where a day or a meal is named."""
