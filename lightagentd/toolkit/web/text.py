"""Turns the bytes of a web page into text: finds the charset, and renders HTML with its links.

Pages are hostile, so everything here takes time in proportion to the page. That is why HTML is not read with
`html.parser`: on Python 3.11 it takes 30 seconds for 50 kB of "<a <a <a". This scanner follows the tokenizer
of the HTML standard (https://html.spec.whatwg.org/#tokenization) as far as text needs it; as there, what
begins and does not end (a tag, a comment, a script) swallows the rest of the page.
"""

from __future__ import annotations

import codecs
import html
import re
from urllib.parse import urljoin

_TEXT_TYPE = re.compile(
    r"text/.*|application/(.*[+/])?(json|xml|javascript|ecmascript|yaml|x-yaml|toml|sql|graphql|ndjson"
    r"|x-ndjson|x-sh|x-www-form-urlencoded|problem\+json)|image/svg\+xml"
)
_CHARSET = re.compile(r"""charset\s{0,9}=\s{0,9}["']?([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
_CODECS = re.compile(
    r"utf-8(-sig)?|utf-(16|32)(-[bl]e)?|ascii|iso8859-\d+|cp(125\d|866|874|932|949|950)|koi8-[ru]"
    r"|gb(2312|k|18030)|big5(hkscs)?|shift_jis|euc_(jp|kr)|iso2022_jp|mac-roman"
)
"""The encodings of the web; Python has others that are no charsets, or that take long."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SNIFF_BYTES = 1024
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
"""What could drive a terminal is escaped."""
_LINK_LIMIT_CHARS = 2000
_LINKS_LIMIT_CHARS = 512 << 10
"""All links of a page together: a long base would make much of a little page."""

_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]{0,40}+)"
    r"(?P<attributes>(?:[^>=]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')|=(?!\s*+[\"']))*+)>"
)
_OPENING = re.compile(r"<(?:(?P<comment>!--)|(?P<tag>/?[A-Za-z])|[/!?])")
_ATTRIBUTE = re.compile(
    r"(?<![^\s/\"'])(?P<name>[A-Za-z-]{1,40}+)\s*+=\s*+"
    r"(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<bare>[^\s>\"']++))"
)
_LONG_REFERENCE = re.compile(r"&#(?:[0-9]{8,}+|[xX][0-9a-fA-F]{8,}+);?")
_DROPPED = frozenset(
    {"script", "style", "template", "svg", "iframe", "object", "noembed", "noframes", "math", "canvas"}
)
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt", "fieldset"}
    | {"figcaption", "figure", "footer", "form", "header", "hr", "main", "nav", "ol", "option", "p", "pre"}
    | {"section", "summary", "table", "tr", "ul", "li", "h1", "h2", "h3", "h4", "h5", "h6", "title", "tbody"}
)
_PARAGRAPHS = frozenset({"p", "pre", "ul", "ol", "table", "blockquote", "dl", "title", "hr"})


def is_text(body: bytes, content_type: str) -> bool:
    """Whether a body can be shown as text: its type says so, or says nothing and its bytes look like it."""
    kind = media_type(content_type)
    charset = _declared(content_type)
    if b"\0" in body[:_SNIFF_BYTES] and not charset.startswith(("utf-16", "utf-32")):
        return body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if kind in ("", "application/octet-stream", "binary/octet-stream", "application/x-unknown"):
        try:
            codecs.getincrementaldecoder("utf-8")().decode(body)
        except UnicodeDecodeError:
            return False
        return not any(code < 9 or 13 < code < 27 for code in body[:_SNIFF_BYTES])
    return bool(_TEXT_TYPE.fullmatch(kind))


def media_type(content_type: str) -> str:
    """`text/html` of `text/html; charset=utf-8`."""
    return content_type.partition(";")[0].strip().lower()


def is_html(body: bytes, content_type: str) -> bool:
    kind = media_type(content_type)
    if kind:
        return kind in ("text/html", "application/xhtml+xml")
    return body[:_SNIFF_BYTES].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def decode(body: bytes, content_type: str) -> tuple[str, str]:
    """The text and the charset it was read with: that of the mark at the begin, the declared, or a guess."""
    charset = next((name for mark, name in _BOMS if body.startswith(mark)), "")
    charset = charset or _declared(content_type)
    if not charset and is_html(body, content_type):
        charset = _declared(body[:_SNIFF_BYTES].decode("ascii", "replace"))
        charset = "" if charset.startswith("utf-16") else charset  # it was just read as ASCII
    if not charset:
        try:
            codecs.getincrementaldecoder("utf-8")().decode(body)  # whose last character may be cut
            charset = "utf-8"
        except UnicodeDecodeError:
            charset = "cp1252"
    text = body.decode(charset, "replace").replace("\r\n", "\n")
    return text.translate(_CONTROLS), charset.removesuffix("-sig")


def _declared(text: str) -> str:
    """The name that Python has for a declared charset, if it is one of the web's."""
    found = _CHARSET.search(text)
    if found is None:
        return ""
    try:
        name = codecs.lookup(found[1]).name
    except LookupError:
        return ""
    if not _CODECS.fullmatch(name):
        return ""
    return "cp1252" if name in ("ascii", "iso8859-1") else name  # as the Encoding Standard has it


def html_to_text(page: str, url: str) -> str:
    """HTML as text to read: paragraphs, headings, lists, table rows, links as `[text](address)`."""
    reader = _Reader(url)
    at = 0
    while opening := _OPENING.search(page, at):
        start = opening.start()
        reader.text(page[at:start])
        at = _markup(reader, page, opening)
        if at < 0:
            return reader.finish()
    reader.text(page[at:])
    return reader.finish()


def _markup(reader: _Reader, page: str, opening: re.Match[str]) -> int:
    """Take the tag or comment that begins there; gives the offset behind it, or -1 when it has no end."""
    start = opening.start()
    if opening["comment"]:
        return _behind(page, "-->", start + 2)
    if not opening["tag"]:
        return _behind(page, ">", start)
    tag = _TAG.match(page, start)
    if tag is None:
        return -1
    name = tag["name"].lower()
    if tag["close"]:
        reader.close(name)
    elif name in _DROPPED:
        if not (name in ("svg", "math") and tag["attributes"].endswith("/")):
            end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(page, tag.end())
            return _behind(page, ">", end.end()) if end else -1
    else:
        reader.open(name, tag["attributes"])
    return tag.end()


def _behind(page: str, mark: str, start: int) -> int:
    found = page.find(mark, start)
    return found + len(mark) if found >= 0 else -1


def _unescape(text: str) -> str:
    """With character references replaced; a number with many digits is none (int() refuses some of them)."""
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text)).translate(_CONTROLS)


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in _ATTRIBUTE.finditer(text):
        value = next(part for part in (each["double"], each["single"], each["bare"]) if part is not None)
        found.setdefault(each["name"].lower(), _unescape(value))
    return found


class _Reader:
    """Puts the text of one page together."""

    def __init__(self, url: str) -> None:
        self._base = url
        self._lines: list[str] = []
        self._line: list[str] = []
        self._link = ""
        self._link_at = 0
        self._links_room = _LINKS_LIMIT_CHARS
        self._preformatted = 0

    def text(self, text: str) -> None:
        if not text:
            return
        text = _unescape(text)
        if self._preformatted:
            first, *rest = text.split("\n")
            self._line.append(first)
            for line in rest:
                self._end_line(keep=True)
                self._line.append(line)
            return
        self._line.append(re.sub(r"\s+", " ", text))

    def open(self, name: str, attributes: str) -> None:
        if name in _BLOCKS or name == "br":
            self._block(name)
        if name == "li":
            self._line.append("- ")
        elif name in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self._line.append("#" * int(name[1]) + " ")
        elif name in ("td", "th") and any(part.strip() for part in self._line):
            self._line.append(" | ")
        elif name == "pre":
            self._preformatted += 1
        elif name == "img" and (alt := _attributes(attributes).get("alt", "").strip()):
            self._line.append(f"[image: {alt}]")
        elif name == "base":
            self._base = self._absolute(_attributes(attributes).get("href", "")) or self._base
        elif name == "a":
            self._end_link()
            self._link = self._absolute(_attributes(attributes).get("href", ""))
            self._link_at = len(self._line)

    def close(self, name: str) -> None:
        if name == "a":
            self._end_link()
        if name in _BLOCKS:
            self._block(name)
        if name == "pre":
            self._preformatted = max(0, self._preformatted - 1)

    def finish(self) -> str:
        """The whole text, with never more than one empty line between paragraphs."""
        self._end_line()
        return re.sub(r"\n{3,}+", "\n\n", "\n".join(self._lines)).strip("\n")

    def _block(self, name: str) -> None:
        self._end_line()
        heading = len(name) == 2 and name[0] == "h"
        if (name in _PARAGRAPHS or heading) and self._lines and self._lines[-1]:
            self._lines.append("")

    def _end_line(self, *, keep: bool = False) -> None:
        self._end_link()
        line = "".join(self._line)
        self._line.clear()
        line = line.rstrip() if keep or self._preformatted else re.sub(r" {2,}+", " ", line).strip()
        if line or keep:
            self._lines.append(line)

    def _end_link(self) -> None:
        if not self._link:
            return
        text = "".join(self._line[self._link_at :]).strip()
        self._links_room -= len(self._link)
        if text and self._links_room >= 0:
            self._line[self._link_at :] = [f"[{text}]({self._link})"]
        self._link = ""

    def _absolute(self, href: str) -> str:
        """A link that can be asked for, or nothing: a place in the page, a script and mail are none."""
        href = href.strip()
        if not href or href.startswith("#") or len(href) > _LINK_LIMIT_CHARS:
            return ""
        try:
            found = urljoin(self._base, href)
        except ValueError:
            return ""
        found = re.sub(r"[\s()<>]", lambda char: f"%{ord(char[0]):02X}", found)
        return found if found.startswith(("http://", "https://")) else ""
