"""How many more nodes: what is answered is tried by `what_if`, and so is one node fewer."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.core.node_filters import NodeStates, OwnFilters
from gpushare.core.policy import Policy, load_policy
from gpushare.core.selectors import Demands
from gpushare.explain.need import Need, more_of, need
from gpushare.explain.placer import MODEL, Wanted
from gpushare.explain.whatif import Outcome, Shape, what_if
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node, state_of
from tests.unit.explain.test_whatif import MEM, POLICY, bind, books

BIG, SMALL = (Shape(f"{n}x{size}", node("", *[size] * n)) for n, size in ((4, 80), (2, 24)))

TINY = Shape("1x8", node("", 8))


def answer(
    ledger: Ledger,
    wanted: Sequence[Wanted],
    *shapes: Shape,
    policy: Policy = POLICY,
    states: NodeStates | None = None,
) -> Need:
    own = OwnFilters(states, ledger.taken)
    return need(ledger, wanted, shapes, policy, own, resource=MEM)


def applied(
    ledger: Ledger,
    wanted: Sequence[Wanted],
    shapes: Sequence[Shape],
    counts: Sequence[int],
    policy: Policy = POLICY,
) -> Outcome:
    """What happens if these nodes come, as `whatif --add` names them."""
    every = [shape for shape, count in zip(shapes, counts, strict=True) for _ in range(count)]
    states = NodeStates()
    added = []
    for number, shape in enumerate(every, 1):
        spec, state = shape.node(f"new-{number}", MEM)
        added.append(spec)
        states.put(state)
    return what_if(ledger, wanted, policy, added=added, own=OwnFilters(states, ledger.taken))


def test_the_fewest_nodes_of_one_shape() -> None:
    found = answer(books(node("a", 24, 24)), [Wanted("20GiB", Request(20, 1), 7)], SMALL)
    assert found.counts == (3,)
    assert (found.bound, found.least) == (Fraction(3), True)
    assert [each.used for each in found.nodes] == [(20, 20), (20, 20), (20, 0)]
    assert found.placed[0].on == {"a": 2, "new-1": 2, "new-2": 2, "new-3": 1}
    assert found.largest == (24, 4)
    assert (found.before.nodes, found.after.nodes) == (1, 4)


def test_each_part_of_a_split_pod_is_counted_in_what_is_needed_at_least() -> None:
    """Each takes 20 of one device and 10 of another; by 10 on each, three would fit on a node."""
    wanted = [Wanted("split", Request().of_parts([20, 10]), 3)]
    found = answer(books(), wanted, SMALL)
    assert (found.counts, found.bound) == ((3,), Fraction(3))
    assert [each.used for each in found.nodes] == [(20, 10)] * 3
    room = Shape("4x24", node("", 24, 24, 24, 24))
    found = answer(books(), [Wanted("split", Request().of_parts([20, 10]), 4)], room)
    assert (found.counts, found.bound) == ((2,), Fraction(2))


def test_compute_is_counted_in_what_is_needed_at_least() -> None:
    """By its sum, by places for so much of it, and by devices that have to be empty."""
    for cores, pods, nodes in ((10, 21, 1), (60, 5, 2), (100, 4, 2)):
        there = books(node("a", 24, 24))
        bind(there, "plain", Request(4, 1), "a")
        found = answer(there, [Wanted("p", Request(1, 1, percents=compute(cores)), pods)], SMALL)
        assert (found.counts, found.bound) == ((nodes,), Fraction(nodes)), cores
        assert found.any_percents
    assert found.largest == (24,)  # of three devices that have the others, none


def test_nothing_is_needed_where_all_fit() -> None:
    found = answer(books(node("a", 24, 24)), [Wanted("20GiB", Request(20, 1), 2)], SMALL)
    assert (found.counts, found.nodes, found.left_out) == ((0,), (), ())


def test_what_no_node_takes_is_left_out_with_its_reason() -> None:
    wanted = [
        Wanted("large", Request(100, 1), 2),
        Wanted("wide", Request(8, 3), 1),
        Wanted("other", Request(8, 1, models=("H100",)), 4),
        Wanted("fits", Request(20, 1), 2),
    ]
    found = answer(books(node("a", 4)), wanted, SMALL)
    assert found.counts == (1,)
    assert [(each.wanted.name, each.count, dict(each.reasons)) for each in found.left_out] == [
        ("large", 2, {"GPU Memory request is larger than any healthy device": 1}),
        ("wide", 1, {"fewer healthy devices of that size than requested": 1}),
        ("other", 4, {MODEL: 1}),
    ]


def test_the_cheapest_mix_is_found() -> None:
    big, small = replace(BIG, price=Fraction(10)), replace(SMALL, price=Fraction(1))
    wanted = [Wanted("whole", Request(80, 4), 1), Wanted("20GiB", Request(20, 1), 4)]
    found = answer(books(), wanted, big, small)
    assert found.counts == (1, 2)
    assert found.cost == Fraction(12)
    found = answer(books(), wanted, BIG, SMALL)
    assert found.counts == (2, 0)
    assert (found.bound, found.least) == (Fraction(2), True)


def test_of_as_many_nodes_the_smaller_are_taken() -> None:
    found = answer(books(), [Wanted("20GiB", Request(20, 1), 2)], BIG, SMALL)
    assert found.counts == (0, 1)


def test_a_pod_fits_on_a_node_that_is_there_once_others_go_to_new_ones() -> None:
    """The H100 is taken by a pod that a new node could have; with one it is free for its own."""
    ledger = books(node("old", 80, models=("H100",)))
    wanted = [Wanted("any", Request(20, 1), 1), Wanted("own", Request(70, 1, models=("H100",)))]
    found = answer(ledger, wanted, SMALL)
    assert (found.counts, found.left_out) == ((1,), ())


def test_what_kube_scheduler_would_refuse_is_not_counted() -> None:
    spec = node("gpu-1", 24, 24)
    zone = state_of(spec, labels={"zone": "a"}, allocatable={MEM: 48, "pods": 1, "cpu": 4000})
    shape = Shape("like gpu-1", replace(spec, name=""), zone)
    ask = Request(4, 1, resources=((MEM, 4),))
    elsewhere = Demands((("zone", "b"),))
    wanted = [Wanted("here", ask, 3), Wanted("there", ask, 1, elsewhere)]
    found = answer(books(), wanted, shape)
    assert found.counts == (3,)  # a pod a node
    (left,) = found.left_out
    assert (left.wanted.name, left.count) == ("there", 1)
    assert list(left.reasons) == ["not what the pod's node selector or affinity asks for"]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 3)), min_size=1, max_size=30),
    st.fractions(Fraction(1, 100), 3),
)
def test_so_much_more_is_no_less_than_asked(sizes: list[tuple[int, int]], share: Fraction) -> None:
    entries = [Wanted(str(number), Request(*size)) for number, size in enumerate(sizes)]
    found = more_of(entries, share)
    pods = sum(each.count or 0 for each in found)
    assert len(entries) * share <= pods < len(entries) * share + 1
    units = sum(each.request.total * (each.count or 0) for each in found)
    assert units >= share * sum(each.request.total for each in entries)


SHAPES = st.builds(
    lambda sizes, cpu, price: Shape("s", node("", *sizes, cpu=cpu), None, price),
    st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=4),
    st.sampled_from([None, 4000, 16000]),
    st.just(None),
)
UNITS = st.sampled_from([2, 3, 5, 8, 12, 16, 24])
PODS = st.builds(
    lambda parts, cpu, models, cores, count, priority: Wanted(
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


def cluster(there: list[list[int]], running: list[int]) -> Ledger:
    ledger = books(*(node(f"n{number}", *sizes) for number, sizes in enumerate(there)))
    for number, units in enumerate(running):
        where = f"n{number % len(there)}" if there else ""
        if where and ledger.snapshot().free[ledger.snapshot().row[where]].max() >= units:
            bind(ledger, f"r{number}", Request(units, 1, percents=compute(units % 2 * 5)), where)
    late = ObservedPod(PodRef("default", "late", "late"), Request(7, 1), created=1.0)
    ledger.pod_changed(late)
    return ledger


def fitting(outcome: Outcome) -> list[int]:
    """How many of each kind of pod fit."""
    return [each.fit for each in (*outcome.moved, *outcome.waiting, *outcome.placed)]


def test_nodes_that_only_change_who_is_left_out_do_not_come() -> None:
    """Two pods of two devices want the node that is there; a new one has one device."""
    wide = [
        Wanted("narrow", Request(3, 1), 3),
        Wanted("a", Request(16, 2)),
        Wanted("b", Request(2, 2)),
    ]
    found = answer(books(node("there", 24, 16)), [Wanted("first", Request(2, 1), 3), *wide], TINY)
    others = [
        what_if(
            books(node("there", 24, 16)),
            [Wanted("first", Request(2, 1), 3), *wide],
            POLICY,
            added=[TINY.node(f"new-{number}", MEM)[0] for number in range(count)],
        )
        for count in range(6)
    ]
    lost = [8 - sum(fitting(each)) for each in others]
    assert sum(each.count for each in found.left_out) == min(lost)
    assert found.counts[0] == lost.index(min(lost))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(
        st.lists(st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=3), max_size=3),
        st.lists(st.integers(1, 9), max_size=5),
    ),
    st.lists(PODS, min_size=1, max_size=6),
    st.lists(SHAPES, min_size=1, max_size=3),
    st.lists(st.sampled_from([1, 2, 3, 5]), min_size=3, max_size=3) | st.none(),
    st.sampled_from(["device-bestfit", "binpack", "spread", "shadow-price"]),
)
def test_the_promise_is_kept_and_one_node_fewer_does_not_do(
    there: tuple[list[list[int]], list[int]],
    wanted: list[Wanted],
    shapes: list[Shape],
    prices: list[int] | None,
    name: str,
) -> None:
    if prices:
        every = zip(shapes, prices, strict=False)
        shapes = [replace(shape, price=Fraction(price)) for shape, price in every]
    policy = load_policy(name)
    found = answer(cluster(*there), wanted, *shapes, policy=policy)
    fit = [each.fit for each in found.placed]
    asked = [each.wanted.count or 0 for each in found.placed]
    assert sum(asked) - sum(fit) == sum(each.count for each in found.left_out)

    def fitting_with(counts: Sequence[int]) -> list[int]:
        return fitting(applied(cluster(*there), wanted, shapes, counts, policy))

    def does_not_do(counts: Sequence[int]) -> bool:
        return any(now < before for now, before in zip(fitting_with(counts), fit, strict=True))

    assert fitting_with(found.counts) == fit
    for number, count in enumerate(found.counts):
        if count:
            assert does_not_do([n - (at == number) for at, n in enumerate(found.counts)])
    assert found.bound <= found.cost
    # What is said to be too few by sums is too few.
    for counts in product(range(3), repeat=len(shapes)):
        cost = sum(n * shape.cost for n, shape in zip(counts, shapes, strict=True))
        assert cost >= found.bound or does_not_do(counts)
