"""A limit above the request changes no charge; its sums by device are told beside the charges."""

from dataclasses import replace

import pytest

from gpushare.core.model import PodRef, Request, Shares
from gpushare.core.states.entry import Entry, memory_limits

POD = Request(4, 2, memory_limit=12)
"""Of two devices 4 units of each, and up to 6."""


def entry(request: Request, placement: Shares | None) -> Entry:
    return Entry(PodRef("ns", "p", "u"), request, "n", placement)


@pytest.mark.parametrize(
    ("request_", "shares", "limits"),
    [
        (POD, ((0, 4), (1, 4)), ((0, 6), (1, 6))),
        (POD, ((2, 4), (3, 4)), ((2, 5), (3, 4))),  # the device ends there, or is not there
        (replace(POD, memory_limit=9), ((0, 4), (1, 4)), ((0, 4), (1, 4))),  # rounded down
        (Request(6, 2, split=(6, 2), memory_limit=16), ((0, 6), (1, 2)), ((0, 12), (1, 4))),
        (replace(POD, memory_limit=0), ((0, 4), (1, 4)), ((0, 4), (1, 4))),
    ],
)
def test_the_limit_is_distributed_like_the_units(
    request_: Request, shares: Shares, limits: Shares
) -> None:
    capacity = (16, 16, 5)
    assert request_.limits_on(shares, capacity) == limits
    assert request_.charges_on(shares, capacity) == shares


def test_the_limits_of_a_device_are_those_of_its_pods_together() -> None:
    entries = [entry(POD, ((0, 4), (1, 4))), entry(Request(3, 1), ((1, 3),))]
    assert memory_limits(entries, (4, 7), (16, 16)) == (6, 9)
    assert memory_limits(entries[1:], (0, 3), (16, 16)) == ()


def test_a_pod_on_unknown_devices_may_use_its_limit_on_each() -> None:
    assert memory_limits([entry(POD, None)], (8, 8), (16, 10)) == (12, 10)


def test_a_pod_on_a_device_that_is_not_there_may_use_nothing_of_the_others() -> None:
    assert memory_limits([entry(POD, ((0, 4), (7, 4)))], (4, 0), (16, 16)) == (6, 0)


def test_scores_do_not_depend_on_the_limit() -> None:
    assert POD.kind == replace(POD, memory_limit=0).kind
