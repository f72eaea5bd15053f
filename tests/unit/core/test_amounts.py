"""The table of device amounts, and the rule that says how much of an amount a device is charged."""

from dataclasses import replace

import pytest

from gpushare.core.amounts import (
    COMPUTE,
    DEVICE_AMOUNTS,
    MEMORY,
    PERCENT_AMOUNTS,
    beside_memory,
    by_name,
    charged_units,
    compute,
    memory_text,
    of_one_device,
    percents_of,
    percents_text,
)
from gpushare.core.model import Reason, Request, Shares


def test_memory_is_the_first_row_and_all_others_are_in_percent() -> None:
    assert DEVICE_AMOUNTS[0] is MEMORY
    assert DEVICE_AMOUNTS[1:] == PERCENT_AMOUNTS
    assert all(amount.whole == 100 for amount in PERCENT_AMOUNTS)
    assert len({amount.name for amount in DEVICE_AMOUNTS}) == len(DEVICE_AMOUNTS)


def test_each_row_has_its_reason_which_the_end_of_pods_may_change() -> None:
    for amount in DEVICE_AMOUNTS:
        assert Reason(amount.reason).resolvable


def test_percents_of_zeros_are_none() -> None:
    assert percents_of([0] * len(PERCENT_AMOUNTS)) == ()
    assert compute(0) == ()
    assert by_name(compute(30)) == {"cores": 30}
    assert by_name(()) == {}


def test_a_pod_without_compute_needs_some_of_a_device_all_the_same() -> None:
    assert [COMPUTE.needed(percent) for percent in (0, 1, 100)] == [1, 1, 100]


def test_percents_in_words() -> None:
    assert percents_text(compute(20), "its ") == "20 % of its cores"
    assert percents_text(()) == ""


def test_no_device_has_more_than_the_whole() -> None:
    assert of_one_device(compute(250)) == compute(100)


ONE = ((0, 10),)
"""One container with ten units."""


@pytest.mark.parametrize(
    ("request_", "shares", "charged"),
    [
        pytest.param(
            Request(10, 1, containers=ONE, percents=compute(40), percent_containers=(((0, 40),),)),
            ((0, 10),),
            [40],
            id="one device",
        ),
        pytest.param(
            Request(5, 2, containers=ONE, percents=compute(20), percent_containers=(((0, 40),),)),
            ((0, 5), (1, 5)),
            [20, 20],
            id="two devices",
        ),
        pytest.param(
            # The annotation with the number of devices cannot be read any more: one device.
            Request(10, 1, containers=ONE, percents=compute(40), percent_containers=(((0, 40),),)),
            ((0, 5), (1, 5)),
            [20, 20],
            id="two devices, and a count that cannot be read",
        ),
        pytest.param(
            Request(
                10, 1, containers=ONE, percents=compute(100), percent_containers=(((0, 200),),)
            ),
            ((0, 5), (1, 5)),
            [100, 100],
            id="two whole devices, and a count that cannot be read",
        ),
        pytest.param(
            Request(10, 1, containers=ONE, percents=compute(40), percent_containers=(((0, 40),),)),
            ((0, 7), (1, 3)),
            [28, 12],
            id="unlike parts",
        ),
        pytest.param(
            Request(10, 1, containers=ONE, percents=compute(25), percent_containers=(((0, 25),),)),
            ((0, 5), (1, 5)),
            [13, 13],
            id="rounded up",
        ),
        pytest.param(
            # It may be on either device, with everything.
            Request(10, 1, containers=ONE, percents=compute(40), percent_containers=(((0, 40),),)),
            ((0, 10), (1, 10)),
            [40, 40],
            id="either of two devices",
        ),
        pytest.param(
            # The first container has all compute, and nobody knows on which device that one is.
            Request(
                10,
                1,
                containers=((0, 5), (1, 5)),
                percents=compute(40),
                percent_containers=(((0, 40),),),
            ),
            ((0, 5), (1, 5)),
            [40, 40],
            id="containers with unlike parts",
        ),
        pytest.param(
            # The compute cannot be read, so it may be all of each device.
            Request(10, 1, containers=ONE, percents=compute(100)),
            ((0, 5), (1, 5)),
            [100, 100],
            id="unknown containers",
        ),
        pytest.param(
            Request(
                7,
                2,
                containers=((0, 7), (1, 3)),
                split=(7, 3),
                percents=compute(30),
                percent_containers=(((0, 30), (1, 30)),),
            ),
            ((0, 7), (1, 3)),
            [30, 30],
            id="split by container",
        ),
        pytest.param(
            Request(
                7,
                2,
                containers=((0, 7), (1, 3)),
                split=(7, 3),
                percents=compute(30),
                percent_containers=(((0, 30), (1, 30)),),
            ),
            ((0, 10),),
            [60],
            id="split, and both parts on one device",
        ),
    ],
)
def test_percents_are_where_the_memory_is(
    request_: Request, shares: Shares, charged: list[int]
) -> None:
    of_containers = request_.percent_containers
    others = ((),) * (len(PERCENT_AMOUNTS) - 1) if of_containers else ()
    whole = replace(request_, percent_containers=(*of_containers, *others))
    assert whole.percents_on(shares) == tuple(map(compute, charged))


def test_a_pod_without_percents_has_none_on_any_device() -> None:
    assert Request(5, 2).percents_on(((0, 5), (1, 5))) == ((), ())


def test_a_pod_on_unknown_devices_may_have_everything_on_each() -> None:
    assert Request(5, 2, percents=compute(30)).all_percents == compute(60)
    assert Request(5, 3, percents=compute(60)).all_percents == compute(100)


@pytest.mark.parametrize(
    ("units", "percent", "capacity", "charged"),
    [
        (4, 0, 16, 4),
        (1, 25, 16, 4),
        (1, 25, 24, 6),
        (1, 25, 15, 4),
        (8, 25, 16, 8),
        (1, 100, 80, 80),
    ],
)
def test_a_percentage_of_memory_is_charged_in_units_of_the_device(
    units: int, percent: int, capacity: int, charged: int
) -> None:
    assert charged_units(units, percents_of((0, percent)), capacity) == charged


def test_a_percentage_of_memory_in_words() -> None:
    percents = percents_of((20, 25))
    assert percents_text(percents, "its ") == "20 % of its cores"
    assert memory_text("1 GiB", 1, percents) == "25 % of the memory"
    assert memory_text("4 GiB", 4, percents) == "25 % of the memory, at least 4 GiB"
    assert memory_text("1 GiB", 1, beside_memory(percents)) == "1 GiB"
    assert beside_memory(percents_of((0, 25))) == beside_memory(()) == ()
