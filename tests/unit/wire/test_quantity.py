"""Quantities are read as Kubernetes reads them, and nothing else is."""

from contextlib import suppress
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import MAX_UNITS
from gpushare.errors import QuantityError
from gpushare.wire.quantity import (
    MAX_VALUE,
    Quantity,
    parse_quantity,
    to_bytes,
    to_milli,
    to_thousandths,
    to_units,
)

SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
    "e3": Fraction(1000),
    "E-2": Fraction(1, 100),
    "e+1": Fraction(10),
}
NUMBERS = st.decimals(
    min_value=0, max_value=10**9, allow_nan=False, allow_infinity=False, places=3
).map(lambda number: f"{number:f}")


@given(NUMBERS, st.sampled_from(sorted(SUFFIXES)), st.sampled_from(["", "+", "-"]))
def test_every_suffix_scales_exactly(number: str, suffix: str, sign: str) -> None:
    value = Fraction(Decimal(number)) * SUFFIXES[suffix] * (-1 if sign == "-" else 1)
    assert parse_quantity(sign + number + suffix) == value


@given(NUMBERS, st.sampled_from(sorted(SUFFIXES)))
def test_milli_and_bytes_round_up(number: str, suffix: str) -> None:
    value = Fraction(Decimal(number)) * SUFFIXES[suffix]
    for convert, factor in ((to_milli, 1000), (to_bytes, 1)):
        expected = -(-(value * factor).numerator // (value * factor).denominator)
        if expected > MAX_VALUE:
            with pytest.raises(QuantityError):
                convert(number + suffix)
        else:
            assert convert(number + suffix) == expected


@pytest.mark.parametrize(
    ("text", "units"),
    [("0", 0), ("16", 16), ("16k", 16000), ("1Ki", 1024), ("1000m", 1), ("2e3", 2000), (7, 7)],
)
def test_units_are_whole_however_written(text: Quantity, units: int) -> None:
    assert to_units(text) == units


@pytest.mark.parametrize("text", ["1.5", "500m", "1n", "-1", str(MAX_UNITS + 1), "1E", 1.5, -3])
def test_units_that_are_fractions_negative_or_huge_are_refused(text: Quantity) -> None:
    with pytest.raises(QuantityError):
        to_units(text)


@pytest.mark.parametrize(
    ("quantity", "milli", "size"),
    [
        ("250m", 250, 1),
        ("96", 96000, 96),
        ("0.1", 100, 1),
        ("512Mi", 512 * 2**20 * 1000, 512 * 2**20),
        ("1.5Gi", 1500 * 2**30, 3 * 2**29),
        (".5", 500, 1),
        ("1.", 1000, 1),
        ("100n", 1, 1),
        (2, 2000, 2),
        (0.5, 500, 1),
        (1e22 / 1e10, 10**15, 10**12),
    ],
)
def test_cpu_and_memory_as_found_in_real_pods(quantity: Quantity, milli: int, size: int) -> None:
    assert (to_milli(quantity), to_bytes(quantity)) == (milli, size)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", " 1", "1 ", "+", "-", ".", "e3", "1e", "1e1.5", "1K", "1ki", "1mi", "1kk", "1ei",
        "1_000", "0x10", "1,5", "1..5", "--1", "NaN", "inf", "Infinity", "\u0661\u0662", "\uff11",
        "1\n", "\u00b2", "5\u0661Ki", "\u0661m", "m", "Gi", "9" * 65,
        "1e41", "1e-41", "1e999999999999", "1e" + "9" * 60,
        float("nan"), float("inf"), -float("inf"), True, 10**300, None, b"1",
    ],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_cheaply(text: Quantity) -> None:
    for decoded in (parse_quantity, to_units, to_milli, to_bytes):
        with pytest.raises(QuantityError):
            decoded(text)


@given(st.text() | st.integers() | st.floats())
def test_arbitrary_input_never_raises_anything_else(text: Quantity) -> None:
    for decoded in (parse_quantity, to_units, to_milli, to_bytes):
        with suppress(QuantityError):
            decoded(text)


def test_beyond_what_kubernetes_holds_is_refused() -> None:
    assert to_bytes(str(MAX_VALUE)) == MAX_VALUE
    with pytest.raises(QuantityError, match="out of range"):
        to_bytes(str(MAX_VALUE + 1))


@pytest.mark.parametrize(
    ("quantity", "thousandths"),
    [("1", 1000), (3, 3000), ("1500m", 1500), ("1u", 1), ("1Gi", 1000 << 30), ("16E", 16 * 10**21)],
)
def test_thousandths_are_rounded_up_and_reach_as_far_as_whole_ones(
    quantity: Quantity, thousandths: int
) -> None:
    if thousandths > MAX_VALUE * 1000:
        with pytest.raises(QuantityError, match="out of range"):
            to_thousandths(quantity)
    else:
        assert to_thousandths(quantity) == thousandths
