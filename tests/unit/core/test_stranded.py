"""The stranded memory, and the size that decides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.stranded import stranded_units, typical_units


@pytest.mark.parametrize(
    ("sizes", "typical"),
    [([], 0), ([0, 0], 0), ([4], 4), ([4, 8, 8], 8), ([8, 4], 4), ([16, 4, 16, 4, 1], 4)],
)
def test_the_typical_size_is_the_commonest_and_of_equals_the_smaller(
    sizes: list[int], typical: int
) -> None:
    assert typical_units(sizes) == typical


@pytest.mark.parametrize(
    ("free", "typical", "stranded"), [(3, 4, 3), (4, 4, 0), (5, 4, 0), (0, 4, 0), (3, 0, 0)]
)
def test_a_device_is_stranded_whole_or_not_at_all(free: int, typical: int, stranded: int) -> None:
    assert stranded_units(free, typical) == stranded


@given(st.lists(st.integers(0, 50)), st.integers(0, 100))
def test_stranded_is_never_more_than_free_and_never_where_the_typical_fits(
    sizes: list[int], free: int
) -> None:
    typical = typical_units(sizes)
    assert stranded_units(free, typical) in (0, free)
    assert free < typical or stranded_units(free, typical) == 0
