"""An explanation is held to its word: do what it says and the pod fits, one thing less and it does
not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare.core.amounts import charged_units, compute, memory_percent
from gpushare.core.bound_pod import score_bound_pod
from gpushare.core.decide import BEST, filter_nodes, place, score_nodes
from gpushare.core.explain import Explanation, FreeDevice, Remedy, explain
from gpushare.core.model import (
    ANY_SHARERS,
    Apart,
    NodeSpec,
    ObservedPod,
    PodRef,
    Reason,
    Request,
)
from gpushare.core.node_filters import NodeStates, OwnFilters
from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.states.entry import NodeBooks
from gpushare.ledger import Ledger
from tests.unit.core.clusters import APART, by_name, node, state_of, with_share

SERVED: dict[str, Any] = {"assigned": True, "running": True, "started": 1.0}


@dataclass(frozen=True)
class World:
    """A cluster as the watches show it."""

    nodes: tuple[NodeSpec, ...]
    pods: tuple[ObservedPod, ...] = ()
    pairing: Pairing = Pairing.OFF

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.nodes]

    def ledger(self) -> Ledger:
        ledger = Ledger(self.pairing)
        for spec in self.nodes:
            ledger.node_changed(spec)
        for item in self.pods:
            ledger.pod_changed(item)
        return ledger

    def explain(self, request: Request) -> Explanation:
        ledger = self.ledger()

        def books_of(name: str) -> NodeBooks | None:
            return next(iter(ledger.dump(name)), None)

        own_filters = OwnFilters(NodeStates(map(state_of, self.nodes)), ledger.taken)
        return explain(ledger.snapshot(), self.names, request, books_of, own=own_filters)

    def fits(self, request: Request) -> bool:
        """What filter says of all nodes."""
        return bool(filter_nodes(self.ledger().snapshot(), self.names, request).fit)

    def after(self, remedy: Remedy) -> "World":
        """The cluster once it has happened."""
        ended = {entry.ref.uid for entry in remedy.ends}
        served = {entry.ref.uid for entry in remedy.serves}
        pods = (pod for pod in self.pods if pod.ref.uid not in ended)
        return replace(
            self,
            nodes=tuple(
                healed(spec, remedy.opens) if spec.name == remedy.node else spec
                for spec in self.nodes
            ),
            pods=tuple(pod._replace(**SERVED) if pod.ref.uid in served else pod for pod in pods),
        )

    def emptied(self) -> "World":
        """The cluster without pods, all devices healthy."""
        nodes = tuple(healed(spec, range(len(spec.capacity))) for spec in self.nodes)
        return World(nodes)


def healed(spec: NodeSpec, devices: Iterable[int]) -> NodeSpec:
    healthy = (ok or device in devices for device, ok in enumerate(spec.healthy))
    return replace(spec, healthy=tuple(healthy))


def with_less(remedy: Remedy) -> Iterator[Remedy]:
    """The remedy without each one of its parts."""
    for name in ("ends", "opens", "serves"):
        parts = getattr(remedy, name)
        for index in range(len(parts)):
            yield replace(remedy, **{name: parts[:index] + parts[index + 1 :]})


def pod(uid: str, where: str, units: int, *devices: int, **more: Any) -> ObservedPod:
    """A bound pod; without devices it is unplaced. parts: of each device, if they are unlike."""
    parts = more.pop("parts", (units,) * max(len(devices), 1))
    request = Request(
        cpu=more.pop("cpu", 0),
        percents=compute(more.pop("cores", 0)),
        containers=((0, sum(parts)),),
        apart=more.pop("apart", None),
    ).of_parts(parts)
    placement = tuple(zip(devices, parts, strict=True)) if devices else None
    observed_pod = ObservedPod(PodRef("ns", uid, uid), request, where, placement)
    return observed_pod._replace(**more)


_CORES = st.sampled_from([st.just(0), st.sampled_from([0, 40, 100])])
"""Half of all worlds, and half of all requests, know of memory alone."""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to four nodes with sick and over-full devices, pods not served yet, unplaced, ending."""
    nodes, pods = [], []
    cores = draw(_CORES)
    for index in range(draw(st.integers(1, 4))):
        name = f"n{index}"
        capacity = draw(st.lists(st.integers(0, 8), max_size=4))
        sick = draw(st.sets(st.integers(0, 3), max_size=3))
        draw_result = draw(st.sampled_from([None, None, None, None, Reason.OTHER_UNIT]))
        limit = draw(st.sampled_from([ANY_SHARERS, ANY_SHARERS, 1, 2]))
        shape = node(name, *capacity, unhealthy=sick, closed=draw_result, cpu=4000, memory=2**33)
        nodes.append(replace(shape, max_sharers=limit))
        for number in range(draw(st.integers(0, 5)) if capacity else 0):
            devices = draw(
                st.sets(st.integers(0, len(capacity) - 1), max_size=min(2, len(capacity)))
            )
            served = SERVED if draw(st.booleans()) else {}
            parts = draw(st.tuples(*[st.integers(1, 6)] * max(len(devices), 1)))
            if draw(st.booleans()):
                parts = (parts[0],) * len(parts)
            pods.append(
                pod(
                    f"p{index}-{number}",
                    name,
                    parts[0],
                    *sorted(devices),
                    parts=parts,
                    terminating=draw(st.booleans()),
                    cores=draw(cores),
                    apart=draw(APART),
                    **served,
                )
            )
    return World(tuple(nodes), tuple(pods), draw(st.sampled_from([Pairing.OFF, Pairing.ON])))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    units, devices = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    cpu = draw(st.sampled_from([0, 3000]))
    cores = draw(draw(_CORES))
    return Request(
        units,
        devices,
        cpu=cpu,
        containers=((0, units * devices),),
        percents=with_share(cores, draw(st.sampled_from([0, 0, 0, 40]))),
    )


@st.composite
def requests_of_parts(draw: st.DrawFn) -> Request:
    """One of several sizes, as often as not."""
    request = draw(requests())
    parts = draw(st.lists(st.integers(1, 9), min_size=2, max_size=3))
    return request.of_parts(parts) if draw(st.booleans()) else request


@given(worlds(), requests_of_parts(), APART)
def test_what_is_said_to_help_helps_and_nothing_less_does(
    world: World, request: Request, apart: Apart | None
) -> None:
    request = replace(request, apart=apart)
    explain_result = world.explain(request)
    for remedy in explain_result.remedies:
        after = world.after(remedy)
        assert remedy.node in filter_nodes(after.ledger().snapshot(), world.names, request).fit
        for less in with_less(remedy):
            assert not world.after(less).fits(request), less


def test_it_is_told_which_devices_pods_of_the_workload_close() -> None:
    web = Apart("job team/train u-1", required=True)
    pods = (pod("a", "n0", 4, 0, apart=web), pod("b", "n0", 14, 1), pod("c", "n1", 4, 1, apart=web))
    world = World((node("n0", 16, 16), node("n1", 16, 16), node("n2", 4)), pods)
    result = world.explain(Request(14, 1, apart=web))
    assert result.closed_by_fellows == {"n0": (0,), "n1": (1,)}
    assert result.fit == ("n1",)
    assert world.explain(Request(14, 1, apart=web._replace(required=False))).closed_by_fellows == {}
    # Memory beside a pod of the workload is of no use.
    assert world.explain(Request(16, 1, apart=web)).fits_now == 16
    assert world.explain(Request(16, 2, apart=web)).fits_now == 0


def open_devices(world: World, name: str) -> list[tuple[int, int, int, bool]]:
    """Of each device of a node that may be given out: units, those in use, percent in use, and
    whether it may have one more pod.
    """
    return [
        (has, used, cores, pods < books.spec.max_sharers)
        for books in world.ledger().dump(name)
        for has, used, cores, pods, healthy in zip(
            books.spec.capacity,
            books.used,
            books.cores_used or (0,) * len(books.used),
            books.pods,
            books.spec.healthy,
            strict=True,
        )
        if healthy and not books.spec.closed
    ]


def free_devices(world: World, name: str, request: Request) -> list[int]:
    """What each device of a node has left that has the cores for it, too."""
    return [
        has - used
        for has, used, cores, has_place in open_devices(world, name)
        if has_place and cores <= 100 - max(request.cores, 1) and not (request.alone and used)
    ]


def most_of_parts(nodes: Iterable[Sequence[int]], parts: Sequence[int]) -> int:
    """The most units of the parts, some of each, that devices of one of these nodes have."""
    return max(
        (
            sum(map(min, chosen, parts))
            for devices in nodes
            for chosen in permutations(devices, len(parts))
            if all(units > 0 for units in chosen)
        ),
        default=0,
    )


@given(worlds(), requests_of_parts())
def test_each_part_of_a_split_request_is_told_as_far_as_it_fits(
    world: World, request: Request
) -> None:
    # The oracle goes by requested units: a percentage of memory charges each card another number.
    assume(not memory_percent(request.percents))
    world = replace(world, pairing=Pairing.OFF)
    explain_result = world.explain(request)
    if not request.split:
        assert explain_result.parts_now == explain_result.most_parts == ()
        return
    now = [free_devices(world, name, request) for name in world.names]
    ever = [() if spec.closed else spec.capacity for spec in world.nodes]
    for entry, nodes in ((explain_result.parts_now, now), (explain_result.most_parts, ever)):
        assert sum(entry) == most_of_parts(nodes, request.parts)
        assert all(some <= part for some, part in zip(entry, request.parts, strict=False))
    assert (explain_result.parts_now == request.parts) == world.fits(request)
    assert (explain_result.most_parts == request.parts) == (not explain_result.never)
    if explain_result.parts_now:
        assert world.fits(request.of_parts(explain_result.parts_now))
    all_items = [device for name in world.names for device in open_devices(world, name)]
    assert explain_result.with_memory == sum(
        has - used >= charged_units(min(request.parts), request.percents, has)
        for has, used, *_ in all_items
    )


@given(worlds(), requests_of_parts())
def test_as_few_pods_or_closed_devices_are_named_as_help_on_any_node(
    world: World, request: Request
) -> None:
    world = replace(world, pairing=Pairing.OFF)
    explain_result = world.explain(request)
    for remedy in explain_result.remedies:
        if (remedy.ends and remedy.opens) or any(end.terminating for end in remedy.ends):
            continue  # those that end anyway come first, though they may be more
        name = "ends" if remedy.ends else "opens"
        number = len(getattr(remedy, name))
        for spec in world.nodes:
            every_part_result = every_part(world, spec, name)
            for some in combinations(every_part_result, min(number - 1, len(every_part_result))):
                less = Remedy(spec.name, **{name: some})
                assert not world.after(less).fits(request), less


def every_part(world: World, spec: NodeSpec, name: str) -> Sequence[Any]:
    """All pods of a node that could end, or all its devices that could return."""
    if name == "opens":
        return [device for device, ok in enumerate(spec.healthy) if not ok]
    entries, _ = world.ledger().entries_and_specs()
    return [entry for entry in entries.values() if entry.node == spec.name]


@given(worlds(), requests_of_parts())
def test_it_fits_now_or_something_helps_or_it_never_fits(world: World, request: Request) -> None:
    explain_result = world.explain(request)
    assert bool(explain_result.fit) == world.fits(request)
    assert explain_result.nodes == len(world.nodes)
    assert explain_result.never == (not world.emptied().fits(request))
    if explain_result.split:
        assert explain_result.never
        total = request.total
        request_object = Request(total // explain_result.split, explain_result.split)
        assert world.emptied().fits(request_object)
        assert request_object.units * explain_result.split == total
    assert [bool(explain_result.fit), bool(explain_result.remedies), explain_result.never].count(
        True
    ) == 1


@given(worlds(), requests())
def test_the_largest_request_that_ever_fits_is_named(world: World, request: Request) -> None:
    explain_result, empty = world.explain(request), world.emptied()
    more_units = replace(request, units=explain_result.most_units + 1)
    more_devices = replace(request, devices=explain_result.most_devices + 1)
    assert not empty.fits(more_units)
    assert not empty.fits(Request(explain_result.most_alone + 1, 1))
    assert not empty.fits(more_devices)
    if explain_result.most_units:
        assert empty.fits(replace(request, units=explain_result.most_units))
    if explain_result.most_devices:
        assert empty.fits(replace(request, devices=explain_result.most_devices))


@given(worlds(), requests())
def test_what_is_free_now_fits_and_no_more(world: World, request: Request) -> None:
    world = replace(world, pairing=Pairing.OFF)
    explain_result = world.explain(request)
    assert not world.fits(replace(request, units=explain_result.fits_now + 1))
    if explain_result.fits_now:
        assert world.fits(replace(request, units=explain_result.fits_now))
    largest = explain_result.largest.units if explain_result.largest else 0
    assert not world.fits(Request(largest + 1, 1))
    if explain_result.largest:
        only = filter_nodes(
            world.ledger().snapshot(), [explain_result.largest.node], Request(largest, 1)
        )
        assert only.fit == (explain_result.largest.node,)


def test_the_smallest_set_is_found_wherever_it_is() -> None:
    world = World(
        (node("a", 16), node("b", 16), node("c", 16)),
        (
            *(pod(f"a{number}", "a", 4, 0) for number in range(4)),
            pod("b1", "b", 12, 0),
            pod("b2", "b", 4, 0),
            pod("c1", "c", 16, 0),
        ),
    )
    explain_result = world.explain(Request(12, 1))
    assert explain_result.reasons == {Reason.INSUFFICIENT_MEMORY: 3}
    assert explain_result.largest is None
    (remedy,) = explain_result.remedies
    assert (remedy.node, [entry.ref.name for entry in remedy.ends]) == ("b", ["b1"])


def test_pods_that_end_already_come_first() -> None:
    world = World(
        (node("a", 16), node("b", 16)),
        (
            pod("a1", "a", 16, 0),
            pod("b1", "b", 8, 0, terminating=True),
            pod("b2", "b", 8, 0, terminating=True),
        ),
    )
    (remedy,) = world.explain(Request(8, 1)).remedies
    assert [entry.node for entry in remedy.ends] == ["b"]


@pytest.mark.parametrize(("ends_by", "ends"), [(30.0, "a2"), (1e9, "a1"), (-1e6, "a1")])
def test_a_pod_that_outlives_its_grace_is_no_better_than_any_other(
    ends_by: float, ends: str
) -> None:
    """The two would leave as much; of equals, the one whose name comes first is named."""
    ending = pod("a2", "a", 16, 1, terminating=True, ends_by=ends_by)
    world = World((node("a", 16, 16),), (pod("a1", "a", 16, 0), ending))
    (remedy,) = world.explain(Request(8, 1)).remedies
    assert [entry.ref.name for entry in remedy.ends] == [ends]


def test_a_closed_device_and_the_end_of_a_pod_are_told_as_a_choice() -> None:
    world = World((node("a", 16, 16, unhealthy=[1]),), (pod("p", "a", 10, 0),))
    by_end, by_return = world.explain(Request(8, 1)).remedies
    assert ([entry.ref.name for entry in by_end.ends], by_end.opens) == (["p"], ())
    assert (by_return.ends, by_return.opens) == ((), (1,))


def test_closed_devices_are_counted_for_each_part() -> None:
    world = World(
        (node("a", 3, 3, 3, 8, 8, unhealthy=[3, 4]), node("b", 8, 8, 3, unhealthy=[2])),
    )
    (remedy,) = world.explain(Request().of_parts([8, 8, 3])).remedies
    assert (remedy.node, remedy.opens) == ("b", (2,))


def test_a_host_that_would_lack_cpu_is_said() -> None:
    ref = PodRef("ns", "cpu", "uid-cpu")
    cpu_only = ObservedPod(ref, Request(cpu=1500, memory=2**30), "a")
    world = World((node("a", 16, cpu=2000, memory=2**31),), (pod("p", "a", 10, 0), cpu_only))
    (remedy,) = world.explain(Request(8, 1, cpu=1000, memory=2**31)).remedies
    assert (len(remedy.ends), remedy.lacks) == (1, ("cpu", "memory"))
    explain_result = world.explain(Request(8, 1, cpu=3000))
    assert (explain_result.never, explain_result.kept_out) == (
        True,
        {"too little cpu even if empty": 1},
    )


def test_all_pods_are_named_that_have_to_end_for_the_sums_of_the_node() -> None:
    """The pod on the dead card holds CPU that the node counts, but no device that would help."""
    spec = node("a", 16, 16, cpu=2000, unhealthy=[1])
    on_dead_card = pod("dead", "a", 10, 1, cpu=1500)
    world = World((spec,), (pod("p", "a", 10, 0), on_dead_card))
    (remedy,) = world.explain(Request(8, 1, cpu=1000)).remedies
    assert (sorted(entry.ref.name for entry in remedy.ends), remedy.lacks) == (["dead", "p"], ())


def test_one_pod_is_named_that_opens_a_device_and_the_sums() -> None:
    large = pod("large", "a", 10, 1, cpu=1500)
    world = World((node("a", 16, 16, cpu=2000),), (pod("p", "a", 10, 0), large))
    (remedy,) = world.explain(Request(8, 1, cpu=1000)).remedies
    assert ([entry.ref.name for entry in remedy.ends], remedy.lacks) == (["large"], ())


def test_another_pod_ends_rather_than_one_that_its_controller_replaces() -> None:
    web = Apart("replicaset default/web u", required=True)
    pods = (pod("fellow", "a", 2, 0, apart=web), pod("other", "b", 16, 0))
    world = World((node("a", 16), node("b", 16)), pods)
    (remedy,) = world.explain(Request(2, 1, apart=web)).remedies
    assert [entry.ref.name for entry in remedy.ends] == ["other"]
    (remedy,) = World(world.nodes[:1], pods[:1]).explain(Request(2, 1, apart=web)).remedies
    assert [entry.ref.name for entry in remedy.ends] == ["fellow"]


def test_nodes_of_another_model_are_counted_apart() -> None:
    world = World((node("a", 16), replace(node("b", 80), models=("H100",))))
    explain_result = world.explain(Request(20, 1, models=("A100",)))
    assert (explain_result.other_models, explain_result.reasons) == (1, {Reason.TOO_LARGE: 1})
    assert explain_result.never
    assert explain_result.largest == FreeDevice("a", 0, 16)


def test_a_large_cluster_is_explained_from_a_few_of_its_nodes() -> None:
    nodes = tuple(node(f"n{number:04}", 16, 16) for number in range(1000))
    pods = tuple(pod(f"p{number:04}", f"n{number:04}", 12, 0, 1) for number in range(1000))
    ledger = World(nodes, pods).ledger()
    looked: list[str] = []

    def books_of(name: str) -> NodeBooks | None:
        looked.append(name)
        return ledger.dump(name)[0]

    names = [spec.name for spec in nodes]
    explain_result = explain(ledger.snapshot(), names, Request(8, 2), books_of)
    assert [entry.ref.name for entry in explain_result.remedies[0].ends] == ["p0000"]
    assert len(looked) < 100


@given(worlds(), st.sampled_from(["device-bestfit", "binpack", "spread", "shadow-price"]))
def test_a_bound_pod_is_judged_as_the_extender_would_judge_without_it(
    world: World, policy: str
) -> None:
    ledger = world.ledger()
    bound_pod = [pod for pod in world.pods if pod.placement]
    for item in bound_pod[:2]:
        entry = ledger.entry(item.ref.uid)
        assert entry is not None
        (books,) = ledger.dump(entry.node)
        judge_by = load_policy(policy)
        ranks = Ranking(judge_by, neighbours=1)
        score_bound_pod_result = score_bound_pod(ledger.snapshot(), books, entry, ranks, policy)
        remaining_items = tuple(pod for pod in world.pods if pod.ref.uid != item.ref.uid)
        without = replace(world, pods=remaining_items).ledger().snapshot()
        ranking = Ranking(judge_by, neighbours=1)
        scores = by_name(score_nodes(without, world.names, item.request, ranking))
        assert score_bound_pod_result.score == scores.get(entry.node, 0)
        assert score_bound_pod_result.best == next(
            (name for name, score in scores.items() if score == BEST), ""
        )
        assert score_bound_pod_result.fitting == len(
            filter_nodes(without, world.names, item.request).fit
        )
        row = without.row[entry.node]
        assert [device.free for device in score_bound_pod_result.devices] == without.free[
            row, : len(score_bound_pod_result.devices)
        ].tolist()
        if score_bound_pod_result.chosen:
            assert (
                score_bound_pod_result.chosen
                == place(without, entry.node, item.request, ranking).devices
            )


def test_equal_parts_are_named_where_unlike_ones_never_fit() -> None:
    world = World((node("a", 24, 24), node("b", 40)))
    explain_result = world.explain(Request().of_parts([30, 10]))
    assert (explain_result.most_parts, explain_result.most_devices, explain_result.split) == (
        (24, 10),
        1,
        1,
    )
    assert world.explain(Request().of_parts([32, 10])).split == 2
    assert world.explain(Request(percents=compute(60)).of_parts([30, 10])).split == 2


def test_no_split_is_named_that_would_not_split_the_cores() -> None:
    world = World((node("a", 16, 16, 16, 16),))
    assert world.explain(Request(20, 1, percents=compute(50))).split == 2
    assert world.explain(Request(20, 1, percents=compute(25))).split == 0
    assert world.explain(Request(24, 1, percents=compute(51))).split == 3


@pytest.mark.parametrize("counted", [True, False])
def test_a_plug_in_that_is_away_is_a_remedy_alone(*, counted: bool) -> None:
    """Without an inventory the node's devices are closed while nothing is allocatable."""
    spec = replace(node("a", 16, 16, unhealthy=[0, 1]), counted=counted)
    ledger = Ledger()
    ledger.node_changed(spec)
    state = state_of(spec, allocatable={"aliyun.com/gpu-mem": 0, "pods": 110})
    explanation = explain(
        ledger.snapshot(),
        ["a"],
        Request(8, 1, resources=(("aliyun.com/gpu-mem", 8),)),
        lambda name: next(iter(ledger.dump(name)), None),
        own=OwnFilters(NodeStates([state]), ledger.taken),
    )
    (remedy,) = explanation.remedies
    assert remedy.cures == ("its device plug-in offers aliyun.com/gpu-mem again",)
    assert (len(remedy.opens), remedy.lacks) == (0 if counted else 1, ())
