"""Which cards slices offer, which of them may be given out, and by which amounts."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.wire.dra.objects import Range, RequestPolicy
from gpushare.wire.dra.slices import CardDeals, DeviceKey, SliceCard, cards_of
from tests.unit.wire.dra.objects import DRIVER, GIB, Json, device, slice_of

MIB = 2**20


def key(number: int, pool: str = "n1") -> DeviceKey:
    return DeviceKey(DRIVER, pool, f"gpu-{number}")


def test_a_card_is_what_its_slice_says() -> None:
    found = cards_of([slice_of(device(0), device(1, 24))])
    assert set(found) == {key(0), key(1)}
    card = found[key(1)]
    assert (card.node, card.uuid, card.model) == ("n1", "GPU-101", "NVIDIA A100")
    assert (card.memory, card.shared, card.open) == (24 * GIB, True, True)


def test_an_attribute_may_carry_the_name_of_its_driver() -> None:
    named = device(0, attributes={f"{DRIVER}/uuid": {"string": "GPU-x"}})
    assert cards_of([slice_of(named)])[key(0)].uuid == "GPU-x"


@pytest.mark.parametrize(
    "broken",
    [
        device(0, attributes={}),
        device(0, attributes={"uuid": {"int": 3}}),
        device(0, attributes=None),
        device(0, capacity=None),
        device(0, capacity={"memory": {"value": "many"}}),
        device(0, capacity={"memory": {"value": "-1"}}),
        device(0, capacity={"cores": {"value": "4"}}),
        device(0, name=None),
        device(0, capacity={"memory": {"value": "1Gi", "requestPolicy": {"validValues": ["x"]}}}),
        device(
            0, capacity={"memory": {"value": "1Gi", "requestPolicy": {"validRange": {"step": "x"}}}}
        ),
    ],
)
def test_what_says_no_card_or_no_memory_is_left_out_and_hides_no_other(broken: Json) -> None:
    assert set(cards_of([slice_of(broken, device(1))])) == {key(1)}


def test_devices_of_several_nodes_are_left_out() -> None:
    assert cards_of([slice_of(device(0), node="")]) == {}


def opened(found: Mapping[DeviceKey, SliceCard]) -> set[DeviceKey]:
    return {name for name, card in found.items() if card.open}


@pytest.mark.parametrize(
    ("changes", "is_open"),
    [
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, False),
        ({"taints": [{"key": "k", "effect": "NoExecute"}]}, False),
        ({"taints": [{"key": "k", "effect": "None"}]}, True),
        ({"taints": [{"key": "k", "effect": "Unheard"}]}, False),
        ({"consumesCounters": [{"counterSet": "c"}]}, False),
        ({"bindingConditions": ["ready"]}, False),
        ({"taints": [], "consumesCounters": [], "bindingConditions": []}, True),
    ],
)
def test_a_card_that_somebody_keeps_off_stays_known_and_is_not_open(
    changes: Json, is_open: bool
) -> None:
    found = cards_of([slice_of(device(0, **changes))])
    assert found[key(0)].open is is_open


def test_only_the_newest_generation_counts_and_only_whole_pools_are_open() -> None:
    old = slice_of(device(0), device(1), generation=1)
    first = slice_of(device(0), generation=2, resourceSliceCount=2)
    second = slice_of(device(2), generation=2, resourceSliceCount=2)
    partly = cards_of([old, first])
    assert set(partly) == {key(0)}
    assert opened(partly) == set()
    assert opened(cards_of([second, old, first])) == {key(0), key(2)}
    assert opened(cards_of([second, first, first])) == set()


def test_two_devices_that_say_they_are_one_card_are_not_open() -> None:
    twice = slice_of(device(0, attributes={"uuid": {"string": "GPU-101"}}), device(1), device(2))
    assert opened(cards_of([twice])) == {key(2)}


def test_a_node_speaks_for_itself_alone() -> None:
    ours = slice_of(device(0), device(1))
    claims_ours = slice_of(device(0, 8), device(5), node="n2", name="n1", generation=9)
    same_card = slice_of(device(7, attributes={"uuid": {"string": "GPU-100"}}), node="n3")
    found = cards_of([claims_ours, ours, same_card])
    assert opened(found) == {key(0), key(1), key(7)._replace(pool="n3")}
    assert {card.node for at, card in found.items() if at.pool == "n1"} == {"n1"}
    assert found[key(0)].memory == 80 * GIB


def test_a_pool_of_two_nodes_that_is_called_like_neither_is_not_open() -> None:
    both = [slice_of(device(0), node=node, name="pool") for node in ("n1", "n2")]
    assert opened(cards_of(both)) == set()
    assert len(opened(cards_of(both[:1]))) == 1


def test_two_devices_of_one_name_are_not_open() -> None:
    renamed = device(1, name="gpu-0")
    assert opened(cards_of([slice_of(device(0), renamed, device(2))])) == {key(2)}
    assert opened(cards_of([slice_of(device(0, capacity=None), device(0))])) == set()


def policy(**said: object) -> SliceCard:
    return cards_of(
        [slice_of(device(0, capacity={"memory": {"value": "16Gi", "requestPolicy": said}}))]
    )[key(0)]


@pytest.mark.parametrize(
    ("card", "asked", "consumed"),
    [
        (policy(validRange={"min": "1Gi", "step": "1Gi"}), GIB * 3 // 2, 2 * GIB),
        (policy(validRange={"min": "1Gi", "step": "1Gi"}), 1, GIB),
        (policy(validRange={"min": "1Gi", "step": "2Gi"}), 2 * GIB, 3 * GIB),
        (policy(validRange={"min": "1Gi"}), 5, GIB),
        (policy(validRange={"step": "3Gi"}), 16 * GIB, None),
        (policy(validRange={"min": "1Gi", "max": "4Gi", "step": "1Gi"}), 4 * GIB, 4 * GIB),
        (policy(validRange={"min": "1Gi", "max": "4Gi", "step": "1Gi"}), 4 * GIB + 1, None),
        (policy(validValues=["4Gi", "8Gi"]), 5 * GIB, 8 * GIB),
        (policy(validValues=["4Gi", "8Gi"]), 9 * GIB, None),
        (policy(), 3, 3),
        (policy(), 16 * GIB + 1, None),
    ],
)
def test_amounts_are_rounded_up_as_the_driver_deals_them_out(
    card: SliceCard, asked: int, consumed: int | None
) -> None:
    assert card.consumed(asked) == consumed


AMOUNT = st.integers(0, 40)
POLICIES = (
    st.none()
    | st.builds(
        lambda least, step, most: RequestPolicy(
            valid_range=Range(min=least, step=step or None, max=most)
        ),
        st.none() | AMOUNT,
        AMOUNT,
        st.none() | AMOUNT,
    )
    | st.builds(
        lambda values: RequestPolicy(valid_values=tuple(values)),
        st.lists(st.integers(1, 40), min_size=1, max_size=4),
    )
)


@given(
    st.builds(
        lambda memory, policy, shared: CardDeals.by(memory, policy, shared=shared),
        st.integers(1, 40),
        POLICIES,
        st.booleans(),
    ),
    AMOUNT,
    AMOUNT,
)
def test_no_more_takes_an_amount_than_what_may_be_asked_for_it(
    card: CardDeals, asked: int, amount: int
) -> None:
    consumed = card.consumed(asked + 1)
    assert (consumed is not None and consumed <= amount) == (asked + 1 <= card.could_ask(amount))


def test_a_card_that_is_not_shared_is_taken_whole() -> None:
    card = cards_of([slice_of(device(0, 16, allowMultipleAllocations=None))])[key(0)]
    assert card.consumed(1) == 16 * GIB
    assert card.consumed(16 * GIB + 1) is None


def nvidia(minor: int, **sharing: object) -> Json:
    """A GPU as NVIDIA's driver offers it; sharing: what its feature ConsumableShares adds."""
    return {
        "name": f"gpu-{minor}",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-{7 - minor}"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Hopper"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "595.91.7"},
            "cudaDriverVersion": {"version": "13.2.0"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:18:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
        },
        "capacity": {"memory": {"value": "81559Mi"}},
        **sharing,
    }


def dealt(default: str, least: str, **more: Json) -> Json:
    """What ConsumableShares says of a GPU's memory, and more capacities."""
    bounds = {"min": least, "max": "81559Mi", "step": "1Mi"}
    memory = {"value": "81559Mi", "requestPolicy": {"default": default, "validRange": bounds}}
    return {"allowMultipleAllocations": True, "capacity": {"memory": memory, **more}}


def test_a_gpu_of_nvidias_driver_is_dealt_out_by_the_mebibyte() -> None:
    by_memory = dealt("81559Mi", "1Mi")
    found = cards_of([slice_of(nvidia(0, **by_memory), nvidia(1, **by_memory))])
    card = found[key(1)]
    # The name is not the GPU.
    assert (card.uuid, card.model) == ("GPU-6", "NVIDIA H100 80GB HBM3")
    assert (card.memory, card.shared, card.open) == (81559 * MIB, True, True)
    assert [card.consumed(asked) for asked in (1, MIB, MIB + 1, 10 * GIB)] == [
        MIB,
        MIB,
        2 * MIB,
        10 * GIB,
    ]
    assert card.consumed(81559 * MIB) == 81559 * MIB
    assert card.consumed(81559 * MIB + 1) is None


def test_without_consumable_shares_a_gpu_is_taken_whole() -> None:
    card = cards_of([slice_of(nvidia(0))])[key(0)]
    assert (card.shared, card.consumed(1)) == (False, 81559 * MIB)


def test_a_gpu_whose_sharers_are_counted_too_is_not_open() -> None:
    by_count = {"default": "1", "validRange": {"min": "1", "max": "4", "step": "1"}}
    shares = {"value": "4", "requestPolicy": by_count}
    card = cards_of([slice_of(nvidia(0, **dealt("0", "0", shares=shares)))])[key(0)]
    assert not card.open
    # Of a capacity without a policy each claim would take all.
    card = cards_of([slice_of(nvidia(0, **dealt("0", "0", cores={"value": "132"})))])[key(0)]
    assert not card.open


def test_a_gpu_that_is_shared_without_a_limit_is_dealt_out_by_memory_all_the_same() -> None:
    card = cards_of([slice_of(nvidia(0, **dealt("0", "0")))])[key(0)]
    assert (card.open, card.consumed(MIB + 1)) == (True, 2 * MIB)
