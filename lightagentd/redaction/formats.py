"""Finds keys and tokens by their format, wherever they stand.

Each format has `hints`: lower-case words; every text that its pattern matches holds at least one. Only the
patterns of `BLOCKS` match across the end of a line, and each match begins in the word (between white space)
with its hint; `Stream` relies on both. Each pattern takes linear time: its runs are bounded, or possessive
and start only at their first character.

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

_KEY_HEADER = r"(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset): [^\r\n\\]{1,200}+"
"""What may stand between the first line of a private key and its material (RFC 1421, RFC 4880)."""


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
        rf"|(?:{_PREFIX}|\s|\\[rn]|{_KEY_HEADER}|{_BASE64}{{16,}})*+{_BASE64}{{0,15}})",
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
    _format(
        "private-key",
        "ls0tls1crudjtib",
        # Base64 of `-----BEGIN PRIVATE KEY`, `ENCRYPTED PRIVATE KEY`, and of those with a kind of key.
        r"LS0tLS1CRUdJTi(?:BQUklWQVRF|BFTkNSWVBURUQ|BSU0Eg|BFQyBQUk|BEU0Eg|BPUEVOU1NI|BQR1AgUFJ)[A-Za-z0-9+/=_-]*",
    ),
    _format(
        "private-key",
        '"d" "p" "q" "dp" "dq" "qi" "d\\ "p\\ "q\\ "dp\\ "dq\\ "qi\\',
        # The private members of a JSON Web Key (RFC 7518).
        r"\"(?:d|p|q|dp|dq|qi)\\{0,7}\"[ \t]{0,4}:[ \t]{0,4}\\{0,7}\"([A-Za-z0-9_-]{42,})\\{0,7}\"",
        1,
    ),
    _format("aws-key", "akia asia", r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf]))A(?:KIA|SIA)[A-Z0-9]{16}\b"),
    _format("aws-key", "absk", rf"{_WORD}ABSK[A-Za-z0-9+/]{{100,}}={{0,2}}"),
    _format("stripe-key", "sk_ rk_ whsec_", rf"{_WORD}(?:[sr]k_(?:live|test)_|whsec_)[A-Za-z0-9]{{16,}}"),
    _format("api-key", "sk-", rf"{_WORD}sk-[A-Za-z0-9_-]{{20,}}"),
    _format(
        "github-token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        rf"{_WORD}(?:gh[pousr]_[A-Za-z0-9]{{36,}}|github_pat_[A-Za-z0-9_]{{40,}}"
        r"|ghs_[0-9]{1,20}_eyJ[A-Za-z0-9_.-]{30,})",
    ),
    _format(
        "gitlab-token",
        "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent- gloas- glimt- glffct- glwt-",
        rf"{_WORD}gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas|imt|ffct|wt)-[A-Za-z0-9_.-]{{20,}}",
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
    _format("google-key", "aq.ab", rf"{_WORD}AQ\.Ab[A-Za-z0-9_-]{{40,}}"),
    _format("google-key", "1//0", r"(?<![A-Za-z0-9/:])1//0[A-Za-z0-9_-]{40,}"),
    _format(
        "azure-secret",
        "q~",
        r"(?<![A-Za-z0-9_.~-])[A-Za-z0-9_.~-]{3}[0-9]Q~[A-Za-z0-9_.~-]{31,34}(?![A-Za-z0-9_~-])",
    ),
    _format("azure-token", "azdo", rf"{_WORD}[A-Za-z0-9]{{76}}AZDO[A-Za-z0-9]{{4}}\b"),
    _format("lightagent-token", "la_", rf"{_WORD}la_[A-Za-z0-9]{{40,}}"),
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
    _format(
        "vault-token",
        "vault-token vault_token",
        r"(?i)vault[_-]token\\{0,7}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,7}[\"']?(s\.[A-Za-z0-9]{24})\b",
        1,
    ),
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
        "api-key",
        "dt0c01. dt0s01. sb_secret_ fm1a_ fm1r_ fm2_ fo1_ hrku- sntryu_ xkeysib- xsmtpsib- cfpat- ccipat_"
        " ccipra_ nvapi- flwseck- flwseck_test- dp.st. dp.sa. dp.ct. dp.scim. dp.audit.",
        rf"{_WORD}(?:dt0[cs]01\.|sb_secret_|fm(?:1a|1r|2)_|fo1_|HRKU-|sntryu_|x(?:key|smtp)sib-|CFPAT-|CCIP(?:AT|RA)_"
        r"|nvapi-|FLWSECK(?:_TEST)?-|dp\.(?:st|sa|ct|scim|audit)\.)[A-Za-z0-9_.=+/-]{24,}",
    ),
    _format(
        "api-key",
        "clojars_ sq0atp- sq0csp- pul- bkua_ nfp_ vcp_ vck_ lsv2_ phx_ phs_ pnu_ pnb_ rdme_ sgp_ tfp_ aio_"
        " cfut_ cfat_ cfk_ sk_",
        # Letters and digits alone, unlike the names of files and variables.
        rf"{_WORD}(?:CLOJARS_|sq0(?:atp|csp)-|pul-|bkua_|nfp_|vc[pk]_|lsv2_(?:pt|sk)_|ph[xs]_|pn[ub]_|rdme_|sgp_"
        r"(?:[a-f0-9]{16}_)?|tfp_|aio_|cf(?:ut|at|k)_|sk_)(?=[A-Za-z]{0,60}[0-9])[A-Za-z0-9]{22,}(?:_[A-Za-z0-9]{10,})?",
    ),
    _format("databricks-token", "dapi", rf"{_WORD}dapi[a-f0-9]{{32}}(?:-[0-9])?\b"),
    _format(
        "atlassian-token",
        "atatt3 atctt3 atbb",
        rf"{_WORD}(?:AT[AC]TT3[A-Za-z0-9_=-]{{60,}}|ATBB[A-Za-z0-9]{{32}}\b)",
    ),
    _format("jfrog-token", "akcp cmvmdgtu", rf"{_WORD}(?:AKCp[A-Za-z0-9]{{60,}}|cmVmdGtu[A-Za-z0-9]{{48,}})"),
    _format("nuget-key", "oy2", rf"{_WORD}oy2[a-z0-9]{{43}}\b"),
    _format("1password-key", "ops_eyj", rf"{_WORD}ops_eyJ[A-Za-z0-9_=-]{{100,}}"),
    _format(
        "1password-key",
        "a3-",
        rf"{_WORD}A3-[A-Z0-9]{{6}}-(?:[A-Z0-9]{{11}}|[A-Z0-9]{{6}}-[A-Z0-9]{{5}})(?:-[A-Z0-9]{{5}}){{3}}\b",
    ),
    _format("mapbox-token", "sk.eyj", rf"{_WORD}sk\.eyJ[A-Za-z0-9_-]{{40,}}+\.[A-Za-z0-9_-]{{16,}}"),
    _format("okta-token", "ssws", r"(?i)(?<=\bssws )[A-Za-z0-9_-]{30,}"),
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
    _format(
        "password-hash",
        "pbkdf2_sha",
        rf"{_WORD}pbkdf2_sha(?:1|256|512)\$[0-9]{{1,9}}\$[A-Za-z0-9]{{1,64}}\$[A-Za-z0-9+/=]{{20,}}",
    ),
    _format("password-hash", ":::", r"(?<=:[0-9a-fA-F]{32}:)[0-9a-fA-F]{32}(?=:::)"),
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
        r"(?!\[removed: )([^\s@/\"'<>\\]{1,300}(?:@[^\s@/\"'<>\\?#&=,;:]{1,100}(?=@))?"
        r"|(?![0-9]{1,5}/)[^\s@\"'<>\\?#\[\]]{1,300})@(?!sha(?:256|512):)",
        1,
    ),
    _format(
        "url-password",
        "://",
        r"(?i)(?<![a-z0-9])[a-z][a-z0-9+.-]{1,24}://(?=[a-z_-]{0,100}[0-9])([a-z0-9_-]{32,300})@",
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
