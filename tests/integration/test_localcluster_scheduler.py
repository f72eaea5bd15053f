"""The small scheduler against the API server and a real HTTP extender, over sockets."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest

from gpushare.errors import ApiNotFound
from gpushare.wire.scheduler.profiles import PluginSet, Profile
from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, HttpClient
from gpushare_localcluster.kubelet import Kubelet
from gpushare_localcluster.scheduler.cycle import Decision
from gpushare_localcluster.scheduler.framework import Code, CycleState, Status
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.plugins.registry import IN_TREE
from gpushare_localcluster.scheduler.profiles import SchedulerOptions
from gpushare_localcluster.scheduler.scheduler import Scheduler
from tests.integration.small_extender import SmallExtender, small_extender
from tests.integration.verbs import scheduler_entry
from tests.support.waiting import poll

GPU = "example.com/gpu-mem"
PODS = "/api/v1/namespaces/default/pods"
Json = dict[str, Any]


class Cluster:
    """An API server, an extender and a scheduler, with the few calls that tests make."""

    def __init__(self, server: ApiServer, extender: SmallExtender) -> None:
        self.server = server
        self.extender = extender
        self.api = ApiClient(server.url, user_agent="test")
        self.decisions: list[Decision] = []
        config = scheduler_entry(extender.url, GPU, timeout=60.0)
        options = SchedulerOptions((config,), initial_backoff=0.05, max_backoff=0.2, seed=1)
        self.scheduler = Scheduler(server.url, options, observer=self.decisions.append)
        self.kubelet = Kubelet(ApiClient(server.url, user_agent="test"), server.logs)

    def node(self, name: str, units: int = 16, **spec: Any) -> None:
        """A new node, once the scheduler's two watches, of nodes and of pods, have shown the node.

        The node has its kubelet's labels from the start: later labels would wake waiting pods.
        """
        amounts = {"cpu": "8", "memory": "16Gi", "pods": "10", GPU: str(units)}
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        meta = {"name": name, "labels": labels}
        self.api.create(
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": meta,
                "spec": spec,
                "status": {"capacity": amounts, "allocatable": amounts},
            },
        )
        poll(lambda: self.scheduler.sees(name))

    def pod(
        self,
        name: str,
        units: int = 4,
        annotations: Json | None = None,
        cpu: str = "",
        **spec: Any,
    ) -> None:
        resources = {"limits": {GPU: str(units)}} if units else {}
        if cpu:
            resources["requests"] = {"cpu": cpu}
        container = {"name": "main", "image": "pause", "resources": resources}
        self.api.create(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": annotations or {}},
                "spec": {"containers": [container], **spec},
            },
        )

    def get(self, name: str) -> Json:
        return self.api.get(f"{PODS}/{name}")

    def node_of(self, name: str) -> str:
        return str(self.get(name)["spec"].get("nodeName", ""))

    def nominations(self, name: str) -> set[str]:
        """Where room was made for the pod; forgotten when the pod is bound."""
        changes, _ = self.server.store.since("pods", 0)
        statuses = [c.record.body["status"] for c in changes if c.record.key[1] == name]
        return {status["nominatedNodeName"] for status in statuses if "nominatedNodeName" in status}

    def condition(self, name: str) -> tuple[str, str, str]:
        for condition in self.get(name)["status"].get("conditions", []):
            if condition["type"] == "PodScheduled":
                return (
                    condition["status"],
                    condition.get("reason", ""),
                    condition.get("message", ""),
                )
        return "", "", ""

    def events(self, name: str) -> list[tuple[str, str, int]]:
        query = {"fieldSelector": f"involvedObject.name={name}"}
        result = self.api.get("/api/v1/events", query)["items"]
        return [(event["reason"], event["message"], event["count"]) for event in result]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    server = ApiServer(Store())
    server.start()
    with small_extender(server.url) as extender:
        cluster = Cluster(server, extender)
        cluster.scheduler.start()
        cluster.kubelet.start()
        yield cluster
        cluster.kubelet.stop()
        cluster.scheduler.stop()
        cluster.api.close()
    server.stop()
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("bind", "informer"))]


def test_a_pod_goes_through_filter_prioritize_and_bind(cluster: Cluster) -> None:
    cluster.extender.answers["prioritize"] = lambda args: [{"Host": "n2", "Score": 10}]
    for name in ("n1", "n2"):
        cluster.node(name)
    cluster.pod("p")
    poll(lambda: cluster.node_of("p"))
    poll(lambda: cluster.events("p"))
    pod = cluster.get("p")
    assert pod["spec"]["nodeName"] == "n2"
    assert pod["metadata"]["annotations"]["device"] == "0"
    assert cluster.extender.verbs("p") == ["filter", "prioritize", "bind"]
    assert cluster.events("p") == [("Scheduled", "Successfully assigned default/p to n2", 1)]
    assert cluster.condition("p")[0] == "True"
    decision = cluster.decisions[0]
    assert (decision.node, decision.evaluated, decision.feasible) == ("n2", 2, 2)


def test_a_pod_the_extender_does_not_manage_is_bound_without_it(cluster: Cluster) -> None:
    cluster.node("n1")
    cluster.pod("p", units=0)
    poll(lambda: cluster.node_of("p") == "n1")
    assert cluster.extender.calls == []


def test_a_rejected_pod_says_why_and_comes_back_when_a_node_opens(cluster: Cluster) -> None:
    cluster.node("n1", unschedulable=True)
    cluster.node("n2", units=2)
    cluster.pod("p")
    text = (
        f"0/2 nodes are available: 1 Insufficient {GPU}, 1 node(s) were unschedulable."
        " preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )
    poll(lambda: cluster.condition("p") == ("False", "Unschedulable", text))
    poll(lambda: ("FailedScheduling", text, 1) in cluster.events("p"))
    cluster.api.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": None}}, MERGE_PATCH)
    poll(lambda: cluster.node_of("p") == "n1")


def test_what_the_extender_rejects_waits_and_is_not_asked_about_in_a_hot_loop(
    cluster: Cluster,
) -> None:
    cluster.node("n1")
    cluster.extender.answers["filter"] = lambda args: {"FailedNodes": {"n1": "no device has room"}}
    cluster.pod("p")
    poll(lambda: "1 no device has room." in cluster.condition("p")[2])
    poll(lambda: len(cluster.extender.verbs("p")) == 2)
    # Nothing happens any more, so nothing is asked any more.
    time.sleep(0.6)
    assert cluster.extender.verbs("p") == ["filter", "filter"]
    cluster.extender.answers["filter"] = lambda args: {"NodeNames": args["NodeNames"]}
    cluster.node("n2")
    poll(lambda: cluster.node_of("p"))


def test_an_extender_error_is_retried_by_time_alone(cluster: Cluster) -> None:
    cluster.node("n1")
    cluster.extender.answers["filter"] = lambda args: {"Error": "books not ready"}
    cluster.pod("p")
    expected = ("False", "SchedulerError", "books not ready")
    poll(lambda: cluster.condition("p") == expected)
    poll(lambda: any(count > 1 for *_, count in cluster.events("p")))
    cluster.extender.answers["filter"] = lambda args: {"NodeNames": args["NodeNames"]}
    poll(lambda: cluster.node_of("p") == "n1")


def test_a_failed_bind_gives_the_room_back_and_is_tried_again(cluster: Cluster) -> None:
    cluster.node("n1")
    cluster.extender.answers["bind"] = lambda args: {"Error": "lost a race"}
    cluster.pod("p", units=16)
    poll(lambda: cluster.condition("p") == ("False", "SchedulerError", "lost a race"))
    cluster.extender.answers["bind"] = cluster.extender.bind
    poll(lambda: cluster.node_of("p") == "n1")
    assert cluster.extender.verbs("p")[:4] == ["filter", "bind", "filter", "bind"]


def test_a_bind_that_worked_although_it_reported_an_error_is_not_repeated(
    cluster: Cluster,
) -> None:
    cluster.node("n1")

    def bind_and_complain(args: Json) -> Json:
        cluster.extender.bind(args)
        poll(lambda: cluster.node_of("p"))
        time.sleep(0.1)
        return {"Error": "the answer was lost"}

    cluster.extender.answers["bind"] = bind_and_complain
    cluster.pod("p")
    poll(lambda: cluster.node_of("p") == "n1")
    time.sleep(0.5)
    assert cluster.extender.verbs("p").count("bind") == 1
    cluster.extender.answers["bind"] = cluster.extender.bind
    cluster.pod("q", units=13)
    poll(lambda: f"Insufficient {GPU}" in cluster.condition("q")[2])


def test_an_assumed_pod_counts_while_its_bind_is_under_way(cluster: Cluster) -> None:
    cluster.node("n1")
    release = threading.Event()

    def slow(args: Json) -> Json:
        release.wait(30)
        return cluster.extender.bind(args)

    cluster.extender.answers["bind"] = slow
    cluster.pod("p", units=10)
    poll(lambda: "bind" in cluster.extender.verbs("p"))
    cluster.pod("q", units=10)
    poll(lambda: f"1 Insufficient {GPU}" in cluster.condition("q")[2])
    assert cluster.node_of("p") == ""
    release.set()
    poll(lambda: cluster.node_of("p") == "n1")


def test_deletion_frees_room_for_the_pod_that_waits_and_priority_goes_first(
    cluster: Cluster,
) -> None:
    high = {"metadata": {"name": "high"}, "value": 10}
    cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", high)
    cluster.node("n1")
    cluster.pod("first", units=16, priorityClassName="high")
    poll(lambda: cluster.node_of("first"))
    cluster.pod("low", units=16)
    cluster.pod("high", units=16, priorityClassName="high")
    poll(lambda: cluster.condition("low")[1] == "Unschedulable")
    poll(lambda: "No preemption victims found" in cluster.condition("high")[2])
    time.sleep(0.3)
    cluster.api.delete(f"{PODS}/first")
    poll(lambda: cluster.node_of("high") == "n1")
    assert cluster.node_of("low") == ""


def test_a_pod_of_higher_priority_evicts_one_and_takes_its_place(cluster: Cluster) -> None:
    high = {"metadata": {"name": "high"}, "value": 10}
    polite = {"metadata": {"name": "polite"}, "value": 10, "preemptionPolicy": "Never"}
    for item in (high, polite):
        cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", item)
    cluster.node("n1")
    cluster.pod("low", units=16)
    cluster.pod("small", units=0)
    poll(lambda: cluster.get("low")["status"].get("phase") == "Running")
    cluster.pod("modest", units=16, priorityClassName="polite")
    never = "preemption: not eligible due to preemptionPolicy=Never."
    poll(lambda: cluster.condition("modest")[2].endswith(never))
    assert cluster.node_of("low") == "n1"
    cluster.api.delete(f"{PODS}/modest")
    cluster.pod("high", units=16, priorityClassName="high")
    poll(lambda: cluster.node_of("high") == "n1")
    with pytest.raises(ApiNotFound):
        cluster.get("low")
    assert cluster.node_of("small") == "n1"
    assert cluster.nominations("high") == {"n1"}
    uid = cluster.get("high")["metadata"]["uid"]
    output = ("Preempted", f"Preempted by pod {uid} on node n1", 1)
    poll(lambda: output in cluster.events("low"))


def test_a_pod_deleted_while_it_waits_is_forgotten(cluster: Cluster) -> None:
    cluster.pod("p")
    poll(lambda: cluster.condition("p")[2] == "no nodes available to schedule pods")
    cluster.api.delete(f"{PODS}/p")
    cluster.node("n1")
    time.sleep(0.2)
    assert cluster.extender.verbs("p") == []


def test_a_pod_that_came_before_any_node_is_bound_when_one_comes(cluster: Cluster) -> None:
    cluster.pod("p")
    poll(lambda: cluster.condition("p")[2] == "no nodes available to schedule pods")
    cluster.node("n1")
    poll(lambda: cluster.node_of("p") == "n1")


def test_a_pod_of_another_scheduler_is_left_alone(cluster: Cluster) -> None:
    cluster.node("n1")
    cluster.pod("theirs", schedulerName="other")
    cluster.pod("ours")
    poll(lambda: cluster.node_of("ours"))
    assert cluster.node_of("theirs") == ""
    assert cluster.condition("theirs") == ("", "", "")


def test_the_kubelet_runs_pods_ends_them_and_confirms_deletion(cluster: Cluster) -> None:
    cluster.node("n1")
    cluster.pod("stays")
    cluster.pod("ends", annotations={"localcluster.gpushare.io/run-seconds": "0.2"})
    poll(lambda: cluster.get("stays")["status"]["phase"] == "Running")
    status = cluster.get("stays")["status"]
    ready = {c["type"]: c["status"] for c in status["conditions"]}
    assert ready["Ready"] == ready["ContainersReady"] == ready["PodScheduled"] == "True"
    assert status["containerStatuses"][0]["ready"] is True
    assert status["podIP"].startswith("10.244.")
    datetime.strptime(status["startTime"], "%Y-%m-%dT%H:%M:%S%z")
    poll(lambda: cluster.get("ends")["status"]["phase"] == "Succeeded")
    cluster.api.delete(f"{PODS}/stays")

    def gone() -> bool:
        try:
            cluster.get("stays")
        except ApiNotFound:
            return True
        return False

    poll(gone)


def test_the_kubelet_refuses_what_the_node_does_not_have(cluster: Cluster) -> None:
    cluster.node("n1", units=8)
    cluster.pod("fits", nodeName="n1", units=6)
    poll(lambda: cluster.get("fits")["status"]["phase"] == "Running")
    cluster.pod("over", nodeName="n1", units=4)
    poll(lambda: cluster.get("over")["status"]["phase"] == "Failed")
    status = cluster.get("over")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"] == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for"
        f" {GPU}. Requested: 4, Available: 2, which is unexpected"
    )
    cluster.pod("busy", nodeName="n1", units=0, cpu="9")
    poll(lambda: cluster.get("busy")["status"]["phase"] == "Failed")
    status = cluster.get("busy")["status"]
    assert status["reason"] == "OutOfcpu"
    assert status["message"] == (
        "Pod was rejected: Node didn't have enough resource: cpu,"
        " requested: 9000, used: 0, capacity: 8000"
    )


def test_the_log_says_which_device_a_container_was_given(cluster: Cluster) -> None:
    cluster.node("n1")
    limits = {"limits": {"aliyun.com/gpu-mem": "2"}}
    annotations = {"ALIYUN_COM_GPU_MEM_IDX": "3"}
    containers = [
        {"name": "gpu", "image": "pause", "resources": limits},
        {"name": "plain", "image": "pause"},
    ]
    cluster.pod("p", annotations=annotations, containers=containers, nodeName="n1")
    poll(lambda: cluster.get("p")["status"]["phase"] == "Running")
    uid = cluster.get("p")["metadata"]["uid"]
    printed = {
        name: [line for _, line in cluster.server.logs.read(uid, name)] for name in ("gpu", "plain")
    }
    assert "NVIDIA_VISIBLE_DEVICES=3" in printed["gpu"]
    assert "2 units of device memory on device 3" in printed["gpu"]
    assert printed["plain"][-1] == "no device was given to this container"


def test_what_a_pod_sets_itself_wins_over_its_device_plug_in(cluster: Cluster) -> None:
    cluster.node("n1")
    limits = {"limits": {"aliyun.com/gpu-mem": "2"}}
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    containers = [{"name": "main", "image": "pause", "resources": limits, "env": env}]
    notes = {"ALIYUN_COM_GPU_MEM_IDX": "3"}
    cluster.pod("p", annotations=notes, containers=containers, nodeName="n1")
    poll(lambda: cluster.get("p")["status"]["phase"] == "Running")
    printed = cluster.server.logs.read(cluster.get("p")["metadata"]["uid"], "main")
    result = [line for _, line in printed if "VISIBLE" in line]
    assert result == ["NVIDIA_VISIBLE_DEVICES=all  # set by the pod: it wins over 3"]


def test_init_containers_have_logs_and_sidecars_keep_running(cluster: Cluster) -> None:
    cluster.node("n1")
    first = {"name": "first", "image": "pause"}
    neighbour = {"name": "beside", "image": "pause", "restartPolicy": "Always"}
    cluster.pod("p", initContainers=[first, neighbour], nodeName="n1")
    poll(lambda: cluster.get("p")["status"]["phase"] == "Running")
    with closing(HttpClient(cluster.server.url)) as http:
        for name in ("first", "beside", "main"):
            log = http.call("GET", f"{PODS}/p/log?container={name}", timeout=5).body.decode()
            assert f"container {name} of pod default/p started" in log
    output = cluster.get("p")["status"]["initContainerStatuses"]
    assert [(item["name"], *item["state"]) for item in output] == [
        ("first", "terminated"),
        ("beside", "running"),
    ]


def test_a_node_gets_the_labels_that_its_kubelet_gives(cluster: Cluster) -> None:
    cluster.node("n1")
    inputs = {"kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux"}

    def labels() -> Json:
        result: Json = cluster.api.get("/api/v1/nodes/n1")["metadata"].get("labels") or {}
        return result

    poll(lambda: labels() == {**inputs, "kubernetes.io/arch": "amd64"})


def test_the_scheduler_takes_up_where_the_watch_was_compacted(cluster: Cluster) -> None:
    cluster.node("n1")
    cluster.pod("before")
    poll(lambda: cluster.node_of("before"))
    for name in ("x", "y", "z"):
        cluster.pod(name, units=1)
    cluster.server.store.compact()
    cluster.pod("after")
    poll(lambda: cluster.node_of("after"))


class Doorkeeper:
    """Lets pods called good pass when the next pod comes, and keeps other pods until time is up."""

    name = "Doorkeeper"

    def __init__(self, args: Json, handle: Handle) -> None:
        self._handle = handle

    def permit(self, state: CycleState, pod: PodView, node_name: str) -> tuple[Status, float]:
        for item in tuple(self._handle.waiting_pods.values()):
            if item.pod.name == "good":
                item.allow(self.name)
        return Status(Code.WAIT), 60.0 if pod.name == "good" else 0.2


def test_permit_has_one_pod_wait_for_another_and_rejects_by_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(IN_TREE, "Doorkeeper", Doorkeeper)
    plugins = {"permit": PluginSet(enabled=(("Doorkeeper", 0),))}
    options = SchedulerOptions((), (Profile(plugins=plugins),), initial_backoff=5.0)
    server = ApiServer(Store())
    server.start()
    scheduler = Scheduler(server.url, options)
    api = ApiClient(server.url, user_agent="test")

    def pod(name: str) -> Json:
        return api.get(f"{PODS}/{name}")

    amounts = {"cpu": "8", "memory": "16Gi", "pods": "10"}
    head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    api.create("/api/v1/nodes", head | {"status": {"allocatable": amounts}})
    scheduler.start()
    try:
        for name in ("good", "bad"):
            spec = {"containers": [{"name": "main", "image": "pause"}]}
            meta = {"name": name}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            api.create(PODS, body)
        poll(lambda: pod("good")["spec"].get("nodeName") == "n1")
        poll(lambda: pod("bad")["status"].get("conditions"))
        (condition,) = pod("bad")["status"]["conditions"]
        assert condition["reason"] == "Unschedulable"
        assert condition["message"] == (
            "0/1 nodes are available: 1 rejected due to timeout after waiting 0.2s"
            " at plugin Doorkeeper."
        )
    finally:
        scheduler.stop()
        api.close()
        server.stop()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("bind")]
