"""Plug-ins that look at other pods: ports, spread, affinity; and scores by images and taints."""

from typing import Any

import pytest

from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.framework import Code, CycleState, Plugin
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.plugins.node import (
    ImageLocality,
    NodeAffinity,
    NodePorts,
    TaintToleration,
)
from gpushare_localcluster.scheduler.plugins.pod_affinity import InterPodAffinity
from gpushare_localcluster.scheduler.plugins.resources import (
    NodeResourcesBalancedAllocation,
    NodeResourcesFit,
)
from gpushare_localcluster.scheduler.plugins.topology_spread import PodTopologySpread
from gpushare_localcluster.scheduler.runtime import Framework

ANYWHERE = "0.0.0.0"  # noqa: S104 -- a field's value
MIB = 1024 * 1024
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def pod(name: str = "p", app: str = "web", namespace: str = "ns", **spec: Any) -> PodView:
    meta = {"name": name, "uid": name, "namespace": namespace, "labels": {"app": app}}
    return read_pod({"metadata": meta, "spec": {"containers": [{"image": "app"}], **spec}})


def node(name: str, *pods: PodView, zone: str = "", **status: Any) -> NodeInfo:
    labels = {"kubernetes.io/hostname": name, **({"zone": zone} if zone else {})}
    spec = {"taints": status.pop("taints", [])}
    info = NodeInfo(
        read_node({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status})
    )
    for item in pods:
        info = info.with_pod(item)
    return info


def handle(*nodes: NodeInfo) -> Handle:
    labels = {"ns": {}, "prod": {"env": "prod"}}
    return Handle(snapshot=Snapshot(nodes), namespace_labels=lambda name: labels.get(name, {}))


def refused(plugin: Plugin, new_pod: PodView, *nodes: NodeInfo) -> dict[str, str]:
    """The nodes that a plug-in's filter objects to, with the reason."""
    framework, state = Framework((plugin,)), CycleState()
    framework.run_pre_filters(state, new_pod, nodes)
    result = {item.name: framework.run_filters(state, new_pod, item) for item in nodes}
    return {name: status.message for name, status in result.items() if not status.ok}


def scores(plugin: Plugin, new_pod: PodView, *nodes: NodeInfo) -> dict[str, int]:
    framework, state = Framework((plugin,)), CycleState()
    framework.run_pre_scores(state, new_pod, nodes)
    return dict(framework.run_scores(state, new_pod, nodes).get(plugin.name, {}))


def port(number: int, address: str = "", protocol: str = "TCP") -> dict[str, Any]:
    one = {"hostPort": number, "hostIP": address, "protocol": protocol}
    return {"containers": [{"image": "app", "ports": [one]}]}


@pytest.mark.parametrize(
    ("new_pod", "fits"),
    [
        (port(80), False),
        (port(81), True),
        (port(80, "10.0.0.1"), False),
        (port(80, protocol="UDP"), True),
    ],
)
def test_a_host_port_is_given_once(new_pod: dict[str, Any], fits: bool) -> None:
    used = node("n1", pod("other", **port(80)))
    reason = "node(s) didn't have free ports for the requested pod ports"
    expected = {} if fits else {"n1": reason}
    assert refused(NodePorts(), pod(**new_pod), used) == expected


def test_one_port_of_two_addresses_is_two_ports() -> None:
    used = node("n1", pod("other", **port(80, "10.0.0.1")))
    assert not refused(NodePorts(), pod(**port(80, "10.0.0.2")), used)
    assert refused(NodePorts(), pod(**port(80, ANYWHERE)), used)


def spread(key: str = "zone", skew: int = 1, *, hard: bool = True, **more: Any) -> dict[str, Any]:
    constraint = {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "web"}},
        **more,
    }
    return {"topologySpreadConstraints": [constraint]}


SKEWED = "node(s) didn't match pod topology spread constraints"


def test_pods_are_spread_over_zones() -> None:
    nodes = (node("a1", pod("1"), zone="a"), node("a2", zone="a"), node("b1", zone="b"), node("c"))
    result = refused(PodTopologySpread({}, handle(*nodes)), pod(**spread()), *nodes)
    assert result == {"a1": SKEWED, "a2": SKEWED, "c": f"{SKEWED} (missing required label)"}
    assert "a1" not in refused(PodTopologySpread({}, handle(*nodes)), pod(**spread(skew=2)), *nodes)


def test_pods_of_others_and_those_that_go_do_not_count() -> None:
    rest_items = (pod("1", app="db"), pod("2", namespace="other"))
    nodes = (node("a", *rest_items, zone="a"), node("b", zone="b"))
    assert not refused(PodTopologySpread({}, handle(*nodes)), pod(**spread()), *nodes)


def test_with_too_few_domains_the_least_counts_as_zero() -> None:
    nodes = (node("a", pod("1"), zone="a"), node("b", pod("2"), zone="b"))
    new_pod = pod(**spread(minDomains=3))
    assert refused(PodTopologySpread({}, handle(*nodes)), new_pod, *nodes) == {
        "a": SKEWED,
        "b": SKEWED,
    }


def test_soft_constraints_score_the_emptier_domain_higher() -> None:
    nodes = (node("a", pod("1"), pod("2"), zone="a"), node("b", pod("3"), zone="b"), node("c"))
    result = scores(PodTopologySpread({}, handle(*nodes)), pod(**spread(hard=False)), *nodes)
    assert result["c"] == 0
    assert result["b"] == 100
    assert 0 < result["a"] < result["b"]


def near(app: str = "web", key: str = "zone", **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def affinity(kind: str, *terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {kind: {REQUIRED: list(terms)}}}


def test_affinity_wants_a_pod_in_the_same_place() -> None:
    nodes = (node("a", pod("db", app="db"), zone="a"), node("a2", zone="a"), node("b", zone="b"))
    new_pod = pod(**affinity("podAffinity", near("db")))
    assert refused(InterPodAffinity({}, handle(*nodes)), new_pod, *nodes) == {
        "b": "node(s) didn't match pod affinity rules"
    }


def test_the_first_of_a_group_may_go_anywhere_that_is_a_place() -> None:
    nodes = (node("a", zone="a"), node("nowhere"))
    new_pod = pod(**affinity("podAffinity", near()))
    assert set(refused(InterPodAffinity({}, handle(*nodes)), new_pod, *nodes)) == {"nowhere"}
    stranger = pod(**affinity("podAffinity", near("db")))
    assert len(refused(InterPodAffinity({}, handle(*nodes)), stranger, *nodes)) == 2


def test_anti_affinity_holds_for_the_new_pod_and_for_those_that_run() -> None:
    nodes = (node("a", pod("1"), zone="a"), node("b", zone="b"))
    new_pod = pod(**affinity("podAntiAffinity", near()))
    assert refused(InterPodAffinity({}, handle(*nodes)), new_pod, *nodes) == {
        "a": "node(s) didn't match pod anti-affinity rules"
    }
    shy = pod("shy", **affinity("podAntiAffinity", near()))
    nodes = (node("a", shy, zone="a"), node("b", zone="b"))
    assert refused(InterPodAffinity({}, handle(*nodes)), pod(), *nodes) == {
        "a": "node(s) didn't satisfy existing pods anti-affinity rules"
    }


def test_a_node_without_the_label_is_no_place_even_beside_an_empty_value() -> None:
    labels = {"metadata": {"name": "a", "labels": {"zone": ""}}}
    nodes = (NodeInfo(read_node(labels)).with_pod(pod("1")), node("b"))
    new_pod = pod(**affinity("podAntiAffinity", near()))
    assert set(refused(InterPodAffinity({}, handle(*nodes)), new_pod, *nodes)) == {"a"}


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ({}, False),
        ({"namespaces": ["prod"]}, True),
        ({"namespaceSelector": {"matchLabels": {"env": "prod"}}}, True),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"env": "test"}}}, False),
    ],
)
def test_a_term_means_the_pods_of_its_namespaces(more: dict[str, Any], fits: bool) -> None:
    place = node("a", pod("db", app="db", namespace="prod"), zone="a")
    new_pod = pod(**affinity("podAffinity", near("db", **more)))
    assert (not refused(InterPodAffinity({}, handle(place)), new_pod, place)) is fits


def test_preferences_of_both_sides_score() -> None:
    likes: dict[str, Any] = {
        "affinity": {"podAffinity": {PREFERRED: [{"weight": 9, "podAffinityTerm": near()}]}}
    }
    shuns: dict[str, Any] = {
        "affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 9, "podAffinityTerm": near()}]}}
    }
    liked = (node("a", pod("1"), zone="a"), node("b", zone="b"))
    assert scores(InterPodAffinity({}, handle(*liked)), pod(**likes), *liked) == {"a": 100, "b": 0}
    assert scores(InterPodAffinity({}, handle(*liked)), pod(**shuns), *liked) == {"a": 0, "b": 100}
    running = (node("a", pod("1", **likes), zone="a"), node("b", zone="b"))
    assert scores(InterPodAffinity({}, handle(*running)), pod(), *running) == {"a": 100, "b": 0}
    deaf = InterPodAffinity({"ignorePreferredTermsOfExistingPods": True}, handle(*running))
    assert not scores(deaf, pod(), *running)


def test_what_preemption_tries_away_counts_no_more_and_back_counts_again() -> None:
    second = pod("1")
    place, elsewhere = node("a", second, zone="a"), node("b", zone="b")
    for plugin, spec in (
        (PodTopologySpread({}, handle(place, elsewhere)), spread()),
        (InterPodAffinity({}, handle(place, elsewhere)), affinity("podAntiAffinity", near())),
    ):
        framework, state, new_pod = Framework((plugin,)), CycleState(), pod(**spec)
        framework.run_pre_filters(state, new_pod, (place, elsewhere))
        copy = state.clone()
        assert framework.run_filters(copy, new_pod, place).code is Code.UNSCHEDULABLE
        framework.run_remove_pod(copy, new_pod, second, place.without_pod("1"))
        assert framework.run_filters(copy, new_pod, place.without_pod("1")).ok
        framework.run_add_pod(copy, new_pod, second, place)
        assert not framework.run_filters(copy, new_pod, place).ok
        assert not framework.run_filters(state, new_pod, place).ok


def image(megabytes: int) -> dict[str, Any]:
    return {"images": [{"names": ["app:latest"], "sizeBytes": megabytes * MIB}]}


def test_a_node_with_the_image_scores_by_its_size_and_rarity() -> None:
    nodes = (node("a", **image(1000)), node("b"))
    assert scores(ImageLocality({}, handle(*nodes)), pod(), *nodes) == {"a": 48, "b": 0}
    assert not scores(ImageLocality({}, handle(nodes[1])), pod(), nodes[1])


def test_fewer_soft_taints_score_higher() -> None:
    soft = [{"key": key, "effect": "PreferNoSchedule"} for key in ("x", "y")]
    nodes = (node("none"), node("one", taints=soft[:1]), node("two", taints=soft))
    assert scores(TaintToleration(), pod(), *nodes) == {"none": 100, "one": 50, "two": 0}


def test_preferred_nodes_score_by_the_weights_they_meet() -> None:
    def term(weight: int, zone: str) -> dict[str, Any]:
        expression = {"key": "zone", "operator": "In", "values": [zone]}
        return {"weight": weight, "preference": {"matchExpressions": [expression]}}

    new_pod = pod(affinity={"nodeAffinity": {PREFERRED: [term(10, "a"), term(40, "b")]}})
    nodes = (node("a", zone="a"), node("b", zone="b"), node("c"))
    assert scores(NodeAffinity(), new_pod, *nodes) == {"a": 25, "b": 100, "c": 0}


def test_affinity_that_the_operator_adds_holds_for_every_pod() -> None:
    expression = {"key": "zone", "operator": "Exists"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    added = NodeAffinity({"addedAffinity": {REQUIRED: terms}})
    assert refused(added, pod(), node("a", zone="a"), node("b")) == {
        "b": "node(s) didn't match scheduler-enforced node affinity"
    }


def asking(cpu: str, memory: str) -> PodView:
    requests = {"requests": {"cpu": cpu, "memory": memory}}
    return pod(containers=[{"image": "app", "resources": requests}])


def test_balance_is_better_where_the_pod_evens_out_what_is_used() -> None:
    room: dict[str, Any] = {"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "9"}}
    uneven = node("uneven", asking("2", "0"), **room)
    result = scores(
        NodeResourcesBalancedAllocation(), asking("0", "2Gi"), uneven, node("even", **room)
    )
    assert result == {"uneven": 87, "even": 62}
    assert not scores(NodeResourcesBalancedAllocation(), pod(), uneven)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"type": "LeastAllocated"}, {"full": 25, "empty": 75}),
        ({"type": "MostAllocated"}, {"full": 75, "empty": 25}),
        (
            {
                "type": "RequestedToCapacityRatio",
                "requestedToCapacityRatio": {
                    "shape": [{"utilization": 50, "score": 0}, {"utilization": 100, "score": 10}]
                },
            },
            {"full": 50, "empty": 0},
        ),
    ],
)
def test_each_strategy_has_its_own_favourite(
    strategy: dict[str, Any], expected: dict[str, int]
) -> None:
    room: dict[str, Any] = {"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "9"}}
    nodes = (node("full", asking("2", "2Gi"), **room), node("empty", **room))
    fit = NodeResourcesFit({"scoringStrategy": strategy})
    assert scores(fit, asking("1", "1Gi"), *nodes) == expected
