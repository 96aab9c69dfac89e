"""Removes secrets from events, log lines, answers and requests to a model.

`Redactor` finds credentials that are known by value, `formats` what has the look of a key, `assignments`
what stands beside a word such as password. `Stream` does the same to text that comes in pieces. What was
removed is marked with its kind and, where the redactor has a key, with a digest by which equal secrets can
be told.
"""

from lightagentd.redaction.marker import MARKER
from lightagentd.redaction.redactor import Redactor, off_loop
from lightagentd.redaction.stream import Stream

__all__ = ["MARKER", "Redactor", "Stream", "off_loop"]
