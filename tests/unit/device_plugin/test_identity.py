"""While the kubelet admits one pod after the other, each container is told from all others;
where it cannot be, nothing is decided.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.device_plugin.cards import DetectedGpu, Fault, Problem, device_id, make_cards, uuid_of
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
    bound_pod: list[NodePod], dice: random.Random
) -> None:
    pods_by_key = {pod.key: pod for pod in bound_pod}
    order = list(bound_pod)
    dice.shuffle(order)
    pod_devices: dict[PodKey, dict[str, frozenset[str]]] = {}
    answered: set[tuple[str, str]] = set()
    for pod in order:
        pod_devices[pod.key] = {
            item.name: frozenset() for item in pod.gpu_containers if not item.init
        }
        for request in pod.gpu_containers:
            found = candidates(pod_devices, pods_by_key, answered, (), request.units)
            decision = decide(found, request.units, NODE)
            assert isinstance(decision, Decided)
            assert decision.owners == (ContainerCandidate(pod, request),)
            assert [(card.index, units) for card, units in decision.grant.shares] == [
                *request.shares
            ]
            answered.add((pod.ref.uid, request.name))
            if not request.init:
                pod_devices[pod.key][request.name] = frozenset([f"id of {request.name}"])


@given(st.lists(pods, min_size=1, max_size=6), st.integers(1, 3))
def test_what_is_decided_is_right_for_each_that_may_be_meant(
    pending_pods: list[NodePod], units: int
) -> None:
    pod_devices = {
        pod.key: {item.name: frozenset[str]() for item in pod.gpu_containers}
        for pod in pending_pods
    }
    pods_by_key = {pod.key: pod for pod in pending_pods}
    found = candidates(pod_devices, pods_by_key, set(), (), units)
    assert {item.pod.key for item in found} == {
        pod.key for pod in pending_pods if pod.gpu_containers[0].units == units
    }
    decision = decide(found, units, NODE)
    grants = {granted(item, NODE) for item in found}
    if len(grants) == 1:
        assert isinstance(decision, Decided)
        assert {decision.grant} == grants
    else:
        assert isinstance(decision, Undecided)
        assert all(str(item.pod.ref) in decision.details for item in found[:8])


def waiting_pair() -> tuple[NodePod, NodePod]:
    return placed(gpu_container(4, 0)), placed(gpu_container(4, 1))


def find(*pending_pods: NodePod, error: Sequence[str] = ()) -> Sequence[ContainerCandidate]:
    pod_devices = {
        pod.key: {item.name: frozenset[str]() for item in pod.gpu_containers}
        for pod in pending_pods
    }
    return candidates(pod_devices, {pod.key: pod for pod in pending_pods}, set(), error, 4)


@pytest.mark.parametrize(("ran", "to_go"), [(True, False), (False, True)])
def test_a_new_pod_comes_before_one_that_ran_or_is_to_go(ran: bool, to_go: bool) -> None:
    new = placed(gpu_container(4, 0))
    old = placed(gpu_container(4, 1), started=ran, terminating=to_go)
    assert [item.pod for item in find(old, new)] == [new]
    assert [item.pod for item in find(old)] == [old]


def test_a_pod_that_had_an_error_counts_where_there_is_no_other() -> None:
    one, second = waiting_pair()
    assert [item.pod for item in find(one, second, error=[one.ref.uid])] == [second]
    assert [item.pod for item in find(one, error=[one.ref.uid])] == [one]


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
    deleted = placed(gpu_container(4, 0), uuids={0: "GPU-gone"})
    decision = decide([ContainerCandidate(deleted, deleted.gpu_containers[0])], 4, NODE)
    assert isinstance(decision, Undecided)
    assert "its device GPU-gone is not on this node" in decision.reason
    assert not decision.more_may_help
    lost = DetectedGpu("GPU-0", 0, 16384, problem=Problem(Fault.LOST, "is lost"))
    sick = make_cards([lost], "GiB", 0)
    present = placed(gpu_container(4, 0))
    decision = decide([ContainerCandidate(present, present.gpu_containers[0])], 4, sick)
    assert isinstance(decision, Undecided)
    assert "its device GPU-0 (index 0) is unhealthy: is lost" in decision.reason
    assert isinstance(
        granted(ContainerCandidate(present, present.gpu_containers[0]), sick, healthy=False), Grant
    )


def test_a_uuid_counts_and_not_the_index_where_cards_have_moved() -> None:
    moved_card = placed(gpu_container(4, 0), uuids={0: "GPU-3"})
    grant = granted(ContainerCandidate(moved_card, moved_card.gpu_containers[0]), NODE)
    assert isinstance(grant, Grant)
    assert grant.uuids == {"GPU-3"}


def test_of_containers_that_cannot_be_told_apart_none_has_the_others_limit() -> None:
    pods = [placed(gpu_container(4, 1), memory_limit=limit) for limit in (8, 0)]
    candidates = [ContainerCandidate(pod, pod.gpu_containers[0]) for pod in pods]
    for chosen, units in ((candidates[:1], 8), (candidates, 4)):
        decision = decide(chosen, 4, NODE)
        assert isinstance(decision, Decided)
        assert decision.grant.limits == ((NODE.all[1], units),)


def test_of_containers_that_cannot_be_told_apart_none_has_the_others_compute_or_card() -> None:
    pods = [
        placed(replace(gpu_container(4, 1), cores=cores), whole_cards=whole)
        for cores, whole in ((100, True), (30, False))
    ]
    decision = [ContainerCandidate(pod, pod.gpu_containers[0]) for pod in pods]
    alone = decide(decision[:1], 4, NODE)
    assert isinstance(alone, Decided)
    assert (alone.grant.cores, alone.grant.limits) == (100, ((NODE.all[1], 16),))
    both = decide(decision, 4, NODE)
    assert isinstance(both, Decided)
    assert (both.grant.cores, both.grant.limits) == (0, ((NODE.all[1], 4),))


@pytest.mark.parametrize(
    ("unlike", "cores", "units"),
    [({"cores": 50}, 0, 8), ({"memory_limit": 12}, 30, 8), ({"memory_limit": 0}, 30, 4)],
)
def test_containers_that_cannot_be_told_apart_keep_alike_compute_and_the_smallest_limit(
    unlike: dict[str, int], cores: int, units: int
) -> None:
    amounts = ({"cores": 30, "memory_limit": 8}, {"cores": 30, "memory_limit": 8} | unlike)
    pods = [
        placed(
            replace(gpu_container(4, 1), cores=amount["cores"]), memory_limit=amount["memory_limit"]
        )
        for amount in amounts
    ]
    decision = decide([ContainerCandidate(pod, pod.gpu_containers[0]) for pod in pods], 4, NODE)
    assert isinstance(decision, Decided)
    assert (decision.grant.cores, decision.grant.limits) == (cores, ((NODE.all[1], units),))


def test_containers_with_unlike_percentages_of_memory_wait_until_they_are_told_apart() -> None:
    pods = [placed(replace(gpu_container(1, 1), share=share)) for share in (25, 50)]
    candidates = [ContainerCandidate(pod, pod.gpu_containers[0]) for pod in pods]
    alone = decide(candidates[:1], 1, NODE)
    assert isinstance(alone, Decided)
    assert alone.grant.limits == ((NODE.all[1], 4),)
    both = decide(candidates, 1, NODE)
    assert isinstance(both, Undecided)
    assert "are to have different devices or percentages of memory" in both.reason
    assert "(1 units of GPU-1, 25 % of memory)" in both.details


# -- ids ------------------------------------------------------------------------------------------


def ids(card: int, *numbers: int) -> list[str]:
    return [device_id(f"GPU-{card}", number) for number in numbers]


def grant(*shares: tuple[int, int]) -> Grant:
    pairs = tuple((NODE.all[card], units) for card, units in shares)
    return Grant(pairs, sum(units for _, units in shares))


id_sets = st.sets(st.sampled_from([item for card in range(4) for item in ids(card, *range(16))]))


@given(
    id_sets,
    st.dictionaries(st.integers(0, 3), st.integers(1, 6), min_size=1, max_size=3),
    st.data(),
)
def test_ids_are_those_asked_for_and_of_the_grants_cards_as_far_as_there_are(
    available: set[str], expected: dict[int, int], data: st.DataObject
) -> None:
    given_out = grant(*sorted(expected.items()))
    if len(available) < given_out.units:
        return
    must = data.draw(st.sets(st.sampled_from(sorted(available)), max_size=given_out.units))
    in_use = data.draw(st.sets(st.sampled_from(sorted(available))))
    chosen, own_ids = choose_ids(given_out, available, must, in_use)
    assert len(chosen) == len(set(chosen)) == given_out.units
    assert must <= set(chosen) <= available
    assert own_ids == ({uuid_of(item) for item in chosen} <= given_out.uuids)
    if not must:
        for card, units in given_out.shares:
            present = [item for item in available if uuid_of(item) == card.uuid]
            taken = [item for item in chosen if uuid_of(item) == card.uuid]
            assert len(taken) >= min(units, len(present))


def test_ids_that_another_has_are_taken_last() -> None:
    chosen, own_ids = choose_ids(grant((0, 2)), ids(0, 0, 1, 2), [], set(ids(0, 0)))
    assert (sorted(chosen), own_ids) == (ids(0, 1, 2), True)


def test_where_a_cards_ids_are_in_other_hands_others_are_taken() -> None:
    chosen, own_ids = choose_ids(grant((0, 2)), [*ids(0, 5), *ids(1, 7, 3)], [], ())
    assert (sorted(chosen), own_ids) == ([*ids(0, 5), *ids(1, 3)], False)


def test_units_of_an_init_container_are_kept() -> None:
    chosen, own_ids = choose_ids(grant((0, 3)), ids(0, 0, 1, 8, 9), ids(0, 8, 9), ())
    assert (set(chosen), own_ids) == ({*ids(0, 8, 9), *ids(0, 0)}, True)


def test_containers_without_a_name_of_a_part_are_no_candidates() -> None:
    assert find(NodePod(placed().ref, ())) == ()
    assert GpuContainer("x", 1).shares == ()
