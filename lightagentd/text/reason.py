"""Says why a file, JSON or text of somebody could not be used, without the words of Python.

Those of Python are for programmers: "[Errno 2] No such file or directory: 'x'", "Expecting value: line 1".
"""

from __future__ import annotations

import json

LOOK_FIRST = "Look at what the call changed before you ask for it again."
"""What to do where it is not known whether a call took effect."""
_JSON = (
    ("Expecting value", "a value is missing"),
    ("Expecting property name", "a key in double quotes is missing"),
    ("Expecting ':'", "a colon is missing"),
    ("Expecting ','", "a comma is missing"),
    ("Unterminated string", "this string does not end"),
    ("Invalid control character", "a string holds a control character, such as the end of a line"),
    ("Invalid \\", "a backslash stands before something unknown"),
    ("Extra data", "something follows the value"),
    ("Illegal trailing comma", "a comma stands before the end"),
    ("Unexpected UTF-8 BOM", "it begins with a byte order mark"),
)
"""How messages of the module json begin, and what they say."""


def reason(err: BaseException, *, at: bool = False) -> str:
    """Why it failed, without a full stop; `at`: after the file that the error is about."""
    if isinstance(err, json.JSONDecodeError):
        said = (
            "it is empty"
            if not err.doc.strip()
            else f"{json_fault(err)}, line {err.lineno}, column {err.colno}"
        )
    elif isinstance(err, UnicodeDecodeError):
        said = f"it is not UTF-8 at byte {err.start + 1}"
    elif isinstance(err, OSError) and err.strerror:
        said = f"{err.filename}: {err.strerror}" if at and err.filename else err.strerror
    elif isinstance(err, ValueError) and str(err).startswith("Exceeds the limit"):  # of int()
        said = "a number has too many digits"
    elif isinstance(err, TimeoutError):
        said = str(err) or "it took too long"
    else:
        said = str(err) or type(err).__name__
    return said.rstrip(".")


def json_fault(err: json.JSONDecodeError) -> str:
    """What is wrong at the place that the error names."""
    return next((said for begin, said in _JSON if err.msg.startswith(begin)), err.msg)
