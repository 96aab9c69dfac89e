"""`examples.txt`: prompts that a skill answers, one a line, with the words marked that give an argument.

    why is {unit:nginx} down
    what fills the {path:root partition=/}

A mark is `{name:words}`, or `{name:words=value}` where the value is not what the words say; any brace that
no small letter follows is only a brace. Lines that begin with `#` are comments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightagentd.errors import ConfigError, InvalidArgument
from lightagentd.frontmatter import content_of
from lightagentd.skills.arguments import ArgSpec
from lightagentd.text.reason import reason

EXAMPLES_FILE = "examples.txt"
_LINE_BYTES = 4000
"""More is no prompt that somebody typed, and takes long to read."""
_BEGINS = re.compile(r"\{(?=[a-z_])")
_MARK = re.compile(r"\{(?P<name>[a-z_][a-z0-9_]*):(?P<words>[^{}=]+)(?:=(?P<value>[^{}]+))?\}")


@dataclass(frozen=True, slots=True)
class Mark:
    """Words of an example that give an argument."""

    name: str
    start: int
    end: int
    """The words are `text[start:end]` of the example."""
    value: str
    """What is written as the value; empty where the words say it."""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt, without the braces of its marks."""

    text: str
    marks: tuple[Mark, ...] = ()


def read_examples(path: Path, args: Mapping[str, ArgSpec]) -> tuple[Example, ...]:
    """The examples of a file; none if there is no file.

    Raises ConfigError with file and line for an argument that is not among `args`, a value that is not of its
    kind, a brace that is not closed, and what is not UTF-8.
    """
    try:
        content = content_of(path)
    except FileNotFoundError:
        return ()
    except OSError as err:
        raise ConfigError(f"{path} cannot be read: {reason(err)}.") from err
    found = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            if len(line) > _LINE_BYTES:
                raise ValueError(f"the line has more than {_LINE_BYTES} bytes.")
            text = line.decode().strip()
            if text and not text.startswith("#"):
                found.append(_example(text, args))
        except UnicodeDecodeError:
            raise ConfigError(f"{path}, line {number}: this is not UTF-8.") from None
        except (ValueError, InvalidArgument) as err:
            raise ConfigError(f"{path}, line {number}: {err}") from None
    return tuple(found)


def _example(line: str, args: Mapping[str, ArgSpec]) -> Example:
    """Raises ValueError, and what ArgSpec.check raises."""
    marks: list[Mark] = []
    text, rest = "", line
    while begin := _BEGINS.search(rest):
        mark = _MARK.match(rest, begin.start())
        if mark is None:
            raise ValueError(f"{rest[begin.start() :][:40]!r} is not {{name:words}} or {{name:words=value}}.")
        name, words, value = mark["name"], mark["words"].strip(), (mark["value"] or "").strip()
        if name not in args:
            raise ValueError(
                f"there is no argument {name!r}; there are: {', '.join(sorted(args)) or 'none'}."
            )
        if value:
            args[name].check(name, value)
        text += rest[: begin.start()]
        marks.append(Mark(name, len(text), len(text) + len(words), value))
        text, rest = text + words, rest[mark.end() :]
    return Example(text + rest, tuple(marks))
