"""Declares the section `[telemetry]` of the configuration, and the file with headers that belongs to it."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field

from lightagentd.config.models import credential
from lightagentd.config.section import Seconds, Section
from lightagentd.errors import ConfigError
from lightagentd.text.reason import reason

_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]+)")


class Telemetry(Section):
    """`[telemetry]`: where `lightagent-telemetry.service` sends what agents do, as OTLP over HTTP."""

    endpoint: str = Field(default="", pattern=r"^(https?://[^\s/@?#]+(/[^\s@?#]*)?)?$")
    """The receiver; `/v1/traces` and `/v1/metrics` are added. That of Langfuse is
    `https://HOST/api/public/otel`."""
    headers_file: Path | None = None
    """A file with headers for the receiver, one `Name: value` a line, such as its `Authorization`; a bare
    name is a credential of the service (`LoadCredential=`)."""
    interval_s: Seconds = 5.0
    """How long what happened is gathered before it is sent."""
    timeout_s: Seconds = 30.0
    """How long the receiver may take for an answer; then the same is sent again."""
    metrics: bool = True
    """Whether metrics are sent too; Langfuse takes traces alone."""
    content: bool = False
    """Whether prompts, answers, and the arguments and results of calls are sent: whoever may look at the
    receiver then reads everyone's conversations."""


def headers(telemetry: Telemetry) -> dict[str, str]:
    """The headers for the receiver. Raises ConfigError, which shows none of them."""
    if telemetry.headers_file is None:
        return {}
    path = credential(telemetry.headers_file)
    try:
        lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(
            f"The file with headers {path} cannot be read: {reason(err)}.",
            suggestion="Name a file that root can read, or a credential of lightagent-telemetry.service.",
        ) from err
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if (header := _HEADER.fullmatch(line)) is None:
            raise ConfigError(
                f"{path}: the line {number} with text is no header.",
                suggestion="Write one header a line: Name: value",
            )
        found[header[1]] = header[2]
    return found
