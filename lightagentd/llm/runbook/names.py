"""Recognises names that exist on this machine: units, users, packages, interfaces, containers and mounts.

`Names` is a value: it holds the names as the system spells them, and finds what a word of a prompt means. A
word may lack the suffix of a unit, be in another case, be a well-known other name (`sshd` for `ssh.service`),
or be wrong by one letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BARE = ("service", "timer", "socket", "path")
"""The types of units that people name without a suffix, the likeliest first."""
_SUFFIX = re.compile(r"\.(?:service|timer|socket|path|mount|automount|target|slice|scope|swap|device)$")
_VERSION = re.compile(r"-?\d+(?:\.\d+)*")
_MENDED, _LONG, _LONGEST = 5, 8, 48
"""The lengths between which a wrong letter is mended; a package's name is longer than that of a unit."""
_RUNNING = ("unit", "container")
_MENDED_KINDS = ("unit", "container", "user", "package", "path")
_CROWD = 100
"""Of so many names that begin or end alike, no misspelled one is looked for."""
_ALIASES = tuple(
    tuple(names.split())
    for names in (
        "ssh sshd openssh openssh-server",
        "mariadb mariadbd mysql mysqld mariadb-server mysql-server",
        "apache2 apache httpd",
        "postgresql postgres postgresql-server",
        "cron crond cronie",
        "bind9 named bind",
        "samba smbd smb",
        "redis-server redis valkey",
        "mongod mongodb mongo",
        "networkmanager network-manager",
        "nfs-server nfs-kernel-server nfs nfsd",
        "slapd ldap openldap",
        "rabbitmq-server rabbitmq rabbit",
        "dbus dbus-broker",
        "rsyslog rsyslogd",
        "tailscaled tailscale",
        "chrony chronyd",
        "ntpsec ntp ntpd",
        "elasticsearch elastic",
        "libvirtd libvirt virtqemud",
        "lightagentd lightagent",
    )
)
_ALIASES_OF = {name: group for group in _ALIASES for name in group}
_ORDINARY = _words(
    """
    access account accounts acl admin agent agents alarm alert alerts alias all api app apps archive at
    audit auth auto backend backup backups base bin bind bluetooth boot bridge bug build cache calendar
    cat change changes check cleanup client clock cloud cluster code collector command common compress
    config configure connect connection console container containers control core count cpu crash cron
    customer daemon dashboard data database date db debug default deploy desktop dev device devices dig
    disk disks display dns docs domain door driver dump dynamic eject emergency engine entropy
    environment errors event events exit expect export face failed feed file files final find firewall
    font format free front frontend ftp full games gateway general graph group groups guest halt head
    health hello history home host hostname hosts hub image images import index info init initial input
    install instance interface internet irc job jobs join journal kernel key keyboard kill last less
    level limit link list listen live load local locale location lock log login logs lp machine machines
    mail mailer main make man manager master memory messages metrics migrate mirror modules monitor
    monitoring more mount mounts mouse name names net network networking networks news nightly nobody
    node notes notice notification notifications notify office online open operator order orders output
    package packages page pages partition passwd password patch path payment payments pen people
    performance permissions phone ping plan platform player policy poll port portal ports power print
    printer printers private process processes prod production profile program project prompt proxy
    public python query queue quota rack random reader reboot recent recorder recovery redirect release
    remote repair report reporter reports rescue reset resolved restart restore review root routes
    routing rules run runner runtime safe sandbox save scan scanner schedule scheduler screen script
    scripts search secret secure security send sensors server servers service services session sessions
    settings setup share shell shop shutdown site sites sleep slow smart snapshot snapshots social sound
    source space spell spool staff staging start startup stat state static statistics stats status stop
    storage store stream stress suspend swap switch sync sys system systems tail tape task tasks team
    terminal test tests text time timer timers tmp tools top trace track transfer tree trust tunnel units
    update updater updates upgrade upload uptime usage user users utilities var version video virtual
    voice volume wait wall watch watchdog watcher weather web webserver website weekly wiki window
    wireless work worker workers workflow www zip zone
    """
)
"""Words of prompts that are names of units, packages or users on many machines too."""


@dataclass(frozen=True, kw_only=True)
class Find:
    """What a word names."""

    value: str
    """As the system spells it: `nginx.service`, `NetworkManager.service`, `/srv/data`."""
    exact: bool = True
    """False: a letter of the word was wrong."""
    ordinary: bool = False
    """The word is used without meaning the name, so the words around it must say that it is meant. So it is
    with a user who has the name of a unit: that of a service that runs as a user of its own.
    """


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names that exist. The index is built at the first find, in some 10 ms for 8,000 names."""

    units: frozenset[str] = frozenset()
    """With their suffix: units and unit files, and so templates (`getty@.service`) and instances too."""
    users: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()
    interfaces: frozenset[str] = frozenset()
    containers: frozenset[str] = frozenset()
    mounts: frozenset[str] = frozenset()
    """Mount points, absolute."""

    def find(self, word: str, is_word: Callable[[str], bool] = lambda _: False) -> dict[str, Find]:
        """What a word names, by the kind of the argument: unit, container, interface, user, package, path.

        `is_word` says whether people use a word (in lower case) otherwise than as a name: it is never taken
        for a misspelled name.
        """
        word = word.strip("\"'`.,;:!?()[]").removesuffix("'s").removesuffix("\u2019s")
        lower = word.lower()
        if len(lower) < 2:
            return {}

        def used(name: str) -> bool:
            return len(name) == 2 or name in _ORDINARY or is_word(name)

        ordinary, found, exact = used(lower), self._named(word), True
        if not found and not ordinary:
            meant = self._mended(_folded(word))
            found, exact, ordinary = self._named(meant), False, used(_SUFFIX.sub("", meant))
            if ordinary:  # a misspelled word; it may be a unit, if those around it say so
                found = {kind: value for kind, value in found.items() if kind in _RUNNING}
        return {
            kind: Find(value=value, exact=exact, ordinary=ordinary or (kind == "user" and "unit" in found))
            for kind, value in found.items()
        }

    def _named(self, word: str) -> dict[str, str]:
        """What a word names that is spelled well, or as one of its other names."""
        folded = _folded(word)
        found: dict[str, str] = {}
        for kind, index in self._index.items():
            names = _other_names(folded, is_unit=kind == "unit")
            if (name := next((name for name in names if name in index), None)) is not None:
                found[kind] = index[name]
        for kind, names in (("unit", self.units), ("user", self.users), ("package", self.packages)):
            if word in names:
                found[kind] = word
        if "unit" not in found and "@" in word:
            self._add_instance(word, found)
        return found

    def _add_instance(self, word: str, found: dict[str, str]) -> None:
        """An instance of a template that exists, such as `foo@bar` of `foo@.service`."""
        suffix = match[0] if (match := _SUFFIX.search(word)) else ""
        stem, _, instance = word.removesuffix(suffix).partition("@")
        template = self._index["unit"].get(_folded(f"{stem}@{suffix or '.service'}"))
        if instance and template:
            found["unit"] = template.replace("@", f"@{instance}", 1)

    @cached_property
    def _index(self) -> dict[str, dict[str, str]]:
        """By the kind and the folded name, the likeliest value that is called so."""
        units: dict[str, str] = {}
        for unit in sorted(self.units, key=_rank):
            bare, _, suffix = unit.rpartition(".")
            units.setdefault(_folded(unit), unit)
            if suffix in _BARE and not bare.endswith("@"):
                units.setdefault(_folded(bare), unit)
        for name, called in _called_shorter(self.units).items():
            if len(called) == 1:
                units.setdefault(name, called[0])
        mounts = sorted(self.mounts, key=lambda path: -path.count("/"))
        return {
            "unit": units,
            "container": _by_folded(self.containers),
            "interface": _by_folded(self.interfaces),
            "user": _by_folded(self.users),
            "package": _by_folded(self.packages),
            "path": {_folded(last): path for path in mounts if len(last := path.rpartition("/")[2]) > 2},
        }

    @cached_property
    def _halves(self) -> dict[tuple[int, str], list[str]]:
        """The names that can be misspelled, by their length and each of their halves."""
        halves: dict[tuple[int, str], list[str]] = {}
        for name in {name for kind in _MENDED_KINDS for name in self._index[kind]}:
            if _MENDED - 1 <= len(name) <= _LONGEST and not _SUFFIX.search(name):
                half = len(name) // 2
                halves.setdefault((len(name), name[:half]), []).append(name)
                halves.setdefault((-len(name), name[half:]), []).append(name)
        return halves

    def _mended(self, word: str) -> str:
        """The one name that differs from a word by a letter, with its suffix if it has one; else nothing.

        A slip is in one half of a name or in the other, unless two letters are swapped just between them.
        Digits are never mended: `worker-1` is not `worker-2`. Units and containers go before the rest.
        """
        suffix = found[0] if (found := _SUFFIX.search(word)) else ""
        word = word.removesuffix(suffix)
        if not _MENDED <= len(word) <= _LONGEST or word in _ALIASES_OF:
            return ""
        near = {swap for at in range(len(word) - 1) if self._is_mended(swap := _swapped(word, at))}
        for length in (len(word) - 1, len(word), len(word) + 1):
            half = length // 2
            for key in ((length, word[:half]), (-length, word[half - length :])):
                alike = self._halves.get(key, ())
                near.update(name for name in alike if len(alike) <= _CROWD and _one_slip(word, name))
        near = {name for name in near if _digits(name) == _digits(word)}
        if suffix:
            near = {name for name in near if name + suffix in self._index["unit"]}
        running = {name for name in near if any(name in self._index[kind] for kind in _RUNNING)}
        likely = running or {name for name in near if self._is_meant(word, name)}
        return f"{likely.pop()}{suffix}" if len(likely) == 1 else ""

    def _is_meant(self, word: str, name: str) -> bool:
        """Whether a name of what does not run is meant. What is asked for may not exist: openssh is not
        openssl, and maria not marie.
        """
        is_long = len(name) >= _LONG or name in self._index["user"]
        return is_long and word[0] == name[0] and word[-1] == name[-1]

    def _is_mended(self, name: str) -> bool:
        return any(name in self._index[kind] for kind in _MENDED_KINDS)


def _by_folded(names: Iterable[str]) -> dict[str, str]:
    return {_folded(name): name for name in sorted(names, reverse=True)}


def _folded(name: str) -> str:
    return name.lower().replace("_", "-")


def _rank(unit: str) -> tuple[int, str]:
    suffix = unit.rpartition(".")[2]
    return (_BARE.index(suffix) if suffix in _BARE else len(_BARE), unit)


def _other_names(name: str, *, is_unit: bool) -> Iterable[str]:
    """What something may go by, the likeliest first."""
    yield name
    yield from _ALIASES_OF.get(name, ())
    if is_unit and name.endswith("d"):
        yield f"systemd-{name}"
        yield name.removesuffix("d")
    if is_unit and len(name) > 2 and name.isalnum():
        yield f"{name}d"
    if len(name) > 2:
        yield f"{name}-server"
        yield f"{name}-daemon"
    for ending in ("-server", "-daemon", "-service", "-unit", "-container", "-dienst"):
        if len(shorter := name.removesuffix(ending)) > 2 and shorter != name:
            yield shorter


def _called_shorter(units: Iterable[str]) -> dict[str, list[str]]:
    """Services by their name without a version (`php-fpm`) and without an instance (`getty`)."""
    shorter: dict[str, list[str]] = {}
    for unit in units:
        bare, _, suffix = unit.rpartition(".")
        if suffix != "service" or bare.endswith("@"):
            continue
        stem, _, instance = bare.partition("@")
        name = _folded(stem if instance else _VERSION.sub("", bare))
        if name != _folded(bare) and len(name) > 2:
            shorter.setdefault(name, []).append(unit)
    return shorter


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def _swapped(word: str, at: int) -> str:
    return f"{word[:at]}{word[at + 1]}{word[at]}{word[at + 2 :]}"


def _one_slip(word: str, name: str) -> bool:
    """Whether a letter of `name` is wrong, missing or doubled in `word`."""
    longer, shorter = (word, name) if len(word) >= len(name) else (name, word)
    at = 0
    while at < len(shorter) and longer[at] == shorter[at]:
        at += 1
    return longer[at + 1 :] == (shorter[at + 1 :] if len(longer) == len(shorter) else shorter[at:])
