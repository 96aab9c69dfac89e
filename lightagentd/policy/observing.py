"""Tells shell commands that only look from those that may change something, by their words.

This says which steps of a written procedure a skill runs by itself. It is not what keeps a command from a
change: that is the sandbox of the effect. A command that is not known counts as one that changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from lightagentd.policy.shelltext import simple_command

_NAMES = """
arch blkid cat cksum cut df du echo egrep false fgrep file findmnt free getent getfacl grep groups head
id iostat last lastb lastlog ls lsattr lsblk lscpu lsmem lsmod lsns lsof lspci lsusb lvs md5sum mpstat
namei netstat nproc pgrep pidof pidstat printf ps pstree pvs pwd readlink realpath sar sha256sum stat tac
test tr true uname uptime vgs vmstat w wc who whoami zcat zgrep
"""
_ALWAYS = frozenset(_NAMES.split())
_UNLESS = {
    "date": r"-s|--set.*|\d{8,}.*",
    "dmesg": r"-[a-zA-Z]*[CcDEnwW].*|--(clear|read-clear|console|follow).*",
    "find": r"-(delete|exec|execdir|ok|okdir|fprint.*|fls)",
    "hostname": r"[^-].*|-[bF].*|--(boot|file).*",
    "journalctl": r"-[a-zA-Z]*f[a-zA-Z]*|--(follow|vacuum|rotate|flush|sync|relinquish|setup|update|smart).*",
    "mount": r"[^-].*|-[^l].*|--.*",
    "smartctl": r"-[tXsoS].*|--(test|abort|set|smart|offlineauto|saveauto).*",
    "sort": r"-o.*|--(output|compress).*",
    "ss": r"-[a-zA-Z]*[KD].*|--(kill|diag).*",
    "sysctl": r"-[wpf].*|--(write|load|system).*|.*=.*",
    "tail": r"-[a-zA-Z]*[fF].*|--(follow|retry).*",
    "uniq": r"[^-].*",
}
"""Programs that only look, unless a word after them is so."""
_ONLY = {
    "apt": r"list|policy|show|search",
    "apt-cache": r"policy|show|search|depends|rdepends|stats",
    "chronyc": r"tracking|sources|sourcestats|activity",
    "crontab": r"-l",
    "docker": r"ps|images|inspect|version|info|port|top|logs",
    "dpkg": r"-[lLsSV]|--(list|listfiles|status|search|audit|verify)",
    "hostnamectl": r"|status",
    "ip6tables": r"-[LS]|--list.*",
    "iptables": r"-[LS]|--list.*",
    "loginctl": r"|list-.*|show-.*|.*-status",
    "mdadm": r"--detail|-D|--examine|-E",
    "nft": r"list",
    "nginx": r"-[tTvV]",
    "podman": r"ps|images|inspect|version|info|port|top|logs",
    "postconf": r"|-n",
    "postqueue": r"-[pj]",
    "resolvectl": r"|status|statistics|dns|domain",
    "rpm": r"-q.*|-V.*",
    "systemctl": r"|status|is-.*|list-.*|show|cat|--failed|--version",
    "systemd-analyze": r"|time|blame|critical-chain|verify|security",
    "timedatectl": r"|status|show|timesync-status",
    "ufw": r"status",
    "zfs": r"list|get",
    "zpool": r"list|status|iostat",
}
"""Programs whose first word has to be so, or the first that is no option."""
_IP = re.compile(r"(a|addr|address|l|link|r|ro|route|n|neigh|rule|maddr)( (s|sh|show|l|ls|list|get)( .*)?)?")
_SED = re.compile(r"-n \d+(,(\d+|\$))?p( \S+)*")
_AWK_ACTS = re.compile(r"^-f|system|getline|[>|]")
_HARMLESS = re.compile(r"\s*(?:[12&]?>\s*/dev/null|2>&1)(?=[\s|;&]|$)")
_PARTS = re.compile(r"""'[^']*'|"[^"]*"|\|\|?|&&|;|[^'"|;&]+|.""", re.DOTALL)


def observes(command: str) -> bool:
    """Whether every command of a line of shell is known to change nothing and to reach nothing."""
    return all(_looks(simple_command(piece)) for piece in _pieces(_HARMLESS.sub("", command)))


def _pieces(line: str) -> Iterator[str]:
    """The commands of pipes and lists. Names with wildcards are names."""
    piece = ""
    for part in _PARTS.findall(line):
        if part in ("|", "||", "&&", ";"):
            yield piece.strip()
            piece = ""
        else:
            piece += re.sub(r"[*?~]", "x", part)
    yield piece.strip()


def _looks(words: list[str] | None) -> bool:
    if words and words[0] == "sudo":
        words = words[1:]
    if not words:
        return False
    name, rest = PurePosixPath(words[0]).name, words[1:]
    plain = [word for word in rest if not word.startswith("-")]
    if name in _UNLESS:
        return not any(re.fullmatch(_UNLESS[name], word) for word in rest)
    if name in _ONLY:
        known = [word for word in (*rest[:1], *plain[:1], "") if re.fullmatch(_ONLY[name], word)]
        return bool(known) and (known[0] != "" or not plain) and not {"-f", "--follow"} & set(rest)
    if name in ("awk", "gawk", "mawk"):
        return bool(plain) and not any(_AWK_ACTS.search(word) for word in rest)
    if name == "ip":
        return bool(_IP.fullmatch(" ".join(plain)))
    if name == "sed":
        return bool(_SED.fullmatch(" ".join(rest)))
    if name == "top":
        options = "".join(word for word in rest if word.startswith("-"))
        return "b" in options and "n" in options
    return name in _ALWAYS
