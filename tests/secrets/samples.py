"""Test secrets of every kind, made from a seed when they are wanted: none of them stands in a file."""

from __future__ import annotations

import base64
import random
import string
from dataclasses import dataclass
from urllib.parse import quote

_ALNUM = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_UPPER = string.ascii_uppercase


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
    add("gitlab application secret", "gitlab-token", "id @@", "gl" + "oas-" + make.of(_HEX, 64))
    add("new google key", "google-key", "use @@", "A" + "Q.Ab" + make.token(47))
    add("google refresh token", "google-key", "refresh @@", "1/" + "/0" + make.token(60))
    add("azure client secret", "azure-secret", "azure @@", make.token(3) + "8" + "Q~" + make.token(34))
    add("azure devops token", "azure-token", "pat @@", make.token(76) + "AZ" + "DO" + make.token(4))
    add("bedrock key", "aws-key", "bedrock @@", "AB" + "SK" + make.token(128))
    add("aws key in a file's name", "aws-key", "/root/old_@@.json", "AK" + "IA" + make.of(_UPPER, 16))
    add("databricks token", "databricks-token", "db @@", "da" + "pi" + make.of(_HEX, 32))
    add("atlassian token", "atlassian-token", "jira @@", "ATAT" + "T3xFfGF0" + make.token(170) + "=1A2B3C4D")
    add("bitbucket password", "atlassian-token", "hg @@", "AT" + "BB" + make.token(32))
    add("artifactory key", "jfrog-token", "X-JFrog-Art-Api: @@", "AK" + "Cp8" + make.token(68))
    add("nuget key", "nuget-key", "push @@", "oy" + "2" + make.of(_HEX, 43))
    add("1password account", "1password-key", "ops @@", "ops_" + "eyJ" + make.token(200))
    add("mapbox token", "mapbox-token", "map @@", "sk" + ".eyJ" + make.token(80) + "." + make.token(22))
    add("okta token", "okta-token", "Authorization: SSWS @@", "00" + make.token(40))
    for prefix in (
        "dt0" + "c01.",
        "CFP" + "AT-",
        "nva" + "pi-",
        "fm" + "2_",
        "xkey" + "sib-",
        "bk" + "ua_",
        "nf" + "p_",
    ):
        add(f"key that begins with {prefix}", "api-key", "with @@ then", prefix + make.token(40))
    add("old vault token", "vault-token", "X-Vault-Token: @@", "s" + "." + make.token(24))
    pem64 = base64.b64encode(pem("RSA PRIVATE " + "KEY").encode()).decode()
    add("private key in a kubeconfig", "private-key", "    client-key-data: @@", pem64)
    add("json web key", "private-key", '{"kty": "RSA", "d": "@@", "e": "AQAB"}', make.token(86))
    add("django hash", "password-hash", "@@", "pbkdf2" + f"_sha256$600000${make.token(12)}${make.token(43)}=")
    add("nt hash", "password-hash", f"bob:500:{make.of(_HEX, 32)}:@@:::", make.of(_HEX, 32))
    add(
        "password with an at sign in a url",
        "url-password",
        "https://bob:@@@h.example/",
        make.token(8) + "@" + make.token(8),
    )
    add(
        "password with a slash in a url",
        "url-password",
        "https://bob:@@@h.example/",
        make.token(8) + "/" + make.token(8),
    )
    add("token alone in a url", "url-password", "https://@@@git.example/a", make.token(40))
    add("docker config", "token", '{"auths": {"r.example": {"auth": "@@"}}}', make.token(28))
    add("long value", "token", "MY_SECRET=@@", make.token(1500))
    add("php constant", "password", "define( 'DB_PASSWORD', '@@' );", make.token(14))
    add("php array", "password", "'password' => '@@',", make.token(14))
    add("wordpress salt", "password", "define('NONCE_SALT',  '@@');", make.token(60))
    add("name and value", "password", '{"name": "DB_PASSWORD", "value": "@@"}', make.token(14))
    add("aws configure set", "token", "aws configure set aws_secret_access_key @@", make.token(40))
    add("login -p", "password", "docker login -u bob -p @@ r.example", make.token(14))
    add("curl -su", "password", "curl -su bob:@@ https://h.example/", make.token(14))
    add("keytool", "password", "keytool -list -storepass @@ -keystore k", make.token(14))
    add("chpasswd", "password", "echo 'bob:@@' | chpasswd", make.token(14))
    add("sudo -S", "password", "echo @@ | sudo -S true", make.token(14))
    add("redis.conf", "password", "requirepass @@", make.token(14))
    add("ipsec.secrets", "password", '%any : PSK "@@"', make.token(14))
    add("powershell", "password", "ConvertTo-SecureString '@@' -AsPlainText", make.token(14))
    add("said in a sentence", "password", "the root password is @@, use it", make.token(11))
    return found
