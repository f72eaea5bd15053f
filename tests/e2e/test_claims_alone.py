"""Claims for the cluster's own kube-scheduler, as on a managed cluster.

config/extender/claims-alone is applied, and kube-scheduler started without a configuration file.
Our process has the flags and the account of the Deployment, as the API server has them. Needs a
kube-scheduler of 1.36 or later.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.wire.dra.claims import CLASS_ASIDE
from tests.e2e.binaries import RELEASE
from tests.e2e.claims import CLAIMS, CLASS, CLASSES, DRIVER, OurWorld
from tests.e2e.conftest import MakePlane
from tests.e2e.extender import Extender
from tests.e2e.plane import Plane
from tests.e2e.processes import until
from tests.e2e.world import account_token, give_lease_away
from tests.integration.process import free_port

_FIRST = 36
_DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/gpushare-claims"

pytestmark = pytest.mark.skipif(
    int(RELEASE.split(".")[1]) < _FIRST, reason=f"claims are allocated from outside from 1.{_FIRST}"
)


class Alone(OurWorld):
    """A world of claims with our process, which no kube-scheduler calls."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        super().__init__(plane, folder, ["extender/claims-alone"])
        (container,) = self.api.get(_DEPLOYMENT).body["spec"]["template"]["spec"]["containers"]
        verb, *flags = container["args"]
        assert verb == "serve"
        port = free_port()
        own = [flag for flag in flags if not flag.startswith("--health-listen")]
        account = plane.kubeconfig("extender", account_token(self.api))
        self.extender = Extender(folder, port, account, *own, "--listen", f"127.0.0.1:{port}")
        give_lease_away(self.api)
        self.extender.start()


@pytest.fixture(scope="module")
def shared(make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    alone = Alone(make_plane(), tmp_path_factory.mktemp("alone"))
    yield alone
    alone.stop()
    # Its rights are those that it needs.
    assert "orbidden" not in alone.extender.log, alone.extender.log


@pytest.fixture
def alone(shared: Alone) -> Iterator[Alone]:
    yield shared
    shared.clear()


def test_kube_scheduler_as_it_is_binds_the_three_claims_of_the_example(alone: Alone) -> None:
    node = alone.node(80, 24)
    pods = []
    for gib in (10, 10, 80):
        pods.append(alone.pod(alone.claim(gib)))
        alone.bound(pods[-1:])
    assert {alone.objects.node_of(pod) for pod in pods} == {node}


def test_the_class_decides_and_not_who_schedules_the_pod(alone: Alone) -> None:
    alone.node(80)
    other = alone.claim(60)
    pod = alone.pod(other, scheduler="another-scheduler")
    alone.waits(other, allocated=True)
    # It holds its card until it goes, whether a scheduler of that name runs or not.
    late = alone.pod(alone.claim(60))
    alone.objects.refusal(late, "cannot allocate all claims")
    alone.objects.delete(pod)
    alone.bound([late])


SETTING = {"opaque": {"driver": DRIVER, "parameters": {"kind": "Setting"}}}


@pytest.fixture
def aside(alone: Alone) -> Iterator[Alone]:
    """The class is kept under its other name, with a setting."""
    found = alone.api.get(f"{CLASSES}/{CLASS}").body
    spec = found["spec"] | {"config": [SETTING]}
    alone.api.create(CLASSES, {"metadata": {"name": CLASS_ASIDE}, "spec": spec})
    alone.api.delete(f"{CLASSES}/{CLASS}")
    yield alone
    alone.api.create(CLASSES, {"metadata": {"name": CLASS}, "spec": found["spec"]})
    alone.api.delete(f"{CLASSES}/{CLASS_ASIDE}")


def test_a_class_kept_aside_spares_kube_scheduler_a_look_at_the_nodes(aside: Alone) -> None:
    """Kept under another name, it is not found: that is told before any node is filtered."""
    node = aside.node(80)
    first = aside.claim(60)
    pods = [aside.pod(first)]
    aside.bound(pods)
    status = aside.api.get(f"{CLAIMS}/{first}").body["status"]
    (configured,) = status["allocation"]["devices"]["config"]
    assert configured == SETTING | {"source": "FromClass", "requests": ["gpu"]}
    late = aside.pod(aside.claim(60))
    aside.objects.refusal(late, f"device class {CLASS} does not exist")
    aside.objects.delete(pods[0])
    aside.bound([late])
    assert aside.objects.node_of(late) == node


def test_a_quota_counts_by_the_name_that_claims_have_where_the_class_is_kept_aside(
    aside: Alone,
) -> None:
    ours, other = (f"{name}.deviceclass.resource.k8s.io/devices" for name in (CLASS, CLASS_ASIDE))
    quotas, hard = "/api/v1/namespaces/default/resourcequotas", {ours: "2", other: "2"}
    aside.api.create(quotas, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    try:
        # In place of its controller.
        status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
        assert aside.api.patch(f"{quotas}/q/status", {"status": status}).status == 200
        aside.claim(10, count=2)
        used = aside.api.get(f"{quotas}/q").body["status"]["used"]
        assert used == {ours: "2", other: "0"}
        request = {"deviceClassName": CLASS, "capacity": {"requests": {"memory": "10Gi"}}}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
        reply = aside.api.call("POST", CLAIMS, {"metadata": {"name": "late"}, "spec": spec})
        assert (reply.status, f"requested: {ours}=1" in reply.body["message"]) == (403, True)
    finally:
        aside.api.delete(f"{quotas}/q")


def test_a_pod_by_annotation_is_told_that_nobody_serves_it(alone: Alone) -> None:
    alone.objects.node(devices=1, units=16)
    pod = alone.objects.pod(4, schedulerName="nobody")
    selector = f"involvedObject.uid={pod['metadata']['uid']},reason=GPUShareMistake"
    said: list[str] = []

    def told() -> bool:
        events = alone.api.get("/api/v1/namespaces/default/events", fieldSelector=selector)
        said[:] = [str(event["message"]) for event in events.body["items"]]
        return bool(said)

    until(told, lambda: alone.extender.log)
    assert "serves claims alone" in said[0]
    assert "ResourceClaim of class gpushare.io" in said[0]
    assert "serves claims alone" in alone.extender.bind(pod, "anywhere")
