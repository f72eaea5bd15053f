"""Kubernetes quantities ("16", "16k", "1Gi", "500m", "1e3") as exact numbers.

Knows the grammar of `k8s.io/apimachinery/pkg/api/resource`. Stdlib only, so that the command line
shares this module. Stricter than Go where Go guesses: ASCII only, no blanks, and a number
of absurd length or exponent is refused instead of being capped, before any big arithmetic.

Also the largest amount that a pod's containers hold at any time (`PodRequests` of
k8s.io/component-helpers); tested in `tests/unit/wire/test_pods.py`.
"""

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from gpushare.core.model import MAX_UNITS
from gpushare.errors import QuantityError

Quantity = str | int | float
"""A quantity as JSON carries it: normally text; a bare number is accepted too, as Go does."""

MAX_VALUE = 2**63 - 1
"""Largest value Kubernetes itself holds (int64); beyond it `to_milli` and `to_bytes` refuse."""

_MAX_LENGTH = 64
_LARGEST_EXPONENT = 40
_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[KMGTPE]i|[numkMGTPE])?)"
)
_SCALES: dict[str, int | Fraction] = {
    "": 1,
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{name: 1000**power for power, name in enumerate("kMGTPE", start=1)},
    **{name + "i": 1024**power for power, name in enumerate("KMGTPE", start=1)},
}

# Nodes and pods say the same few amounts again and again. A valid quantity is short.
_cached = lru_cache(maxsize=1 << 12, typed=True)


def parse_quantity(quantity: Quantity) -> int | Fraction:
    """Return the exact value: an int if whole, else a Fraction.

    Raises QuantityError for anything the grammar does not allow, with the text shortened.
    """
    if isinstance(quantity, str):
        text = quantity
    elif isinstance(quantity, bool) or not isinstance(quantity, int | float):
        raise QuantityError(f"a {type(quantity).__name__} is not a quantity")
    elif isinstance(quantity, int) and quantity.bit_length() > _MAX_LENGTH * 3:
        raise QuantityError("a number of that many digits is not a quantity")
    else:
        text = repr(quantity)
    if len(text) <= 18 and text.isascii() and text.isdigit():
        return int(text)
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None or not (match["whole"] or match["part"]):
        raise QuantityError(f"{_quoted(text)} is not a quantity")
    if match["exponent"] is None:
        scale = _SCALES[match["suffix"] or ""]
    elif abs(exponent := int(match["exponent"])) <= _LARGEST_EXPONENT:
        scale = Fraction(10) ** exponent
    else:  # refused before any big arithmetic
        raise QuantityError(f"{_quoted(text)} is out of range")
    part = match["part"] or ""
    value = Fraction(int(match["whole"] + part), 10 ** len(part)) * scale
    if match["sign"] == "-":
        value = -value
    return value.numerator if value.denominator == 1 else value


@_cached
def to_units(quantity: Quantity) -> int:
    """Return the quantity as whole memory units, 0..MAX_UNITS.

    Extended resources are whole numbers (the API server refuses others). Raises QuantityError for a
    value that is not whole, negative or too large.
    """
    value = parse_quantity(quantity)
    if not isinstance(value, int):
        raise QuantityError(f"{_quoted(quantity)} is not a whole number")
    return _in_range(value, MAX_UNITS, quantity)


@_cached
def to_milli(quantity: Quantity) -> int:
    """Return the quantity in thousandths, rounded up as `Quantity.MilliValue` does."""
    return _in_range(math.ceil(parse_quantity(quantity) * 1000), MAX_VALUE, quantity)


@_cached
def to_bytes(quantity: Quantity) -> int:
    """Return the quantity as a whole number, rounded up as `Quantity.Value` does."""
    return _in_range(math.ceil(parse_quantity(quantity)), MAX_VALUE, quantity)


@_cached
def to_thousandths(quantity: Quantity) -> int:
    """Return the quantity in thousandths, rounded up, up to MAX_VALUE whole ones."""
    return _in_range(math.ceil(parse_quantity(quantity) * 1000), MAX_VALUE * 1000, quantity)


def node_amount(resource: str, quantity: Quantity) -> int:
    """Return an amount of a node: CPU in thousandths, any other resource in whole ones; 0 for an
    amount that makes no sense.
    """
    try:
        return (to_milli if resource == "cpu" else to_bytes)(quantity)
    except QuantityError:
        return 0


def _in_range(value: int, limit: int, quantity: Quantity) -> int:
    if not 0 <= value <= limit:
        raise QuantityError(f"{_quoted(quantity)} is out of range (0..{limit})")
    return value


def _quoted(quantity: Quantity) -> str:
    """Return the quantity for a message: quoted, and never long."""
    text = ascii(str(quantity))
    return text if len(text) <= 40 else text[:36] + "...'"


def peak(regular: Iterable[int], inits: Iterable[tuple[int, object]]) -> int:
    """Return the largest amount that the containers of a pod hold at any time, by Kubernetes'
    formula.

    regular: the amount of each container. inits: amount and restartPolicy of each init container;
    init containers run one after the other, beside the sidecars (restartPolicy Always) started
    before.
    """
    sidecars = largest = 0
    for amount, restart_policy in inits:
        largest = max(largest, sidecars + amount)
        if restart_policy == "Always":
            sidecars += amount
    return max(sum(regular) + sidecars, largest)
