"""The workload: typical classes, and classes learned from created pods."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.model import Request
from gpushare.core.policies.shadow_price.policy import ShadowPrice
from gpushare.core.workload import (
    MAX_CLASSES,
    MAX_SIZES,
    PodClass,
    class_of,
    merge_classes,
    workload_of,
)
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node

SMALL, LARGE = PodClass(cpu=500, units=2, devices=1), PodClass(cpu=8000, units=8, devices=2)


def test_typical_are_the_commonest_that_cover_the_share_the_larger_of_equals_first() -> None:
    counts = {SMALL: 40, LARGE: 40, PodClass(cpu=100): 15, PodClass(cpu=200): 5}
    workload = workload_of(counts)
    assert workload.typical(0.8) == ((LARGE, 40), (SMALL, 40))
    assert len(workload.typical()) == 3
    assert workload.pods == 100
    assert workload.gpu == 40 * 2 + 40 * 16


def test_typical_classes_leave_memory_out() -> None:
    counts = {PodClass(units=2, devices=1, memory=memory): 1 for memory in range(5)}
    assert workload_of(counts).typical() == ((PodClass(units=2, devices=1), 5),)


def test_a_pod_without_gpu_has_no_size_and_no_model() -> None:
    assert class_of(Request(cpu=5, memory=7, models=("A",))) == PodClass(cpu=5, memory=7)
    assert class_of(Request(3, 1, models=("B", "A"))).models == ("A", "B")
    assert class_of(Request(3, 1, percents=compute(40))).cores == 40


def many(count: int) -> dict[PodClass, int]:
    """Classes with distinct CPU, `count` of them."""
    return {PodClass(cpu=100 + number, units=2, devices=1): 1 for number in range(count)}


def test_pods_of_one_class_share_one_object() -> None:
    assert class_of(Request(30_001, 1, cpu=500)) is class_of(Request(30_001, 1, cpu=500))


def test_as_many_classes_as_policies_can_take_stay_as_they_are() -> None:
    counts = many(MAX_CLASSES)
    assert dict(workload_of(counts).classes) == counts


@given(
    st.dictionaries(
        st.builds(
            PodClass,
            cpu=st.integers(0, 2**48),
            units=st.integers(0, 2**31 - 1),
            devices=st.integers(0, 64),
            models=st.sets(st.sampled_from("ABCDEF")).map(lambda names: tuple(sorted(names))),
            memory=st.integers(0, 2**48),
            cores=st.sampled_from([0, 0, 30, 100]),
        ),
        st.integers(1, 9),
        max_size=60,
    ),
    st.integers(1, 60),
)
def test_merged_classes_are_few_and_no_pod_is_lost(
    counts: dict[PodClass, int], max_classes: int
) -> None:
    categories = {(cls.devices, cls.models) for cls in counts}
    merged = merge_classes(counts, max_classes)
    assert len(merged) <= max(max_classes, len(categories))
    assert sum(merged.values()) == sum(counts.values())
    assert (
        merged == merge_classes(dict(reversed(counts.items())), max_classes)
        or len(counts) <= max_classes
    )
    for size in ("cpu", "units", "memory", "cores"):
        sizes = [getattr(cls, size) for cls in counts] or [0]
        assert all(min(sizes) <= getattr(cls, size) <= max(sizes) for cls in merged)
        total = sum(getattr(cls, size) * count for cls, count in counts.items())
        after = sum(getattr(cls, size) * count for cls, count in merged.items())
        assert 0 <= after - total < sum(counts.values()) or not counts


def test_common_sizes_stay_as_they_are_among_thousands_of_rare_ones() -> None:
    common = PodClass(cpu=4000, units=8, devices=1, memory=2**34)
    classes = dict(workload_of({**many(3000), common: 900}).classes)
    assert len(classes) == MAX_CLASSES
    assert classes[common] == 900


def test_models_that_nobody_else_asks_for_are_forgotten_where_there_are_thousands() -> None:
    counts = {PodClass(1, 2, 1, (f"model-{number}",)): 1 for number in range(3000)}
    classes = workload_of(counts).classes
    assert len(classes) < MAX_CLASSES
    assert sum(count for _, count in classes) == 3000


def test_what_policies_prepare_is_bounded_however_many_sizes_there_are() -> None:
    ledger = Ledger()
    ledger.node_changed(node("n", 64, 64))
    counts = many(2000)
    counts |= {PodClass(100, size, 2): 1 for size in range(1, 2000)}
    policy = ShadowPrice(workload_of(counts, (64,)))
    tables = policy.tables(ledger.snapshot())
    assert len(policy.classes) <= MAX_CLASSES
    assert tables.small.size <= 2 * (MAX_CLASSES + 1) ** 2
    assert len(tables.many) <= MAX_SIZES
