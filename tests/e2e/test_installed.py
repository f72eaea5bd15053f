"""Both wirings as installed by config/extender, on real servers: rights, Leases, leaders.

A Deployment's pod is two processes here, started with the very arguments and file that the API
server has; only paths, ports and the way to credentials are this machine's. Two hosts are two host
names.
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.contract.apiserver.client import Json
from tests.e2e.binaries import RELEASE
from tests.e2e.conftest import MakePair
from tests.e2e.objects import PODS, Objects
from tests.e2e.pair import Access, Pair, moved, printed
from tests.e2e.plane import EXTENDER, SCHEDULER, Plane
from tests.e2e.processes import until
from tests.e2e.world import account_token, apply

_SYSTEM = "/api/v1/namespaces/kube-system"
_DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/gpushare-scheduler"
OURS = "gpushare-scheduler"
_HANDED_OVER = 120.0
"""Seconds for two Leases of 15 s to run out one after the other, with room for a busy machine."""

pytestmark = pytest.mark.timeout(400)


@contextlib.contextmanager
def installed(plane: Plane, *folders: str) -> Iterator[None]:
    """Apply these folders of config/extender while the context is open."""
    with contextlib.ExitStack() as undo:
        for folder in folders:
            apply(plane, f"extender/{folder}")
            undo.callback(apply, plane, f"extender/{folder}", "delete")
        yield


def second_scheduler(plane: Plane) -> tuple[str, Access, list[str]]:
    """File, credentials and flags of the extender, of the pod that the Deployment asks for."""
    api = plane.api()
    template = api.get(_DEPLOYMENT).body["spec"]["template"]["spec"]
    scheduler, extender = template["containers"]
    assert scheduler["command"] == [
        *("kube-scheduler", "--config=/etc/gpushare/kube-scheduler.yaml", "--v=2"),
    ]
    verb, *flags = extender["args"]
    assert verb == "serve"
    flags = [flag for flag in flags if not flag.startswith(("--scheduler-config", "--health"))]
    (volume,) = (item for item in template["volumes"] if item["name"] == "config")
    name = volume["configMap"]["name"]
    text = api.get(f"{_SYSTEM}/configmaps/{name}").body["data"]["kube-scheduler.yaml"]
    # The pod finds the files of its account by itself.
    text += "\nclientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}\n"
    account = plane.kubeconfig("account", account_token(api))
    return text, Access(plane.version(), account, account), flags


def placed(objects: Objects, count: int, text: Callable[[], str], **spec: object) -> None:
    """Return when so many new pods are bound, no device over-committed."""
    pods = [objects.pod(3, **spec) for _ in range(count)]  # type: ignore[arg-type]  # passed on
    for pod in pods:
        objects.lands(pod, text)
    objects.sound()


def refused(pair: Pair, objects: Objects, node: str) -> None:
    """Fail if this extender binds a pod."""
    pod = objects.pod(1, schedulerName="nobody")
    assert pair.extender.bind(pod, node) != ""
    assert not objects.node_of(pod)


def no_right_was_missed(*pairs: Pair) -> None:
    for pair in pairs:
        assert "orbidden" not in pair.extender.log, pair.extender.log
        assert pair.scheduler
        assert "orbidden" not in pair.scheduler.log, pair.scheduler.log


def test_a_second_scheduler_places_its_pods_and_one_pair_alone_does(
    plane: Plane, make_pair: MakePair
) -> None:
    objects = plane.objects()
    with installed(plane, "second-scheduler"):
        text, access, flags = second_scheduler(plane)
        pairs = [make_pair(moved(text), access, flags=flags) for _ in range(2)]
        first, second = pairs
        node = objects.node(devices=4, units=16)
        first.start()
        placed(objects, 4, first.told, schedulerName=OURS)

        second.extender.launch()
        second.start_scheduler()
        second.extender.wait_answering()
        refused(second, objects, node)
        assert not second.extender.ready()

        first.kill()
        second.extender.wait_ready(_HANDED_OVER)
        placed(objects, 4, second.told, schedulerName=OURS)
        no_right_was_missed(*pairs)


def test_the_admission_policy_rejects_gpu_pods_that_name_another_scheduler(plane: Plane) -> None:
    api, objects = plane.api(), plane.objects()
    container = {"name": "c", "image": "x"}
    limits = {"resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}

    def create(spec: Json) -> Json:
        body = {"metadata": {"generateName": "tried-"}, "spec": spec}
        return api.call("POST", PODS, body, dryRun="All").body

    requests = {"containers": [{**container, **limits}]}
    initial = {"containers": [container], "initContainers": [{**container, "name": "i", **limits}]}
    with installed(plane, "admission"):
        # The policy takes effect a moment after its creation.
        until(lambda: create(requests)["kind"] == "Status", "a pod is rejected")
        for spec in (requests, {**requests, "schedulerName": "other"}, initial):
            refusal = create(spec)
            assert refusal["code"] == 422
            assert "set spec.schedulerName: gpushare-scheduler" in refusal["message"]
        assert create({**requests, "schedulerName": OURS})["kind"] == "Pod"
        assert create({**initial, "schedulerName": OURS})["kind"] == "Pod"
        assert create({"containers": [container]})["kind"] == "Pod"
        with pytest.raises(AssertionError, match="gpushare-scheduler"):
            objects.pod(1)
    until(lambda: create(requests)["kind"] == "Pod", "it is gone")


def test_beside_the_clusters_scheduler_an_extender_binds_only_while_its_own_scheduler_leads(
    plane: Plane, make_pair: MakePair
) -> None:
    objects = plane.objects()
    with installed(plane, "existing-scheduler"):
        users = (plane.kubeconfig(user) for user in (SCHEDULER, EXTENDER))
        access = Access(plane.version(), *users)
        flags = ("--leadership", "scheduler")
        north, south = (
            make_pair(printed(RELEASE), access, flags=flags, host=host)
            for host in ("north", "south")
        )
        node = objects.node(devices=4, units=16)
        north.extender.launch()
        north.start_scheduler()
        north.extender.wait_ready(_HANDED_OVER)
        placed(objects, 4, north.told)

        south.extender.launch()
        south.start_scheduler()
        south.extender.wait_answering()
        refused(south, objects, node)

        # Only the scheduler ends; the extender stays alive and must not bind.
        north.kill_scheduler()
        south.extender.wait_ready(_HANDED_OVER)
        refused(north, objects, node)
        assert not north.extender.ready()
        placed(objects, 4, south.told)

        # And back again.
        north.start_scheduler()
        south.kill_scheduler()
        north.extender.wait_ready(_HANDED_OVER)
        refused(south, objects, node)
        placed(objects, 4, north.told)
        no_right_was_missed(north, south)
