"""Plans of few moves, judged by an independent oracle: dicts of pods, sums, and all sets of pods.

The oracle asks the extender's decisions (`decide`) of a snapshot that is made anew for each state,
where the planner works on one cluster that it changes and changes back.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.amounts import charged_units, compute
from gpushare.core.decide import best_row, place, rows_of
from gpushare.core.defrag import MovablePod, MovePlan, Planner
from gpushare.core.model import ANY_SHARERS, Apart, Charge, NodeSpec, Request, Shares
from gpushare.core.mutable_cluster import MutableCluster, Placement, ranking
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot
from gpushare.core.trial_streams import mutable
from tests.unit.core.clusters import POLICIES, node, with_share

PLENTY = 10**7


@dataclass(frozen=True)
class WorldPod:
    """A pod on a node."""

    name: str
    request: Request
    node: str
    devices: tuple[int, ...]
    """Devices of the parts, the largest part first."""
    cost: float = 0.0
    movable: bool = True

    @property
    def shares(self) -> Shares:
        return tuple(sorted(zip(self.devices, self.request.parts, strict=True)))


State = Mapping[str, WorldPod]


def by_part(shares: Shares) -> tuple[int, ...]:
    """The devices in the order of the parts."""
    return tuple(device for device, _ in sorted(shares, key=lambda share: -share[1]))


@dataclass(frozen=True)
class DefragWorld:
    """Nodes sorted by name, with pods."""

    nodes: tuple[NodeSpec, ...]
    pods: State

    def snapshot(self, pods: State) -> Snapshot:
        arrays = NodeArrays()
        for spec in self.nodes:
            local_pods = [pod for pod in pods.values() if pod.node == spec.name]
            arrays.set_node(
                spec,
                [Charge(spec.name, pod.request, pod.shares) for pod in local_pods],
            )
        return arrays.snapshot({})

    def planner(self, policy: str) -> tuple[Planner, MutableCluster]:
        rows = np.arange(len(self.nodes))
        view = mutable(self.snapshot(self.pods), rows, empty=False)
        cluster = MutableCluster(view, ranking(POLICIES[policy], len(rows)))
        movers = [
            MovablePod(pod.name, Placement(view.row[pod.node], pod.shares, pod.request), pod.cost)
            for pod in self.pods.values()
            if pod.movable
        ]
        return Planner(cluster, movers), cluster

    def sums(self, spec: NodeSpec, pods: State) -> tuple[list[int], list[int], int]:
        """Units and cores by device, and CPU, that these pods have of a node."""
        units, cores, cpu = [0] * len(spec.capacity), [0] * len(spec.capacity), 0
        for pod in pods.values():
            if pod.node == spec.name:
                cpu += pod.request.cpu
                for device, share in pod.shares:
                    capacity = spec.capacity[device]
                    units[device] += charged_units(share, pod.request.percents, capacity)
                    cores[device] += pod.request.cores
        return units, cores, cpu

    def sharers(self, spec: NodeSpec, pods: State) -> Counter[int]:
        """The pods of each device of a node."""
        return Counter(
            device for pod in pods.values() if pod.node == spec.name for device, _ in pod.shares
        )

    def fellows(self, spec: NodeSpec, request: Request, pods: State) -> list[int]:
        """The devices of the pods that the request has to stay apart from, each once for a pod."""
        return [
            device
            for pod in pods.values()
            if pod.node == spec.name and pod.request.apart == request.apart is not None
            for device in pod.devices
        ]

    def is_lawful(self, pods: State) -> bool:
        for spec in self.nodes:
            sharers = self.sharers(spec, pods)
            if max(sharers.values(), default=0) > spec.max_sharers:
                return False
            for request in {pod.request for pod in pods.values()}:
                fellows = self.fellows(spec, request, pods)
                if len(set(fellows)) < len(fellows):
                    return False
            units, cores, cpu = self.sums(spec, pods)
            if cpu > (spec.cpu or 0) or max(cores) > 100:
                return False
            if any(used > has for used, has in zip(units, spec.capacity, strict=True)):
                return False
            for pod in pods.values():
                whole = pod.node == spec.name and pod.request.alone
                if whole and any(sharers[device] > 1 for device, _ in pod.shares):
                    return False
        return True

    def fits(self, spec: NodeSpec, request: Request, pods: State) -> bool:
        """Whether the node has room for the request, by sums."""
        (units, cores, cpu), sharers = self.sums(spec, pods), self.sharers(spec, pods)
        fellows = self.fellows(spec, request, pods)
        devices = zip(spec.capacity, units, cores, strict=True)
        room = [
            (has, has - used)
            for device, (has, used, used_cores) in enumerate(devices)
            if sharers[device] < spec.max_sharers
            and device not in fellows
            and used_cores < 100
            and used_cores + request.cores <= 100
            and not (request.alone and used)
        ]
        return (spec.cpu or 0) - cpu >= request.cpu and any(
            all(
                free >= charged_units(part, request.percents, has)
                for (has, free), part in zip(chosen, request.parts, strict=True)
            )
            for chosen in permutations(room, request.devices)
        )

    def decided(
        self, request: Request, pods: State, policy: str, without: str
    ) -> tuple[str, tuple[int, ...]] | None:
        """The placement by the extender, among nodes with enough CPU."""
        names = [
            spec.name
            for spec in self.nodes
            if spec.name != without and (spec.cpu or 0) - self.sums(spec, pods)[2] >= request.cpu
        ]
        view, scorer = self.snapshot(pods), Ranking(POLICIES[policy])
        best = best_row(view, rows_of(view, names), request, scorer)
        if best is None:
            return None
        return names[best], by_part(place(view, names[best], request, scorer).shares)

    def sets_that_open(
        self, spec: NodeSpec, request: Request, size: int
    ) -> Iterator[list[WorldPod]]:
        """Each minimal set of movable pods on the node that makes room when removed."""
        movable_pods = [pod for pod in self.pods.values() if pod.movable and pod.node == spec.name]

        def opens(pods: Iterable[WorldPod]) -> bool:
            names = {pod.name for pod in pods}
            remaining_pods = {name: pod for name, pod in self.pods.items() if name not in names}
            return self.fits(spec, request, remaining_pods)

        for some in combinations(movable_pods, size):
            if opens(some) and not any(opens(set(some) - {pod}) for pod in some):
                yield [*some]

    def can_move(self, some: Iterable[WorldPod], policy: str) -> bool:
        """Whether these pods have new places, in some order, while all hold the old places."""
        for order in permutations(some):
            pods = dict(self.pods)
            for pod in order:
                to = self.decided(pod.request, pods, policy, pod.node)
                if to is None:
                    break
                pods[f"{pod.name} anew"] = replace(pod, node=to[0], devices=to[1])
            else:
                return True
        return False

    def best(self, request: Request, max_moves: int, policy: str) -> tuple[int, object] | None:
        """The fewest moves that open a place, and the order of the best such set of pods."""
        for size in range(1, max_moves + 1):
            plans = [
                (
                    sum(pod.cost for pod in some),
                    sum(pod.request.total for pod in some),
                    sorted(pod.name for pod in some),
                )
                for spec in self.nodes
                for some in self.sets_that_open(spec, request, size)
                if self.can_move(some, policy)
            ]
            if plans:
                return size, min(plans)
        return None


# A strategy made once: a new strategy for each draw takes twice the time.
CAPACITIES = st.lists(st.integers(4, 8), min_size=1, max_size=3)
CPU = st.sampled_from([4000, 16_000])
DEVICES, CPU_ASKED = st.sampled_from([1, 1, 1, 2]), st.sampled_from([0, 0, 1000, 3000])
CORES = st.sampled_from([0, 0, 40, 70, 100])
SHARES = st.sampled_from([0, 0, 0, 30, 60])


def asked(draw: st.DrawFn, cores: bool, min_units: int = 1, max_units: int = 8) -> Request:
    """Of one device, or of several with equal parts or unlike ones."""
    request = Request(
        draw(st.integers(min_units, max_units)),
        draw(DEVICES),
        cpu=draw(CPU_ASKED),
        percents=with_share(draw(CORES) if cores else 0, draw(SHARES)),
        apart=draw(st.sampled_from([None, None, Apart("web", required=True)])),
    )
    other_parts = draw(st.lists(st.integers(1, request.units), max_size=2))
    return request.of_parts([request.units, *other_parts]) if draw(st.booleans()) else request


requests = st.composite(asked)


@st.composite
def worlds(draw: st.DrawFn, most_nodes: int = 3, most_pods: int = 12) -> DefragWorld:
    """Rather full nodes with rather small pods, most of them movable."""
    count, cores = draw(st.integers(2, most_nodes)), draw(st.booleans())
    nodes = tuple(
        node(
            f"n{at}",
            *draw(CAPACITIES),
            cpu=draw(CPU),
            memory=2**40,
            max_sharers=draw(st.sampled_from([ANY_SHARERS, ANY_SHARERS, 2, 3])),
        )
        for at in range(count)
    )
    world, pods = DefragWorld(nodes, {}), dict[str, WorldPod]()
    for at in range(draw(st.integers(most_pods // 2, most_pods))):
        request, cost = asked(draw, cores, max_units=4), float(draw(st.integers(0, 3)))
        movable = draw(st.integers(0, 5)) > 0
        places = [
            (spec.name, devices)
            for spec in nodes
            for devices in permutations(range(len(spec.capacity)), request.devices)
        ]
        all_pods = [
            WorldPod(f"p{at}", request, *node_and_devices, cost, movable)
            for node_and_devices in places
        ]
        lawful = [pod for pod in all_pods if world.is_lawful({**pods, pod.name: pod})]
        if lawful:
            pods[f"p{at}"] = lawful[draw(st.integers(0, len(lawful) - 1))]
    return DefragWorld(nodes, pods)


POLICY = st.sampled_from(["binpack", "device-bestfit", "fgd"])


def check_prefixes(world: DefragWorld, plan: MovePlan, request: Request) -> None:
    """Every prefix of the plan leaves a lawful cluster, and the last one the place."""
    names = [spec.name for spec in world.nodes]
    without_moved, standing = dict(world.pods), dict(world.pods)
    for move in plan.moves:
        pod = world.pods[move.mover.name]
        moved_pod = replace(pod, node=names[move.to.row], devices=by_part(move.to.shares))
        assert pod.movable
        assert pod.node == names[plan.hole.row] != moved_pod.node
        # The new one may come before the old one has ended, and later ones may never go.
        standing[f"{pod.name} anew"] = moved_pod
        assert world.is_lawful(standing)
        without_moved[pod.name] = moved_pod
        assert world.is_lawful(without_moved)
    hole = WorldPod("hole", request, names[plan.hole.row], by_part(plan.hole.shares))
    assert world.is_lawful({**without_moved, "hole": hole})


@settings(max_examples=400, deadline=None)
@given(st.data(), worlds(most_nodes=5, most_pods=30), POLICY)
def test_whoever_stops_after_any_move_leaves_a_lawful_cluster(
    data: st.DataObject, world: DefragWorld, policy: str
) -> None:
    request = data.draw(requests(data.draw(st.booleans()), min_units=4))
    planner, cluster = world.planner(policy)
    before = {name: getattr(cluster.view, name).tolist() for name in ("used", "free", "cpu_free")}
    plan = planner.plan(request, 4, StepBudget(data.draw(st.sampled_from([300, 3000, PLENTY]))))
    after = {name: getattr(cluster.view, name).tolist() for name in before}
    assert after == before
    if plan is not None:
        check_prefixes(world, plan, request)


@settings(max_examples=400, deadline=None)
@given(st.data(), worlds(), POLICY)
def test_no_plan_of_one_level_has_fewer_moves_or_costs_less(
    data: st.DataObject, world: DefragWorld, policy: str
) -> None:
    request = data.draw(requests(data.draw(st.booleans()), min_units=4))
    fits = any(world.fits(spec, request, world.pods) for spec in world.nodes)
    plan = world.planner(policy)[0].plan(request, 3, StepBudget(PLENTY))
    if fits:
        assert plan is not None
        assert not plan.moves
        return
    best = world.best(request, 3, policy)
    assert (plan is None) == (best is None)
    if plan is not None and best is not None:
        movers = [world.pods[move.mover.name] for move in plan.moves]
        names = sorted(pod.name for pod in movers)
        units = sum(pod.request.total for pod in movers)
        assert (len(movers), (plan.cost, units, names)) == best


def full_of(*pods: WorldPod, nodes: tuple[NodeSpec, ...]) -> DefragWorld:
    return DefragWorld(nodes, {pod.name: pod for pod in pods})


TWO = (node("a", 8, 8, cpu=10_000, memory=2**40), node("b", 8, cpu=10_000, memory=2**40))


def test_one_small_pod_is_moved_from_the_device_that_has_most_room() -> None:
    world = full_of(
        WorldPod("small", Request(2, 1), "a", (0,)),
        WorldPod("large", Request(6, 1), "a", (1,)),
        WorldPod("other", Request(4, 1), "b", (0,)),
        nodes=TWO,
    )
    plan = world.planner("binpack")[0].plan(Request(8, 1), 4, StepBudget(PLENTY))
    assert plan is not None
    (move,) = plan.moves
    assert (move.mover.name, move.to.row, plan.hole.devices) == ("small", 1, (0,))


def test_a_pod_is_moved_for_the_host_alone() -> None:
    nodes = (TWO[0], node("b", 4, cpu=1000, memory=2**40))
    world = full_of(
        WorldPod("busy", Request(1, 1, cpu=1000), "a", (0,)),
        WorldPod("other", Request(7, 1, cpu=9000), "a", (0,), movable=False),
        nodes=nodes,
    )
    plan = world.planner("binpack")[0].plan(Request(8, 1, cpu=1000), 4, StepBudget(PLENTY))
    assert plan is not None
    assert [move.mover.name for move in plan.moves] == ["busy"]
    assert plan.hole.row == 0


def test_the_cheaper_of_equal_pods_is_moved() -> None:
    world = full_of(
        WorldPod("dear", Request(4, 1), "a", (0,), cost=9),
        WorldPod("cheap", Request(4, 1), "a", (0,), cost=1),
        WorldPod("rest", Request(8, 1), "a", (1,), movable=False),
        WorldPod("other", Request(3, 1), "b", (0,), movable=False),
        nodes=TWO,
    )
    plan = world.planner("binpack")[0].plan(Request(6, 1), 4, StepBudget(PLENTY))
    assert plan is None  # two would have to go, and only one has a place
    plan = world.planner("binpack")[0].plan(
        Request(4, 1, percents=compute(50)), 4, StepBudget(PLENTY)
    )
    assert plan is not None
    assert not plan.moves
    roomy = replace(world, nodes=(TWO[0], replace(TWO[1], cpu=500)))
    plan = roomy.planner("binpack")[0].plan(Request(4, 1, cpu=501), 4, StepBudget(PLENTY))
    assert plan is not None
    assert [move.mover.name for move in plan.moves] == ["cheap"]


def test_the_smaller_pod_goes_first_if_it_has_a_place_only_then() -> None:
    nodes = (
        node("a", 8, cpu=10_000, memory=2**40),
        node("b", 8, cpu=1000, memory=2**40),
        node("c", 4, cpu=500, memory=2**40),
    )
    world = full_of(
        WorldPod("large", Request(3, 1), "a", (0,)),
        WorldPod("small", Request(2, 1, cpu=1000), "a", (0,)),
        WorldPod("b", Request(5, 1), "b", (0,), movable=False),
        WorldPod("c", Request(1, 1), "c", (0,), movable=False),
        nodes=nodes,
    )
    wanted_place = Request(8, 1)
    assert world.decided(Request(3, 1), world.pods, "binpack", "a") == ("b", (0,))
    plan = world.planner("binpack")[0].plan(wanted_place, 4, StepBudget(PLENTY))
    assert plan is not None
    assert [(move.mover.name, move.to.row) for move in plan.moves] == [("small", 1), ("large", 2)]
    check_prefixes(world, plan, wanted_place)


@pytest.mark.parametrize(
    ("wants", "moved_names", "devices"),
    [
        (Request(6, 2, split=(6, 2)), ["small"], (0, 1)),
        (Request(6, 2), ["large", "small"], (0, 1)),
        (Request(8, 2, split=(8, 4)), ["large"], (0, 1)),
        (Request(8, 2, split=(8, 6)), ["large", "small"], (0, 1)),
    ],
)
def test_each_part_of_a_split_pod_counts_by_itself(
    wants: Request, moved_names: list[str], devices: tuple[int, ...]
) -> None:
    world = full_of(
        WorldPod("small", Request(3, 1), "a", (0,)),
        WorldPod("large", Request(6, 1), "a", (1,)),
        nodes=(TWO[0], replace(TWO[1], capacity=(9,))),
    )
    plan = world.planner("binpack")[0].plan(wants, 4, StepBudget(PLENTY))
    assert plan is not None
    assert sorted(move.mover.name for move in plan.moves) == moved_names
    assert plan.hole.devices == devices
    check_prefixes(world, plan, wants)


def test_a_node_that_misses_less_for_all_parts_is_looked_at_first() -> None:
    nodes = (node("a", 8, 8, cpu=1, memory=1), node("b", 8, 4, cpu=1, memory=1))
    world = full_of(
        WorldPod("a", Request(6, 2), "a", (0, 1)),
        WorldPod("b", Request(3, 1), "b", (0,)),
        nodes=nodes,
    )
    planner = world.planner("binpack")[0]
    assert planner.rows_for(Request(8, 2, split=(8, 3))) == [1, 0]
    assert planner.rows_for(Request(8, 2, split=(8, 5))) == [0]
    assert planner.rows_for(Request(8, 3, split=(8, 3, 1))) == []


@pytest.mark.parametrize(
    ("holds", "wants"),
    [
        (Request(1, 1), Request(4, 1, percents=compute(100))),
        (Request(1, 1, percents=compute(100)), Request(4, 1)),
    ],
    ids=["a device alone", "beside who is alone"],
)
def test_who_has_all_compute_of_a_device_shares_it_with_nobody(
    holds: Request, wants: Request
) -> None:
    world = full_of(
        WorldPod("in the way", holds, "a", (0,)),
        WorldPod("other", Request(1, 1, percents=compute(100)), "a", (1,), movable=False),
        nodes=(TWO[0], node("b", 2, cpu=10_000, memory=2**40)),
    )
    plan = world.planner("binpack")[0].plan(wants, 4, StepBudget(PLENTY))
    assert plan is not None
    assert [move.mover.name for move in plan.moves] == ["in the way"]
    check_prefixes(world, plan, wants)


@pytest.mark.parametrize("steps", [0, 1])
def test_without_steps_no_plan_is_found(steps: int) -> None:
    world = full_of(
        WorldPod("small", Request(2, 1), "a", (0,)),
        WorldPod("large", Request(6, 1), "a", (1,)),
        WorldPod("other", Request(4, 1), "b", (0,)),
        nodes=TWO,
    )
    budget = StepBudget(steps)
    assert world.planner("binpack")[0].plan(Request(8, 1), 4, budget) is None
    assert budget.remaining <= 0
    assert world.planner("binpack")[0].plan(Request(8, 1), 4, StepBudget(PLENTY)) is not None
