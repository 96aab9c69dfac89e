"""Decides whether the text beside a word such as password or token can be a secret.

Texts of an administrator are full of such words with no secret beside them: prompts, settings, code,
counts.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from lightagentd.redaction.marker import START

_LETTER, _DIGIT = re.compile(r"[A-Za-z]"), re.compile(r"[0-9]")
_ODD = re.compile(r"[^A-Za-z0-9_.:/-]")
_PLACEHOLDER = re.compile(
    r"\$[A-Za-z_]\w*-?|!(?:vault|secret|env|include|reference|Ref|Sub|GetAtt)|\$[{(].*|\{\{.*|\{[A-Za-z_][\w.]*\}?|%[({]?[A-Za-z_].*|<.*|\*+|[xX.•?#_-]+|\.{2,}.*|@\w+@"
)
_PATH = re.compile(r"(?:[~.]{0,2}|[\w.@-]+:)/(?:[\w.@%+-]+/)*[\w.@%+-]*")
_CODE = re.compile(r"[A-Za-z_][\w.]*(?:\(.*|\[.*)|(?:[a-z_]\w*\.)+[A-Za-z_]\w*|&?[a-z]\w*->\w.*|function\b.*")
_WORD_LIKE = re.compile(r"[A-Za-z_][A-Za-z_-]*")
_ABOUT_ITSELF = re.compile(r"(?i)passw|passphrase|secret|token|credential|api.?key|apikey")
_SECONDS_OR_SIZE = re.compile(r"[+-]?[0-9][0-9.,]*(?:[a-zA-Z%]{1,3})?")
_INNOCENT = frozenset(
    [
        "accepted",
        "active",
        "aged",
        "all",
        "allow",
        "allowed",
        "always",
        "any",
        "ask",
        "auto",
        "basic",
        "bearer",
        "blank",
        "bool",
        "boolean",
        "bytes",
        "change",
        "changed",
        "char",
        "check",
        "configured",
        "correct",
        "default",
        "denied",
        "deny",
        "digest",
        "disable",
        "disabled",
        "empty",
        "enable",
        "enabled",
        "entered",
        "exists",
        "expired",
        "expires",
        "expiry",
        "failed",
        "failure",
        "false",
        "field",
        "file",
        "fine",
        "found",
        "given",
        "hash",
        "hashed",
        "hidden",
        "int",
        "incorrect",
        "invalid",
        "is",
        "keep",
        "kerberos",
        "key",
        "keyboard-interactive",
        "length",
        "local",
        "lock",
        "locked",
        "login",
        "match",
        "max",
        "md5",
        "min",
        "mismatch",
        "missing",
        "must",
        "name",
        "needed",
        "negotiate",
        "never",
        "new",
        "nil",
        "no",
        "none",
        "not",
        "null",
        "number",
        "off",
        "ok",
        "old",
        "on",
        "only",
        "optional",
        "option",
        "or",
        "peer",
        "plain",
        "plaintext",
        "please",
        "prohibit",
        "prohibit-password",
        "prompt",
        "provided",
        "publickey",
        "random",
        "read",
        "redacted",
        "rejected",
        "removed",
        "repeat",
        "required",
        "requisite",
        "reset",
        "retry",
        "root",
        "saved",
        "scheme",
        "scram-sha-256",
        "set",
        "sha256",
        "sha512",
        "shall",
        "should",
        "size",
        "status",
        "store",
        "stored",
        "str",
        "string",
        "strong",
        "success",
        "sufficient",
        "the",
        "this",
        "to",
        "trust",
        "true",
        "type",
        "uint",
        "undefined",
        "unknown",
        "unset",
        "unused",
        "updated",
        "use",
        "user",
        "username",
        "usage",
        "valid",
        "value",
        "varchar",
        "verified",
        "via",
        "was",
        "weak",
        "with",
        "without",
        "wrong",
        "yes",
        "you",
        "your",
    ]
)


def entropy_bits(text: str) -> float:
    """Shannon's entropy of one character of the text, in bits; 0 for an empty one."""
    size = len(text)
    return -sum(count / size * math.log2(count / size) for count in Counter(text).values()) if size else 0.0


def is_placeholder(value: str) -> bool:
    """Whether it only stands for a value: a variable, a template's field, dots, or a mark."""
    return value.startswith(START[:-2]) or bool(_PLACEHOLDER.fullmatch(value))


def is_in_usage(value: str) -> bool:
    """Whether it is what a manual writes for a password, such as `PASSWORD`."""
    return bool(_WORD_LIKE.fullmatch(value) and (value.isupper() or _ABOUT_ITSELF.search(value)))


def is_password(value: str, *, in_sentence: bool) -> bool:
    """Whether a word beside `password` is one. `in_sentence`: more words follow, so it must look like one."""
    if len(value) < 4 or is_placeholder(value) or value.lower().rstrip(".!?:") in _INNOCENT:
        return False
    if _WORD_LIKE.fullmatch(value.rstrip(":")) and (in_sentence or _ABOUT_ITSELF.search(value)):
        return False
    if in_sentence and (
        _SECONDS_OR_SIZE.fullmatch(value) or not (_DIGIT.search(value) or _ODD.search(value))
    ):
        return False
    return not (_CODE.fullmatch(value) or (_PATH.fullmatch(value) and value.count("/") > 1))


def is_token(value: str, *, whole: bool) -> bool:
    """Whether a word beside `token`, `secret` or `key` has the entropy of one.

    `whole`: it stands alone in an assignment of the shell's kind, where a plain word is one, too.
    """
    if len(value) < 8 or _SECONDS_OR_SIZE.fullmatch(value) or not is_password(value, in_sentence=False):
        return False
    if _LETTER.search(value) and _DIGIT.search(value):
        return entropy_bits(value) >= 2.5
    if whole and len(value) >= 8:
        return entropy_bits(value) >= 2.2
    return len(value) >= 20 and entropy_bits(value) >= 3.6 and not _WORD_LIKE.fullmatch(value)
