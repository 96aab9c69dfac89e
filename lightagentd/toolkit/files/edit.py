"""Replaces exact text in a file, in the file's own encoding and with its line ends."""

from __future__ import annotations

from lightagentd.errors import InvalidArgument
from lightagentd.toolkit.files.text import BINARY, encoding_of


def edited(path: str, data: bytes, old: str, new: str, *, every: bool) -> tuple[bytes, int]:
    """The new content and the number of replacements; bytes outside of them stay exactly as they are."""
    encoding = encoding_of(data, whole=True)
    if encoding == BINARY:
        raise InvalidArgument(f"{path} is binary.", field="path", suggestion="Use the tool bash.")
    mark = b""
    if encoding in ("utf-16", "utf-32"):
        mark = data[: 2 if encoding == "utf-16" else 4]
        encoding += "-le" if mark[0] == 0xFF else "-be"
    try:
        content = data[len(mark) :].decode(encoding)
        if old not in content and "\r\n" in content:
            old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
        count = content.count(old)
        if old == new:
            raise InvalidArgument("The old and the new text are the same.", field="new")
        if not count:
            raise InvalidArgument(
                f"{path} does not contain the old text.", field="old", suggestion="Read it and copy exactly."
            )
        if count > 1 and not every:
            lines = _lines_of(content, old)
            raise InvalidArgument(
                f"{path} contains the old text {count} times, in the lines {lines}.",
                field="old",
                suggestion="Give more of the text around it, or all=true.",
            )
        return mark + content.replace(old, new).encode(encoding), count
    except UnicodeDecodeError as err:
        raise InvalidArgument(f"{path} is not valid {encoding}.", field="path") from err
    except UnicodeEncodeError as err:
        raise InvalidArgument(f"The new text cannot be written in {encoding}.", field="new") from err


def _lines_of(content: str, old: str) -> str:
    numbers: list[str] = []
    at = content.find(old)
    while at >= 0 and len(numbers) < 10:
        numbers.append(str(content.count("\n", 0, at) + 1))
        at = content.find(old, at + len(old))
    return ", ".join(numbers) + (" and more" if at >= 0 else "")
