"""Checks the attachments of a prompt, and puts each into a block after the question.

The blocks keep the order given, and each is labelled with the name of the attachment. An attachment is text
from outside: it taints the session.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightagentd.api import Attachment
from lightagentd.config.configuration import Limits
from lightagentd.errors import AttachmentInvalid, AttachmentTooLarge, InvalidArgument
from lightagentd.limits import MAX_ATTACHMENTS
from lightagentd.quoted import Prompt, quoted

ALL_TIMES = 4
"""All attachments of a prompt together may have so many times the size of the largest one."""
NAME_CHARS = 255
_CONTROL = "".join(chr(code) for code in (*range(1, 7), *range(14, 27), *range(28, 32), 127))
"""Control characters that no text has; those for line and page breaks, tabs, bells and colours are none."""
_CONTROL_MOST = 0.3
"""As in perl's `-B`: a file with a larger part of them is binary."""


def compose(prompt: Prompt, attachments: Sequence[Attachment], limits: Limits) -> Prompt:
    """The prompt followed by its attachments. Raises InvalidArgument or a subclass."""
    if not attachments:
        return prompt
    if not prompt.text.strip():
        raise InvalidArgument(
            "The prompt has attachments and no text.",
            suggestion="Say what the agent is to do with them.",
            field="text",
        )
    if len(attachments) > MAX_ATTACHMENTS:
        raise AttachmentTooLarge(
            f"The prompt has {len(attachments)} attachments; it may have {MAX_ATTACHMENTS}.",
            suggestion="Attach fewer files, or name the folder that the agent is to read.",
            field="attachments",
        )
    whole = 0
    for each in attachments:
        _check_name(each["name"])
        whole += _check_text(each["name"], each["text"], limits.max_attachment_bytes)
    most = ALL_TIMES * limits.max_attachment_bytes
    if whole > most:
        raise AttachmentTooLarge(
            f"The attachments have {whole} bytes together; they may have {most}.",
            suggestion="Attach fewer files, or the parts that matter.",
            field="attachments",
        )
    return prompt.with_blocks(*(quoted(each["name"], each["text"].rstrip("\n")) for each in attachments))


def _check_name(name: str) -> None:
    if 1 <= len(name) <= NAME_CHARS and "/" not in name and name.isprintable():
        return
    raise AttachmentInvalid(
        f"{name[:60]!r} cannot be the name of an attachment.",
        suggestion=f"Use 1 to {NAME_CHARS} printable characters without a slash: a name without a path.",
        field="attachments",
    )


def _check_text(name: str, text: str, max_bytes: int) -> int:
    """The number of bytes of a valid text."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as err:
        raise _binary(name, "it is not UTF-8") from err
    if size > max_bytes:
        raise AttachmentTooLarge(
            f"The attachment {name} has {size} bytes; one may have {max_bytes}.",
            suggestion="Attach the part that matters, or name a file that the agent can read.",
            field="attachments",
        )
    if "\0" in text:
        raise _binary(name, "it has a NUL byte")
    if sum(map(text.count, _CONTROL)) > _CONTROL_MOST * len(text):
        raise _binary(name, "most of it are control characters")
    return size


def _binary(name: str, why: str) -> AttachmentInvalid:
    return AttachmentInvalid(
        f"The attachment {name} is binary: {why}.",
        suggestion="Attach text, or name the file so that the agent reads it with its tools.",
        field="attachments",
    )
