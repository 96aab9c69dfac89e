"""Removes secrets from events, log lines, answers and requests to a model.

`Redactor` finds credentials by value, `formats` finds keys by their format, and `assignments` finds values
beside a word such as password. `Stream` does the same for text that arrives in pieces. A removed secret is
replaced by a mark with its kind and, if the redactor has a key, a digest that is the same for equal secrets.
"""

from lightagentd.redaction.marker import MARKER
from lightagentd.redaction.redactor import Redactor, off_loop
from lightagentd.redaction.stream import Stream

__all__ = ["MARKER", "Redactor", "Stream", "off_loop"]
