"""Keys and tokens that can be told by their own look, wherever they stand.

Each format has `hints`: lower-case words, of which one stands in every text that its pattern can match. No
pattern matches across the end of a line but those of `BLOCKS`, and each begins in the word, as white space
divides them, in which its hint stands: `Stream` rests on both. Each takes time that grows with the text and
no faster: runs are bounded, or possessive and begun at their first character alone.

Sources: the providers' own pages on their tokens; crypt(5) for hashes; RFC 7519 for JSON Web Tokens.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_WORD = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=[\[;0-9][0-9]m))"
"""No part of a word; JSON's escapes and those that color a terminal's text are none."""
_RUN = r"(?<![A-Za-z0-9_.-])"
_BASE64 = r"[A-Za-z0-9+/=]"
_PREFIX = r"\n(?:[-+>|](?!-)|[ \t]{0,8}[0-9]{1,7}[\t:])"
"""How a line begins in a diff, in a quotation or with its number."""


@dataclass(frozen=True)
class Format:
    """`secret` is the group of the pattern that is removed: 0 for all of it."""

    kind: str
    hints: tuple[str, ...]
    source: str
    secret: int = 0

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when it is wanted: all of them take as long as a third of the daemon's other imports."""
        return re.compile(self.source, re.ASCII)


def _format(kind: str, hints: str, pattern: str, secret: int = 0) -> Format:
    return Format(kind, tuple(hints.split()), pattern, secret)


BLOCKS: tuple[Format, ...] = (
    _format(
        "private-key",
        "-----begin",
        # To its END line; without one (output that was cut), as far as it looks like key material.
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:[^-]|-(?!----))*+-?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        rf"|(?:{_PREFIX}|\s|\\[rn]|{_BASE64}{{16,}})*+{_BASE64}{{0,15}})",
    ),
    _format(
        "putty-key",
        "private-lines:",
        rf"Private-Lines: [0-9]{{1,4}}((?:{_PREFIX}|\s|\\[rn]|{_BASE64}{{16,}})++)",
        1,
    ),
)
"""What may go over several lines."""

BLOCK_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|Private-Lines: ")
BLOCK_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|Private-MAC:")

KEY_MATERIAL = re.compile(r"[ \t]{0,16}[A-Za-z0-9+/=]{4,128}[ \t\r]{0,8}\n")
"""A line of a private key."""
KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")

FORMATS: tuple[Format, ...] = (
    _format("aws-key", "akia asia", rf"{_WORD}A(?:KIA|SIA)[A-Z0-9]{{16}}\b"),
    _format("stripe-key", "sk_ rk_ whsec_", rf"{_WORD}(?:[sr]k_(?:live|test)_|whsec_)[A-Za-z0-9]{{16,}}"),
    _format("api-key", "sk-", rf"{_WORD}sk-[A-Za-z0-9_-]{{20,}}"),
    _format(
        "github-token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        rf"{_WORD}(?:gh[pousr]_[A-Za-z0-9]{{36,}}|github_pat_[A-Za-z0-9_]{{40,}})",
    ),
    _format(
        "gitlab-token",
        "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent-",
        rf"{_WORD}gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[A-Za-z0-9_.-]{{20,}}",
    ),
    _format("slack-token", "xox", rf"{_WORD}xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{{10,}}"),
    _format("slack-token", "xapp-", rf"{_WORD}xapp-[0-9]-[A-Za-z0-9-]{{20,}}"),
    _format(
        "webhook-url",
        "hooks.slack.com/ discord.com/api/webhooks/ discordapp.com/api/webhooks/ webhook.office.com/",
        r"(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/"
        r"|webhook\.office\.com/webhookb2/)([A-Za-z0-9_/@-]{20,})",
        1,
    ),
    _format("google-key", "aiza gocspx- ya29.", rf"{_WORD}(?:AIza|GOCSPX-|ya29\.)[A-Za-z0-9_-]{{24,}}"),
    _format("npm-token", "npm_", rf"{_WORD}npm_[A-Za-z0-9]{{36,}}"),
    _format("pypi-token", "pypi-", rf"{_WORD}pypi-[A-Za-z0-9_-]{{40,}}"),
    _format("docker-token", "dckr_", rf"{_WORD}dckr_(?:pat|oat)_[A-Za-z0-9_-]{{20,}}"),
    _format("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", rf"{_WORD}do[opr]_v1_[a-f0-9]{{64}}"),
    _format("huggingface-token", "hf_ api_org_", rf"{_WORD}(?:hf_|api_org_)[A-Za-z]{{30,}}"),
    _format(
        "sendgrid-key", "sg.", rf"{_RUN}SG\.[A-Za-z0-9_-]{{16,32}}\.[A-Za-z0-9_-]{{16,64}}(?![A-Za-z0-9_-])"
    ),
    _format("mailgun-key", "key-", rf"{_WORD}key-[0-9a-f]{{32}}\b"),
    _format("shopify-token", "shp", rf"{_WORD}shp(?:at|ca|pa|ss)_[a-fA-F0-9]{{32}}"),
    _format("vault-token", "hvs. hvb. hvr.", rf"{_WORD}hv[sbr]\.[A-Za-z0-9_-]{{24,}}"),
    _format("age-key", "age-secret-key-", r"(?i:AGE-SECRET-KEY-(?:PQ-)?1)[A-Za-z0-9]{40,}"),
    _format("grafana-token", "glsa_ glc_", rf"{_WORD}(?:glsa_|glc_)[A-Za-z0-9_+/=]{{32,}}"),
    _format("terraform-token", ".atlasv1.", rf"{_RUN}[A-Za-z0-9]{{14}}\.atlasv1\.[A-Za-z0-9_=-]{{60,}}"),
    _format("tailscale-key", "tskey-", rf"{_WORD}tskey-[A-Za-z0-9-]{{20,}}"),
    _format(
        "api-key",
        "gsk_ xai- r8_ pplx- lin_api_ ntn_ nrak- pmak- pscale_ sbp_ dp.pt. sntrys_ figd_ rubygems_ tvly-",
        rf"{_WORD}(?:gsk_|xai-|r8_|pplx-|lin_api_|ntn_|NRAK-|PMAK-|pscale_(?:tkn|pw|oauth)_|sbp_|dp\.pt\."
        r"|sntrys_|figd_|rubygems_|tvly-)[A-Za-z0-9_.=+/-]{24,}",
    ),
    _format(
        "telegram-token",
        ":aa",
        r"(?<![A-Za-z0-9])(?:bot)?([0-9]{8,10}:AA[A-Za-z0-9_-]{33})(?![A-Za-z0-9_-])",
        1,
    ),
    _format(
        "jwt",
        "eyj",
        rf"{_RUN}eyJ[A-Za-z0-9_-]{{10,}}+\.[A-Za-z0-9_-]{{10,}}+\.[A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*+",
    ),
    _format(
        "password-hash",
        "$1$ $2a$ $2b$ $2x$ $2y$ $5$ $6$ $7$ $y$ $gy$ $md5 $apr1$ $sha1$ $argon2 $scrypt$ $pbkdf2",
        r"\$(?:1|2[abxy]|5|6|7|y|gy|md5|apr1|sha1|argon2(?:id|i|d)|scrypt|pbkdf2[a-z0-9-]{0,16})"
        r"[$,][A-Za-z0-9./+$=,_-]{16,400}",
    ),
    _format("password-hash", "{sha} {ssha {smd5}", rf"\{{S(?:SHA(?:256|384|512)?|MD5|HA)\}}{_BASE64}{{20,}}"),
    _format(
        "password-hash",
        "scram-sha-",
        rf"SCRAM-SHA-(?:1|256)\$[0-9]{{1,9}}:{_BASE64}{{8,}}\$[A-Za-z0-9+/=:]{{40,}}",
    ),
    _format(
        "url-password",
        "://",
        r"(?i)(?<![a-z0-9])[a-z][a-z0-9+.-]{1,24}://[^\s:/@\"'<>\\]{0,100}:"
        r"(?!\[removed: )([^\s@/\"'<>\\]{1,300})@",
        1,
    ),
    _format(
        "pgpass",
        ":5432: :5433: :6432: :*: *:*",
        r"(?m)(?:(?<![^\s\"'+>|-])|(?<=\\n))(?=[^\s:]*+:(?:\*|543[23]|6432):)[^\s:]{1,200}:[0-9*]{1,5}:[^\s:]{1,64}:[^\s:]{1,64}:"
        r"((?!\[removed: )[^\s:\"'\\]{4,200})(?=$|[\r\n\"'\\])",
        1,
    ),
    _format(
        "bearer",
        "bearer",
        r"(?i)(?:(?<=authorization: bearer )[A-Za-z0-9._~+/=-]{8,}|(?<=\bbearer )[A-Za-z0-9._~+/=-]{20,})",
    ),
    _format(
        "authorization",
        "authorization",
        rf"(?i){_WORD}authorization\\?[\"']?[ \t]{{0,4}}[:=][ \t]{{0,4}}\\?[\"']?"
        r"(?:(?:basic|digest|token|negotiate|apikey|bearer|aws4-hmac-sha256|bot)[ \t]{1,4})?"
        r"(?!\[removed: |bearer\b)([A-Za-z0-9._~+/=:-]{6,}[^\r\n\"'\\]*)",
        1,
    ),
    _format(
        "cookie",
        "cookie",
        rf"(?i){_WORD}(?:set-)?cookie\\?[\"']?[ \t]{{0,4}}:[ \t]{{0,4}}\\?[\"']?"
        r"(?!\[removed: )([!#$%&*+.^_`|~0-9a-z-]{1,100}=[^\r\n\"'\\]{4,})",
        1,
    ),
)
