"""The decisions: what filter, prioritize and bind promise each other."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.decide import (
    BEST,
    filter_nodes,
    place,
    room_for,
    score_nodes,
)
from gpushare.core.model import Cards, Reason, Request
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot, has_room
from gpushare.errors import InsufficientMemory, UnknownNode
from tests.unit.core.clusters import (
    POLICIES,
    Cluster,
    best_node,
    by_name,
    clusters,
    expected_devices,
    expected_reason,
    fits_allocation,
    needed_units,
    node,
    requests,
)

policies = st.sampled_from(sorted(POLICIES))


@given(cluster=clusters(), request=requests(), gaps=st.integers(0, 2))
def test_filter_says_what_plain_objects_say(cluster: Cluster, request: Request, gaps: int) -> None:
    verdict = filter_nodes(cluster.snapshot(gaps=gaps), cluster.names, request)
    reasons = {name: expected_reason(cluster, name, request) for name in cluster.names}
    assert verdict.fit == tuple(name for name in cluster.names if reasons[name] is None)
    assert verdict.failed == {name: entry for name, entry in reasons.items() if entry is not None}
    assert verdict.unknown == ()


@given(cluster=clusters(), request=requests())
def test_the_mask_holds_just_the_devices_that_may_take_the_request(
    cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    mask = has_room(view, np.arange(len(view.names)), request, pairing=True)
    for name in cluster.names:
        open_devices = np.flatnonzero(mask[view.row[name]]).tolist()
        assert open_devices == expected_devices(cluster, name, request)


@given(cluster=clusters(pins=False), request=requests(), most=st.integers(0, 9))
def test_so_many_pods_fit_at_once_as_can_be_placed_one_after_the_other(
    cluster: Cluster, request: Request, most: int
) -> None:
    request = replace(request, models=())
    placements = 0
    for name in cluster.names:
        free, cores = cluster.free(name), cluster.cores_used(name)
        places = [0] * len(free)
        for at in expected_devices(cluster, name, request):
            by_cores = (100 - cores[at]) // request.cores if request.cores else most
            by_memory = free[at] // needed_units(request, cluster.spec(name).capacity[at])
            places[at] = min(by_memory, by_cores, cluster.spec(name).max_sharers - 1)
        # On the devices that have the most places left: no other choice leaves more.
        while sum(item > 0 for item in places) >= request.devices:
            for at in sorted(range(len(places)), key=lambda at: -places[at])[: request.devices]:
                places[at] -= 1
            placements += 1
    assert room_for(cluster.snapshot(), request, most) == min(placements, most)


class WrongMemory(Ranking):
    """A ranking that remembers the first device of each node as the best."""

    def best_device(self, snapshot: Snapshot, row: int, request: Request) -> int | None:
        del snapshot, row, request
        return 0


@given(cluster=clusters(), request=requests())
def test_a_device_that_is_remembered_wrongly_is_not_taken_without_room(
    cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    for name in filter_nodes(view, cluster.names, request).fit:
        allocation = place(view, name, request, WrongMemory(POLICIES["binpack"]))
        assert set(allocation.devices) <= set(expected_devices(cluster, name, request))


@given(cluster=clusters(), request=requests(), policy=policies)
def test_bind_succeeds_exactly_where_filter_says_yes(
    cluster: Cluster, request: Request, policy: str
) -> None:
    view = cluster.snapshot()
    verdict = filter_nodes(view, cluster.names, request)
    for name in verdict.fit:
        allocation = place(view, name, request, Ranking(POLICIES[policy]))
        assert allocation.node == name
        assert list(allocation.devices) == sorted(set(allocation.devices))
        assert [units for _, units in allocation.shares] == [request.units] * request.devices
        assert set(allocation.devices) <= set(expected_devices(cluster, name, request))
        assert fits_allocation(view, allocation)
    for name, reason in verdict.failed.items():
        with pytest.raises(InsufficientMemory, match=reason.value):
            place(view, name, request, Ranking(POLICIES[policy]))


@given(cluster=clusters(), request=requests(), policy=policies, data=st.data())
def test_scores_are_a_total_order_with_one_best_whatever_the_order_of_names_and_rows(
    cluster: Cluster, request: Request, policy: str, data: st.DataObject
) -> None:
    view, ranking = cluster.snapshot(), Ranking(POLICIES[policy])
    draw_result = data.draw(st.permutations([*cluster.names, "stranger"]))
    names = score_nodes(view, draw_result, request, ranking)
    scores = by_name(names)
    fit = set(filter_nodes(view, draw_result, request).fit)
    assert fit.issuperset(scores)
    assert sum(score == BEST for score in scores.values()) == bool(fit)
    assert all(0 < score <= BEST for score in scores.values())
    best = best_node(view, draw_result, request, ranking)
    assert (best is not None and scores[best] == BEST) if fit else best is None
    assert list(names) == sorted(names, reverse=True)
    for some in names.values():
        assert some == [name for name in draw_result if name in some]

    order = data.draw(st.permutations(range(len(cluster.nodes))))
    shuffled = cluster.snapshot(order, gaps=data.draw(st.integers(0, 2)))
    again = score_nodes(shuffled, sorted(draw_result), request, Ranking(POLICIES[policy]))
    assert by_name(again) == scores


@given(cluster=clusters(pins=False), request=requests(1), policy=policies)
def test_the_best_node_and_its_device_are_the_maximum_of_one_matrix(
    cluster: Cluster, request: Request, policy: str
) -> None:
    view, ranking = cluster.snapshot(), Ranking(POLICIES[policy])
    best = best_node(view, cluster.names, request, ranking)
    if best is None:
        return
    rows = np.arange(len(view.names))
    mask = has_room(view, rows, request, pairing=True)
    values = np.where(mask, ranking.score_devices(view, rows, request), -np.inf)
    assert values[view.row[best]].max() == values.max()
    chosen = place(view, best, request, Ranking(POLICIES[policy])).devices[0]
    assert chosen == int(values[view.row[best]].argmax())


@given(cluster=clusters(), request=requests(), policy=policies)
def test_a_better_value_never_scores_lower(cluster: Cluster, request: Request, policy: str) -> None:
    view, ranking = cluster.snapshot(), Ranking(POLICIES[policy])
    rows = np.arange(len(view.names))
    mask = has_room(view, rows, request, pairing=True)
    values = np.where(mask, ranking.score_devices(view, rows, request), -np.inf).max(
        axis=1, initial=-np.inf
    )
    fit = filter_nodes(view, cluster.names, request).fit
    scores = dict.fromkeys(fit, 0) | by_name(score_nodes(view, fit, request, ranking))
    by_value = sorted(fit, key=lambda name: (values[view.row[name]], scores[name]))
    assert [scores[name] for name in by_value] == sorted(scores.values())


def test_equal_nodes_are_ordered_by_name_and_only_one_is_best() -> None:
    cluster = Cluster((node("b", 16), node("c", 16), node("a", 16)))
    ranking = Ranking(POLICIES["binpack"])
    view = cluster.snapshot()
    assert score_nodes(view, ["c", "b", "a"], Request(4, 1), ranking) == {BEST: ["a"]}


def test_every_name_asked_about_is_answered_once() -> None:
    view = Cluster((node("a", 16), node("b"))).snapshot()
    verdict = filter_nodes(view, ["x", "b", "a"], Request(4, 1))
    assert verdict.fit == ("a",)
    assert verdict.failed == {"b": Reason.NO_DEVICE}
    assert verdict.unknown == ("x",)


def test_books_without_nodes_know_no_name() -> None:
    view = Cluster(()).snapshot()
    ranking = Ranking(POLICIES["spread"])
    assert filter_nodes(view, ["x"], Request(4, 1)).unknown == ("x",)
    assert filter_nodes(view, [], Request(4, 1)).fit == ()
    assert score_nodes(view, ["x"], Request(4, 1), ranking) == {}
    with pytest.raises(UnknownNode, match="'x' is not known"):
        place(view, "x", Request(4, 1), ranking)


@pytest.mark.parametrize(
    ("cluster", "request_", "reason", "resolvable"),
    [
        (Cluster((node("n", 16),), {"n": (13,)}), Request(4, 1), Reason.INSUFFICIENT_MEMORY, True),
        (
            Cluster((node("n", 16, 16),), {"n": (13, 0)}),
            Request(4, 2),
            Reason.INSUFFICIENT_DEVICES,
            True,
        ),
        (Cluster((node("n", 16, 16),)), Request(17, 1), Reason.TOO_LARGE, False),
        (Cluster((node("n", 16, 8),)), Request(9, 2), Reason.TOO_MANY_DEVICES, False),
        (Cluster((node("n", 16, 8, unhealthy=[0]),)), Request(9, 1), Reason.TOO_LARGE, False),
        (Cluster((node("n", 16, unhealthy=[0]),)), Request(1, 1), Reason.NO_DEVICE, False),
        (Cluster((node("n"),)), Request(1, 1), Reason.NO_DEVICE, False),
        (
            Cluster((node("n", 16, closed=Reason.UNEVEN),)),
            Request(99, 9),
            Reason.UNEVEN,
            False,
        ),
        (
            Cluster((node("n", 16, 16),), {}, {"n": ((frozenset([4]), (0, 1)),)}),
            Request(4, 1),
            Reason.WAITS_FOR_PLUGIN,
            True,
        ),
    ],
)
def test_the_reason_tells_busy_now_from_never(
    cluster: Cluster, request_: Request, reason: Reason, resolvable: bool
) -> None:
    assert filter_nodes(cluster.snapshot(), ["n"], request_).failed == {"n": reason}
    assert reason.resolvable is resolvable


def test_a_refusal_at_bind_names_the_node_the_request_and_what_is_free() -> None:
    view = Cluster((node("n", 16, 16, 8, unhealthy=[1]),), {"n": (13, 0, 2)}).snapshot()
    with pytest.raises(InsufficientMemory, match=r"'n'.* 7 units on 1 .* free by device: 3, 6$"):
        place(view, "n", Request(7, 1), Ranking(POLICIES["binpack"]))
    snapshot_result = Cluster((node("n"),)).snapshot()
    with pytest.raises(InsufficientMemory, match=r"free by device: none$"):
        place(snapshot_result, "n", Request(7, 1), Ranking(POLICIES["binpack"]))


@pytest.mark.parametrize(
    ("cards", "fits"), [(Cards(not_models=("t4",)), True), (Cards(models=("t4",)), False)]
)
def test_a_device_of_which_no_model_is_known_has_no_unwanted_one(cards: Cards, fits: bool) -> None:
    view = Cluster((node("n", 16, models=()),)).snapshot()
    assert bool(filter_nodes(view, ["n"], Request(4, 1, cards=cards)).fit) is fits


def test_an_equal_pod_takes_the_devices_of_the_one_that_waits_for_the_plugin() -> None:
    view = Cluster((node("n", 16, 16),), {"n": (0, 4)}, {"n": ((frozenset([4]), (1,)),)}).snapshot()
    assert place(view, "n", Request(4, 1), Ranking(POLICIES["spread"])).devices == (1,)
    assert place(view, "n", Request(5, 1), Ranking(POLICIES["spread"])).devices == (0,)
    # The plug-in tells containers apart by size too.
    parts = Request(5, 1, containers=((0, 1), (1, 4)))
    assert place(view, "n", parts, Ranking(POLICIES["spread"])).devices == (1,)


def test_a_waiting_pod_on_a_device_that_does_not_exist_holds_its_equals_back() -> None:
    pins = {"n": ((frozenset([4]), (2**31 - 1,)),)}
    view = Cluster((node("n", 16, 16),), {}, pins).snapshot()
    assert filter_nodes(view, ["n"], Request(4, 1)).failed == {"n": Reason.WAITS_FOR_PLUGIN}
    assert filter_nodes(view, ["n"], Request(5, 1)).fit == ("n",)
