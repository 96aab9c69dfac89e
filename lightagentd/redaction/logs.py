"""Removes secrets from log messages: their text with its arguments, and tracebacks.

A handler gets the filter, not a logger: a logger's filter does not see the records of its children.
"""

from __future__ import annotations

import logging

from lightagentd.redaction.redactor import Redactor

_FORMAT = logging.Formatter()


class RedactingFilter(logging.Filter):
    """Changes each record that goes by; it lets all of them through."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        super().__init__()
        self.redactor = redactor or Redactor()

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit are logging's to report, without them
            message = f"{record.msg!r} (its arguments do not fit)"
        record.msg, record.args = self.redactor.text(message), None
        if record.exc_info and not record.exc_text:
            record.exc_text = _FORMAT.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self.redactor.text(record.exc_text)
            record.exc_info = None
        if record.stack_info:
            record.stack_info = self.redactor.text(record.stack_info)
        return True


def take_redactor(redactor: Redactor) -> None:
    """Give the redactor to the handlers of the process, which until then know only patterns."""
    for handler in logging.getLogger().handlers:
        for one in handler.filters:
            if isinstance(one, RedactingFilter):
                one.redactor = redactor
