"""Pods with uneven parts of memory on devices, compared with all layouts of the parts."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.decide import filter_nodes, fits_somewhere, place, room_for, take_best
from gpushare.core.explain import explain
from gpushare.core.held_snapshot import HeldSnapshotBuilder
from gpushare.core.model import Reason, Request
from gpushare.core.mutable_cluster import MutableCluster, ranking
from gpushare.core.node_filters import OwnFilters
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import PODS
from gpushare.core.states.entry import NodeBooks
from gpushare.core.trial_streams import mutable
from gpushare.errors import InsufficientMemory
from tests.unit.core.clusters import (
    POLICIES,
    Cluster,
    clusters,
    fits_allocation,
    needed_units,
    node,
    requests,
    wanted_devices,
)

policies = st.sampled_from(sorted(POLICIES))


@st.composite
def split_requests(draw: st.DrawFn) -> Request:
    """A request of two or three parts that are not all equal."""
    parts = draw(
        st.lists(st.integers(1, 9), min_size=2, max_size=3).filter(lambda some: len({*some}) > 1)
    )
    parts.sort(reverse=True)
    return replace(draw(requests()), units=parts[0], devices=len(parts), split=tuple(parts))


def laid_out(cluster: Cluster, name: str, request: Request, *, empty: bool = False) -> bool:
    """Whether some choice of devices has room for the parts."""
    spec = cluster.spec(name)
    usable = wanted_devices(cluster, name, request)
    if empty:
        units = spec.capacity if not spec.closed else (0,) * len(spec.capacity)
        usable = [at for at in usable if spec.healthy[at]]
    else:
        units = tuple(cluster.free(name))
        usable = [at for at in usable if at in cluster.with_cores(name, request)]
    return any(
        all(
            units[at] >= needed_units(replace(request, units=part), spec.capacity[at])
            for at, part in zip(chosen, request.split, strict=True)
        )
        for chosen in permutations(usable, request.devices)
    )


@given(cluster=clusters(pins=False), request=split_requests(), policy=policies)
def test_it_fits_exactly_where_its_parts_can_be_laid_out(
    cluster: Cluster, request: Request, policy: str
) -> None:
    view = cluster.snapshot()
    verdict = filter_nodes(view, cluster.names, request)
    assert set(verdict.fit) == {name for name in cluster.names if laid_out(cluster, name, request)}
    for name in verdict.fit:
        allocation = place(view, name, request, Ranking(POLICIES[policy]))
        units = [units for _, units in allocation.shares]
        assert sorted(units, reverse=True) == list(request.split)
        assert list(allocation.devices) == sorted({*allocation.devices})
        assert fits_allocation(view, allocation)
        assert {*allocation.devices} <= {*wanted_devices(cluster, name, request)}
        if request.cores:
            assert {*allocation.devices} <= {*cluster.with_cores(name, request)}
    for name, reason in verdict.failed.items():
        with pytest.raises(InsufficientMemory, match=reason.value):
            place(view, name, request, Ranking(POLICIES[policy]))
        busy = reason.resolvable
        assert busy == laid_out(cluster, name, request, empty=True), reason


@given(cluster=clusters(pins=False), request=split_requests(), policy=policies)
def test_the_best_node_is_the_best_for_its_largest_part_of_those_where_it_fits(
    cluster: Cluster, request: Request, policy: str
) -> None:
    view, largest = cluster.snapshot(), replace(request, devices=1, split=())
    values = Ranking(POLICIES[policy]).scores(view, request).values
    alone = Ranking(POLICIES[policy]).scores(view, largest).values
    for name in cluster.names:
        row = view.row[name]
        if name in filter_nodes(view, [name], request).fit:
            assert values[row] == pytest.approx(alone[row])
        else:
            assert values[row] == -np.inf


@given(cluster=clusters(pins=False), request=split_requests(), max_pods=st.integers(0, 4))
def test_as_many_are_said_to_fit_at_once_as_parts_of_each_size_do_and_no_fewer_than_do(
    cluster: Cluster, request: Request, max_pods: int
) -> None:
    request = replace(request, models=(), cpu=0, memory=0)
    view = cluster.snapshot()
    room = room_for(view, request, max_pods)
    for number, units in enumerate(request.split, 1):
        assert room <= room_for(view, request.of_parts([units] * number), max_pods)
    some = bool(filter_nodes(view, cluster.names, request).fit)
    assert fits_somewhere(view, request) == some
    assert (room > 0) == (max_pods > 0 and some)
    rows = np.array(sorted(view.row.values()))
    copy = MutableCluster(mutable(view, rows, empty=False), ranking(POLICIES["fgd"], len(rows)))
    assert room >= sum(copy.place(request) is not None for _ in range(max_pods))


@given(cluster=clusters(pins=False), request=split_requests())
def test_it_never_fits_if_its_parts_have_no_place_on_empty_nodes(
    cluster: Cluster, request: Request
) -> None:
    request = replace(request, models=())
    view = cluster.snapshot()

    def books_of(name: str) -> NodeBooks:
        row, spec = view.row[name], cluster.spec(name)
        used, pods = (
            tuple(array[row, : len(spec.capacity)].tolist())
            for array in (view.used, view.pods[:, :, PODS])
        )
        return NodeBooks(spec, used, pods=pods)

    explanation = explain(view, cluster.names, request, books_of, 0.0, own=OwnFilters())
    healthy = {name: (True,) * len(cluster.spec(name).capacity) for name in cluster.names}
    mended = replace(
        cluster,
        nodes=tuple(
            replace(node_spec, healthy=healthy[node_spec.name]) for node_spec in cluster.nodes
        ),
    )
    ever = any(laid_out(mended, name, request, empty=True) for name in cluster.names)
    assert explanation.never != ever


def test_what_is_held_and_what_is_simulated_is_each_part_on_its_device() -> None:
    view = Cluster((node("n", 8, 16),)).snapshot()
    request = Request(12, 2, split=(12, 5), percents=compute(30))
    builder = HeldSnapshotBuilder(view)
    take_best(builder, 0, request, Ranking(POLICIES["binpack"]))
    assert builder.free.tolist() == [[3, 4]]
    assert builder.percents_used[0].tolist() == [[30, 30]]
    cluster = MutableCluster(mutable(view, np.arange(1), empty=True), ranking(POLICIES["fgd"], 1))
    placement = cluster.place(request)
    assert placement is not None
    assert placement.shares == ((0, 5), (1, 12))
    assert cluster.view.free.tolist() == [[3, 4]]
    assert cluster.allocated == 17
    assert cluster.place(request) is None
    cluster.release(placement)
    assert cluster.view.free.tolist() == [[8, 16]]


def test_equal_cards_take_parts_that_no_two_of_them_could_each_take_the_largest_of() -> None:
    view = Cluster((node("n", 16, 16),), {"n": (4, 0)}).snapshot()
    request = Request(14, 2, split=(14, 10))
    assert place(view, "n", request, Ranking(POLICIES["spread"])).shares == ((0, 10), (1, 14))
    full = filter_nodes(view, ["n"], Request(14, 2, split=(14, 13)))
    assert full.failed == {"n": Reason.INSUFFICIENT_DEVICES}
