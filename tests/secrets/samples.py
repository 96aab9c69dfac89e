"""Test secrets of every kind, made from a seed when they are wanted: none of them stands in a file."""

from __future__ import annotations

import base64
import random
import string
from dataclasses import dataclass
from urllib.parse import quote

_ALNUM = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"


@dataclass(frozen=True)
class Sample:
    """`text` is a line or block as it stands in a file; `secret` is what of it nobody may find again."""

    name: str
    kind: str
    """What its mark says."""
    text: str
    secret: str

    def traces(self) -> list[str]:
        """What to search for: the secret, its Base64 and percent-encoded forms, and its longest part."""
        parts = sorted(self.secret.replace("\\n", "\n").split(), key=len)
        found = [self.secret, parts[-1], quote(self.secret, safe="")]
        raw = self.secret.encode()
        for shift in range(3):
            core = base64.b64encode(bytes(shift) + raw).decode()[
                -(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6
            ]
            found += [core, core.replace("+", "-").replace("/", "_")]
        return [one for one in dict.fromkeys(found) if len(one) >= 6]


class _Maker:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def of(self, alphabet: str, size: int) -> str:
        return "".join(self._random.choices(alphabet, k=size))

    def token(self, size: int) -> str:
        """Letters and digits, both of them."""
        return self.of(string.ascii_lowercase, 1) + self.of(_ALNUM, size - 3) + self.of(string.digits, 2)

    def key_lines(self) -> str:
        return "\n".join(self.of(_ALNUM + "+/", 64) for _ in range(6))


def samples(seed: int) -> list[Sample]:
    """One of each kind."""
    make = _Maker(seed)
    found: list[Sample] = []

    def add(name: str, kind: str, template: str, secret: str) -> None:
        found.append(Sample(name=name, kind=kind, text=template.replace("@@", secret), secret=secret))

    def pem(label: str, sep: str = "\n") -> str:
        return f"-----BEGIN {label}-----\n{make.key_lines()}\n-----END {label}-----".replace("\n", sep)

    add("rsa private key", "private-key", "@@", pem("RSA PRIVATE " + "KEY"))
    add("openssh private key", "private-key", "@@", pem("OPENSSH PRIVATE " + "KEY"))
    add("key in a JSON file", "private-key", '{"private_key": "@@\\n"}', pem("PRIVATE " + "KEY", "\\n"))
    add("github token", "github-token", "remote: @@ pushed", "gh" + "p_" + make.token(36))
    add("github fine-grained token", "github-token", "use @@", "github" + "_pat_" + make.token(60))
    add("gitlab token", "gitlab-token", "PRIVATE-TOKEN: @@", "gl" + "pat-" + make.token(22))
    add("aws key id", "aws-key", "found @@ in it", "AK" + "IA" + make.of(string.ascii_uppercase, 16))
    add("aws secret key", "token", "aws_secret_access_key = @@", make.token(40))
    add(
        "slack token",
        "slack-token",
        "bot: @@",
        "xo" + "xb-" + make.of(string.digits, 12) + "-" + make.token(24),
    )
    add(
        "slack webhook",
        "webhook-url",
        "https://hooks.slack.com/services/@@",
        "T" + make.token(8) + "/B" + make.token(24),
    )
    add("google key", "google-key", "?key=@@", "AI" + "za" + make.token(35))
    add("stripe key", "stripe-key", "stripe @@ live", "sk_" + "live_" + make.token(24))
    add("openai key", "api-key", "OPENAI: @@", "s" + "k-proj-" + make.token(48))
    add("npm token", "npm-token", "//registry.npmjs.org/ @@", "np" + "m_" + make.token(36))
    add("pypi token", "pypi-token", "twine @@", "py" + "pi-" + make.token(60))
    add("docker token", "docker-token", "docker login @@", "dck" + "r_pat_" + make.token(27))
    add("sendgrid key", "sendgrid-key", "mail @@", "S" + "G." + make.token(22) + "." + make.token(43))
    add("telegram token", "telegram-token", "bot @@", make.of("123456789", 10) + ":AA" + make.token(33))
    add("vault token", "vault-token", "vault @@", "hv" + "s." + make.token(30))
    add("age key", "age-key", "# @@", "AGE-SECRET-" + "KEY-1" + make.of(string.ascii_uppercase, 58))
    jwt = ".".join(["ey" + "J" + make.token(20), "ey" + "J" + make.token(60), make.token(43)])
    add("json web token", "jwt", "jwt @@ end", jwt)
    add("bearer token", "bearer", "Authorization: Bearer @@", make.token(32))
    basic = base64.b64encode(f"admin:{make.token(16)}".encode()).decode()
    add("basic auth", "authorization", "authorization: Basic @@", basic)
    add("cookie", "cookie", "Cookie: @@", f"sid={make.token(24)}; theme={make.token(8)}")
    add("password in a url", "url-password", "postgres://app:@@@db.example:5432/app", make.token(14))
    add("environment password", "password", "PGPASSWORD=@@", make.token(14))
    add("password option", "password", "mysqldump --password=@@ db", make.token(14))
    add("mysql -p", "password", "mysql -uroot -p@@ db", make.token(12))
    add("my.cnf", "password", "[client]\nuser=root\npassword = @@", make.token(13))
    add("json password", "password", '{"user": "a", "password": "@@"}', make.token(12) + "!%" + make.token(3))
    add("yaml secret", "token", "client_secret: @@", make.token(28))
    add("toml api key", "token", 'api_key = "@@"', make.token(32))
    add("xml password", "password", "<dbPassword>@@</dbPassword>", make.token(15))
    add("netrc", "password", "machine db.example login app password @@", make.token(15))
    add("pgpass", "pgpass", "db.example:5432:app:admin:@@", make.token(15))
    add("htpasswd", "password-hash", "admin:@@", "$ap" + "r1$" + make.token(8) + "$" + make.token(22))
    add(
        "shadow hash",
        "password-hash",
        "root:@@:19000:0:99999:7:::",
        "$" + "6$" + make.token(12) + "$" + make.token(86),
    )
    add("wireguard key", "token", "PrivateKey = @@", make.of(_ALNUM, 43) + "=")
    add("sql password", "password", "CREATE USER a IDENTIFIED BY '@@';", make.token(16))
    add("curl -u", "password", "curl -u admin:@@ https://h.example/", make.token(16))
    add("said in a sentence", "password", "the root password is @@, use it", make.token(11))
    return found
