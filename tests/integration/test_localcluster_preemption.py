"""How the small scheduler asks an extender about victims, over sockets; answers good and bad."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpushare.wire.scheduler.config import ExtenderConfig, ExtenderManagedResource
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.extender import Candidate, HttpExtender
from gpushare_localcluster.scheduler.framework import Code, CycleState, Status
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.plugins.resources import NodeResourcesFit
from gpushare_localcluster.scheduler.preemption import NoPreemption, Preemption
from gpushare_localcluster.scheduler.runtime import Framework
from tests.integration.small_extender import SmallExtender, small_extender

GPU = "example.com/gpu-mem"
Json = dict[str, Any]
Make = Callable[..., HttpExtender]


@pytest.fixture
def server() -> Iterator[SmallExtender]:
    with small_extender("http://127.0.0.1:1") as serving:
        yield serving


@pytest.fixture
def made(server: SmallExtender) -> Iterator[Make]:
    extenders: list[HttpExtender] = []

    def make(**fields: Any) -> HttpExtender:
        usual: Json = {"url_prefix": server.url, "preempt_verb": "preempt", "http_timeout": 2.0}
        resources = (ExtenderManagedResource(GPU),)
        config = ExtenderConfig(**{**usual, "managed_resources": resources, **fields})
        extenders.append(HttpExtender(config))
        return extenders[-1]

    yield make
    for extender in extenders:
        extender.close()


def pod(name: str, units: int, priority: int = 0) -> PodView:
    resources = {"requests": {GPU: str(units)}} if units else {}
    meta = {"name": name, "uid": name, "namespace": "ns"}
    spec = {"priority": priority, "containers": [{"resources": resources}]}
    raw = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {}}
    return read_pod(raw)


def node(name: str, *pods: PodView) -> NodeInfo:
    amounts = {GPU: "16", "pods": "10"}
    info = NodeInfo(read_node({"metadata": {"name": name}, "status": {"allocatable": amounts}}))
    for item in pods:
        info = info.with_pod(item)
    return info


# 8 of 16 free on n1: the filters pass with nobody gone. n2 is full.
SNAPSHOT = Snapshot((node("n1", pod("a", 4), pod("b", 4)), node("n2", pod("c", 8), pod("d", 8))))


def chosen(*extenders: HttpExtender, units: int = 8, empty_candidates: bool = True) -> Candidate:
    preemption = Preemption(extenders, lambda: (), empty_candidates=empty_candidates)
    framework = Framework((NodeResourcesFit(),))
    statuses = {name: Status(Code.UNSCHEDULABLE, ("no device",)) for name in ("n1", "n2")}
    return preemption.choose(framework, CycleState(), pod("p", units, 5), SNAPSHOT, statuses)


def kept(args: Json) -> Json:
    return {"NodeNameToMetaVictims": args["NodeNameToMetaVictims"]}


def answer(**nodes: Any) -> Callable[[Json], Json]:
    return lambda _: {"NodeNameToMetaVictims": nodes}


def victims(*uids: str, violations: int = 0) -> Json:
    return {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}


def test_uids_travel_to_an_extender_that_caches_nodes_empty_lists_too(
    server: SmallExtender, made: Make
) -> None:
    server.answers["preempt"] = answer(n1=victims("b"))
    extender = made(node_cache_capable=True)
    assert chosen(extender) == Candidate("n1", (SNAPSHOT.nodes[0].pods["b"],))
    verb, request_body = server.calls[0]
    assert (verb, request_body["Pod"]["metadata"]["name"]) == ("preempt", "p")
    assert "kind" not in request_body["Pod"]
    assert request_body["NodeNameToVictims"] is None
    assert request_body["NodeNameToMetaVictims"] == {"n1": victims(), "n2": victims("d")}


def test_whole_pods_travel_otherwise(server: SmallExtender, made: Make) -> None:
    server.answers["preempt"] = answer(n2=victims("d"))
    assert chosen(made()).node == "n2"
    _, request_body = server.calls[0]
    assert request_body["NodeNameToMetaVictims"] is None
    whole = request_body["NodeNameToVictims"]["n2"]["Pods"][0]
    assert (whole["metadata"]["uid"], "kind" in whole) == ("d", False)


def test_before_1_38_nodes_without_victims_are_not_sent(server: SmallExtender, made: Make) -> None:
    server.answers["preempt"] = kept
    assert chosen(made(node_cache_capable=True), empty_candidates=False).node == "n2"
    assert server.calls[0][1]["NodeNameToMetaVictims"].keys() == {"n2"}


def test_a_list_that_stays_empty_is_no_candidate(server: SmallExtender, made: Make) -> None:
    server.answers["preempt"] = kept
    assert chosen(made(node_cache_capable=True)).node == "n2"
    server.answers["preempt"] = answer(n1=victims())
    with pytest.raises(NoPreemption, match="no candidate node for preemption"):
        chosen(made(node_cache_capable=True))


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ({}, "no candidate node for preemption"),
        ({"n2": victims()}, 'expected at least one victim pod on node "n2"'),
        ({"elsewhere": victims("a")}, 'nodeinfo not found for node name "elsewhere"'),
        ({"n2": victims("a")}, "the pod is not found on that node"),
        ({"n2": None}, "kube-scheduler panics"),
        ({"n2": {"Pods": [None]}}, "kube-scheduler panics"),
    ],
)
def test_an_answer_that_ends_the_preemption(
    server: SmallExtender, made: Make, nodes: Json, text: str
) -> None:
    server.answers["preempt"] = answer(**nodes)
    with pytest.raises(NoPreemption, match=text):
        chosen(made(node_cache_capable=True))


def test_an_ignorable_extender_cannot_end_it(server: SmallExtender, made: Make) -> None:
    server.answers["preempt"] = answer(elsewhere=victims("a"))
    assert chosen(made(ignorable=True)).node == "n2"
    server.answers["preempt"] = answer(n1=victims("a"), n2=victims())
    assert chosen(made(ignorable=True)).node == "n1"


def test_an_extender_that_does_not_preempt_or_manage_the_pod_is_not_asked(
    server: SmallExtender, made: Make
) -> None:
    strangers = (made(preempt_verb=""), made(managed_resources=(ExtenderManagedResource("other"),)))
    assert chosen(*strangers, units=9).node == "n1"
    assert server.calls == []
