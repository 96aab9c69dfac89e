"""Finds secrets beside a word that names them: `password=`, `"token": "…"`, `--api-key …`, `<secret>…`.

The forms are those of the shell, environment, INI, TOML, YAML, JSON (escaped once, too), XML, SQL, URLs,
.netrc and command lines. Only plausible values are removed (`plausible`). As in `formats`, a match stays
within its line, and begins no earlier than the word with its hint.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from lightagentd.redaction.marker import MARKER, START
from lightagentd.redaction.plausible import is_in_usage, is_password, is_placeholder, is_token

HINTS = (
    "passw",
    "passphrase",
    "passcode",
    "pass=",
    "pass:",
    'pass"',
    "pass'",
    "_pass",
    "-pass",
    "pwd",
    "pass>",
    "pass\\",
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "access_key",
    "access-key",
    "accesskey",
    "private_key",
    "privatekey",
    "private-key",
    "encryption_key",
    "encryption-key",
    "signing_key",
    "signing-key",
    "auth_key",
    "auth-key",
    "authkey",
    "account_key",
    "accountkey",
    "master_key",
    "master-key",
    "shared_key",
    "sharedaccesskey",
    "presharedkey",
    "preshared_key",
    "shared-key",
    "storage_key",
    "session_key",
    "deploy_key",
    "license_key",
    "licence_key",
    "client_key",
    "consumer_key",
    "app_key",
    "admin_key",
    "ssh_key",
    "webhook_key",
    "subscription-key",
    "credential",
    "_auth",
    '"auth',
    "psk",
    "sig=",
    "signature=",
    "identified",
    "sshpass",
    "mysql",
    "mariadb",
    "redis-cli",
    "curl",
    "wget",
    "htpasswd",
    "ldapsearch",
    "ldapadd",
    "ldapmodify",
    "openssl",
    "login",
    "mongo",
    "ipmitool",
    "smbclient",
    "rpcclient",
    "rabbitmqctl",
    "storepass",
    "keypass",
    "echo",
    "securestring",
    "requirepass",
    "masterauth",
    "bindpw",
    "rootpw",
    "rocommunity",
    "rwcommunity",
    "eap",
    "xauth",
    "authtok",
    "salt",
)
"""Lower-case words. Every text with such a secret holds at least one."""

_APART = r"(?:(?<![a-z0-9])|(?<=\\[nrt]))"
_OPENS = r"passw(?:or)?d|passwd|passphrase|passcode|(?:(?<![a-z])|(?<=\\[nrt]))(?:pass|pwd)"
_OPENS += rf"|{_APART}(?:wpa[_-])?psk|authtok(?=[ \t=:])"
_PROVES = (
    r"secret|token|api[_-]?key"
    r"|(?:access|private|encryption|signing|auth|account|master|shared|preshared|sharedaccess|storage|session"
    r"|deploy|licen[sc]e|client|consumer|app|admin|ssh|webhook|subscription)[_-]?key"
    rf"|credentials?|{_APART}(?:_?auth|sig(?:nature)?(?==))"
)
_SUFFIX = (
    r"(?:[_-]?(?:key|value|val|base|b64|base64|text|data|plain|plaintext|old|new|current|raw|string|hash|id(?=[=:])"
    r"|[0-9]{1,3}))?(?:[_-]?key)?(?:[_-]?base)?"
)
_PLAIN = r"(?:[^\s\"'`<>\\&]|&(?!(?:amp;)?[\w.-]{1,40}=)|\\(?![nrtu\"'\\]))"
_VALUE = (
    r"(?P<open>\\{0,7}[\"'`])(?P<quoted>(?:(?!(?P=open))[^\r\n]){1,8192}?)(?P=open)"
    rf"|(?P<plain>{_PLAIN}{{1,8192}})"
)
_ASSIGNED = re.compile(
    rf"(?ai)(?:(?P<password>{_OPENS})|(?P<token>{_PROVES})){_SUFFIX}"
    r"(?P<close>\\{0,7}[\"'`]|\])?(?P<sep>[ \t]{0,8}(?::=|=>|==?|:)[ \t]{0,8})(?:\(?[bru]?)(?=\S)"
    rf"(?:{_VALUE})"
)
_XML = re.compile(
    rf"(?ai)<(?:[\w-]{{1,40}}:)?[\w.-]{{0,40}}?(?:(?P<password>{_OPENS})|(?P<token>{_PROVES})){_SUFFIX}"
    r"(?:[ \t][^<>\r\n]{0,200})?>(?:<!\[CDATA\[)?(?P<plain>[^<>\r\n]{1,400}?)(?:\]\]>)?</"
)
_XML_PAIR = re.compile(
    rf"(?ai)(?:name|key|property|id)=\\?[\"'][\w.-]{{0,60}}?(?:(?P<password>{_OPENS})|(?P<token>{_PROVES})){_SUFFIX}"
    r"\\?[\"'][ \t]{1,4}(?:value|content)=(?P<open>\\?[\"'])(?P<quoted>[^\r\n\"'\\]{1,400})(?P=open)"
)
_FLAG = re.compile(
    rf"(?ai)(?<![\w-])--?[a-z-]{{0,30}}?(?:(?P<password>{_OPENS}|(?:store|key)pass)|(?P<token>{_PROVES})){_SUFFIX}"
    r"[ \t]{1,4}"
    rf"(?=[^\s-])(?:{_VALUE})"
)
_COMMAND = re.compile(
    r"(?a)(?:(?<![\w.])(?<!\w-)|(?<=\\[nrt]))(?:"
    r"(?:mysql(?:dump|admin|import|check)?|mariadb(?:-dump|-admin)?)\b[^\r\n|;]{0,120}?[ \t]-p"
    r"|sshpass\b[^\r\n|;]{0,100}?[ \t]-p[ \t]{0,4}"
    r"|redis-cli\b[^\r\n|;]{0,120}?[ \t]-a[ \t]{1,4}"
    r"|(?:curl|wget)\b[^\r\n|;]{0,120}?[ \t](?:-[a-zA-Z]{0,6}u|--user|--proxy-user|-U)[ \t=]{0,4}"
    r"[\"']?[^\s:\"']{1,100}:"
    r"|htpasswd\b[^\r\n|;]{0,40}?[ \t]-[A-Za-z]{0,6}b[A-Za-z]{0,6}[ \t]{1,4}"
    r"(?:[^\s-]\S{0,200}[ \t]{1,4}){1,2}"
    r"|ldap(?:search|add|modify|passwd)\b[^\r\n|;]{0,120}?[ \t]-w[ \t]{1,4}"
    r"|openssl\b[^\r\n|;]{0,120}?[ \t]-pass(?:in|out)?[ \t]{1,4}pass:"
    r"|openssl[ \t]{1,4}enc\b[^\r\n|;]{0,120}?[ \t]-[kK][ \t]{1,4}"
    r"|login\b[^\r\n|;]{0,120}?[ \t]-p[ \t]{1,4}(?![-/]|[0-9]{1,5}\b)"
    r"|mongo(?:sh|dump|restore|export|import)?\b[^\r\n|;]{0,120}?[ \t]-p[ \t]{1,4}(?!-)"
    r"|ipmitool\b[^\r\n|;]{0,120}?[ \t]-P[ \t]{1,4}"
    r"|(?:smb|rpc)client\b[^\r\n|;]{0,120}?[ \t](?:-U|--user)[ \t=]{0,4}[\"']?[^\s%\"']{1,100}%"
    r"|rabbitmqctl[ \t]{1,4}(?:add_user|change_password)[ \t]{1,4}\S{1,100}[ \t]{1,4})"
    r"(?P<open>[\"'])?(?P<plain>[^\s\"']{3,200})"
)
_FIRST = r"(?:(?<!\w)(?<!\w-)|(?<=\\[nrt])|(?<=\\[nrt]-))"
"""No part of a word. The sign with which a line of a diff begins is none, nor after an escaped line's end."""
_PIPED = re.compile(
    rf"(?a){_FIRST}echo(?:[ \t]{{1,4}}-[neE]{{1,3}})?[ \t]{{1,4}}"
    r"(?:(?P<open>\\{0,3}[\"'])(?:[\w.-]{1,64}:)?(?P<quoted>[^\r\n\"'\\|]{3,200})(?:\\{1,4}n)?(?P=open)"
    r"|(?:[\w.-]{1,64}:)?(?P<plain>[^\s\"'|;&<>\\]{3,200}))[ \t]{0,4}\|[ \t]{0,4}(?:sudo[ \t]{1,4})?"
    r"(?:chpasswd\b|passwd\b[^\r\n|;]{0,60}?--stdin|cryptsetup\b"
    r"|sudo\b[^\r\n|;]{0,40}?[ \t](?:-[a-zA-Z]{0,4}S|--stdin)\b)"
)
_DIRECTIVE = re.compile(
    rf"(?ai){_FIRST}"
    r"(?:requirepass|masterauth|bindpw|rootpw|rootbindpw|r[ow]community6?)[ \t]{1,16}"
    r"(?P<open>[\"']?)(?P<plain>[^\s\"'\\-][^\s\"'\\]{2,200})"
)
_SALT = re.compile(
    r"(?ai)(?P<name>\\{0,7}[\"'])(?:secure_auth|auth|logged_in|nonce)_(?:key|salt)(?P=name)"
    r"[ \t]{0,4},[ \t]{0,16}(?P<open>\\{0,7}[\"'])(?P<quoted>[^\r\n\"'\\]{40,400})(?P=open)"
)
_KEYED = re.compile(
    rf"(?ai){_FIRST}"
    r"(?:(?:psk|eap|xauth)[ \t]{1,8}|ConvertTo-SecureString[ \t]{1,4}(?:-String[ \t]{1,4})?)"
    r"(?P<open>\\{0,7}[\"'])(?P<quoted>[^\r\n\"'\\]{3,400})(?P=open)"
)
_DEFINED = re.compile(
    rf"(?ai)(?P<name>\\{{0,7}}[\"'])[\w.-]{{0,60}}?(?:(?P<password>{_OPENS})|(?P<token>{_PROVES})){_SUFFIX}(?P=name)"
    r"[ \t]{0,4},[ \t]{0,16}(?:(?P<pair>(?P=name)value(?P=name))[ \t]{0,4}:[ \t]{0,4})?"
    r"(?P<open>\\{0,7}[\"'])(?P<quoted>[^\s\"'\\]{3,400})(?P=open)(?(pair)|[ \t]{0,4}\))"
)
_NAMED = re.compile(
    rf"(?ai)(?:{_FIRST}[a-z]\w{{0,60}}?_(?:passw(?:or)?d|{_PROVES}){_SUFFIX}|(?<!\w)authtoken)"
    rf"[ \t]{{1,4}}(?=[^\s-])(?P<token>)(?:{_VALUE})"
)
_SQL = re.compile(
    r"(?ai)(?<![a-z])(?:identified(?:[ \t]{1,4}with[ \t]{1,4}\S{1,60})?[ \t]{1,4}(?:by|as)"
    r"|password(?:[ \t]{0,2}\(|[ \t]{1,4}for[ \t]{1,4}\S{1,80}[ \t]{0,2}=|(?=[ \t])))[ \t]{0,4}"
    r"(?P<open>\\?['\"])(?P<quoted>[^\r\n'\"\\]{1,400})(?P=open)"
)
_SAID = re.compile(
    r"(?ai)(?<![a-z])"
    r"(?:(?P<password>password|passphrase|passcode|passwd)|(?P<token>secret|token|api[_ -]?key))"
    r"(?:[ \t]{1,2}(?:for|of)[ \t]{1,2}\S{1,80})?[ \t]{1,2}(?:is|was|to)[ \t]{1,2}(?:now[ \t])?"
    rf"(?:{_VALUE})"
)
_NETRC = re.compile(
    r"(?ai)(?:(?<![a-z])login[ \t]{1,8}\S{1,100}[ \t]{1,8}password|(?m:^)[ \t]*+password)[ \t]{1,8}"
    r"(?P<plain>(?:[^\s\"\\]|\\(?![nrt\"])){3,200})"
    r"(?=[ \t]{0,8}(?:$|[\r\n\\\"]|machine\b|macdef\b|account\b))",
    re.MULTILINE,
)

Mark = Callable[[str, str], str]
"""Of a kind and a secret: what is to stand in its place."""


_Found = tuple[re.Pattern[str], tuple[str, ...]]
"""A pattern, and lower-case words of which every match has one: to look for them is far faster."""
_SURE: tuple[_Found, ...] = (
    (
        _COMMAND,
        (
            *("mysql", "mariadb", "sshpass", "redis-cli", "curl", "wget", "htpasswd", "ldap", "openssl"),
            *("login", "mongo", "ipmitool", "smbclient", "rpcclient", "rabbitmqctl"),
        ),
    ),
    (_PIPED, ("echo",)),
    (_SALT, ("auth_", "logged_in_", "nonce_")),
    (_KEYED, ("psk", "eap", "xauth", "securestring")),
    (_XML, ("</",)),
    (_XML_PAIR, ("value=", "content=")),
    (_SQL, ("identified", "password")),
)
_IN_SENTENCE: tuple[_Found, ...] = (
    (_SAID, ("pass", "secret", "token", "api")),
    (_DIRECTIVE, ("requirepass", "masterauth", "bindpw", "rootpw", "rocommunity", "rwcommunity")),
)
_OTHERS: tuple[_Found, ...] = (
    (_NETRC, ("password",)),
    (_FLAG, ("-",)),
    (_DEFINED, (")", "value")),
    (_NAMED, ("_", "authtoken")),
)


def removed(text: str, lower: str, mark: Mark) -> str:
    """The text without the secrets that stand beside words; `lower` is it in lower case."""
    each = functools.partial(_replaced, mark=mark)
    for patterns, replaced in (
        (_SURE, functools.partial(each, sure=True)),
        (_IN_SENTENCE, functools.partial(each, in_sentence=True)),
        (_OTHERS, each),
    ):
        for pattern, hints in patterns:
            if any(hint in lower for hint in hints):
                text = pattern.sub(replaced, text)
    return _without_assigned(text, mark) if ":" in lower or "=" in lower else text


def kind_of_key(name: str) -> str:
    """The kind of secret that a field of this name holds; empty when it is none."""
    found = _KEY.search(name)
    if found is None:
        return ""
    return "password" if found["password"] else "token"


_KEY = re.compile(rf"(?ai)(?:(?P<password>{_OPENS})|(?P<token>{_PROVES})){_SUFFIX}\Z")


def is_value(kind: str, value: str) -> bool:
    """Whether a text in a field of that kind is a secret."""
    return is_password(value, in_sentence=False) if kind == "password" else is_token(value, whole=False)


def _replaced(found: re.Match[str], mark: Mark, *, sure: bool = False, in_sentence: bool = False) -> str:
    groups = found.groupdict()
    name = "plain" if groups.get("plain") is not None else "quoted"
    value: str = groups[name]
    kept = value.rstrip(".,;:!?)]}") if name == "plain" and in_sentence else value
    kind = "token" if groups.get("token") is not None else "password"
    if sure:
        plausible = len(kept) >= 3 and not is_placeholder(kept) and not is_in_usage(kept)
    elif kind == "token":
        plausible = is_token(kept, whole=False)
    else:
        plausible = is_password(kept, in_sentence=in_sentence and name == "plain")
    if not plausible:
        return found[0]
    start = found.start(name) - found.start()
    return found[0][:start] + mark(kind, kept) + found[0][start + len(kept) :]


def _without_assigned(text: str, mark: Mark) -> str:
    """The text without secrets in assignments: one value may end where the next begins (`?token=…&key=…`)."""
    pieces: list[str] = []
    place = 0
    while found := _ASSIGNED.search(text, place):
        start, value, kind = _assigned(found)
        pieces += [text[place:start], mark(kind, value) if kind else value]
        place = start + len(value)
    return "".join([*pieces, text[place:]])


def _assigned(found: re.Match[str]) -> tuple[int, str, str]:
    """Where a value begins, what belongs to it, and the kind of secret that it is; empty when it is none."""
    text, name = found.string, "plain" if found["plain"] is not None else "quoted"
    start, value = found.start(name), found[name]
    in_sentence = False
    if name == "plain":
        whole = value
        value = whole.rstrip(",;)]}")
        in_sentence = ":" in found["sep"] and value == whole and _goes_on(text, start + len(whole))
    if found["close"] == "]" and _is_mark(text, found.end("close")):
        return start, "", ""
    if found["password"]:
        return start, value, "password" if is_password(value, in_sentence=in_sentence) else ""
    alone = found["sep"] == "=" and not found["close"]
    plausible = is_token(value, whole=alone) and not (in_sentence and len(value) < 12)
    return start, value, "token" if plausible else ""


def _is_mark(text: str, end: int) -> bool:
    """Whether a mark ends here."""
    begin = text.rfind(START, 0, end)
    return begin >= 0 and MARKER.fullmatch(text, begin, end) is not None


def _goes_on(text: str, end: int) -> bool:
    """Whether more words follow in the line: then it may be a sentence and no setting."""
    line_end = text.find("\n", end, end + 200)
    rest = text[end : line_end if line_end >= 0 else end + 200].lstrip(" \t")
    return bool(rest) and rest[0] not in "#;,}])\"'\\/|&\r<"
