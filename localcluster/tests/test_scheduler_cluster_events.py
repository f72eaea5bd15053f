"""Queueing hints: which change wakes a pod that a plug-in rejected, as in kube-scheduler 1.37."""

from typing import Any

import pytest

from gpushare.wire.scheduler.profiles import Profile
from gpushare_localcluster.scheduler.cache import Cache
from gpushare_localcluster.scheduler.cluster_events import (
    ANY_EVENT,
    FORCE_ACTIVATE,
    Action,
    Change,
    EventWithHint,
    Resource,
)
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, read_pod
from gpushare_localcluster.scheduler.profiles import build_frameworks
from gpushare_localcluster.scheduler.queue import SchedulingQueue
from gpushare_localcluster.scheduler.runtime import Framework
from gpushare_localcluster.scheduler.scheduler import Feed

Json = dict[str, Any]
ZONE = "zone"
SELECTOR = {"matchLabels": {"app": "web"}}
SPREAD = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
TERM = {"topologyKey": ZONE, "labelSelector": SELECTOR}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "10"}


def pod(name: str = "p", labels: Json | None = None, cpu: str = "2", **spec: Any) -> Json:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    meta = {"name": name, "uid": name, "namespace": "default", "labels": labels or {}}
    return {"metadata": meta, "spec": {"containers": [container], **spec}}


def web(**spec: Any) -> Json:
    return pod("other", {"app": "web"}, nodeName="n", **spec)


def node(labels: Json | None = None, room: Json | None = None, **spec: Any) -> Json:
    meta = {"name": "n", "labels": labels or {}}
    return {"metadata": meta, "spec": spec, "status": {"allocatable": room or ROOM}}


TAINTED = node(taints=[{"key": "gpu", "effect": "NoSchedule"}])
SPREAD_POD = pod(topologySpreadConstraints=[{**SPREAD, "labelSelector": SELECTOR}])
NEAR = pod(affinity={"podAffinity": {REQUIRED: [TERM]}})
AWAY = pod(affinity={"podAntiAffinity": {REQUIRED: [TERM]}})
HOST_PORT = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]
OTHER_PORT = [{"name": "c", "ports": [{"containerPort": 81, "hostPort": 81}]}]


def woken(rejecter: str, pending: Json, before: Json | None, after: Json | None) -> bool:
    """Whether the change brings the pod out of the unschedulable pods, through all real parts."""
    handle, cache, waits = Handle(), Cache(), Handle().waiting_pods
    build_frameworks((Profile(),), handle)
    queue = SchedulingQueue(handle.is_worth_requeuing)
    feed = Feed(queue, cache, waits, frozenset({"default-scheduler"}))
    feed.pod(None, pending, 0.0)
    entry = queue.pop(0.0)
    assert entry is not None
    queue.reject(entry, frozenset({rejecter}), 0.0)
    take_in = feed.pod if "containers" in ((after or before or {})["spec"]) else feed.node
    take_in(before, after, 100.0)
    place = queue.places()["p"]
    assert place in ("active", "unschedulable")
    return place == "active"


@pytest.mark.parametrize(
    ("rejecter", "pending", "before", "after", "wakes"),
    [
        ("NodeName", pod(), None, node(), True),
        ("NodeName", pod(), node(), node({"a": "b"}), False),
        ("NodeUnschedulable", pod(), node(unschedulable=True), node(), True),
        ("NodeUnschedulable", pod(), None, node(unschedulable=True), False),
        ("NodeUnschedulable", pod(), TAINTED, node(), False),
        ("NodeUnschedulable", pod(), pod(), pod(tolerations=[{"operator": "Exists"}]), True),
        ("NodeUnschedulable", pod(), pod(), pod(tolerations=[{"key": "gpu"}]), False),
        ("NodePorts", pod(containers=HOST_PORT), web(containers=HOST_PORT), None, True),
        ("NodePorts", pod(containers=HOST_PORT), web(containers=OTHER_PORT), None, False),
        ("TaintToleration", pod(), TAINTED, node(), True),
        ("TaintToleration", pod(), None, TAINTED, False),
        ("TaintToleration", pod(), pod(), pod(tolerations=[{"key": "gpu"}]), True),
        ("NodeAffinity", pod(nodeSelector={"a": "b"}), node(), node({"a": "b"}), True),
        ("NodeAffinity", pod(nodeSelector={"a": "b"}), node(), node({"a": "c"}), False),
        (
            "NodeAffinity",
            pod(nodeSelector={"a": "b"}),
            node({"a": "b"}),
            node({"a": "b", "c": "d"}),
            False,
        ),
        ("NodeResourcesFit", pod(), None, node(), True),
        ("NodeResourcesFit", pod(cpu="5"), None, node(), False),
        ("NodeResourcesFit", pod(), node(), node(room={**ROOM, "cpu": "5"}), True),
        ("NodeResourcesFit", pod(), node(), node(room={**ROOM, "memory": "9Gi"}), False),
        ("NodeResourcesFit", pod(), node(), node({"a": "b"}), False),
        ("NodeResourcesFit", pod(), web(), None, True),
        ("NodeResourcesFit", pod(), web(cpu="2"), web(cpu="1"), True),
        ("NodeResourcesFit", pod(), web(cpu="1"), web(cpu="2"), False),
        ("PodTopologySpread", SPREAD_POD, web(), None, True),
        ("PodTopologySpread", SPREAD_POD, pod("other", nodeName="n"), None, False),
        ("PodTopologySpread", SPREAD_POD, pod("other", nodeName="n"), web(), True),
        ("PodTopologySpread", SPREAD_POD, None, node({ZONE: "a"}), True),
        ("PodTopologySpread", SPREAD_POD, None, node(), False),
        ("PodTopologySpread", SPREAD_POD, node({ZONE: "a"}), node({ZONE: "b"}), True),
        ("PodTopologySpread", SPREAD_POD, node({ZONE: "a"}), None, True),
        ("InterPodAffinity", NEAR, None, web(), True),
        ("InterPodAffinity", NEAR, web(), None, False),
        ("InterPodAffinity", NEAR, None, node({ZONE: "a"}), True),
        ("InterPodAffinity", NEAR, None, node(), False),
        ("InterPodAffinity", AWAY, web(), None, True),
        ("InterPodAffinity", AWAY, None, web(), False),
        ("InterPodAffinity", AWAY, None, node(), True),
        ("InterPodAffinity", AWAY, node({ZONE: "a"}), node({ZONE: "a", "b": "c"}), False),
        (
            "InterPodAffinity",
            pod(labels={"app": "web"}),
            {**AWAY, "metadata": web()["metadata"], "spec": {**AWAY["spec"], "nodeName": "n"}},
            None,
            True,
        ),
        ("Extender", pod(), node(), node({"a": "b"}), True),
        ("Extender", pod(), node(), node(), False),
    ],
)
def test_a_change_wakes_the_pods_that_it_can_help(
    rejecter: str, pending: Json, before: Json | None, after: Json | None, *, wakes: bool
) -> None:
    assert woken(rejecter, pending, before, after) is wakes


class Broken:
    """A plug-in with a bug in its hint."""

    name = "Broken"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        def hint(_pod: PodView, _change: Change) -> bool:
            raise RuntimeError("a bug")

        return (EventWithHint(Resource.NODE, Action.ADD, hint),)


def test_a_hint_that_fails_wakes_the_pod_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    framework = Framework((Broken(),))
    view, rejecter = read_pod(pod()), frozenset({"Broken"})
    assert framework.is_worth_requeuing(view, rejecter, Change(Resource.NODE, Action.ADD))
    assert "queueing hint failed plugin=Broken pod=default/p" in caplog.text
    assert not framework.is_worth_requeuing(view, rejecter, Change(Resource.NODE, Action.DELETE))


def test_who_registers_nothing_and_nobody_wait_for_any_event() -> None:
    framework = Framework((Broken(),))
    is_gone = Change(Resource.NODE, Action.DELETE)
    for rejecter in (frozenset({"Stranger"}), frozenset[str]()):
        assert framework.is_worth_requeuing(read_pod(pod()), rejecter, is_gone)
    assert ANY_EVENT[0].wants(read_pod(pod()), is_gone)
    broken = frozenset({"Broken"})
    assert framework.is_worth_requeuing(read_pod(pod()), broken, FORCE_ACTIVATE)
