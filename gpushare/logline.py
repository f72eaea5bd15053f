"""A line of the log: a constant message and key=value.

Standard library only: every part logs by it. How lines are written: daemon/logs.py.

Tested in `tests/unit/daemon/logs/test_formatters.py`.
"""

import json
import re

_UNQUOTED = re.compile(r"[!#-<>-~]+")
"""Printable ASCII without space, quote and =."""

_MAX_VALUE = 400


class Line:
    """A message and its values, put together when a handler wants it."""

    __slots__ = ("message", "values")

    def __init__(self, message: str, **values: object) -> None:
        self.message = message
        self.values = values

    def __str__(self) -> str:
        """Return the message and key=value of each; unusual values are quoted as JSON does, long
        ones cut.
        """
        return " ".join([self.message, *(f"{k}={_value(v)}" for k, v in self.values.items())])


def _value(value: object) -> str:
    text = cut(value)
    return text if _UNQUOTED.fullmatch(text) else json.dumps(text)


def cut(value: object) -> str:
    """Return the value as text of a bounded length."""
    text = str(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."
