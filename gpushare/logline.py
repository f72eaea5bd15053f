"""A line of the log: a constant message and key=value.

Standard library only, for all parts of the package. daemon/logs.py formats and writes the lines.

Tested in `tests/unit/daemon/logs/test_formatters.py`.
"""

import json
import re

_UNQUOTED = re.compile(r"[!#-<>-~]+")
"""Printable ASCII without space, quote and =."""

_MAX_VALUE = 400


class Line:
    """A message and values, formatted only when a handler needs the text."""

    __slots__ = ("message", "values")

    def __init__(self, message: str, **values: object) -> None:
        self.message = message
        self.values = values

    def __str__(self) -> str:
        """Return the message and the values as key=value.

        Unusual values are quoted as JSON, long values cut.
        """
        return " ".join([self.message, *(f"{k}={_value(v)}" for k, v in self.values.items())])


def _value(value: object) -> str:
    text = cut(value)
    return text if _UNQUOTED.fullmatch(text) else json.dumps(text)


def cut(value: object) -> str:
    """Return the value as text of a bounded length."""
    text = str(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."
