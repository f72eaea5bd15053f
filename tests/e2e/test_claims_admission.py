"""Pods of namespaces with the label get a claim in place of GPU memory, on a real control plane.

Needs a kube-scheduler of 1.36 or later.
"""

import re
from collections.abc import Iterator

import pytest

from gpushare.wire.dra.templates import ASKED
from tests.contract.apiserver.client import Json, Reply
from tests.e2e import test_claims_served
from tests.e2e.binaries import needed
from tests.e2e.claims import API, CLASS
from tests.e2e.objects import CORES, COUNT, MEM, fresh
from tests.e2e.processes import until
from tests.e2e.test_claims_served import Served
from tests.e2e.world import apply

pytestmark = test_claims_served.pytestmark

NAMESPACES = "/api/v1/namespaces"
DEVICES = f"{CLASS}.deviceclass.resource.k8s.io/devices"


def pod(units: str = "10", *, cores: str = "", spec: Json | None = None, **meta: object) -> Json:
    limits = {MEM: units, "cpu": "1"} | ({CORES: cores} if cores else {})
    main = {"name": "main", "image": "x", "resources": {"limits": limits}}
    more: Json = {"containers": [main], "terminationGracePeriodSeconds": 0, **(spec or {})}
    return {"metadata": {"name": fresh("pod"), **meta}, "spec": more}


def container(name: str, units: str, **more: object) -> Json:
    return {"name": name, "image": "x", "resources": {"limits": {MEM: units}}, **more}


class Labelled:
    """A world of claims with the policies, and with what makes the pods of a Deployment."""

    def __init__(self, world: Served) -> None:
        self.world, self.api = world, world.api
        apply(world.plane, "extender/claims-pods")
        program = needed("kube-controller-manager")
        self.workloads = world.plane.start_controllers(
            program, "deployment-controller", "replicaset-controller"
        )
        self.team = self.namespace()
        # The API server goes by a new policy a moment later.
        for body, word in ((pod(), ASKED), (pod(cores="50"), CORES)):
            self._answers(body, word)

    def _answers(self, body: Json, word: str) -> None:
        until(lambda: word in str(self.tried(body).body), "the policies are not in force")

    def stop(self) -> None:
        self.workloads.kill()
        self.world.clear()

    def namespace(self) -> str:
        """A namespace with the label."""
        name = fresh("team")
        labels = {"gpushare.io/dra": "true"}
        self.api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        return name

    def tried(self, body: Json, namespace: str = "") -> Reply:
        """The answer to a pod that is not kept."""
        path = f"{NAMESPACES}/{namespace or self.team}/pods"
        return self.api.call("POST", path, body, dryRun="All")

    def pods(self, namespace: str) -> list[Json]:
        return list(self.api.get(f"{NAMESPACES}/{namespace}/pods").body["items"])

    def claims(self, namespace: str) -> list[Json]:
        return list(self.api.get(f"{API}/namespaces/{namespace}/resourceclaims").body["items"])


@pytest.fixture(scope="module")
def labelled(served_world: Served) -> Iterator[Labelled]:
    found = Labelled(served_world)
    yield found
    found.stop()


def test_an_unchanged_deployment_gets_claims_that_are_allocated_and_bound(
    labelled: Labelled,
) -> None:
    node, team = labelled.world.node(80, 24), labelled.namespace()
    template = pod("10", labels={"app": "a"})
    template["metadata"].pop("name")
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "a"}},
        "template": template,
    }
    path = f"/apis/apps/v1/namespaces/{team}/deployments"
    labelled.api.create(path, {"metadata": {"name": "d"}, "spec": spec})
    until(lambda: len(labelled.pods(team)) == 2, lambda: f"{labelled.pods(team)}")
    pods = labelled.pods(team)
    labelled.world.bound(pods)
    for each in pods:
        assert each["metadata"]["annotations"][ASKED] == "main=10"
        (main,) = each["spec"]["containers"]
        assert main["resources"] == {
            "claims": [{"name": "gpushare"}],
            "limits": {"cpu": "1"},
            "requests": {"cpu": "1"},
        }
    for claim in labelled.claims(team):
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        # Of the two cards the one that it fits best.
        assert (result["pool"], result["device"]) == (node, "gpu-1")
        assert result["consumedCapacity"] == {"memory": str(10 << 30)}
    (made,) = labelled.api.get(f"{API}/namespaces/{team}/resourceclaimtemplates").body["items"]
    assert made["metadata"]["name"] == "gpushare-10240mi"
    assert "ownerReferences" not in made["metadata"]


def test_a_pod_of_another_namespace_stays_as_it_is(labelled: Labelled) -> None:
    spec = labelled.tried(pod(), "default").body["spec"]
    assert "resourceClaims" not in spec
    assert spec["containers"][0]["resources"]["limits"] == {MEM: "10", "cpu": "1"}


def test_one_claim_stands_for_all_containers(labelled: Labelled) -> None:
    nic = {"name": "nic", "resourceClaimName": "nic"}
    has_nic = {"limits": {MEM: "10"}, "claims": [{"name": "nic"}]}
    spec = {
        "containers": [
            {"name": "a", "image": "x", "resources": has_nic},
            container("b", "6"),
            container("none", "0"),
            {"name": "other", "image": "x"},
        ],
        "initContainers": [container("first", "20"), container("second", "12")],
        "resourceClaims": [nic],
    }
    reply = labelled.tried(pod(spec=spec, annotations={"mine": "x", COUNT: "2"}))
    assert reply.status == 201, reply.body
    found = reply.body["spec"]
    ours = {"name": "gpushare", "resourceClaimTemplateName": "gpushare-10240mi-x2"}
    assert found["resourceClaims"] == [nic, ours]
    every = [*found["containers"], *found["initContainers"]]
    assert [each["resources"].get("claims") for each in every] == [
        [{"name": "nic"}, {"name": "gpushare"}],
        [{"name": "gpushare"}],
        *(None, None),
        *([{"name": "gpushare"}], [{"name": "gpushare"}]),
    ]
    assert MEM not in str(found)
    kept = {"mine": "x", COUNT: "2", ASKED: "a=10,b=6,none=0,first=20,second=12"}
    assert reply.meta["annotations"] == kept


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (pod(cores="50"), "shares memory alone: leave out aliyun.com/gpu-core.percentage"),
        (pod(annotations={"gpushare.io/split": "4+6"}), "cannot say gpushare.io/split"),
        (pod(annotations={"nvidia.com/use-gputype": "A100"}), "cannot say nvidia.com/use-gputype"),
        (pod(spec={"nodeName": "n"}), "leave out spec.nodeName"),
        (pod(labels={COUNT: "40"}), "1 to 32 devices"),
        (pod(labels={COUNT: "3"}), "a claim of 3 device(s)"),
        (pod("10Gi"), "units that a device has"),
        (pod("9e18"), "units that a device has"),
        (
            pod(spec={"resourceClaims": [{"name": "gpushare", "resourceClaimName": "n"}]}),
            "has a claim named gpushare already",
        ),
        (
            pod(spec={"initContainers": [container("side", "2", restartPolicy="Always")]}),
            "make it a container",
        ),
        # Kubernetes' own words.
        (pod("500m"), "must be an integer"),
    ],
    ids=lambda each: re.sub(r"\W+", "-", each) if isinstance(each, str) else "",
)
def test_what_a_claim_cannot_say_is_refused_with_a_sentence(
    labelled: Labelled, body: Json, text: str
) -> None:
    reply = labelled.tried(body)
    assert reply.status == 422
    assert text in reply.body["message"]


def test_a_quota_of_memory_counts_no_claim_and_one_of_the_class_counts_devices(
    labelled: Labelled,
) -> None:
    labelled.world.node(80)
    team = labelled.namespace()
    hard = {f"requests.{MEM}": "5", DEVICES: "1"}
    path = f"{NAMESPACES}/{team}/resourcequotas"
    labelled.api.create(path, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    # In place of its controller.
    status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
    assert labelled.api.patch(f"{path}/q/status", {"status": status}).status == 200
    first = labelled.api.create(f"{NAMESPACES}/{team}/pods", pod()).body
    labelled.world.bound([first])
    second = labelled.api.create(f"{NAMESPACES}/{team}/pods", pod()).body
    events = f"{NAMESPACES}/{team}/events"
    until(
        lambda: f"exceeded quota: q, requested: {DEVICES}=1" in str(labelled.api.get(events).body),
        lambda: f"{labelled.api.get(events).body}",
    )
    assert not labelled.world.objects.node_of(second)
    assert len(labelled.claims(team)) == 1
    used = labelled.api.get(f"{path}/q").body["status"]["used"]
    assert used == {f"requests.{MEM}": "0", DEVICES: "1"}


def test_while_nobody_rewrites_no_pod_asks_by_resource(labelled: Labelled) -> None:
    kind = "mutatingadmissionpolicybindings"
    path = f"/apis/admissionregistration.k8s.io/v1/{kind}/gpushare-claims-pods"
    assert labelled.api.delete(path).status == 200
    until(
        lambda: "gpushare-claims-pods has to be there" in str(labelled.tried(pod()).body),
        lambda: f"{labelled.tried(pod()).body}",
    )
    apply(labelled.world.plane, "extender/claims-pods")
