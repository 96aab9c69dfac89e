"""Extracts arguments from a prompt: units, paths, hosts, ports, pids and times.

Each one found is replaced in the text by a placeholder such as `<port>` or `<unit:nginx>`, which the matcher
then weighs like a word. Values are normalized to the forms that skills take (`lightagentd.skills`): a unit
has a suffix, a path is absolute, a time is `today`, `yesterday 14:00`, `-2h`, `boot` or a date. Weekdays and
months are counted back from `now`, local time.
"""

from __future__ import annotations

import re
from datetime import datetime

from lightagentd.llm.runbook.names import Names
from lightagentd.llm.runbook.placeholders import Extraction
from lightagentd.llm.runbook.times import take_dates, take_times
from lightagentd.llm.runbook.vocabulary import UNITS, words
from lightagentd.llm.runbook.wording import Speller, unit_name

_SUFFIXES = "service|socket|timer|mount|automount|target|path|slice|scope|swap|device"
_NOT_DOMAINS = words(
    "conf cfg log pem crt key txt py sh json yaml yml toml ini gz xz zip bz2 tar db sql md html js so "
    "deb rpm csv xml pid lock sock bak old tmp err out env service socket timer d cer der p12 pfx php "
    "rb pl jar war exe png jpg pdf"
)
_PARTITIONS = {
    "root": "/",
    "home": "/home",
    "var": "/var",
    "tmp": "/tmp",  # noqa: S108  # the name of a place; nothing is made there
    "boot": "/boot",
    "usr": "/usr",
    "opt": "/opt",
    "temp": "/tmp",  # noqa: S108  # see above
    "srv": "/srv",
}
_ROLES = words(
    "worker api web backend frontend scheduler agent exporter proxy runner daemon backup sync "
    "queue db app job "
    "watcher consumer producer collector importer cache bot ui nightly cleanup indexer mailer uploader"
)
"""The last part of a service's name, where all parts are words: `backup-worker`."""
_ONE_WORD = UNITS | words(
    "openssl openssh javascript powershell github gitlab youtube facebook linkedin networkmanager"
)
_PLACES = r"(?:filesystems?|file systems?|partitions?|fs|disks?|volumes?|drives?|mounts?|mount points?)"
_FOLDERS = r"(?:director(?:y|ies)|dirs?|folders?)"
_NAME = r"(?P<name>[A-Za-z][A-Za-z0-9_@-]{1,62})"
_ODD_NAME = r"(?P<name>(?=[a-z0-9_@-]*[0-9_@-])[a-z][a-z0-9_@-]{2,62})"
_MACHINE = re.compile(
    r"(?:web|db|srv|server|node|host|app|prod|stg|staging|dev|vm|pve|ns|mx|lb|proxy|ip|box|worker)[-_]?\d+"
)


def extract(prompt: str, speller: Speller, now: datetime, names: Names) -> Extraction:
    """Extract the arguments from a prompt, those with an unmistakable shape first."""
    found = Extraction(text=_plain(_without_courtesy(prompt)))
    _shaped(found)
    found.take(
        r"(?<![\w<:/.@-])(?P<name>[A-Za-z][\w@.-]*\w)(?![\w:/>@-])",
        "unit",
        lambda word: _unit_here(names, word["name"], speller),
    )
    found.text = re.sub(r"(?<![\w<@/-])(?<!<[a-z]{4}:)(?<![a-z]:)\w{6,}(?![\w@/>-])", _humps, found.text)
    found.text = re.sub(
        r"(?<![\w<:.@/-])[A-Za-z]{4,}(?![\w:@/>-])", lambda word: _mend(word[0], speller), found.text
    )
    _places(found)
    _numbers(found)
    take_times(found, now)
    _ports(found)
    _hosts(found, speller)
    _units(found, speller)
    return found


def _unit_here(names: Names, word: str, speller: Speller) -> str | None:
    """The unit of this machine that a word names, if the word means nothing else."""
    unit = names.find(word, speller.knows).get("unit")
    return None if unit is None or unit.ordinary else unit.value


def _plain(prompt: str) -> str:
    prompt = re.sub(r"([\"'`])\s*/\s*(?=[\"'`])", r"\1, ", prompt)
    text = prompt.replace("\u2019", "'").replace("\u2018", "'").replace("\u201c", '"').replace("\u201d", '"')
    text = re.sub(r"\s*(?:->|=>|\u2192|\u2014|\u2013|;)\s*", " ; ", text)
    text = re.sub(
        r"\b(\d{1,2}(?::\d\d)?) ?(?:o'?clock )?(in the|this) morning\b", _morning, text, flags=re.IGNORECASE
    )
    text = re.sub(
        r"\b(\d{1,2}(?::\d\d)?) ?(?:o'?clock )?in the (?:afternoon|evening)\b",
        r"\1pm",
        text,
        flags=re.IGNORECASE,
    )
    text = re.sub(r"\b(in|from|of|to|the) journald\b", r"\1 journal", text, flags=re.IGNORECASE)
    text = re.sub(r"\bLA\b(?=\s*(?:is|of|at|[:=>]|\d))", "load average", text)
    text = re.sub(r"[<>`\"*]|(?<!\w)'|'(?!\w)", " ", text)
    if re.search(
        r"\blog(?:s|ged)? in the (?:last|past|previous)\b(?! time)", text, re.IGNORECASE
    ) and not re.search(
        r"\b(?:who|anyone|anybody|someone|somebody|users?|root|people|else)\b", text, re.IGNORECASE
    ):
        text = re.sub(r"\blog(?:s|ged)? in the\b", "log within the", text, flags=re.IGNORECASE)
    if not re.search(
        r"\b(?:errors?|warnings?|messages?|exceptions?|entries)\b.*\blog(?:ged)? in\b", text, re.IGNORECASE
    ):
        text = re.sub(
            r"(?<!the )(?<!this )(?<!in )(?<!our )\b(?:log(?:s|ged|ging)?|sign(?:s|ed|ing)?) (?:in|on)\b",
            "login",
            text,
            flags=re.IGNORECASE,
        )
    text = re.sub(r"\bssh'd\b", "sshed", text, flags=re.IGNORECASE)
    for contraction, spelled in (
        ("'re", " are"),
        ("'ve", " have"),
        ("'ll", " will"),
        ("'d", " would"),
        ("'m", " am"),
    ):
        text = re.sub(rf"(?<=\w){contraction}\b", spelled, text, flags=re.IGNORECASE)
    text = re.sub(
        r"\b(?:(what|who|where|when|why|how|that|there)(?:'s|s)|(it)'s)\b(?!\s+name)",
        r"\1\2 is",
        text,
        flags=re.IGNORECASE,
    )
    return re.sub(r"\s+", " ", text).strip()


def _morning(found: re.Match[str]) -> str:
    return f"{found[1]}am" + (" today" if found[2].lower() == "this" else "")


def _humps(word: re.Match[str]) -> str:
    """The words in the name of an alert or an error: `FilesystemAlmostFull`, `ERR_CERT_DATE_INVALID`."""
    name = word[0]
    if name.lower() in _ONE_WORD:
        return name
    if name.count("_") > 1 or (name.isupper() and "_" in name):
        name = name.replace("_", " ").strip()
    if re.search(r"[a-z][A-Z][a-z]|[A-Z]{2}[a-z]{3}", name):
        name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return name


def _without_courtesy(text: str) -> str:
    """A letter without `Dear colleagues,` and `Best regards, Anna`."""
    text = re.sub(
        r"^\s*(?:hi|hello|dear|hey|good (?:morning|afternoon|evening|day))\b(?: (?:all|team|"
        r"support|colleagues?|"
        r"everyone|everybody|folks|guys|sir|madam|sir or madam|sir/madam|ops|admins?|it|"
        r"helpdesk|there|mr\.? \w+|"
        r"ms\.? \w+|service ?desk|(?-i:[A-Z][a-z]+)))*\s*[,!.:\n-]",
        " ",
        text,
        flags=re.IGNORECASE,
    )
    return re.sub(
        r"(?:[.,;!?\n]|--)\s*(?:(?:best|kind|warm|many)\s+)?(?:regards|wishes|greetings|"
        r"sincerely|cheers|br|rgds|thx|"
        r"thanks|thank you|many thanks|mit freundlichen|yours)(?:\s+(?:in advance|a lot|so much|very much|"
        r"and regards|and best regards))?\s*(?:[,.!\n-]+|$)\s*(?:(?-i:[A-Z])[\w.'-]*[ ,|/(]*){0,6}\)?\s*$",
        lambda m: m[0][0] if m[0][0] in ".?!" else " ",
        text,
        flags=re.IGNORECASE,
    )


def _mend(word: str, speller: Speller) -> str:
    lower = word.lower()
    mended = speller.mend(lower)
    return word if mended == lower else mended


def _shaped(found: Extraction) -> None:
    """Extract values that cannot be words: dates, URLs, units with a suffix, addresses, paths."""
    take_dates(found)
    found.take(r"(?<![\w.:])(?P<keep>0\.0\.0\.0|\[::\]|::|\*):(?P<port>\d{1,5})(?![\w.:])", "port", _port)
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
    found.take(r"(?<![\w./])((?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?)(?![\w/]|\.\d)", "host", _address)
    found.take(
        (
            r"(?<![\w:])(\[[0-9a-f:]+\](?::\d{1,5})?|(?:[0-9a-f]{1,4}:){2,7}[0-9a-f]{1,4}|"
            r"(?:[0-9a-f]{1,4}:)+:[0-9a-f:]*)(?![\w:])"
        ),
        "host",
        lambda m: m[1] if ":" in m[1] else None,
    )
    found.take(
        r"(?<![\w./@-])((?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+([a-z]{2,18})(?::\d{1,5})?)(?![\w/@-])",
        "host",
        _domain,
    )
    found.take(r"(?<![\w./])localhost(?::\d{1,5})?\b", "host", lambda m: m[0].lower())
    found.take(
        r"(?:(?<=^)|(?<=[\s('=,]))(/(?:[\w.@%+:~{}*-]+/?)*)(?=$|[\s,;:!?)'])",
        "path",
        lambda m: m[1].rstrip(".,;:!?") or None,
    )
    found.take(
        (
            r"(?<![\w@.-])(?:(?:eth|wlan|bond|tun|tap|wg|veth|virbr)\d+|(?:en|wl)[opsx]\d\w*|"
            r"br-?\d+|docker0|ppp0)\b"
        ),
        "interface",
        lambda m: m[0],
    )


def _address(match: re.Match[str]) -> str | None:
    return None if match[1] == "0.0.0.0" else match[1]  # noqa: S104  # a word of the prompt; nothing is bound


def _domain(match: re.Match[str]) -> str | None:
    is_class = re.search(r"[a-z][A-Z]", match[2]) is not None
    return None if is_class or match[2].lower() in _NOT_DOMAINS else match[1]


def _places(found: Extraction) -> None:
    """`root partition` is `/`, `home directories` is `/home`."""
    names = "|".join(_PARTITIONS)
    found.take(rf"\b({names})\s+(?P<keep>{_PLACES})\b", "path", lambda m: _PARTITIONS[m[1].lower()])
    found.take(
        rf"\b(home|tmp|temp|var|usr|opt|srv)\s+(?P<keep>{_FOLDERS})\b",
        "path",
        lambda m: _PARTITIONS[m[1].lower()],
    )
    found.take(
        (
            r"\b(?P<keep>\d{1,3} ?(?:%|percent)?(?: full| used)? (?:on|in|for|of)) (?:my |the )?(root|"
            r"home|tmp|var)\b(?! \w+ (?:login|user))"
        ),
        "path",
        lambda m: _PARTITIONS[m[2].lower()],
    )
    found.take(
        (
            r"\b(root|home|tmp|var)(?= (?:is |now |again |sits |partition |fs )*(?:at |above |over "
            r")\d{1,3} ?(?:%|percent))"
        ),
        "path",
        lambda m: _PARTITIONS[m[1].lower()],
    )
    found.take(r"\b(?P<keep>rootfs)\b", "path", lambda _: "/")
    found.take(
        (
            r"\b(?P<keep>full|space|left|disk|free|room)\s+(?:is\s+)?(?:my |the )?(?:(?:on|in|"
            r"at)\s+)(?:my |the )?(root|home|tmp|var)\b"
        ),
        "path",
        lambda m: _PARTITIONS[m[2].lower()],
    )
    found.take(
        (
            r"\b(?:is|how full is) (?:my |the )?(root|home|tmp|var)(?= (?:almost |nearly |"
            r"getting |running )?(?:full|out))\b"
        ),
        "path",
        lambda m: _PARTITIONS[m[1].lower()],
    )
    found.take(
        r"\b(root|home|tmp|var)(?= is (?:almost |nearly |getting |too )*full)",
        "path",
        lambda m: _PARTITIONS[m[1].lower()],
    )
    found.take(
        r"\b(?P<keep>how full) is (?:my |the )?(root|home|tmp|var)\b",
        "path",
        lambda m: _PARTITIONS[m[2].lower()],
    )


def _numbers(found: Extraction) -> None:
    found.take(
        r"\b(?:pids?|process(?: ?id| number| no\.?| nr\.?)?|proc|task)[ =:#]*(?:of |is )?(\d{1,7})\b",
        "pid",
        lambda m: m[1],
    )
    found.take(
        r"\b(\d{2,7})(?= doing\b|\W+(?:it |that |this )?(?:is )?(?:a |the )?pid\b)", "pid", lambda m: m[1]
    )
    found.take(r"(?<=\blsof) -p ?(\d{1,7})\b", "pid", lambda m: m[1])
    found.text = re.sub(r"(?<=\s)--?[A-Za-z][\w-]*(?=$|[\s=])", " <flag> ", found.text)
    found.take(
        (
            r"\b\d+(?:\.\d+)?\s?(?:%|percent|gb|gib|mb|mib|kb|tb|tib|g|t|gigs?|megs?|ghz|cores?|"
            r"cpus?|vcpus?)(?=$|\W)"
        ),
        "quantity",
        lambda m: m[0],
    )


def _ports(found: Extraction) -> None:
    """Ports by the word before or after them, or by the verb that stands before a bare number."""
    found.take(
        (
            r"(?<!\w)(?P<keep>(?:tcp|udp|ports?|sockets?))\s*(?:ports?|number|"
            r"no\.?)?\s*[=:#/]?\s*(?P<port>\d{1,5})(?:/(?:tcp|udp))?(?!\w)"
        ),
        "port",
        _port,
    )
    found.take(r"(?<!\w)(?P<port>\d{1,5})[/ ]?(?P<keep>tcp|udp)(?!\w)", "port", _port)
    found.take(r"(?<![\w>]):(?P<port>\d{2,5})(?!\w)", "port", _port)
    before = (
        r"on|onto|to|using|uses|use|used|holds?|holding|owns?|owning|has|have|having|behind|"
        r"at|is|listen(?:s|ing)?|occup(?:y|ies|ying)|blocks?|blocking|taking|took|grabbed|"
        r"grabs|hogging|hogs?|got|serves|serving|bound"
    )
    found.take(
        (
            rf"\b(?P<keep>{before})\s+(?P<port>\d{{2,5}})(?!\w|\.\d)(?!\s+(?:times|days|users|"
            rf"people|errors|requests|processes|ms|minutes|hours|machines|servers|percent|%|on|of|in))"
        ),
        "port",
        _port,
    )
    found.take(
        r"^(?P<port>\d{2,5})(?= (?:open|listening|in use|taken|busy|free|used|already|blocked))",
        "port",
        _port,
    )


def _hosts(found: Extraction, speller: Speller) -> None:
    """Plain names that the surrounding words mark as hosts."""

    def plain(match: re.Match[str]) -> str | None:
        name = match["name"].lower()
        is_known = name in UNITS or all(map(speller.knows, re.split(r"[-_]", name)))
        return None if is_known else match["name"]

    found.take(
        (
            rf"\b(?P<keep>ping|pinging|reach|reaching|traceroute(?: to)?|connect(?:ion|"
            rf"ivity)? to|route to|resolve|latency to)\s+(?:the\s+)?(?:host\s+|"
            rf"server\s+)?{_NAME}(?![\w.@])"
        ),
        "host",
        plain,
    )
    found.take(
        rf"\b{_NAME}(?= (?:reachable|unreachable|pingable|resolvable|pings|resolves?)\b)", "host", plain
    )
    found.take(
        (
            r"\b(?P<keep>cert(?:ificate)? (?:of|for|"
            r"on))\s+(?:the\s+)?(?:host\s+)?(?P<name>[a-z][a-z0-9]*-?\d+)\b"
        ),
        "host",
        plain,
    )


_OUR = r"(?:the\s+|our\s+|my\s+)?"
_ACTS = r"running|active|enabled|crashing|flapping|failing|crashed|restarting|crashlooping"
_KNOWN_NAMES = "|".join(re.escape(name) for name in sorted(UNITS, key=len, reverse=True))
_KNOWN_UNIT = (
    rf"(?<![\w<:/.@-])(?P<name>(?:{_KNOWN_NAMES}|"
    r"php[\d.]+-fpm|(?:postgresql|wg-quick|openvpn|openvpn-client|getty|user|mysql|redis|\w+-[\w-]+)@[\w.-]+))"
    r"(?![\w/@>-]|[:.]\w)"
)
_UNKNOWN_UNITS = (
    rf"\b{_NAME}\s+(?P<keep>service|daemon|unit|systemd unit)\b",
    (
        rf"\b(?P<keep>service|daemon|unit)\s+(?:called\s+|named\s+)?{_NAME}(?= (?:is|has|was|failed|fails|"
        r"crashed|status|not|down|dead|ok|okay|up|running|keeps|won't)\b|\s*[?.,!]|\s*$)"
    ),
    (
        r"\b(?P<keep>(?:is|did|does|has|was|of|with|to|for|from|in|by|on|check))\s+"
        rf"{_OUR}{_ODD_NAME}(?![\w.:@/>])"
    ),
    (
        rf"^{_OUR}{_ODD_NAME}(?= (?:is|has|keeps?|won't|doesn't|status|logs?|errors?|failed|crashed|down|"
        r"died|ok|running|not)\b)"
    ),
    (
        rf"\b{_NAME}(?=\s+(?:is|are|was|has been|shows as|reports|went|goes|looks|stays|became|remains)\s+"
        r"(?:still |again |now )?(?:inactive|dead|failed|masked|activating|deactivating|flapping|"
        r"crashlooping|crash-looping)\b)"
    ),
    rf"\b(?P<keep>is|has)\s+{_OUR}{_NAME}(?=\s+(?:still\s+|actually\s+|even\s+)?(?:{_ACTS})\b)",
    (
        rf"\b(?P<keep>why (?:did|does|is|has|do))\s+{_OUR}{_NAME}"
        rf"(?=\s+(?:keeps?\s+|just\s+)?(?:crash|restart|segfault|{_ACTS})\b)"
    ),
    (
        rf"\b{_NAME}(?=\s+(?:keeps?|won't|wont|will not|fails to|refuses to|does not|doesn't)\s+"
        r"(?:start|starting|crash|crashing|restart|restarting|dying|failing|come up)\b)"
    ),
)
"""The words around the name of a service that is not among UNITS, in the order in which they are tried."""


def _units(found: Extraction, speller: Speller) -> None:
    """Services by their known names, or by the words around an unknown one."""

    def unknown(match: re.Match[str]) -> str | None:
        name = match["name"].lower()
        parts = re.split(r"[-_@]", name)
        if (
            speller.knows(name)
            or _MACHINE.fullmatch(name)
            or (len(parts) > 1 and parts[-1] not in _ROLES and all(map(speller.knows, parts)))
        ):
            return None
        return unit_name(match["name"])

    found.take(_KNOWN_UNIT, "unit", lambda m: unit_name(m["name"]))
    for pattern in _UNKNOWN_UNITS:
        found.take(pattern, "unit", unknown)


def _port(match: re.Match[str]) -> str | None:
    number = int(match["port"])
    return str(number) if 0 < number < 65536 else None
