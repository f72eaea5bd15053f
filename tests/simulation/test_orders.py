"""Every order of a few binds keeps the promises."""

import pytest

from tests.simulation.bind_world import explore
from tests.simulation.orders import THREE, CrashWorld, count_orders

TWO = {"pods": {"a": 3, "b": 3}, "nodes": {"n": (4,)}, "binds": [("a", "n"), ("b", "n")]}


@pytest.mark.timeout(300)
def test_no_order_of_three_binds_over_commits() -> None:
    assert count_orders(THREE.copy()) == 756_756


@pytest.mark.timeout(300)
@pytest.mark.parametrize("extra", [{"relists": 1, "deletes": ["a"]}, {"faults": 1}], ids=repr)
def test_no_order_of_two_binds_with_a_crash_over_commits_or_leaks(extra: dict[str, object]) -> None:
    assert explore(CrashWorld(**TWO, crashes=1, **extra)) > 300  # type: ignore[arg-type]  # a dict
