"""While the kubelet admits one pod after the other, each container is told from all others;
where it cannot be, nothing is decided.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.device_plugin.cards import (
    DetectedGpu,
    Fault,
    Problem,
    device_id,
    make_cards,
    uuid_of,
)
from gpushare.device_plugin.identity import (
    ContainerCandidate,
    Decided,
    Grant,
    PodKey,
    Undecided,
    candidates,
    choose_ids,
    decide,
    granted,
    unlisted,
)
from gpushare.device_plugin.node_pod import GpuContainer, NodePod
from tests.unit.device_plugin.pods import cards, gpu_container, placed

NODE = cards(16, 16, 16, 16)

gpu_containers = st.builds(gpu_container, st.integers(1, 3), st.integers(0, 3), init=st.booleans())
pods = st.lists(gpu_containers, min_size=1, max_size=4).map(
    # Init containers come first.
    lambda each: placed(*sorted(each, key=lambda one: not one.init))
)


@given(st.lists(pods, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_pods_that_are_admitted_one_by_one_are_told_apart(
    bound: list[NodePod], dice: random.Random
) -> None:
    known = {pod.key: pod for pod in bound}
    order = list(bound)
    dice.shuffle(order)
    listed: dict[PodKey, dict[str, frozenset[str]]] = {}
    answered: set[tuple[str, str]] = set()
    for pod in order:
        listed[pod.key] = {each.name: frozenset() for each in pod.gpu_containers if not each.init}
        for asked in pod.gpu_containers:
            found = candidates(listed, known, answered, (), asked.units)
            decision = decide(found, asked.units, NODE)
            assert isinstance(decision, Decided)
            assert decision.owners == (ContainerCandidate(pod, asked),)
            assert [(card.index, units) for card, units in decision.grant.shares] == [*asked.shares]
            answered.add((pod.ref.uid, asked.name))
            if not asked.init:
                listed[pod.key][asked.name] = frozenset([f"id of {asked.name}"])


@given(st.lists(pods, min_size=1, max_size=6), st.integers(1, 3))
def test_what_is_decided_is_right_for_each_that_may_be_meant(
    waiting: list[NodePod], units: int
) -> None:
    listed = {
        pod.key: {each.name: frozenset[str]() for each in pod.gpu_containers} for pod in waiting
    }
    known = {pod.key: pod for pod in waiting}
    found = candidates(listed, known, set(), (), units)
    assert {each.pod.key for each in found} == {
        pod.key for pod in waiting if pod.gpu_containers[0].units == units
    }
    decision = decide(found, units, NODE)
    grants = {granted(each, NODE) for each in found}
    if len(grants) == 1:
        assert isinstance(decision, Decided)
        assert {decision.grant} == grants
    else:
        assert isinstance(decision, Undecided)
        assert all(str(each.pod.ref) in decision.details for each in found[:8])


def waiting_pair() -> tuple[NodePod, NodePod]:
    return placed(gpu_container(4, 0)), placed(gpu_container(4, 1))


def find(*waiting: NodePod, refused: Sequence[str] = ()) -> Sequence[ContainerCandidate]:
    listed = {
        pod.key: {each.name: frozenset[str]() for each in pod.gpu_containers} for pod in waiting
    }
    return candidates(listed, {pod.key: pod for pod in waiting}, set(), refused, 4)


@pytest.mark.parametrize(("ran", "to_go"), [(True, False), (False, True)])
def test_a_new_pod_comes_before_one_that_ran_or_is_to_go(ran: bool, to_go: bool) -> None:
    new = placed(gpu_container(4, 0))
    old = placed(gpu_container(4, 1), started=ran, terminating=to_go)
    assert [each.pod for each in find(old, new)] == [new]
    assert [each.pod for each in find(old)] == [old]


def test_a_pod_that_had_an_error_counts_where_there_is_no_other() -> None:
    one, other = waiting_pair()
    assert [each.pod for each in find(one, other, refused=[one.ref.uid])] == [other]
    assert [each.pod for each in find(one, refused=[one.ref.uid])] == [one]


def test_a_pod_that_has_ended_is_never_meant() -> None:
    assert find(placed(gpu_container(4, 0), ended=True)) == ()


def test_where_the_kubelet_shows_nothing_equal_pods_of_one_card_are_served() -> None:
    equal = [placed(gpu_container(4, 2)), placed(gpu_container(4, 2))]
    decision = decide(unlisted(equal, set(), (), 4), 4, NODE)
    assert isinstance(decision, Decided)
    assert decision.grant.uuids == {"GPU-2"}
    assert len(decision.owners) == 2
    assert isinstance(decide(unlisted(waiting_pair(), set(), (), 4), 4, NODE), Undecided)


def test_pods_of_other_totals_are_not_equal() -> None:
    one, two = placed(gpu_container(4, 0)), placed(gpu_container(4, 0), gpu_container(2, 0))
    assert isinstance(decide(find(one, two), 4, NODE), Undecided)


def test_an_unknown_pod_is_said_to_be_unknown() -> None:
    decision = decide((), 4, NODE)
    assert isinstance(decision, Undecided)
    assert "no pod of this node is known that waits for 4 units" in decision.reason


def test_a_device_that_is_not_there_or_unhealthy_is_named() -> None:
    gone = placed(gpu_container(4, 0), uuids={0: "GPU-gone"})
    decision = decide([ContainerCandidate(gone, gone.gpu_containers[0])], 4, NODE)
    assert isinstance(decision, Undecided)
    assert "its device GPU-gone is not on this node" in decision.reason
    assert not decision.more_may_help
    lost = DetectedGpu("GPU-0", 0, 16384, problem=Problem(Fault.LOST, "is lost"))
    sick = make_cards([lost], "GiB", 0)
    there = placed(gpu_container(4, 0))
    decision = decide([ContainerCandidate(there, there.gpu_containers[0])], 4, sick)
    assert isinstance(decision, Undecided)
    assert "its device GPU-0 (index 0) is unhealthy: is lost" in decision.reason
    assert isinstance(
        granted(ContainerCandidate(there, there.gpu_containers[0]), sick, healthy=False), Grant
    )


def test_a_uuid_counts_and_not_the_index_where_cards_have_moved() -> None:
    moved = placed(gpu_container(4, 0), uuids={0: "GPU-3"})
    grant = granted(ContainerCandidate(moved, moved.gpu_containers[0]), NODE)
    assert isinstance(grant, Grant)
    assert grant.uuids == {"GPU-3"}


def test_of_containers_that_cannot_be_told_apart_none_has_the_others_compute_or_card() -> None:
    pods = [
        placed(replace(gpu_container(4, 1), cores=cores), whole_cards=whole)
        for cores, whole in ((100, True), (30, False))
    ]
    found = [ContainerCandidate(pod, pod.gpu_containers[0]) for pod in pods]
    alone = decide(found[:1], 4, NODE)
    assert isinstance(alone, Decided)
    assert (alone.grant.cores, alone.grant.limits) == (100, ((NODE.all[1], 16),))
    both = decide(found, 4, NODE)
    assert isinstance(both, Decided)
    assert (both.grant.cores, both.grant.limits) == (0, ((NODE.all[1], 4),))


# -- ids ------------------------------------------------------------------------------------------


def ids(card: int, *numbers: int) -> list[str]:
    return [device_id(f"GPU-{card}", number) for number in numbers]


def grant(*shares: tuple[int, int]) -> Grant:
    pairs = tuple((NODE.all[card], units) for card, units in shares)
    return Grant(pairs, sum(units for _, units in shares))


id_sets = st.sets(st.sampled_from([each for card in range(4) for each in ids(card, *range(16))]))


@given(
    id_sets,
    st.dictionaries(st.integers(0, 3), st.integers(1, 6), min_size=1, max_size=3),
    st.data(),
)
def test_ids_are_those_asked_for_and_of_the_grants_cards_as_far_as_there_are(
    available: set[str], wanted: dict[int, int], data: st.DataObject
) -> None:
    given_out = grant(*sorted(wanted.items()))
    if len(available) < given_out.units:
        return
    must = data.draw(st.sets(st.sampled_from(sorted(available)), max_size=given_out.units))
    in_use = data.draw(st.sets(st.sampled_from(sorted(available))))
    chosen, own = choose_ids(given_out, available, must, in_use)
    assert len(chosen) == len(set(chosen)) == given_out.units
    assert must <= set(chosen) <= available
    assert own == ({uuid_of(each) for each in chosen} <= given_out.uuids)
    if not must:
        for card, units in given_out.shares:
            there = [each for each in available if uuid_of(each) == card.uuid]
            taken = [each for each in chosen if uuid_of(each) == card.uuid]
            assert len(taken) >= min(units, len(there))


def test_ids_that_another_has_are_taken_last() -> None:
    chosen, own = choose_ids(grant((0, 2)), ids(0, 0, 1, 2), [], set(ids(0, 0)))
    assert (sorted(chosen), own) == (ids(0, 1, 2), True)


def test_where_a_cards_ids_are_in_other_hands_others_are_taken() -> None:
    chosen, own = choose_ids(grant((0, 2)), [*ids(0, 5), *ids(1, 7, 3)], [], ())
    assert (sorted(chosen), own) == ([*ids(0, 5), *ids(1, 3)], False)


def test_units_of_an_init_container_are_kept() -> None:
    chosen, own = choose_ids(grant((0, 3)), ids(0, 0, 1, 8, 9), ids(0, 8, 9), ())
    assert (set(chosen), own) == ({*ids(0, 8, 9), *ids(0, 0)}, True)


def test_containers_without_a_name_of_a_part_are_no_candidates() -> None:
    assert find(NodePod(placed().ref, ())) == ()
    assert GpuContainer("x", 1).shares == ()
