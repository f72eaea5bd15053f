"""Compute as the second dimension: the loss by definition, and the preferred nodes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.model import Request
from gpushare.core.policies.fragmentation import COMPUTE, Fragmentation
from gpushare.core.policies.node_shape import Levels, free_compute
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.workload import PodClass, workload_of
from tests.unit.core.clusters import Cluster, best_node, clusters, expected_devices, node, requests

CORES = st.sampled_from([0, 0, 30, 70, 100])
classes = st.builds(
    PodClass,
    cpu=st.sampled_from([0, 400, 2000]),
    units=st.integers(1, 8),
    devices=st.integers(0, 3),
    models=st.sampled_from([(), ("A",)]),
    cores=CORES,
)
Typical = tuple[tuple[PodClass, int], ...]
typical = (
    st.dictionaries(classes, st.integers(1, 9), min_size=1, max_size=6)
    .map(lambda counts: workload_of(counts).typical(1.0))
    .filter(lambda typical: any(cls.cores and cls.devices for cls, _ in typical))
)
Device = tuple[int, int, int]
"""Units free, percent free, units used."""


def _has_room(device: Device, cls: PodClass) -> bool:
    units, percent, used = device
    enough = units >= cls.units and percent >= max(cls.cores, 1)
    return enough and not (cls.cores == 100 and used)


def _lost(devices: list[Device], sizes: list[int], cpu: int, model: str, typical: Typical) -> int:
    """The loss of the typical pods on a node, in hundredths of a unit."""
    lost = 0
    for cls, count in typical:
        runs = cls.devices > 0 and cls.cpu <= cpu and (not cls.models or model in cls.models)
        room = [_has_room(device, cls) for device in devices]
        runs = runs and sum(room) >= cls.devices
        lost += count * sum(
            100 * units + COMPUTE * percent * capacity
            for (units, percent, _), capacity, fine in zip(devices, sizes, room, strict=True)
            if not (runs and fine)
        )
    return lost


@settings(max_examples=60)
@given(cluster=clusters(pins=False), typical=typical, request=requests(2))
def test_what_is_lost_is_the_memory_and_compute_of_devices_without_room_for_both(
    cluster: Cluster, typical: Typical, request: Request
) -> None:
    view, measure = cluster.snapshot(), Fragmentation(typical)
    tables, rows = measure.tables(view), np.arange(len(view.names))
    lost, fall = measure.lost(tables, view, rows), measure.fall(tables, view, rows, request)
    for row, name in enumerate(view.names):
        spec, used = cluster.spec(name), cluster.used[name]
        model, cpu = spec.models[0] if spec.models else "", int(view.cpu_free[row])
        devices = [
            (free_units, (100 - cores) * bool(view.open[row, at]), used[at])
            for at, (free_units, cores) in enumerate(
                zip(cluster.memory_left(name), cluster.cores_used(name), strict=True)
            )
        ]
        sizes = list(spec.capacity)
        assert lost[row] == _lost(devices, sizes, cpu, model, typical)
        fitting = expected_devices(cluster, name, request)
        if len(fitting) < request.devices:
            continue
        tight = sorted(fitting, key=lambda at: devices[at][0])[: request.devices]
        for column, chosen in enumerate(
            [tight] if request.devices > 1 else [[at] for at in fitting]
        ):
            after = list(devices)
            for at in chosen:
                units, percent, used_units = devices[at]
                after[at] = (
                    units - request.units,
                    percent - request.cores,
                    used_units + request.units,
                )
            then = _lost(after, sizes, max(cpu - request.cpu, 0), model, typical)
            assert fall[row, column if request.devices > 1 else chosen[0]] == lost[row] - then


def test_many_different_percents_are_rounded_up_to_a_few_levels() -> None:
    levels = Levels(PodClass(units=1, devices=1, cores=cores) for cores in range(101))
    assert levels.needs.tolist() == [1, *range(10, 100, 10), 100, 101]
    assert [levels.need(cores) for cores in (0, 1, 10, 11, 91, 100)] == [1, 10, 10, 20, 100, 101]
    few = Levels(PodClass(units=1, devices=1, cores=cores) for cores in (0, 33, 67))
    assert few.needs.tolist() == [1, 33, 67]
    assert not Levels([PodClass(cores=50)]).has_compute


def test_only_a_device_that_nobody_uses_has_all_of_its_compute_to_give() -> None:
    nodes = (node("n", 8, 8, 8, 8, 8, unhealthy=[4]),)
    cluster = Cluster(nodes, {"n": (0, 2, 2, 8)}, cores={"n": (0, 0, 30, 100)})
    assert free_compute(cluster.snapshot(), np.array([0])).tolist() == [[101, 100, 70, 0, 0]]


PODS = workload_of(
    {PodClass(units=4, devices=1): 10, PodClass(units=4, devices=1, cores=50): 10}, {16: 2}
)


@pytest.mark.parametrize("name", ["fgd", "shadow-price"])
def test_who_asks_for_no_compute_goes_where_others_find_too_little(name: str) -> None:
    nodes = tuple(node(node_name, 16, cpu=64_000, memory=2**36) for node_name in "ab")
    cluster = Cluster(nodes, {"a": (8,), "b": (8,)}, cores={"a": (20,), "b": (80,)})
    ranking = Ranking(load_policy(name, PODS))
    assert best_node(cluster.snapshot(), cluster.names, Request(4, 1), ranking) == "b"


@pytest.mark.parametrize("name", ["fgd", "shadow-price"])
def test_who_takes_the_last_compute_of_a_device_strands_as_little_memory_as_there_is(
    name: str,
) -> None:
    nodes = tuple(node(node_name, 16, cpu=64_000, memory=2**36) for node_name in "ab")
    cluster = Cluster(nodes, {"a": (4,), "b": (12,)}, cores={"a": (50,), "b": (50,)})
    ranking = Ranking(load_policy(name, PODS))
    assert (
        best_node(cluster.snapshot(), cluster.names, Request(4, 1, percents=compute(50)), ranking)
        == "b"
    )
