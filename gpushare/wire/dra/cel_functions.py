"""The functions that Kubernetes adds to CEL: quantities, versions, strings and lists.

The first argument of a method is the receiver. A quantity is a list of one integer, in thousandths;
a semantic version is a text without build metadata. Errors are ValueError, TypeError or
IndexError: the selector cannot be evaluated then.

Tested in `tests/unit/wire/dra/test_selectors.py`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpushare.core.claims.model import THOUSANDTHS
from gpushare.errors import QuantityError
from gpushare.wire.quantity import MAX_VALUE, to_thousandths

Number = Sequence[int]
"""A quantity."""

_NUMBER = r"(0|[1-9][0-9]*)"
_WORD = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_WORD}(?:\.{_WORD})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
_LOOSE_VERSION = re.compile(r"v?0*([0-9]+)(?:\.0*([0-9]+))?(?:\.0*([0-9]+))?([-+].*)?")
_MAX_TEXT = 4096


def quantity(text: str) -> Number:
    """Return the quantity of a text."""
    sign = -1 if text.startswith("-") else 1
    try:
        return [sign * to_thousandths(text.removeprefix("-"))]
    except QuantityError as error:
        raise ValueError(str(error)) from error


def semver(text: str, normalize: bool = False) -> str:
    """Return a semantic version. normalize: complete and clean a loose one first, as in v1.2."""
    if normalize and (loose := _LOOSE_VERSION.fullmatch(text[:_MAX_TEXT])):
        major, minor, patch, suffix = loose.groups()
        text = f"{major}.{minor or 0}.{patch or 0}{suffix or ''}"
    _version(text)
    return text.partition("+")[0]


def _accepts(parse: Callable[..., object], *arguments: object) -> bool:
    """Return whether the arguments can be parsed."""
    try:
        parse(*arguments)
    except ValueError:
        return False
    return True


def compare(first: Number | str, second: Number | str) -> int:
    """Return -1, 0 or 1: how a quantity or a version compares with another."""
    if isinstance(first, str) and isinstance(second, str):
        first_key, second_key = _version(first), _version(second)
        return (first_key > second_key) - (first_key < second_key)
    a, b = _amount(first), _amount(second)
    return (a > b) - (a < b)


def _version(text: str) -> tuple[object, ...]:
    """Return the sort key of a semantic version."""
    match = _VERSION.fullmatch(text[:_MAX_TEXT])
    if match is None:
        raise ValueError("not a semantic version")
    major, minor, patch, suffix = match.groups()
    words = [
        (0, int(word), "") if word.isdigit() else (1, 0, word)
        for word in (suffix.split(".") if suffix else ())
    ]
    # A version without a suffix comes after all that have one.
    return (int(major), int(minor), int(patch), not words, words)


def _amount(value: object) -> int:
    """Return thousandths of a quantity, or of a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value * THOUSANDTHS
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], int):
        return value[0]
    raise TypeError("not a quantity")


def _is_whole(value: Number) -> bool:
    amount = _amount(value)
    return amount % THOUSANDTHS == 0 and abs(amount) <= MAX_VALUE * THOUSANDTHS


def _as_integer(value: Number) -> int:
    if not _is_whole(value):
        raise ValueError("not a whole number")
    return _amount(value) // THOUSANDTHS


def _lower(text: str) -> str:
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text)


def _upper(text: str) -> str:
    return "".join(chr(ord(c) - 32) if "a" <= c <= "z" else c for c in text)


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise IndexError(index)
    return text[index : index + 1]


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise IndexError(start)
    return text[start:end]


def _index_of(value: str | list[object], part: object, start: int = 0) -> int:
    if isinstance(value, str) and isinstance(part, str):
        if not 0 <= start <= len(value):
            raise IndexError(start)
        return value.find(part, start)
    values = list(value)
    return values.index(part) if part in values else -1


def _last_index_of(value: str | list[object], part: object, start: int | None = None) -> int:
    if isinstance(value, str) and isinstance(part, str):
        if start is not None and not 0 <= start <= len(value):
            raise IndexError(start)
        return value.rfind(part) if start is None else value.rfind(part, 0, start + len(part))
    values = list(value)[::-1]
    return len(values) - 1 - values.index(part) if part in values else -1


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    if len(text) * max(1, len(new)) > _MAX_TEXT:
        raise ValueError("the text becomes too long")
    return text.replace(old, new, count)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if not separator:
        parts = list(text)
        return parts if limit < 0 else [*parts[: limit - 1], *(["".join(parts[limit - 1 :])])]
    return text.split(separator, -1 if limit < 0 else limit - 1)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantity": quantity,
    "isQuantity": partial(_accepts, quantity),
    "semver": semver,
    "isSemver": partial(_accepts, semver),
    "compareTo": compare,
    "isLessThan": lambda one, other: compare(one, other) < 0,
    "isGreaterThan": lambda one, other: compare(one, other) > 0,
    "sign": lambda value: (_amount(value) > 0) - (_amount(value) < 0),
    "isInteger": _is_whole,
    "asInteger": _as_integer,
    "asApproximateFloat": lambda value: _amount(value) / THOUSANDTHS,
    "add": lambda one, other: [_amount(one) + _amount(other)],
    "sub": lambda one, other: [_amount(one) - _amount(other)],
    "major": lambda version: _version(version)[0],
    "minor": lambda version: _version(version)[1],
    "patch": lambda version: _version(version)[2],
    "charAt": _char_at,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "lowerAscii": _lower,
    "upperAscii": _upper,
    "replace": _replace,
    "split": _split,
    "substring": _substring,
    "trim": str.strip,
    "join": lambda parts, separator="": separator.join(parts),
}
