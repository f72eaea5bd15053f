"""Counts of new nodes: `what_if` tries each answer, and each answer with one node fewer."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.core.node_filters import NodeStates, OwnFilters
from gpushare.core.policy import Policy, load_policy
from gpushare.core.selectors import Demands
from gpushare.explain.need import NodeNeed, more_of, need
from gpushare.explain.placer import MODEL, PodBatch
from gpushare.explain.whatif import Shape, WhatIfAnswer, what_if
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node, state_of
from tests.unit.explain.test_whatif import MEM, POLICY, bind, books

BIG, SMALL = (Shape(f"{n}x{size}", node("", *[size] * n)) for n, size in ((4, 80), (2, 24)))

TINY = Shape("1x8", node("", 8))


def answer(
    ledger: Ledger,
    requested: Sequence[PodBatch],
    *shapes: Shape,
    policy: Policy = POLICY,
    states: NodeStates | None = None,
) -> NodeNeed:
    filters = OwnFilters(states, ledger.taken)
    return need(ledger, requested, shapes, policy, filters, resource=MEM)


def applied(
    ledger: Ledger,
    requested: Sequence[PodBatch],
    shapes: Sequence[Shape],
    counts: Sequence[int],
    policy: Policy = POLICY,
) -> WhatIfAnswer:
    """Return the answer if these nodes come with the names of `whatif --add`."""
    pairs = zip(shapes, counts, strict=True)
    shape_of_node = [shape for shape, count in pairs for _ in range(count)]
    states = NodeStates()
    added = []
    for number, shape in enumerate(shape_of_node, 1):
        spec, state = shape.node(f"new-{number}", MEM)
        added.append(spec)
        states.put(state)
    filters = OwnFilters(states, ledger.taken)
    return what_if(ledger, requested, policy, added=added, filters=filters)


def test_the_fewest_nodes_of_one_shape() -> None:
    result = answer(books(node("a", 24, 24)), [PodBatch("20GiB", Request(20, 1), 7)], SMALL)
    assert result.counts == (3,)
    assert [node.used for node in result.nodes] == [(20, 20), (20, 20), (20, 0)]
    assert result.results[0].on == {"a": 2, "new-1": 2, "new-2": 2, "new-3": 1}
    assert result.largest == (24, 4)
    assert (result.before.nodes, result.after.nodes) == (1, 4)


def test_each_part_of_a_split_pod_is_counted() -> None:
    """A pod takes 20 of one device and 10 of another; with 10 on both, three would fit a node."""
    result = answer(books(), [PodBatch("split", Request().of_parts([20, 10]), 3)], SMALL)
    assert result.counts == (3,)
    assert [node.used for node in result.nodes] == [(20, 10)] * 3
    room = Shape("4x24", node("", 24, 24, 24, 24))
    result = answer(books(), [PodBatch("split", Request().of_parts([20, 10]), 4)], room)
    assert result.counts == (2,)


def test_compute_is_counted() -> None:
    """The sum of compute, devices with so much of it, and empty devices for whole ones."""
    for cores, pods, nodes in ((10, 21, 1), (60, 5, 2), (100, 4, 2)):
        ledger = books(node("a", 24, 24))
        bind(ledger, "plain", Request(4, 1), "a")
        pods_with_compute = PodBatch("p", Request(1, 1, percents=compute(cores)), pods)
        result = answer(ledger, [pods_with_compute], SMALL)
        assert result.counts == (nodes,), cores
        assert result.any_percents
    assert result.largest == (24,)  # only one device has compute left


def test_nothing_is_needed_where_all_fit() -> None:
    result = answer(books(node("a", 24, 24)), [PodBatch("20GiB", Request(20, 1), 2)], SMALL)
    assert (result.counts, result.nodes, result.left_out) == ((0,), (), ())


def test_pods_that_no_node_takes_are_left_out_with_a_reason() -> None:
    requested = [
        PodBatch("large", Request(100, 1), 2),
        PodBatch("wide", Request(8, 3), 1),
        PodBatch("other", Request(8, 1, models=("H100",)), 4),
        PodBatch("fits", Request(20, 1), 2),
    ]
    result = answer(books(node("a", 4)), requested, SMALL)
    assert result.counts == (1,)
    assert [(pods.batch.name, pods.missing, dict(pods.reasons)) for pods in result.left_out] == [
        ("large", 2, {"GPU Memory request is larger than any healthy device": 1}),
        ("wide", 1, {"fewer healthy devices of that size than requested": 1}),
        ("other", 4, {MODEL: 1}),
    ]


def test_a_pod_counts_for_the_first_shape_that_takes_it() -> None:
    requested = [PodBatch("whole", Request(80, 4), 1), PodBatch("20GiB", Request(20, 1), 4)]
    assert answer(books(), requested, SMALL, BIG).counts == (2, 1)
    assert answer(books(), requested, BIG, SMALL).counts == (2, 0)


def test_nodes_of_a_later_shape_replace_earlier_ones_where_they_have_room() -> None:
    """The pod that only a large node takes leaves three devices of it to small pods."""
    requested = [PodBatch("large", Request(80, 1), 1), PodBatch("20GiB", Request(20, 1), 4)]
    assert answer(books(), requested, SMALL, BIG).counts == (0, 1)


def test_a_pod_fits_on_a_node_that_is_there_once_others_go_to_new_ones() -> None:
    """A pod that fits a new node has the H100; with a new node the H100 is free again."""
    ledger = books(node("old", 80, models=("H100",)))
    h100 = PodBatch("h100", Request(70, 1, models=("H100",)))
    result = answer(ledger, [PodBatch("any", Request(20, 1), 1), h100], SMALL)
    assert (result.counts, result.left_out) == ((1,), ())


def test_what_kube_scheduler_would_refuse_is_not_counted() -> None:
    spec = node("gpu-1", 24, 24)
    zone = state_of(spec, labels={"zone": "a"}, allocatable={MEM: 48, "pods": 1, "cpu": 4000})
    shape = Shape("like gpu-1", replace(spec, name=""), zone)
    ask = Request(4, 1, resources=((MEM, 4),))
    elsewhere = Demands((("zone", "b"),))
    requested = [PodBatch("here", ask, 3), PodBatch("there", ask, 1, elsewhere)]
    result = answer(books(), requested, shape)
    assert result.counts == (3,)  # a pod a node
    (pods,) = result.left_out
    assert (pods.batch.name, pods.missing) == ("there", 1)
    assert list(pods.reasons) == ["not what the pod's node selector or affinity asks for"]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 3)), min_size=1, max_size=30),
    st.fractions(Fraction(1, 100), 3),
)
def test_so_much_more_is_no_less_than_asked(sizes: list[tuple[int, int]], share: Fraction) -> None:
    entries = [PodBatch(str(number), Request(*size)) for number, size in enumerate(sizes)]
    answer = more_of(entries, share)
    pods = sum(batch.count or 0 for batch in answer)
    assert len(entries) * share <= pods < len(entries) * share + 1
    units = sum(batch.request.total * (batch.count or 0) for batch in answer)
    assert units >= share * sum(batch.request.total for batch in entries)


SHAPES = st.builds(
    lambda sizes, cpu: Shape("s", node("", *sizes, cpu=cpu)),
    st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=4),
    st.sampled_from([None, 4000, 16000]),
)
UNITS = st.sampled_from([2, 3, 5, 8, 12, 16, 24])
PODS = st.builds(
    lambda parts, cpu, models, cores, count, priority: PodBatch(
        "p",
        Request(cpu=cpu, models=models, percents=compute(cores)).of_parts(parts),
        count,
        priority=priority,
    ),
    st.builds(lambda units, devices: [units] * devices, UNITS, st.sampled_from([1, 1, 1, 2, 3]))
    | st.lists(UNITS, min_size=2, max_size=3),
    st.sampled_from([0, 500, 3000]),
    st.sampled_from([(), (), ("A100",), ("H100",)]),
    st.sampled_from([0, 0, 0, 30, 60, 100]),
    st.integers(1, 6),
    st.sampled_from([0, 0, 5]),
)


def cluster(nodes: list[list[int]], running: list[int]) -> Ledger:
    ledger = books(*(node(f"n{number}", *sizes) for number, sizes in enumerate(nodes)))
    for number, units in enumerate(running):
        name = f"n{number % len(nodes)}" if nodes else ""
        if name and ledger.snapshot().free[ledger.snapshot().row[name]].max() >= units:
            bind(ledger, f"r{number}", Request(units, 1, percents=compute(units % 2 * 5)), name)
    late = ObservedPod(PodRef("default", "late", "late"), Request(7, 1), created=1.0)
    ledger.pod_changed(late)
    return ledger


def fitting(outcome: WhatIfAnswer) -> list[int]:
    """Return the number of fitting pods by batch."""
    return [
        result.fit
        for result in (*outcome.moved_results, *outcome.pending_results, *outcome.requested_results)
    ]


def test_nodes_that_only_change_who_is_left_out_do_not_come() -> None:
    """Two pods of two devices want the node that is there; a new one has one device."""
    wide = [
        PodBatch("narrow", Request(3, 1), 3),
        PodBatch("a", Request(16, 2)),
        PodBatch("b", Request(2, 2)),
    ]
    outcome = answer(
        books(node("there", 24, 16)), [PodBatch("first", Request(2, 1), 3), *wide], TINY
    )
    remaining = [
        what_if(
            books(node("there", 24, 16)),
            [PodBatch("first", Request(2, 1), 3), *wide],
            POLICY,
            added=[TINY.node(f"new-{number}", MEM)[0] for number in range(count)],
        )
        for count in range(6)
    ]
    lost = [8 - sum(fitting(result)) for result in remaining]
    assert sum(pods.missing for pods in outcome.left_out) == min(lost)
    assert outcome.counts[0] == lost.index(min(lost))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(
        st.lists(st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=3), max_size=3),
        st.lists(st.integers(1, 9), max_size=5),
    ),
    st.lists(PODS, min_size=1, max_size=6),
    st.lists(SHAPES, min_size=1, max_size=3),
    st.sampled_from(["device-bestfit", "binpack", "spread", "shadow-price"]),
)
def test_the_promise_is_kept_and_one_node_fewer_does_not_do(
    nodes_and_pods: tuple[list[list[int]], list[int]],
    requested: list[PodBatch],
    shapes: list[Shape],
    name: str,
) -> None:
    policy = load_policy(name)
    outcome = answer(cluster(*nodes_and_pods), requested, *shapes, policy=policy)
    fit = [result.fit for result in outcome.results]
    pods = [result.batch.count or 0 for result in outcome.results]
    assert sum(pods) - sum(fit) == sum(pods.missing for pods in outcome.left_out)

    def fitting_with(counts: Sequence[int]) -> list[int]:
        return fitting(applied(cluster(*nodes_and_pods), requested, shapes, counts, policy))

    def does_not_do(counts: Sequence[int]) -> bool:
        pairs = zip(fitting_with(counts), fit, strict=True)
        return any(fewer < before for fewer, before in pairs)

    assert fitting_with(outcome.counts) == fit
    for number, count in enumerate(outcome.counts):
        if count:
            assert does_not_do([n - (at == number) for at, n in enumerate(outcome.counts)])
