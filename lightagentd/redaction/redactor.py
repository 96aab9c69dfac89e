"""Removes known credentials, and what looks like a secret, from texts and JSON
values.

The daemon has one, which the history owns. Nearly every event has nothing to remove, so `suspects` looks at
its JSON as a whole first, and only a suspect is taken apart.

A long text full of words such as password takes a second for each megabyte. It is cleaned in parts in a
thread, so that it blocks nothing else (`LONG`), and only once: a cleaned text is recognised (`KNOWN_FROM`),
such as the system prompt, which each turn has.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

from lightagentd.redaction.formats import BLOCKS, FORMATS, KEY_END, KEY_MATERIAL, Format
from lightagentd.redaction.forms import forms_of, parts_of
from lightagentd.redaction.marker import MARKER, START, mark
from lightagentd.redaction.plausible import is_placeholder

_T = TypeVar("_T", bound=Sized)

_AS_WORDS = bytes(byte if byte < 128 and chr(byte).isalnum() else 32 for byte in bytes(range(256)).lower())
"""Letters in lower case and digits; all else becomes a space."""

_ALONE = [
    "sk",
    "rk",
    "whsec",
    "ghp",
    "gho",
    "ghu",
    "ghs",
    "ghr",
    "github",
    "glpat",
    "gldt",
    "glrt",
    "glcbt",
    "glptt",
    "glft",
    "glsoat",
    "glagent",
    "xoxa",
    "xoxb",
    "xoxe",
    "xoxo",
    "xoxp",
    "xoxr",
    "xoxs",
    "xapp",
    "hooks",
    "discord",
    "discordapp",
    "office",
    "login",
    "ya29",
    "gocspx",
    "npm",
    "pypi",
    "dckr",
    "dop",
    "doo",
    "dor",
    "hf",
    "org",
    "sg",
    "shpat",
    "shpca",
    "shppa",
    "shpss",
    "hvs",
    "hvb",
    "hvr",
    "glsa",
    "glc",
    "atlasv1",
    "tskey",
    "gsk",
    "xai",
    "r8",
    "pplx",
    "lin",
    "ntn",
    "nrak",
    "pmak",
    "pscale",
    "sbp",
    "dp",
    "sntrys",
    "figd",
    "rubygems",
    "tvly",
    "begin",
    "sha",
    "sha224",
    "sha256",
    "sha384",
    "sha512",
    "ssha",
    "ssha256",
    "ssha384",
    "ssha512",
    "smd5",
    "scram",
    "lines",
    "bearer",
    "authorization",
    "cookie",
    "token",
    "auth",
    "authtoken",
    "oauth",
    "pwd",
    "psk",
    "credential",
    "credentials",
    "sig",
    "signature",
    "identified",
    "mysql",
    "mysqldump",
    "mysqladmin",
    "mysqlimport",
    "mysqlcheck",
    "mariadb",
    "curl",
    "wget",
    "ldapsearch",
    "ldapadd",
    "ldapmodify",
    "openssl",
    "redis",
    "accesstoken",
    "5432",
    "5433",
    "6432",
    "apitoken",
    "refreshtoken",
    "idtoken",
    "bearertoken",
    "usertoken",
    "sessiontoken",
    "bottoken",
    "githubtoken",
    "clientcredentials",
    "gloas",
    "glimt",
    "glffct",
    "glwt",
    "aq",
    "dt0c01",
    "dt0s01",
    "fm1a",
    "fm1r",
    "fm2",
    "fo1",
    "hrku",
    "sntryu",
    "xkeysib",
    "xsmtpsib",
    "cfpat",
    "ccipat",
    "ccipra",
    "nvapi",
    "flwseck",
    "clojars",
    "sq0atp",
    "sq0csp",
    "pul",
    "bkua",
    "nfp",
    "vcp",
    "vck",
    "lsv2",
    "phx",
    "phs",
    "pnu",
    "pnb",
    "rdme",
    "sgp",
    "tfp",
    "aio",
    "cfut",
    "cfat",
    "cfk",
    "a3",
    "ssws",
    "pbkdf2",
    "dq",
    "qi",
    "mongo",
    "mongosh",
    "mongodump",
    "mongorestore",
    "mongoexport",
    "mongoimport",
    "ipmitool",
    "smbclient",
    "rpcclient",
    "rabbitmqctl",
    "securestring",
    "masterauth",
    "bindpw",
    "rootpw",
    "rootbindpw",
    "rocommunity",
    "rwcommunity",
    "eap",
    "xauth",
    "authtok",
    "salt",
    "echo",
]
_ESCAPES = ("", "n", "t", "r", "b", "f")
"""What JSON's escapes of control characters leave of themselves in front of a word."""
_HINT_WORDS = frozenset((escape + word).encode() for word in _ALONE for escape in _ESCAPES)
_HINT_PARTS = (
    *("pass", "secret", "key", "akia", "asia", "aiza", "eyj", "absk", "azdo", "dapi", "atatt3", "atctt3"),
    *("atbb", "akcp", "cmvmdgtu", "oy2", "ls0tls1crudjtib"),
)
_NUMBERS = frozenset((b"d", b"p", b"q"))
_NUMBER_SIGNS = ('"d"', '"p"', '"q"', '"d\\', '"p\\', '"q\\')
"""The private numbers of a JSON Web Key."""
_LOOKED_AT = _HINT_WORDS | _NUMBERS
_HASH = re.compile(rb"\$(?:1|2|5|6|7|y|gy|md5|apr1|sha1|argon2|scrypt|pbkdf2)")
BLANKS = " \t\n\r\f\v"
_WORDS = re.compile(rf"[^{BLANKS}]+")
_FLAG = re.compile(r"--?[a-zA-Z][\w-]*")
LONG = 64 << 10
"""So many characters are looked at at once, where lines end; a text that is longer belongs into a thread."""
KNOWN_FROM = 1 << 10
"""A text of more characters is known again: its digest costs a hundredth of another look."""
_KNOWN_CLEAN = 256
"""How many texts are known again."""


class Redactor:
    """Removes secrets. `secrets` are credentials by value; more can be added later. With a `key` each mark
    has a digest of what it stands for.
    """

    def __init__(self, secrets: Iterable[str] = (), *, key: bytes = b"") -> None:
        self._key = key
        self._values: tuple[tuple[str, str], ...] = ()
        """Each form of a known value, and the value; the longest first."""
        self._in_json: tuple[bytes, ...] = ()
        self._first_words: tuple[str, ...] = ()
        """The first words of known values that hold blanks."""
        self._clean: dict[tuple[bool, bytes], None] = {}
        """Digests of the texts that came out of here last; the oldest first."""
        for value in secrets:
            self.add(value)

    def add(self, value: str) -> None:
        """From now on, remove this value in all its forms. May be called in any thread."""
        known = {form for form, _ in self._values}
        new = [(form, part) for part in parts_of(value) for form in forms_of(part) if form not in known]
        if new:
            # The longest first: a value that is a part of another would leave the other's rest behind.
            self._values = tuple(sorted({*self._values, *new}, key=lambda one: (-len(one[0]), one)))
            self._in_json = tuple(form.encode("utf-8", "replace") for form, _ in self._values)
            spaced = [words[0] for form, _ in self._values if len(words := form.split()) > 1]
            self._first_words = tuple(dict.fromkeys(spaced))
            self._clean = {}

    def suspects(self, data: bytes) -> bool:
        """False when no string in this JSON, as `dump_json` writes it, can hold something to remove."""
        for form in self._in_json:
            if form in data:
                return True
        return _hinted(data)

    def hint_at(self, text: str) -> int | None:
        """Where the first word begins that stands in or beside a secret; None when there is none."""
        if not self._is_hint(text):
            return None
        words = _WORDS.finditer(text)
        return next((word.start() for word in words if self._is_hint(word[0])), None)

    def _is_hint(self, text: str) -> bool:
        if any(word in text for word in self._first_words):
            words = text.split()
            if any(word.endswith(self._first_words) for word in words):
                return True
        return _hinted(text.encode("utf-8", "replace"))

    def text(self, text: str) -> str:
        """The text with each secret replaced by its mark."""
        return self.part(text, begins_line=True)

    def looks_secret(self, value: str) -> bool:
        """Whether a single value, such as that of a header, looks like a key."""
        from lightagentd.redaction import assignments

        return self.text(value) != value or assignments.is_value("token", value)

    def result(self, text: str) -> str:
        """As `text`, for what may have been cut: of a private key without beginning the rest goes, too."""
        cleaned = self.text(text)
        while found := KEY_END.search(cleaned):
            start = found.start()
            while start and KEY_MATERIAL.fullmatch(
                line := cleaned[cleaned.rfind("\n", 0, start - 1) + 1 : start]
            ):
                start -= len(line)
            cleaned = (
                cleaned[:start]
                + self._mark("private-key", cleaned[start : found.end()])
                + cleaned[found.end() :]
            )
        return cleaned

    def part(self, text: str, *, begins_line: bool) -> str:
        """As `text`, for a text that follows another, in the same line if `begins_line` is false."""
        if len(text) <= KNOWN_FROM:
            return self._part(text, begins_line=begins_line)
        clean, encoded = self._clean, text.encode("utf-8", "surrogatepass")
        if (begins_line, _digest(encoded)) in clean:
            return text
        found = self._part(text, begins_line=begins_line)
        # Without the line ends at its end, as a flow keeps it, it is as clean: no format looks at them.
        for text in {found, found.rstrip("\n")}:
            clean[begins_line, _digest(text.encode("utf-8", "surrogatepass"))] = None
        for oldest in list(clean)[:-_KNOWN_CLEAN]:
            clean.pop(oldest, None)
        return found

    def _part(self, text: str, *, begins_line: bool) -> str:
        for form, value in self._values:
            if form in text:
                text = text.replace(form, mark("credential", value, self._key))
        if not _hinted(text.encode("utf-8", "replace")):
            return text
        if not begins_line:
            return self._looked_at(f"\0 {text}")[2:]
        return self._looked_at(text)

    def _looked_at(self, text: str) -> str:
        lower = text.lower()
        text = self._without_any(BLOCKS, text, lower)
        if len(text) <= LONG:
            return self._lines(text, lower)
        # Nothing but blocks goes over the end of a line.
        return "".join(self._lines(lines, lines.lower()) for lines in _in_lines(text))

    def _lines(self, lines: str, lower: str) -> str:
        from lightagentd.redaction import assignments  # its patterns take 0.05 s to compile

        lines = self._without_any(FORMATS, lines, lower)
        for hint in assignments.HINTS:
            if hint in lower:
                return assignments.removed(lines, lower, self._mark)
        return lines

    def _without_any(self, formats: Iterable[Format], text: str, lower: str) -> str:
        for each in formats:
            for hint in each.hints:
                if hint in lower:
                    text = self._without(each, text)
                    break
        return text

    def _mark(self, kind: str, secret: str) -> str:
        return mark(kind, secret, self._key)

    def _without(self, wanted: Format, text: str) -> str:
        def marked(found: re.Match[str]) -> str:
            secret = found[wanted.secret]
            if START in secret or (wanted.secret and is_placeholder(secret)):
                return found[0]
            if wanted in BLOCKS:
                secret = re.sub(r"\\[nr]|\s", "", secret)
            start, end = (place - found.start() for place in found.span(wanted.secret))
            return found[0][:start] + self._mark(wanted.kind, secret) + found[0][end:]

        return wanted.pattern.sub(marked, text)

    def value(self, value: Any) -> Any:
        """The same JSON value with each string, keys included, cleaned; of a field by its name, too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(key) if isinstance(key, str) else key: self._field(key, item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return self._list(value)
        return value

    def _field(self, key: Any, item: Any) -> Any:
        """The value of a field: that of one named `password` is a secret, whatever it looks like."""
        from lightagentd.redaction import assignments

        if isinstance(key, str) and isinstance(item, str | int) and not isinstance(item, bool):
            kind = assignments.kind_of_key(key)
            text = str(item)
            if kind and (isinstance(item, str) or kind == "password") and assignments.is_value(kind, text):
                cleaned = self.text(text)
                return cleaned if MARKER.search(cleaned) else self._mark(kind, text)
        return self.value(item)

    def _list(self, items: list[Any] | tuple[Any, ...]) -> list[Any]:
        """A list; after an item such as `--password` stands what it is about."""
        found: list[Any] = []
        before: Any = None
        for item in items:
            is_flag = isinstance(before, str) and isinstance(item, str) and _FLAG.fullmatch(before)
            found.append(self._field(before, item) if is_flag else self.value(item))
            before = item
        return found


async def off_loop(clean: Callable[[_T], _T], text: _T) -> _T:
    """The result of a redactor's `clean` for a text or a prompt; a long one is cleaned in a thread."""
    return await asyncio.to_thread(clean, text) if len(text) > LONG else clean(text)


def _digest(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=32).digest()


def _in_lines(text: str) -> Iterator[str]:
    """The text in whole lines, about `LONG` characters of them at a time."""
    place = 0
    while place < len(text):
        end = text.rfind("\n", place, place + LONG) + 1 or text.find("\n", place + LONG) + 1 or len(text)
        yield text[place:end]
        place = end


def _hinted(data: bytes) -> bool:
    """Whether a text, or JSON in one line, has a word that stands in or beside a secret."""
    spaced = data.translate(_AS_WORDS)
    found = _LOOKED_AT.intersection(spaced.split())
    if found and not found <= _NUMBERS:
        return True
    # A `str` is searched several times as fast as `bytes`.
    words, text = spaced.decode("ascii"), data.decode("latin-1")
    for part in _HINT_PARTS:
        if part in words:
            return True
    # Of these signs one character is looked for first, which is far faster than two.
    if "$" in text and _HASH.search(data):
        return True
    if "@" in text and "://" in text:
        return True
    if "\x1b" in text or ("*" in text and "*:" in text) or ("\\" in text and "\\u" in text):
        return True
    if "token" in words and words.count("token") != words.count(" tokens"):
        return True
    if ":::" in text or ("A" in text and ":AA" in text) or ("~" in text and "Q~" in text):
        return True
    if ("/" in text and "1//0" in text) or ("_" in text and "la_" in text):
        return True
    return bool(found) and any(sign in text for sign in _NUMBER_SIGNS)
