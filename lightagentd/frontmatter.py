"""Files that begin with YAML between two lines `---` and go on with Markdown: AGENT.md and SKILL.md.

Files that are YAML alone are read the same way.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from lightagentd.errors import ConfigError
from lightagentd.text.reason import reason

_Model = TypeVar("_Model", bound=BaseModel)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, in a tenth of the time, where PyYAML was built with it."""
_UNQUOTED = re.compile(r"""[A-Za-z_-]+:\s+[^\s'"|>\[{&*!].*:(?:\s.*)?""")
"""A key, and a plain value that YAML takes for another key."""
FILE_BYTES = 1 << 20
_NODES = 100_000
"""How many values there may be where each alias counts as what it stands for."""
NESTING_LIMIT = 100
"""How deep lists and mappings may be nested: libyaml's loader would overflow the stack of a thread."""


@dataclass(frozen=True, kw_only=True)
class FrontMatterFile:
    """The content of such a file, and the line of each top-level key."""

    path: Path
    data: dict[str, Any]
    lines: dict[str, int]
    body: str
    quoted: tuple[int, ...] = ()
    """Lines whose value had to be put in quotes to be YAML."""

    def parse(self, model: type[_Model]) -> _Model:
        """The front matter as a model. Raises ConfigError that names the file, the line and the key."""
        try:
            return model.model_validate(self.data)
        except ValidationError as err:
            first = err.errors(include_url=False, include_input=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            top = str(first["loc"][0]) if first["loc"] else ""
            where = f"{self.path}, line {self.lines[top]}" if top in self.lines else str(self.path)
            said = {"extra_forbidden": "is not known", "missing": "is missing"}.get(first["type"])
            problem = f" {said}" if said else f": {first['msg'].removeprefix('Value error, ')}"
            raise ConfigError(f"{where}: the key {key}{problem}.") from err


def read(path: Path, *, quote: bool = False) -> FrontMatterFile:
    """Read such a file. Raises ConfigError whose message names the file and, where it can, the line.

    With `quote`, one that is not YAML is read again with quotes around values that have a colon in them,
    which other programs' readers take (`description: Use it when: ...`).
    """
    lines = _text_of(path).splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise ConfigError(f"{path}, line 1: the file must begin with front matter between two lines '---'.")
    end = next((number for number, line in enumerate(lines) if number and line.rstrip() == "---"), None)
    if end is None:
        raise ConfigError(f"{path}, line 1: the front matter has no closing line '---'.")
    body, odd = "\n".join(lines[end + 1 :]).strip(), []
    try:
        data, where = _decode(path, _joined(lines[1:end]), first_line=2)
    except ConfigError:
        odd = [number for number in range(1, end) if _UNQUOTED.fullmatch(lines[number])] if quote else []
        if not odd:
            raise
        for number in odd:
            key, _, value = lines[number].partition(":")
            lines[number] = f"{key}: {json.dumps(value.strip(), ensure_ascii=False)}"
        data, where = _decode(path, _joined(lines[1:end]), first_line=2)
    quoted = tuple(number + 1 for number in odd)
    return FrontMatterFile(path=path, data=data, lines=where, body=body, quoted=quoted)


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def read_yaml(path: Path) -> FrontMatterFile:
    """Read a file that is YAML alone. Raises ConfigError as `read` does."""
    data, where = _decode(path, _text_of(path), first_line=1)
    return FrontMatterFile(path=path, data=data, lines=where, body="")


def decode(path: Path, text: str, *, most: int = _NODES) -> dict[str, Any]:
    """The mapping that a YAML text is, of at most so many values. Raises ConfigError as `read` does."""
    return _decode(path, text, first_line=1, most=most)[0]


def content_of(path: Path) -> bytes:
    """The content of a regular file of at most `FILE_BYTES`. Raises OSError."""
    # O_NONBLOCK: what somebody else made may hold a FIFO of that name.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("it is not a file")
        with os.fdopen(fd, "rb", closefd=False) as file:
            content = file.read(FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > FILE_BYTES:
        raise OSError(f"it has more than {FILE_BYTES >> 20} MiB")
    return content


def _text_of(path: Path) -> str:
    try:
        return content_of(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing.", suggestion="Write it, or remove the folder.") from None
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path} cannot be read: {reason(err)}.") from err


def _decode(
    path: Path, front: str, *, first_line: int, most: int = _NODES
) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        node, data = _load(front, most)
    except yaml.MarkedYAMLError as err:
        line = err.problem_mark.line + first_line if err.problem_mark else 1
        raise ConfigError(f"{path}, line {line}: {err.problem or 'this is not YAML'}.") from err
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, ValueError) as err:
        # PyYAML lets errors of its constructors through, for example of the date 2025-13-45.
        raise ConfigError(f"{path}: this is not YAML: {err}.") from err
    if data is None:
        return {}, {}
    if not isinstance(data, dict) or not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}, line {first_line}: there must be a mapping of keys to values.")
    where: dict[str, int] = {}
    for key, _ in node.value:
        name, line = str(key.value), key.start_mark.line + first_line
        if name in where:
            raise ConfigError(f"{path}, line {line}: the key {name} stands in line {where[name]} already.")
        where[name] = line
    return data, where


def _load(front: str, most: int) -> tuple[yaml.Node | None, Any]:
    """The YAML as nodes, which know their lines, and as values. Raises what PyYAML raises."""
    _check_size(yaml.parse(front, Loader=_Loader), most)
    loader = _Loader(front)
    try:
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _check_size(events: Iterator[Any], most: int) -> None:
    """Raises MarkedYAMLError for what is nested too deep, or would be too large with each alias written out:
    aliases of aliases, and merged keys.
    """
    sizes, names, known = [0], list[str | None]([""]), dict[str | None, int]()
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(0)
            names.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, name = sizes.pop() + 1, names.pop()
            known[name] = size
            sizes[-1] += size
        elif isinstance(event, yaml.AliasEvent):
            sizes[-1] += known.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            sizes[-1] += 1
        too = f"nested more than {NESTING_LIMIT} deep" if len(sizes) > NESTING_LIMIT + 1 else ""
        if too or sizes[-1] > most:
            said = f"the YAML is {too or f'larger than {most} values'}"
            raise yaml.MarkedYAMLError(problem=said, problem_mark=event.start_mark)
