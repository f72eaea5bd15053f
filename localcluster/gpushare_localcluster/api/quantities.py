"""Quantities as an API server stores them: `16000` becomes `16k`, `1024Mi` becomes `1Gi`.

Pure. Written from k8s.io/apimachinery/pkg/api/resource, without `gpushare.wire` on purpose: a test
bed with the production reader would repeat its mistakes.
"""

import re
from decimal import ROUND_UP, Context, Decimal

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.status import bad_request

_FORM = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?"
)
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_NANO = Decimal("1e-9")
_DIGITS = 40
_EXACT = Context(prec=4 * _DIGITS)


def parse(text: object) -> tuple[Decimal, str]:
    """Return the value and the suffix of a quantity, given as text or as JSON number.

    Raises StatusError: 400 for a malformed quantity.
    """
    number_text = str(text) if isinstance(text, str | int | float) else ""
    match = _FORM.fullmatch(number_text) if not isinstance(text, bool) else None
    if not match or len(number_text) > _DIGITS:
        raise bad_request(f"quantities must match the regular expression; {text!r} does not")
    suffix = match["suffix"] or ""
    number = Decimal(match["number"])
    if suffix in _BINARY:
        return _EXACT.multiply(number, 1024 ** _BINARY[suffix]), suffix
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    if abs(exponent) > _DIGITS:
        raise bad_request(f"quantity {number_text!r} is out of range")
    return number.scaleb(exponent, _EXACT), suffix


def canonical(text: object) -> str:
    """Return the quantity as the API server writes it: no fraction, the largest suffix that fits.

    Raises StatusError: 400 for a malformed quantity.
    """
    value, suffix = parse(text)
    # Kubernetes rounds away from zero, to billionths.
    value = value.quantize(_NANO, ROUND_UP, _EXACT)
    if suffix in _BINARY and abs(value) >= 1024 and value == value.to_integral_value():
        return _binary(int(value))
    mantissa, exponent = _decimal(value)
    if suffix[:1] in {"e", "E"} and len(suffix) > 1:
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    suffix = next(suffix for suffix, power in _DECIMAL.items() if power == exponent)
    return f"{mantissa}{suffix}"


def _binary(value: int) -> str:
    power = 0
    while power < len(_BINARY) and value % 1024 == 0:
        value //= 1024
        power += 1
    return f"{value}{['', *_BINARY][power]}"


def _decimal(value: Decimal) -> tuple[int, int]:
    """Return a whole mantissa and an exponent that is a multiple of three, as large as possible."""
    if not value:
        return 0, 0
    mantissa, exponent = int(value.scaleb(9, _EXACT)), -9
    while mantissa % 1000 == 0 and exponent < max(_DECIMAL.values()):
        mantissa //= 1000
        exponent += 3
    return mantissa, exponent


def canonical_list(resources: object, field: str) -> Object:
    """Return a resource list (`limits`, `allocatable`) with canonical quantities, empty for null.

    Raises StatusError: 400 for a list or a quantity of the wrong form.
    """
    if resources is None:
        return {}
    if not isinstance(resources, dict):
        raise bad_request(f"{field} must be an object of quantities")
    return {name: canonical(quantity) for name, quantity in resources.items()}
