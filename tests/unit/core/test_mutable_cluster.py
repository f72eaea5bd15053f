"""A cluster that is changed in place is the one that would be made anew."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import MutableCluster, Placement, ranking
from gpushare.core.trial_streams import mutable
from tests.unit.core.clusters import POLICIES, Cluster, node, requests

CLUSTER = Cluster((node("a", 8, 8, 8), node("b", 8, 8), node("c", 4, 8, unhealthy=[0])))


@given(
    asked=st.lists(requests(2), max_size=12),
    leave=st.lists(st.integers(0, 9), max_size=8),
    policy=st.sampled_from(("binpack", "device-bestfit", "fgd", "shadow-price")),
)
def test_whoever_comes_and_goes_the_sums_are_those_of_the_pods_that_are_there(
    asked: list[Request], leave: list[int], policy: str
) -> None:
    books = CLUSTER.snapshot()
    view = mutable(books, np.arange(3), empty=True)
    cluster = MutableCluster(view, ranking(POLICIES[policy], 3))
    present: list[Placement] = []
    for number, request in enumerate(asked):
        placement = cluster.place(request)
        if placement is not None:
            present.append(placement)
        if number < len(leave) and present:
            cluster.release(present.pop(leave[number] % len(present)))
        used, cores = np.zeros_like(view.used), np.zeros_like(view.cores_used)
        pods = np.zeros_like(view.pods)
        for row, shares, entry in present:
            for device, units in shares:
                used[row, device] += units
                cores[row, device] += entry.cores
                pods[row, device] += (1, not entry.cores)
        assert view.used.tolist() == used.tolist()
        assert view.cores_used.tolist() == cores.tolist()
        assert view.pods.tolist() == pods.tolist()
        assert view.cores_free.tolist() == np.where(view.open, 100 - cores, 0).tolist()
        free = np.where(cores >= 100, 0, view.capacity - used)
        assert view.free.tolist() == free.tolist()
        assert view.cores_free.tolist() == np.where(view.open, 100 - cores, 0).tolist()
        assert (used <= view.capacity).all()
        assert (cores <= 100).all()
        for row, shares, element in present:
            if element.alone:
                assert all(used[row, device] == units for device, units in shares)
