"""Deployments and ReplicaSets through kubectl: applied, rolled out, scaled, undone, deleted."""

import json
import threading

import pytest

from tests.contract.apiserver.client import Json
from tests.contract.kubectl import Kubectl, Server
from tests.contract.workloads.conftest import Pods
from tests.contract.workloads.manifests import changed, workload
from tests.e2e.processes import until

pytestmark = pytest.mark.kubectl

WEB = workload("Deployment", replicas=3)


def rolled_out(kubectl: Kubectl, name: str = "web") -> None:
    output = kubectl("rollout", "status", f"deploy/{name}", "--timeout=50s")
    assert f'deployment "{name}" successfully rolled out' in output


def applied(kubectl: Kubectl, manifest: str = WEB) -> None:
    kubectl("apply", "-f", "-", stdin=manifest)
    rolled_out(kubectl)


def test_what_is_applied_is_rolled_out_and_shown(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    header, row = kubectl("get", "deploy").splitlines()
    assert header.split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert row.split()[:4] == ["web", "3/3", "3", "3"]
    header, row = kubectl("get", "rs", "-o", "wide").splitlines()
    columns = ["NAME", "DESIRED", "CURRENT", "READY", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"]
    assert header.split() == columns
    assert row.split()[1:4] == ["3", "3", "3"]
    assert row.split()[5:7] == ["main", "app:1"]
    assert len(pods.names()) == 3
    output = kubectl("describe", "deploy", "web")
    assert "3 desired | 3 updated | 3 total | 3 available | 0 unavailable" in output
    assert "Scaled up replica set" in output
    assert "deployment.apps/web unchanged" in kubectl("apply", "-f", "-", stdin=WEB)


def test_what_the_template_leaves_out_is_filled_in_as_in_a_real_cluster(kubectl: Kubectl) -> None:
    applied(kubectl)
    spec = json.loads(kubectl("get", "deploy", "web", "-o", "json"))["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": "25%"}
    assert (spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (10, 600)
    assert spec["template"]["metadata"]["labels"] == {"app": "web"}
    inner = spec["template"]["spec"]
    assert inner.pop("containers") == [
        {
            "name": "main",
            "image": "app:1",
            "imagePullPolicy": "IfNotPresent",
            "resources": {"limits": {"aliyun.com/gpu-mem": "1"}},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        }
    ]
    assert inner == {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    }


def test_it_is_scaled(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    assert "scaled" in kubectl("scale", "deploy/web", "--replicas=5")
    rolled_out(kubectl)
    assert len(pods.names()) == 5
    kubectl("scale", "deploy/web", "--replicas=1", "--current-replicas=5")
    pods.become(lambda items: len(items) == 1, "one is left")
    error = kubectl("scale", "deploy/web", "--replicas=2", "--current-replicas=5", code=1)
    assert "xpected replicas to be 5, was 1" in error
    kubectl("scale", "deploy/web", "--replicas=0")
    pods.gone()
    assert kubectl("get", "deploy", "web", "--no-headers").split()[1] == "0/0"


def test_the_subresource_scale_is_a_view_of_it(kubectl: Kubectl, server: Server) -> None:
    kubectl("apply", "-f", "-", stdin=WEB)
    path = f"/apis/apps/v1/namespaces/{server.namespace}/deployments/web/scale"
    scale = server.api.get(path).body
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"]["selector"] == "app=web"
    stale = {**scale, "metadata": {**scale["metadata"], "resourceVersion": "1"}}
    assert server.api.call("PUT", path, stale).status == 409
    assert server.api.patch(path, {"spec": {"replicas": -1}}).status == 422
    text = {**scale, "spec": {"replicas": "x"}}
    assert server.api.call("PUT", path, text).status == 400
    assert server.api.patch(path, {"spec": {"replicas": 2}}).body["spec"] == {"replicas": 2}


def test_another_image_is_rolled_out_and_undone(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    kubectl("annotate", "deploy/web", "kubernetes.io/change-cause=first")
    kubectl("set", "image", "deploy/web", "main=app:2")
    rolled_out(kubectl)
    assert pods.images() == ["app:2"] * 3
    kubectl("annotate", "deploy/web", "--overwrite", "kubernetes.io/change-cause=second")
    until(lambda: "second" in kubectl("rollout", "history", "deploy/web"), "the cause is told")
    history = kubectl("rollout", "history", "deploy/web").splitlines()
    assert [line.split() for line in history if line[:1].isdigit()] == [
        ["1", "first"],
        ["2", "second"],
    ]
    assert "app:1" in kubectl("rollout", "history", "deploy/web", "--revision=1")
    assert "rolled back" in kubectl("rollout", "undo", "deploy/web")
    rolled_out(kubectl)
    assert pods.images() == ["app:1"] * 3
    history = kubectl("rollout", "history", "deploy/web").splitlines()
    assert [line.split()[0] for line in history if line[:1].isdigit()] == ["2", "3"]
    assert "app:2" in kubectl("rollout", "history", "deploy/web", "--revision=2")
    kubectl("rollout", "undo", "deploy/web", "--to-revision=2")
    rolled_out(kubectl)
    assert pods.images() == ["app:2"] * 3


def test_a_restart_replaces_every_pod(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    before = set(pods.names())
    kubectl("rollout", "restart", "deploy/web")
    rolled_out(kubectl)
    assert len(pods.names()) == 3
    assert not before & set(pods.names())


def test_a_roll_out_keeps_to_its_limits(kubectl: Kubectl, server: Server) -> None:
    """At no time fewer than 4 - 1 pods are available, or more than 4 + 1 are there."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    applied(kubectl, workload("Deployment", replicas=4, strategy=rolling))
    path = f"/api/v1/namespaces/{server.namespace}/pods"
    listing = server.api.get(path)
    values = {item["metadata"]["name"]: item for item in listing.body["items"]}
    counts: list[tuple[int, int]] = []
    with server.api.watch(path, resourceVersion=listing.version, timeoutSeconds=60) as stream:
        kubectl("set", "image", "deploy/web", "main=app:2")
        while sum(map(_is_new, values.values())) < 4 or len(values) > 4:
            event = stream.next()
            values[event["object"]["metadata"]["name"]] = event["object"]
            if event["type"] == "DELETED":
                del values[event["object"]["metadata"]["name"]]
            alive = [
                item for item in values.values() if "deletionTimestamp" not in item["metadata"]
            ]
            counts.append((len(alive), sum(map(_is_ready, alive))))
    assert max(total for total, _ in counts) <= 5
    assert min(ready for _, ready in counts) >= 3


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any((item["type"], item["status"]) == ("Ready", "True") for item in conditions)


def _is_new(pod: Json) -> bool:
    return _is_ready(pod) and pod["spec"]["containers"][0]["image"] == "app:2"


def test_recreate_ends_the_old_pods_before_it_makes_new_ones(
    kubectl: Kubectl, server: Server
) -> None:
    applied(kubectl, workload("Deployment", replicas=2, strategy={"type": "Recreate"}))
    path = f"/api/v1/namespaces/{server.namespace}/pods"
    version = server.api.get(path).version
    kubectl("set", "image", "deploy/web", "main=app:2")
    rolled_out(kubectl)
    values = {"app:1": 2, "app:2": 0}
    with server.api.watch(path, resourceVersion=version, timeoutSeconds=60) as stream:
        while values != {"app:1": 0, "app:2": 2}:
            event = stream.next()
            image = event["object"]["spec"]["containers"][0]["image"]
            values[image] += {"ADDED": 1, "DELETED": -1}.get(event["type"], 0)
            assert not (values["app:1"] and values["app:2"])


def test_a_paused_roll_out_waits(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    kubectl("rollout", "pause", "deploy/web")
    kubectl("set", "image", "deploy/web", "main=app:2")
    kubectl("scale", "deploy/web", "--replicas=4")
    pods.become(lambda items: len(items) == 4, "it is scaled all the same")
    assert pods.images() == ["app:1"] * 4
    assert "DeploymentPaused" in kubectl("describe", "deploy", "web")
    kubectl("rollout", "resume", "deploy/web")
    rolled_out(kubectl)
    assert pods.images() == ["app:2"] * 4


def stuck(kubectl: Kubectl, pods: Pods, replicas: int, strategy: Json) -> None:
    """Roll out a template that no node has room for, until as many pods are there as may be."""
    applied(kubectl, workload("Deployment", replicas=replicas, strategy=strategy))
    before = len(pods.names())
    kubectl("set", "resources", "deploy/web", "--limits=aliyun.com/gpu-mem=64")
    pods.become(lambda items: len(items) > before, "the new ones wait")
    looked_at(kubectl)


def looked_at(kubectl: Kubectl) -> None:
    """Wait until the controller has observed the Deployment and has nothing to do."""

    def settled() -> bool:
        before = kubectl("get", "deploy,rs", "-o", "json")
        (web,) = (item for item in json.loads(before)["items"] if item["kind"] == "Deployment")
        threading.Event().wait(0.5)
        collected = web["metadata"]["generation"] == web["status"].get("observedGeneration")
        return collected and kubectl("get", "deploy,rs", "-o", "json") == before

    until(settled, "the Deployment and its ReplicaSets stay as they are")


def sizes(kubectl: Kubectl) -> list[int]:
    """The sizes of the ReplicaSets, the oldest revision first."""
    items = json.loads(kubectl("get", "rs", "-o", "json"))["items"]
    note = "deployment.kubernetes.io/revision"
    items.sort(key=lambda item: int(item["metadata"]["annotations"][note]))
    return [item["spec"]["replicas"] for item in items]


ONE_MORE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
TWO_MORE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}


def test_a_pause_in_the_middle_of_a_roll_out_leaves_it_there(kubectl: Kubectl, pods: Pods) -> None:
    stuck(kubectl, pods, replicas=3, strategy=ONE_MORE)
    assert sizes(kubectl) == [3, 1]
    kubectl("rollout", "pause", "deploy/web")
    looked_at(kubectl)
    assert sizes(kubectl) == [3, 1]
    assert len(pods.names()) == 4


def test_a_pause_brings_no_old_replica_set_back(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    kubectl("set", "image", "deploy/web", "main=app:2")
    rolled_out(kubectl)
    kubectl("rollout", "undo", "deploy/web")
    rolled_out(kubectl)
    kubectl("rollout", "pause", "deploy/web")
    kubectl("set", "image", "deploy/web", "main=app:3")
    looked_at(kubectl)
    assert sizes(kubectl) == [0, 3]
    assert pods.images() == ["app:1"] * 3


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_scaled_to_nothing_in_the_middle_of_a_roll_out_no_pod_stays(
    kubectl: Kubectl, pods: Pods, paused: bool
) -> None:
    stuck(kubectl, pods, replicas=4, strategy=TWO_MORE)
    assert sizes(kubectl) == [4, 2]
    if paused:
        kubectl("rollout", "pause", "deploy/web")
    kubectl("scale", "deploy/web", "--replicas=0")
    pods.gone()


def test_pods_count_as_available_after_a_time(kubectl: Kubectl) -> None:
    applied(kubectl, workload("Deployment", replicas=2, minReadySeconds=1))
    assert kubectl("get", "deploy", "web", "--no-headers").split()[1:4] == ["2/2", "2", "2"]


def test_old_replica_sets_beyond_the_limit_go(kubectl: Kubectl) -> None:
    applied(kubectl, workload("Deployment", replicas=1, revisionHistoryLimit=1))
    for number in (2, 3):
        kubectl("set", "image", "deploy/web", f"main=app:{number}")
        rolled_out(kubectl)
    items = "{.items[*].spec.template.spec.containers[0].image}"
    until(
        lambda: set(kubectl("get", "rs", "-o", f"jsonpath={items}").split()) == {"app:2", "app:3"},
        "one old one is left",
    )


def test_a_pod_that_goes_is_replaced(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    first = pods.names()[0]
    kubectl("delete", "pod", first)
    pods.become(lambda items: len(items) == 3, "there is another")
    assert first not in pods.names()


def test_deleting_takes_everything_along(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    assert 'deployment.apps "web" deleted' in kubectl("delete", "deploy", "web")
    pods.gone()
    until(lambda: "No resources" in kubectl("get", "rs"), "the ReplicaSet is gone")


def test_deleting_in_the_foreground_waits_for_the_pods(kubectl: Kubectl, server: Server) -> None:
    applied(kubectl)
    kubectl("delete", "deploy", "web", "--cascade=foreground", "--timeout=50s")
    assert server.api.get(f"/api/v1/namespaces/{server.namespace}/pods").body["items"] == []


def test_what_is_orphaned_is_adopted_again(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    before = pods.names()
    kubectl("delete", "deploy", "web", "--cascade=orphan")
    assert pods.names() == before
    applied(kubectl)
    assert pods.names() == before


def test_a_pod_that_is_labelled_away_is_let_go(kubectl: Kubectl, pods: Pods) -> None:
    applied(kubectl)
    first = pods.names()[0]
    kubectl("label", "pod", first, "--overwrite", "app=other")
    pods.become(lambda items: len(items) == 4, "there is another in its place")
    kubectl("delete", "deploy", "web")
    pods.become(lambda items: len(items) == 1, "the one let go stays")
    assert pods.names() == [first]


def test_generators_make_it(kubectl: Kubectl) -> None:
    """The newest kubectl sends protobuf here."""
    kubectl("create", "deployment", "made", "--image=app:1", "--replicas=2", "--port=80")
    rolled_out(kubectl, "made")
    text = kubectl("get", "deploy", "made", "-o", "jsonpath={.spec.template.spec.containers[0]}")
    assert json.loads(text)["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


def test_waiting_ends_with_the_roll_out(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=workload("Deployment", replicas=0))
    process = kubectl.start("rollout", "status", "deploy/web", "--timeout=50s")
    overdue = threading.Timer(55, process.kill)
    overdue.start()
    try:
        kubectl("scale", "deploy/web", "--replicas=2")
        assert process.wait() == 0
    finally:
        overdue.cancel()
        process.kill()
        process.communicate()
    kubectl("wait", "deploy/web", "--for=condition=Available", "--timeout=50s")


BAD: list[tuple[Json, str]] = [
    ({"spec": {"selector": {"matchLabels": {"app": "x"}}}}, "does not match template `labels`"),
    ({"spec": {"selector": None}}, "spec.selector"),
    ({"spec": {"template": None}}, "spec.template.spec.containers: Required value"),
    ({"spec": {"replicas": -1}}, "must be greater than or equal to 0"),
    (
        {"spec": {"template": {"spec": {"restartPolicy": "Never"}}}},
        'spec.template.spec.restartPolicy: Unsupported value: "Never"',
    ),
    (
        {"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}},
        "spec.template.spec.containers[0].image: Required value",
    ),
    (
        {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}},
        "may not be 0 when `maxSurge` is 0",
    ),
]


@pytest.mark.parametrize(("change", "text"), BAD)
def test_one_that_makes_no_sense_is_refused(kubectl: Kubectl, change: Json, text: str) -> None:
    bad = changed(WEB, change)
    assert text in kubectl("create", "-f", "-", stdin=bad, code=1)
    assert "No resources" in kubectl("get", "deploy")


def test_whose_pods_they_are_cannot_be_changed(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=WEB)
    labels = {"app": "other"}
    second: Json = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}},
    }
    output = kubectl("apply", "-f", "-", stdin=changed(WEB, {"spec": second}), code=1)
    assert "field is immutable" in output
