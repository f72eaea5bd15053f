"""Durations are Go's, and nothing else is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import SettingsError
from gpushare.wire.fields import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("0s", 0),
        ("5s", 5),
        ("+5s", 5),
        ("-1.5h", -5400),
        ("1m30s", 90),
        ("250ms", 0.25),
        ("1h2m3.5s", 3723.5),
        (".5s", 0.5),
        ("5.s", 5),
        ("100us", 1e-4),
        ("100µs", 1e-4),
        ("1ns", 1e-9),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "5 s", " 5s", "5S", "5d", "--5s", "-+5s", "1e3s", ".s", "5s\n", "\u0665s"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="duration"):
        parse_duration(text)


def test_a_text_of_absurd_length_is_refused() -> None:
    with pytest.raises(SettingsError, match="duration"):
        parse_duration("9" * 65 + "s")


@given(st.integers(0, 100), st.integers(0, 59), st.integers(0, 999))
def test_parts_add_up(hours: int, minutes: int, millis: int) -> None:
    expected = hours * 3600 + minutes * 60 + millis / 1000
    assert parse_duration(f"{hours}h{minutes}m{millis}ms") == pytest.approx(expected)
