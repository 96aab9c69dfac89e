"""Reads model settings from the environment, so that models work without any configuration.

`OPENAI_API_KEY` with `OPENAI_BASE_URL`, `ANTHROPIC_API_KEY` with `ANTHROPIC_BASE_URL`, the key of another
known endpoint (`llm.providers`), or `API_KEY` with `BASE_URL`, and `MODEL`. They come from the daemon's
environment, where an `EnvironmentFile=` of its unit puts them, and for a user's own daemon from the file
`.env` in its working folder. Nothing else is read from that file, and nothing of it goes into the environment
of any process.

A key and its address come from the same place: a `.env` in some folder cannot have a key of the environment
sent elsewhere. So the file's variables of an endpoint count only if the environment has none of them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightagentd.errors import ConfigError
from lightagentd.llm.providers import KNOWN
from lightagentd.text.reason import reason

KEY, ADDRESS, MODEL = "API_KEY", "BASE_URL", "MODEL"
"""An endpoint without a name of its own."""
IN_ENVIRONMENT = "environment"
GROUPS: tuple[tuple[str, ...], ...] = (
    (KEY, ADDRESS),
    (MODEL,),
    *dict.fromkeys((*one.keys, *((one.address,) if one.address else ())) for one in KNOWN if one.keys),
)
"""Variables that count only together: those of one endpoint."""
VARIABLES = frozenset(name for group in GROUPS for name in group)
"""All that is taken."""
_MOST_BYTES = 64 << 10
_ASSIGNMENT = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$", "`": "`"}


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The variables, the source of each, and the problems, as sentences."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    origins: Mapping[str, str] = field(default_factory=dict)
    """`environment`, or the path of the file."""
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> str:
        return self.values.get(name, "")

    def secrets(self) -> list[str]:
        """All keys, including unused ones."""
        return [value for name, value in self.values.items() if name.endswith(KEY)]

    def first(self, names: tuple[str, ...]) -> str:
        """The name of the first of these variables that is set; empty when none is."""
        return next((name for name in names if self.get(name)), "")


def read_environment(variables: Mapping[str, str], file: Path | None = None) -> Environment:
    """The settings from these variables and a file. A missing file is fine; an unusable one is a problem."""
    in_file: Mapping[str, str] = {}
    problems: list[str] = []
    try:
        if file is not None:
            in_file = read_file(file)
    except FileNotFoundError:
        pass
    except ConfigError as err:
        problems.append(f"{err.message} {err.suggestion}")
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    for group in GROUPS:
        given = {name: text for name in group if (text := variables.get(name, "").strip())}
        filed = {name: in_file[name] for name in group if in_file.get(name)}
        for name, text in (given or filed).items():
            # One variable may be the key of two endpoints: the first source counts.
            values.setdefault(name, text)
            origins.setdefault(name, IN_ENVIRONMENT if given else str(file))
        left = [name for name in filed if given and name not in given]
        if left:
            problems.append(
                f"{', '.join(left)} in {file} {'is' if len(left) == 1 else 'are'} not used: the environment"
                f" has {', '.join(given)}, and a key goes only to an address from the same place."
                " Set both in one place."
            )
    return Environment(values=values, origins=origins, problems=tuple(problems))


def own_environment() -> Environment:
    """The environment of this process; for a user's own daemon with `.env` of the working folder. The
    system's daemon and root read no file from the working folder.
    """
    try:
        path = Path(".env").absolute()
    except OSError:  # the working folder is gone
        return read_environment(os.environ)
    if os.geteuid() == 0 or os.environ.get("STATE_DIRECTORY"):
        found = read_environment(os.environ)
        return replace(found, problems=(*found.problems, *_not_taken(path)))
    return read_environment(os.environ, path)


def _not_taken(path: Path) -> list[str]:
    """That this file is not read, as a sentence, if it seems to be meant for the daemon."""
    try:
        if not read_file(path):
            return []
    except FileNotFoundError:
        return []
    except ConfigError:
        pass  # perhaps it is
    return [f"{path} is not read: for root and the system's daemon, set the variables in their environment."]


def read_file(path: Path) -> dict[str, str]:
    """The relevant variables of a `.env`. Raises FileNotFoundError, and ConfigError for a file that belongs
    to another user, that others can write, or that has a malformed value for one of them.
    """
    try:
        # No link and no pipe: the opened file is the checked one.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as err:
        raise _unusable(path, reason(err)) from err
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise _unusable(path, "it is no file")
        if info.st_uid != os.geteuid():
            raise _unusable(path, "it belongs to another user")
        if stat.S_IMODE(info.st_mode) & 0o022:
            raise _unusable(path, f"others can write it; chmod go-w {path}")
        content = os.read(fd, _MOST_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > _MOST_BYTES:
        raise _unusable(path, f"it has more than {_MOST_BYTES >> 10} KiB")
    try:
        return parse(content.decode(), path)
    except UnicodeDecodeError as err:
        raise _unusable(path, "it is not UTF-8 text") from err


def parse(text: str, path: Path) -> dict[str, str]:
    """`NAME=VALUE` line by line, with or without `export`, in quotes or not; `#` begins a comment. Nothing is
    expanded. Other variables are ignored, whatever their content. Raises ConfigError.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment is None:
            continue  # another program's line, such as a value over several lines
        name, written = assignment.groups()
        if name in VARIABLES:
            value = _value(written)
            if value is None:
                raise _unusable(path, f"line {number}: the value of {name} is not one word or in quotes")
            found[name] = value
    return found


def _value(written: str) -> str | None:
    """The value after the `=`; None for an unclosed quote, or for text after the value."""
    quote = written[:1]
    if quote == "'":
        value, end, rest = written[1:].partition("'")
        return value if end and _is_comment(rest) else None
    if quote == '"':
        quoted = re.fullmatch(r'"((?:[^"\\]|\\.)*)"(.*)', written)
        if quoted is None or not _is_comment(quoted[2]):
            return None
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), quoted[1])
    value = re.split(r"[ \t]#|^#", written, maxsplit=1)[0].rstrip()
    return None if re.search(r"[\s'\"]", value) else value


def _is_comment(rest: str) -> bool:
    return not rest.strip() or rest.lstrip().startswith("#")


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is not used: {why}.", suggestion="Mend it, and reload, or set the variables.")
