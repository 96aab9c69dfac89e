"""Finds the arguments of a prompt that have a shape: paths, hosts, units with a suffix, ports, pids, times.

`recognise` returns the prompt as tokens, in its order. A token is a chunk, such as `disk` or
`backup-worker`, or an argument, whose text is its kind: `<path>`. Values have the forms that skills take
(`lightagentd.skills`). Weekdays and months are counted back from `now`, local time. Plain names are found
later, by what is known on this machine and by what was learned (`tagging`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from lightagentd.llm.runbook.times import take_dates, take_times


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOOKED_AT_CHARS = 2000
"""How much of a prompt is looked at."""
_BLANK = "\ue000"
"""Stands for each character of an argument that was found; it belongs to no word."""
_SUFFIXES = "service|socket|timer|mount|automount|target|path|slice|scope|swap|device"
_ENDINGS = _words(
    """
    conf cfg log pem crt key txt py sh json yaml yml toml ini gz xz zip bz2 tar db sql md html js so deb
    rpm csv xml pid lock sock bak old tmp err out env service socket timer d cer der p12 pfx php rb pl jar
    war exe png jpg pdf allow deny list repo sources rules local
    """
)
"""After a dot these end the name of a file, not of a host."""
_DEVICE = re.compile(r"/dev/(?:(?:sd|hd|vd|xvd)[a-z]|nvme\d|md\d|dm-\d|sr\d|mmcblk|loop\d|mapper/|disk/)")
_CHUNK = re.compile(r"[^\W_](?:[\w.@+'-]*[\w+])?")
_QUOTES = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb`", "'''" + '"' * 5 + "'")
_PORT_BEFORE = (
    r"tcp|udp|ports?|puertos?|portas?|sockets?|listen(?:s|ing)?(?: on)?|bound to|(?:on|is|holds?|using|uses|"
    r"use|behind|taking|took|has|got|auf|at|owns?|grabs|grabbed|occup(?:y|ies|ying)|blocks?|blocking|en|sur|na)"
)
_COUNTED = (
    r"times|days|users|people|errors|requests|processes|ms|min|minutes|hours|h|machines|servers|percent|gb|mb|tb|"
    r"cores?|cpus?|jobs|seconds|s|weeks|months"
)


@dataclass(frozen=True, kw_only=True)
class Token:
    """A chunk of the prompt, or an argument in it."""

    text: str
    """In lower case; `<path>` for an argument, `<device>` for a disk's path."""
    raw: str
    start: int
    end: int
    kind: str = ""
    """The kind of an argument."""
    value: str = ""


@dataclass(kw_only=True)
class Extraction:
    """A prompt whose arguments are blanked as they are found; all offsets stay."""

    text: str
    found: list[Token] = field(default_factory=list)

    def take(
        self, pattern: str | re.Pattern[str], kind: str, value: Callable[[re.Match[str]], str | None]
    ) -> None:
        """Blank matches but for their group `keep`; `value` returns None for what is no valid value."""

        def blanked(match: re.Match[str]) -> str:
            got = value(match)
            if got is None:
                return match[0]
            start, end = match.span()
            keep = match.span("keep") if match.groupdict().get("keep") else (start, start)
            at = (start, keep[0]) if keep[0] - start > end - keep[1] else (keep[1], end)
            raw = match.string[at[0] : at[1]]
            at = (at[0] + len(raw) - len(raw.lstrip()), at[1])
            text = "<device>" if kind == "path" and _DEVICE.match(got) else f"<{kind}>"
            self.found.append(Token(text=text, raw=raw.strip(), start=at[0], end=at[1], kind=kind, value=got))
            return _BLANK * (keep[0] - start) + match.string[slice(*keep)] + _BLANK * (end - keep[1])

        self.text = re.sub(pattern, blanked, self.text, flags=re.IGNORECASE)


def recognise(prompt: str, now: datetime) -> list[Token]:
    """The tokens of a prompt, in its order."""
    prompt = prompt[:LOOKED_AT_CHARS].translate(_QUOTES)
    found = Extraction(text=re.sub(rf"[{_BLANK}\s]", " ", prompt))
    take_dates(found, now)
    _shaped(found)
    _numbers(found)
    take_times(found, now)
    _ports(found)
    chunks = [
        Token(text=match[0].lower(), raw=match[0], start=match.start(), end=match.end())
        for match in _CHUNK.finditer(found.text)
    ]
    return sorted([*found.found, *chunks], key=lambda token: token.start)


def _shaped(found: Extraction) -> None:
    """URLs, addresses, units with a suffix, paths, interfaces."""
    found.take(r"(?<![\w.:])(?:0\.0\.0\.0|\[::\]|::|\*):(?P<port>\d{1,5})(?![\w.:])", "port", _port)
    found.take(
        r"\b[a-z][a-z0-9+]{1,9}://(?:[^\s/@]+@)?([\w.-]+(?::\d{1,5})?)[^\s,;]*",
        "host",
        lambda m: m[1].rstrip("."),
    )
    found.take(
        rf"(?<![\w/.-])(-\.(?:mount|slice)|[A-Za-z0-9][\w:@\\.-]*\.(?:{_SUFFIXES}))\b(?!\.\w)",
        "unit",
        lambda m: m[1],
    )
    found.take(
        r"(?<![\w./])((?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?)(?![\w/]|\.\d)",
        "host",
        lambda m: None if m[1] == "0.0.0.0" else m[1],  # noqa: S104  # a word of the prompt; nothing is bound
    )
    found.take(
        r"(?<![\w:])(\[[0-9a-f:]+\](?::\d{1,5})?|(?:[0-9a-f]{1,4}:){2,7}[0-9a-f]{1,4}|"
        r"(?:[0-9a-f]{1,4}:)+:[0-9a-f:]*)(?![\w:])",
        "host",
        lambda m: m[1] if m[1].count(":") > 2 or "::" in m[1] or "[" in m[1] else None,
    )
    found.take(
        r"(?<![\w./@-])((?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+([a-z]{2,18})(?::\d{1,5})?)(?![\w/@-])",
        "host",
        _domain,
    )
    found.take(r"(?<![\w./:])([a-z][a-z0-9-]*[a-z0-9]:\d{2,5})(?![\w:.])", "host", _with_port)
    found.take(r"(?<![\w./-])localhost\b", "host", lambda m: m[0].lower())
    found.take(
        r"(?<![\w./~<])(/(?:[\w.@%+:~{}*-]+/?)*)(?![\w/])", "path", lambda m: m[1].rstrip(".,;:!?") or None
    )
    found.take(
        r"(?<![\w@./-])(?:(?:sd[a-d]?|vd|xvd)[a-z]\d{0,2}|hd[a-c]\d{0,2}|nvme\d+(?:n\d+(?:p\d+)?)?|"
        r"md(?!5)\d{1,3}|dm-\d+|sr\d|mmcblk\d\w*)(?![\w/@-]|\.\w)",
        "path",
        lambda m: f"/dev/{m[0].lower()}",
    )
    found.take(
        r"(?<![\w@./-])(?:(?:eth|wlan|bond|tun|tap|wg|veth|virbr|docker|ppp|lo|vlan|ib|team)\d+|"
        r"(?:en|wl)[opsx]\d\w*|br-?\d+|br-[0-9a-f]{12})(?:\.\d+)?(?![\w/@-])",
        "interface",
        lambda m: m[0],
    )


def _domain(match: re.Match[str]) -> str | None:
    is_class = re.search(r"[a-z][A-Z]", match[2]) is not None
    return None if is_class or match[2].lower() in _ENDINGS else match[1]


def _with_port(match: re.Match[str]) -> str | None:
    host, _, port = match[1].partition(":")
    return (
        match[1] if int(port) < 65536 and host.lower() not in ("port", "ports", "pid", "tcp", "udp") else None
    )


def _numbers(found: Extraction) -> None:
    """Process ids and quantities."""
    found.take(r"(?<![\w./])/proc/(\d{1,7})(?:/[\w/*]*)?(?!\w)", "pid", lambda m: m[1])
    process = r"pids?|process(?: ?id| number| no\.?| nr\.?)?|proc|task|prozess|processus|proceso|processo"
    found.take(rf"\b(?P<keep>{process})[ =:#]*(?:of |is )?(?P<pid>\d{{1,7}})\b", "pid", lambda m: m["pid"])
    found.take(
        r"\b(\d{2,7})(?= doing\b|\W+(?:it |that |this )?(?:is )?(?:a |the )?pid\b)", "pid", lambda m: m[1]
    )
    found.take(r"(?<=\s)-p ?(\d{2,7})\b", "pid", lambda m: m[1])
    found.take(
        r"\b\d+(?:[.,]\d+)?\s?(?:%|percent|gb|gib|mb|mib|kb|tb|tib|g|t|gigs?|megs?|ghz|cores?|cpus?|vcpus?)(?=$|\W)",
        "quantity",
        lambda m: m[0],
    )


def _ports(found: Extraction) -> None:
    """Ports by the word before or after them."""
    found.take(r"(?<!\w)(?P<port>\d{1,5})[/ ]?(?P<keep>tcp|udp)(?!\w)", "port", _port)
    found.take(
        rf"(?<!\w)(?P<keep>{_PORT_BEFORE})\s*(?:ports?|number|no\.?|tcp|udp)?\s*[=:#/]?\s*(?P<port>\d{{2,5}})"
        rf"(?:/(?:tcp|udp))?(?!\w|[.,:]\d)(?!\s+(?:{_COUNTED})\b)",
        "port",
        _port,
    )
    found.take(r"\b(?P<keep>ports?) ?(?P<port>\d{1,5})(?!\w)", "port", _port)
    found.take(r"(?<![\w>]):(?P<port>\d{2,5})(?!\w)", "port", _port)
    found.take(
        r"(?<![\w.:-])(?P<port>\d{2,5})"
        r"(?= (?:is )?(?:open|listening|in use|taken|busy|free|used|already|blocked))",
        "port",
        _port,
    )


def _port(match: re.Match[str]) -> str | None:
    number = int(match["port"])
    return str(number) if 0 < number < 65536 else None


def merged(tokens: list[Token], start: int, end: int, kind: str, value: str) -> list[Token]:
    """The tokens with those of a range replaced by one argument."""
    inside = [token for token in tokens if token.start < end and token.end > start]
    if not inside:
        return tokens
    at = tokens.index(inside[0])
    raw = " ".join(token.raw for token in inside)
    token = replace(inside[0], text=f"<{kind}>", raw=raw, end=inside[-1].end, kind=kind, value=value)
    return [*tokens[:at], token, *tokens[at + len(inside) :]]
