"""Which addresses reach this machine alone."""

import pytest

from gpushare.addresses import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_an_address_of_this_machine_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "::", "10.0.0.1", "localhost.example.org", "LOCALHOST", "[::1]", "127"]
)
def test_any_other_address_or_name_is_not(host: str) -> None:
    assert not is_loopback(host)
