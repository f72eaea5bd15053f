"""Quantities are stored as by a real API server."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_localcluster.api.quantities import canonical, parse
from gpushare_localcluster.api.status import StatusError


@pytest.mark.parametrize(
    ("quantity", "stored"),
    [
        ("3", "3"),
        (3, "3"),
        (0.5, "500m"),
        ("0", "0"),
        ("0Gi", "0"),
        ("16000", "16k"),
        ("16384", "16384"),
        ("1024Mi", "1Gi"),
        ("1000Ki", "1000Ki"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("0.1n", "1n"),
        ("1e3", "1e3"),
        ("12E", "12E"),
        ("-1000", "-1k"),
        (".5", "500m"),
        ("1.", "1"),
    ],
)
def test_quantities_are_stored_canonically(quantity: object, stored: str) -> None:
    assert canonical(quantity) == stored


@pytest.mark.parametrize(
    "quantity", ["", "x", "1 ", "1kk", "1KI", "Gi", "NaN", "1e999", True, None, [], "1" * 50]
)
def test_what_is_no_quantity_is_refused(quantity: object) -> None:
    with pytest.raises(StatusError) as error:
        canonical(quantity)
    assert error.value.code == 400


@given(
    st.decimals(min_value=-(10**12), max_value=10**12, places=3),
    st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi", "e3", "E2"]),
)
def test_the_canonical_form_means_the_same_and_is_stable(number: Decimal, suffix: str) -> None:
    quantity = f"{number:f}{suffix}"
    stored = canonical(quantity)
    assert canonical(stored) == stored
    assert parse(stored)[0] == parse(quantity)[0]
