"""The preferences of each policy, and the best set of several devices."""

import gc
import weakref
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import example, given

from gpushare.core.amounts import charged_units
from gpushare.core.decide import place, score_nodes
from gpushare.core.model import Charge, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.policies.shadow_price.policy import ShadowPrice
from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.workload import PodClass, Workload, workload_of
from gpushare.errors import InsufficientMemory, SettingsError
from tests.unit.core.clusters import (
    POLICIES,
    Cluster,
    best_node,
    clusters,
    expected_devices,
    node,
    requests,
    with_share,
)

# Free by device: a 4+16, b 10+8, c 5+16+16.
THREE = Cluster(
    (node("a", 16, 16), node("b", 16, 16), node("c", 16, 16, 16)),
    {"a": (12, 0), "b": (6, 8), "c": (11, 0, 0)},
)

WHOLE = PodClass(cpu=1000, units=16, devices=1)
LARGE = PodClass(cpu=4000, units=16, devices=4)


@pytest.mark.parametrize(
    ("policy", "request_", "best", "devices"),
    [
        # The node with the least free units is b (18); the tightest device there is 1.
        ("binpack", Request(4, 1), "b", (1,)),
        ("binpack", Request(9, 1), "b", (0,)),
        ("binpack", Request(12, 1), "a", (1,)),
        ("spread", Request(4, 1), "c", (1,)),
        ("spread", Request(4, 2), "c", (1, 2)),
        # The tightest device anywhere, then the fullest node.
        ("device-bestfit", Request(4, 1), "a", (0,)),
        ("device-bestfit", Request(5, 1), "c", (0,)),
        ("device-bestfit", Request(16, 1), "a", (1,)),
        ("device-bestfit", Request(5, 2), "b", (0, 1)),
    ],
)
def test_each_policy_prefers_what_its_name_says(
    policy: str, request_: Request, best: str, devices: tuple[int, ...]
) -> None:
    view, ranking = THREE.snapshot(), Ranking(POLICIES[policy])
    assert best_node(view, THREE.names, request_, ranking) == best
    assert score_nodes(view, THREE.names, request_, ranking)[10] == [best]
    assert place(view, best, request_, Ranking(POLICIES[policy])).devices == devices


def test_equal_devices_are_taken_by_lowest_index() -> None:
    view = Cluster((node("n", 16, 16, 16),)).snapshot()
    for policy in POLICIES.values():
        assert place(view, "n", Request(4, 1), Ranking(policy)).devices == (0,)
        assert place(view, "n", Request(4, 2), Ranking(policy)).devices == (0, 1)


@given(cluster=clusters(pins=False, most_devices=6), request=requests(4))
@example(
    cluster=Cluster((node("n", 1, 3, 6),)), request=Request(1, 2, percents=with_share(0, 34))
).via("the cards of the best pair are charged 1 and 2 units, those of another 1 and 3")
def test_device_bestfit_leaves_as_little_over_as_any_set_of_devices(
    cluster: Cluster, request: Request
) -> None:
    view, policy = cluster.snapshot(), POLICIES["device-bestfit"]
    leftovers: dict[str, int] = {}
    for spec in cluster.nodes:
        name = spec.name
        remaining = [
            free - charged_units(request.units, request.percents, capacity)
            for free, capacity in zip(cluster.free(name), spec.capacity, strict=True)
        ]
        device_leftovers = [remaining[at] for at in expected_devices(cluster, name, request)]
        sums = [sum(some) for some in combinations(device_leftovers, request.devices)]
        if not sums:
            with pytest.raises(InsufficientMemory):
                place(view, name, request, Ranking(policy))
            continue
        leftovers[name] = min(sums)
        chosen = place(view, name, request, Ranking(policy)).devices
        assert sum(remaining[device] for device in chosen) == leftovers[name]
    best = best_node(view, cluster.names, request, Ranking(policy))
    assert best is None or leftovers[best] == min(leftovers.values())


@pytest.mark.parametrize(("used", "devices"), [((0, 0, 2), (0, 2)), ((0, 2, 1, 1), (1, 2))])
def test_devices_that_are_each_in_a_best_pair_need_not_be_one(
    used: tuple[int, ...], devices: tuple[int, ...]
) -> None:
    cluster = Cluster((node("n", *(5 for _ in used)),), {"n": used})
    for policy in ("binpack", "device-bestfit"):
        assert (
            place(cluster.snapshot(), "n", Request(2, 2), Ranking(POLICIES[policy])).devices
            == devices
        )


@pytest.mark.parametrize(
    ("workload", "best"),
    [
        (workload_of({WHOLE: 4, LARGE: 1}, turnover=1), "b"),
        (workload_of({WHOLE: 4, LARGE: 1}), "a"),
        (workload_of({WHOLE: 1}, turnover=1), "a"),
    ],
    ids=["pods of a whole node come", "no pod leaves", "none come"],
)
def test_shadow_price_leaves_alone_the_node_that_could_be_empty_sooner(
    workload: Workload, best: str
) -> None:
    tally = NodeArrays()
    # On both two devices are taken: on a by one pod, on b by two. Ties go to a.
    both: dict[str, list[tuple[int, ...]]] = {"a": [(0, 1)], "b": [(0,), (1,)]}
    for name, used_devices in both.items():
        charges = [
            Charge(
                name, Request(16, len(used_device)), tuple((device, 16) for device in used_device)
            )
            for used_device in used_devices
        ]
        tally.set_node(node(name, 16, 16, 16, 16, cpu=8000, memory=2**34), charges)
    ranking = Ranking(ShadowPrice(workload))
    assert best_node(tally.snapshot({}), ["a", "b"], Request(16, 1), ranking) == best


def test_shadow_price_opens_no_idle_card_among_equal_ones_that_a_large_pod_may_need() -> None:
    counts = ((10, 30), (20, 9), (70, 10))
    pods = {PodClass(cpu=1000, units=units, devices=1): count for units, count in counts}
    workload = workload_of(pods, {80: 8}, turnover=1.0)
    view = Cluster((node("a", *[80] * 4, cpu=64_000, memory=2**40),), {"a": (10,)}).snapshot()
    ranking = Ranking(ShadowPrice(workload))
    assert place(view, "a", Request(10, 1, cpu=1000), ranking).devices == (0,)


def test_nodes_are_held_only_for_large_pods_that_nearly_all_nodes_will_do_for() -> None:
    policy = ShadowPrice(workload_of({WHOLE: 4, LARGE: 1}, turnover=1))
    equal = [node(f"n{index:02}", 16, 16, 16, 16, cpu=8000) for index in range(10)]
    assert policy.hold(Cluster(tuple(equal)).snapshot()) > 0
    assert policy.hold(Cluster((*equal, node("small", 16, cpu=8000))).snapshot()) > 0
    more_nodes = [node(f"m{index}", 16, 16, cpu=8000) for index in range(3)]
    assert policy.hold(Cluster((*equal, *more_nodes)).snapshot()) == 0


def test_a_node_that_has_gone_changes_no_judgement_of_those_that_stay() -> None:
    scarce = PodClass(cpu=1000, units=8, devices=1, models=("A100",))
    policy = ShadowPrice(workload_of({WHOLE: 4, scarce: 1}))
    tally, request = NodeArrays(), Request(4, 1)
    tally.set_node(node("a", 16, cpu=8000), ())
    tally.set_node(node("b", 16, cpu=8000, models=("T4",)), ())
    before = Ranking(policy).scores(tally.snapshot({}), request).values.tolist()
    tally.set_node(node("gone", 16, cpu=8000), ())
    tally.remove_node("gone")
    assert Ranking(policy).scores(tally.snapshot({}), request).values.tolist()[:2] == before


@given(cluster=clusters(pins=False), request=requests(1))
def test_binpack_takes_the_fullest_node_and_spread_the_emptiest(
    cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    fit = {
        name: sum(cluster.free(name))
        for name in cluster.names
        if expected_devices(cluster, name, request)
    }
    for policy, choice in (("binpack", min), ("spread", max)):
        best = best_node(view, cluster.names, request, Ranking(POLICIES[policy]))
        assert (fit[best] == choice(fit.values())) if best is not None else not fit


def test_policies_are_loaded_by_name_and_an_unknown_name_lists_the_known() -> None:
    assert set(policy_names()) >= {"binpack", "device-bestfit", "spread"}
    with pytest.raises(SettingsError, match=r"'tetris'; there are: .*binpack.*spread"):
        load_policy("tetris")


@pytest.mark.parametrize("text", ["", "def Tetris(workload):\n    raise KeyError('shape')\n"])
def test_a_package_whose_policy_cannot_be_imported_or_made_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    module = f"tetris{len(text)}"
    (tmp_path / f"{module}.py").write_text(text)
    info = tmp_path / "tetris-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tetris\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gpushare.policies]\ntetris = {module}:Tetris\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingsError, match=rf"'tetris' cannot be loaded from {module}:Tetris"):
        load_policy("tetris")


@pytest.mark.parametrize("name", policy_names())
def test_a_policy_that_another_replaces_is_freed_without_a_search_for_garbage(name: str) -> None:
    # Its tables are some MB, others come every 250 pods, and a whole search once an hour.
    policy = load_policy(name, workload_of({WHOLE: 3, LARGE: 1}, {16: 7}))
    ranking = Ranking(policy)
    score_nodes(THREE.snapshot(), THREE.names, Request(4, 1), ranking)
    was = weakref.ref(policy)
    gc.disable()
    try:
        del policy, ranking
        assert was() is None
    finally:
        gc.enable()
