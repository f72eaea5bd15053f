"""The measure of fragmentation and the price tables, against slow and obvious versions."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.model import NodeSpec, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.policies.fragmentation import Fragmentation
from gpushare.core.policies.shadow_price.cpu_stranding import ETA, STEPS, index, stranded
from gpushare.core.policies.shadow_price.policy import ShadowPrice
from gpushare.core.policies.shadow_price.residual_value import worth
from gpushare.core.policies.shadow_price.scarcity import ScarceGoods, missed
from gpushare.core.snapshot import Floats
from gpushare.core.workload import PodClass, workload_of
from tests.unit.core.clusters import Cluster, clusters, node, requests

classes = st.builds(
    PodClass,
    cpu=st.sampled_from([0, 400, 2000, 9000]),
    units=st.integers(1, 8),
    devices=st.integers(0, 3),
    models=st.sampled_from([(), ("A",), ("A", "B")]),
)
typical = st.dictionaries(classes, st.integers(1, 9), min_size=1, max_size=6).map(
    lambda counts: workload_of(counts).typical(1.0)
)


def _lost(free: list[int], cpu: int, model: str, cls: PodClass) -> int:
    """The loss of a class on a node, by the definition."""
    fits = sum(room >= cls.units for room in free)
    runs = cls.devices > 0 and cls.cpu <= cpu and fits >= cls.devices
    if not runs or (cls.models and model not in cls.models):
        return sum(free)
    return sum(room for room in free if room < cls.units)


def _fragmentation(
    free: list[int], cpu: int, model: str, typical: tuple[tuple[PodClass, int], ...]
) -> int:
    return sum(count * _lost(free, cpu, model, cls) for cls, count in typical)


@settings(max_examples=60)
@given(cluster=clusters(pins=False), typical=typical, request=requests(1))
def test_fragmentation_is_what_typical_pods_could_not_use(
    cluster: Cluster, typical: tuple[tuple[PodClass, int], ...], request: Request
) -> None:
    view, measure = cluster.snapshot(), Fragmentation(typical)
    tables, rows = measure.tables(view), np.arange(len(view.names))
    free, cpu = view.free, view.cpu_free
    lost = measure.lost(tables, view, rows)
    fall = measure.fall(tables, view, rows, request)
    for row in rows.tolist():
        spec = cluster.spec(view.names[row])
        model = spec.models[0] if spec.models else ""
        room, free_cpu = free[row].tolist(), int(cpu[row])
        assert lost[row] == _fragmentation(room, free_cpu, model, typical)
        for device, units in enumerate(room):
            if units >= request.units:
                after = room.copy()
                after[device] -= request.units
                then = _fragmentation(after, max(free_cpu - request.cpu, 0), model, typical)
                assert fall[row, device] == lost[row] - then


def test_a_node_with_too_little_cpu_for_a_pod_has_none_left_after_it() -> None:
    nodes = tuple(node(name, 8, models=(name,), cpu=3000, memory=2**34) for name in "AB")
    view = Cluster(nodes).snapshot()
    typical = ((PodClass(cpu=1000, units=2, devices=1), 1),)
    measure = Fragmentation(typical)
    fall = measure.fall(measure.tables(view), view, np.arange(2), Request(4, 1, 4000))
    assert fall.tolist() == [[_lost([8], 3000, "", typical[0][0]) - 4]] * 2


@given(
    sizes=st.dictionaries(st.integers(1, 15), st.integers(1, 50), min_size=1, max_size=5),
)
def test_no_way_to_cut_a_device_is_worth_more_than_it_and_all_pieces_cost_what_they_need(
    sizes: dict[int, int],
) -> None:
    values = _worth(sizes, {16: 1})[16] / 16
    steps = len(values) - 1
    assert values[steps] == pytest.approx(1, abs=1e-6)
    assert (np.diff(values) >= 0).all()
    # Weak duality on both sides: the volume, and first-fit by falling size.
    whole = sum(values[size * steps // 16] * count for size, count in sizes.items())
    assert sum(size * count for size, count in sizes.items()) / 16 <= whole + 1e-6
    assert whole <= _first_fit(sizes) + 1e-6


@given(
    sizes=st.dictionaries(st.integers(1, 24), st.integers(1, 50), min_size=1, max_size=5),
    devices=st.dictionaries(st.sampled_from([8, 16, 24]), st.integers(1, 9), min_size=1),
)
def test_in_the_mean_a_unit_is_worth_one_whatever_cards_there_are(
    sizes: dict[int, int], devices: dict[int, int]
) -> None:
    worth_of_units = _worth(sizes, devices)
    units = sum(capacity * number for capacity, number in devices.items())
    if min(sizes) <= min(devices):
        whole = sum(worth_of_units[capacity][-1] * number for capacity, number in devices.items())
        assert 0 < whole <= units * (1 + 1e-6)
    assert all((np.diff(values) >= 0).all() for values in worth_of_units.values())
    for factor in (7, 1024):
        again = _worth(
            {factor * size: n for size, n in sizes.items()},
            {factor * capacity: n for capacity, n in devices.items()},
        )
        for capacity, values in worth_of_units.items():
            assert again[factor * capacity] == pytest.approx(factor * values, rel=1e-12)


def test_cards_that_large_pods_need_are_dear_where_small_ones_would_do() -> None:
    demand = {80: 10, 10: 40}
    scarce, plenty = _worth(demand, {80: 10, 20: 20}), _worth(demand, {80: 100, 20: 20})
    assert scarce[80][-1] / 80 > 1.1 * scarce[20][-1] / 20
    assert plenty[80][-1] / 80 == pytest.approx(plenty[20][-1] / 20, rel=0.01)


def test_as_many_pieces_fit_in_steps_as_do() -> None:
    thirds = _worth({5242: 10, 983: 5}, {15728: 4})[15728]
    steps = len(thirds) - 1
    for pieces in (1, 2, 3):
        assert thirds[pieces * 5242 * steps // 15728] == pytest.approx(pieces * 15728 / 3, rel=0.05)


def test_a_small_piece_of_what_is_left_over_anyway_costs_nothing() -> None:
    demand = {3000: 67, 10000: 164, 12000: 130, 138608: 39}
    values = _worth(demand, {15728: 176, 138608: 52})[138608]
    for pieces in (12, 13):
        for room in (pieces * 10000 + 3500, pieces * 10000 + 5600):
            steps = [units * (len(values) - 1) // 138608 for units in (room, room - 3000)]
            assert values[steps[0]] == values[steps[1]]


@pytest.mark.parametrize("come", [4, 20, 100])
@pytest.mark.parametrize("part", [0.5, 0.9, 1.0, 1.1, 2.0])
def test_a_card_is_missed_where_as_many_pods_come_as_there_are_cards(
    come: int, part: float
) -> None:
    idle = round(part * come)
    fewer = sum(math.exp(n * math.log(come) - come - math.lgamma(n + 1)) for n in range(idle))
    assert missed(come, idle) == pytest.approx(1 - fewer, abs=0.1)


def test_of_very_many_sizes_those_near_each_other_are_one() -> None:
    devices = {1000: 10, 2000: 10}
    worth_of_units = _worth(dict.fromkeys(range(1, 2001), 1), devices)
    fewer = _worth(dict.fromkeys(range(32, 2001, 32), 32) | {1000: 1}, devices)
    for capacity, values in worth_of_units.items():
        assert values[-1] == pytest.approx(fewer[capacity][-1], rel=0.05)


def test_what_nobody_asks_for_is_worth_its_units_while_it_is_whole() -> None:
    assert _worth({}, {16: 2})[16].tolist() == [0.0, 16.0]
    assert _worth({20: 1}, {16: 1, 24: 1})[16][-1] == 16


def test_the_worth_of_a_residue_is_the_dearest_set_of_pieces_that_fits_it() -> None:
    halves = _worth({500: 10, 300: 1}, {1000: 1})[1000]
    assert halves[2] == 0
    assert halves[5] == pytest.approx(500)
    assert halves[10] == pytest.approx(1000)


def _worth(sizes: dict[int, int], devices: dict[int, int]) -> dict[int, Floats]:
    return worth([(PodClass(units=size, devices=1), n) for size, n in sizes.items()], devices)


def _first_fit(sizes: dict[int, int]) -> int:
    devices: list[int] = []
    for size in sorted(sizes, reverse=True):
        for _ in range(sizes[size]):
            place = next((at for at, free_steps in enumerate(devices) if free_steps >= size), None)
            if place is None:
                devices.append(16 - size)
            else:
                devices[place] -= size
    return len(devices)


@settings(max_examples=20)
@given(
    counts=st.dictionaries(
        st.builds(
            PodClass,
            cpu=st.sampled_from([500, 1000, 2500]),
            units=st.integers(1, 8),
            devices=st.integers(1, 2),
        ),
        st.integers(1, 5),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_stranded_is_the_mean_over_draws_until_cpu_ends(
    counts: dict[PodClass, int],
) -> None:
    kinds = [
        (int(STEPS * cls.devices * cls.units / 8 + 0.5), -(-cls.cpu // 1000), count)
        for cls, count in counts.items()
    ]

    @cache
    def slow(gpu: int, cores: int) -> float:
        fitting = [kind for kind in kinds if 0 < kind[0] <= gpu]
        total = sum(count for *_, count in fitting)
        if not total:
            return float(gpu)
        goes_on = sum(
            count / total * slow(gpu - size, cores - cpu)
            for size, cpu, count in fitting
            if cpu <= cores
        )
        lacking = sum(count for _, cpu, count in fitting if cpu > cores) / total
        return (goes_on + (1 - ETA) * lacking * gpu) / (1 - ETA * lacking)

    table = stranded(counts.items(), 8)
    for gpu in (0, 1, 7, 13):
        for cores in (0, 1, 2, 5):
            assert table[gpu, cores] == pytest.approx(slow(gpu, cores) * 1000 / STEPS)


def test_less_cpu_than_none_strands_what_none_does() -> None:
    cores, capacity = np.array([-1, -40]) * 1000, np.full(2, 16)
    for gpu in (0, 8, 256):
        none = index(np.array([gpu]), np.array([0]), capacity[:1])
        assert index(np.full(2, gpu), cores, capacity).tolist() == [none[0]] * 2


def test_pods_too_large_for_a_card_are_not_drawn_for_what_it_strands() -> None:
    small, large = PodClass(units=8, devices=1, cpu=1000), PodClass(units=80, devices=1)
    assert (stranded([(small, 1), (large, 9)], 16) == stranded([(small, 1)], 16)).all()


_CLASSES = st.builds(
    PodClass,
    units=st.integers(1, 9),
    devices=st.integers(1, 3),
    cpu=st.sampled_from((0, 1000, 3000)),
    memory=st.sampled_from((0, 2**31)),
    models=st.sampled_from(((), (), ("A",), ("B",))),
)
_NODES = st.builds(
    lambda sizes, model, cpu, memory: node(
        "n", *sizes, models=(model,) * len(sizes), cpu=cpu, memory=memory
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.sampled_from("AB"),
    st.sampled_from((None, 1000, 4000)),
    st.sampled_from((None, 2**30, 2**34)),
)


@given(st.lists(_NODES, min_size=1, max_size=4), st.lists(_CLASSES, max_size=5))
def test_pods_need_the_groups_with_nodes_that_fit_them_when_empty(
    specs: list[NodeSpec], classes: list[PodClass]
) -> None:
    arrays = NodeArrays()
    for number, spec in enumerate(specs):
        arrays.set_node(replace(spec, name=f"n{number}"), ())
    snapshot = arrays.snapshot({})
    group = snapshot.group[: len(specs)].tolist()

    def fits(spec: NodeSpec, cls: PodClass) -> bool:
        return (
            sum(units >= cls.units for units in spec.capacity) >= cls.devices
            and (spec.cpu is None or spec.cpu >= cls.cpu)
            and (spec.memory is None or spec.memory >= cls.memory)
            and (not cls.models or spec.models[0] in cls.models)
        )

    needed = {
        frozenset(number for number, spec in zip(group, specs, strict=True) if fits(spec, cls))
        for cls in classes
    } - {frozenset(), frozenset(group)}
    found = ScarceGoods([(cls, 0.1) for cls in classes])(snapshot).needed
    assert {frozenset(np.flatnonzero(line).tolist()) for line in found} == needed


@given(
    st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), _NODES)), max_size=8),
    st.dictionaries(_CLASSES, st.integers(1, 5), min_size=1, max_size=4),
    st.sets(st.integers(1, 9)),
)
def test_what_a_policy_keeps_while_nodes_change_is_what_it_would_make_anew(
    steps: list[tuple[int, NodeSpec | None]], counts: dict[PodClass, int], sizes: set[int]
) -> None:
    workload = replace(
        workload_of(counts), turnover=1.0, capacities=tuple((size, 10) for size in sorted(sizes))
    )
    arrays, policy = NodeArrays(), ShadowPrice(workload)
    for number, spec in steps:
        name = f"n{number}"
        if spec is not None:
            arrays.set_node(replace(spec, name=name), ())
        elif name in arrays.row:
            arrays.remove_node(name)
        view = arrays.snapshot({})
        anew, policy_anew = replace(view), ShadowPrice(workload)
        assert policy.shapes_key(view) == policy_anew.shapes_key(anew)
        rows = np.array(sorted(view.row.values()), dtype=np.intp)
        request = Request(1, 1, cpu=1000)
        for kept, made in (
            (policy.score(view, rows, request), policy_anew.score(anew, rows, request)),
            (policy.supply(view, rows), policy_anew.supply(anew, rows)),
            (policy.taken(view, rows, request), policy_anew.taken(anew, rows, request)),
        ):
            assert kept.tolist() == made.tolist()
