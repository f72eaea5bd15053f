"""Moves on a real control plane: evictions, budgets, and recreated pods. kube-scheduler places the
pods, and kube-controller-manager recreates pods and updates budgets.

The test plays the kubelets: a bound pod runs once the test says so.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.contract.apiserver.client import MERGE, Json
from tests.e2e.binaries import needed
from tests.e2e.conftest import MakePair, MakeWorld
from tests.e2e.extender import GPUSHARE
from tests.e2e.objects import COUNT, MEM, Objects
from tests.e2e.pair import Access, moved
from tests.e2e.plane import ADMIN, SCHEDULER, Plane
from tests.e2e.processes import Process, until
from tests.e2e.world import World, account_token, apply

_BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
_APPS = "/apis/apps/v1/namespaces/default"
_RECORD = "/api/v1/namespaces/kube-system/configmaps/gpushare-moves"
_MOVABLE = "gpushare.io/movable"
_MAKERS = ("deployment-controller", "replicaset-controller", "statefulset-controller")
_LATE = 90.0


class Workloads:
    """Workloads of one movable pod with 10 units each, with a budget each."""

    def __init__(self, world: World, plane: Plane) -> None:
        self.world = world
        self._plane, self._program = plane, needed("kube-controller-manager")
        self._budgets = plane.start_controllers(self._program, "disruption-controller")
        self.start_makers()

    def start_makers(self) -> None:
        self._makers = self._plane.start_controllers(self._program, *_MAKERS)

    def kill_makers(self) -> None:
        """From now on nobody makes a pod anew."""
        self._makers.kill()

    def stop(self) -> None:
        """End the controllers, and delete the workloads."""
        self._makers.kill()
        self._budgets.kill()
        for path in (f"{_APPS}/{kind}" for kind in ("deployments", "replicasets", "statefulsets")):
            self.world.api.delete(path)
        self.world.api.delete(_BUDGETS)
        self.world.api.delete(_RECORD)

    def make(self, kind: str, name: str) -> Json:
        """Create a Deployment or a StatefulSet; return the running pod."""
        labels = {_MOVABLE: "true", "app": name}
        container = {"name": "main", "image": "x", "resources": {"limits": {MEM: "10"}}}
        pod = {"containers": [container], "terminationGracePeriodSeconds": 0}
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        if kind == "statefulsets":
            spec["serviceName"] = name
        self.world.api.create(f"{_APPS}/{kind}", {"metadata": {"name": name}, "spec": spec})
        self.wait(lambda: len(self.running(name)) == 1)
        return self.running(name)[0]

    def roll(self, name: str) -> None:
        """Change the template of a Deployment: a new ReplicaSet recreates the pod."""
        change = {"spec": {"template": {"metadata": {"annotations": {"revision": "2"}}}}}
        assert self.world.api.patch(f"{_APPS}/deployments/{name}", change, MERGE).status == 200

    def running(self, name: str) -> list[Json]:
        """The pods of this workload that run."""
        return [pod for pod in self.pods(name) if pod["status"].get("phase") == "Running"]

    def pods(self, name: str) -> list[Json]:
        pods = self.world.objects.pods()
        return [pod for pod in pods if pod["metadata"].get("labels", {}).get("app") == name]

    def allow(self, number: int, *names: str) -> None:
        """Set how many pods of each may be unavailable at once; return once the budgets say it.

        A common one would allow nothing for two minutes after a StatefulSet's pod is moved: it is
        by the name that a budget knows which pods are about to go.
        """
        for name in names:
            selector = {"matchLabels": {"app": name}}
            body = {"metadata": {"name": name}, "spec": {"selector": selector}}
            self.world.api.call("POST", _BUDGETS, body)
            self._allow(number, f"{_BUDGETS}/{name}")

    def _allow(self, number: int, path: str) -> None:
        change = {"spec": {"maxUnavailable": number}}
        assert self.world.api.patch(path, change, MERGE).status == 200

        def said() -> bool:
            result = self.world.api.get(path).body
            status, version = result.get("status", {}), result["metadata"]["generation"]
            allowed_count = int(status.get("disruptionsAllowed", -1))
            return status.get("observedGeneration") == version and allowed_count == number

        until(said, lambda: f"{self.world.api.get(path).body}")

    def wait(self, condition: Callable[[], bool], seconds: float = _LATE) -> None:
        """Return once it holds; meanwhile the pods that are bound begin to run."""

        def looked() -> bool:
            self._run_bound()
            return condition()

        until(looked, self.world.told, seconds)

    def _run_bound(self) -> None:
        """Let bound pods run, for an hour already: a pod that has just begun is not moved."""
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "startTime": started, "conditions": [ready]}
        for pod in self.world.objects.pods():
            if pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
                path = f"{self.world.objects.path(pod)}/status"
                assert self.world.api.patch(path, {"status": status}, MERGE).status in {200, 404}


MakeWorkloads = Callable[[World], Workloads]


@pytest.fixture
def make_workloads(plane: Plane) -> Iterator[MakeWorkloads]:
    """Start the controllers for a world, and end them after the test."""
    created: list[Workloads] = []

    def make(world: World) -> Workloads:
        created.append(Workloads(world, plane))
        return created[-1]

    yield make
    for workloads in created:
        workloads.stop()


def test_apply_moves_a_deployments_and_a_stateful_sets_pod_as_their_budget_allows(
    make_world: MakeWorld, make_workloads: MakeWorkloads, plane: Plane, tmp_path: Path
) -> None:
    world = make_world()
    world.start()
    objects, workloads = world.objects, make_workloads(world)
    first = objects.node(devices=2, units=16)
    old = {
        "web": workloads.make("deployments", "web"),
        "set": workloads.make("statefulsets", "set"),
    }
    uids = {name: pod["metadata"]["uid"] for name, pod in old.items()}
    second = objects.node(devices=2, units=10)
    workloads.allow(0, "web", "set")
    late = objects.pod(32, annotations={COUNT: "2"})
    objects.refusal(late, "Insufficient")

    command = _applied(late, plane)

    def left() -> list[str]:
        return _left(uids, objects)

    error = Process("refused", command, tmp_path)
    until(lambda: error.ended_with("allows no disruption now"), error.last_lines)
    assert left() == ["web", "set"]
    workloads.allow(1, "web", "set")
    run = Process("run", command, tmp_path)
    until(lambda: len(left()) == 1, lambda: run.log)
    workloads.allow(0, *left())  # between two evictions of the plan
    workloads.wait(lambda: "waiting for it" in run.log)
    assert len(left()) == 1, run.log
    workloads.allow(1, *left())
    workloads.wait(lambda: run.ended_with("Done: "))
    heirs = {name: workloads.running(name) for name in old}
    assert [len(pods) for pods in heirs.values()] == [1, 1]
    assert {objects.node_of(pods[0]) for pods in heirs.values()} == {second}
    (again,) = heirs["set"]
    assert again["metadata"]["name"] == old["set"]["metadata"]["name"] == "set-0"
    assert again["metadata"]["uid"] != uids["set"]
    assert f"default/set-0 from {first} to {second}, as default/set-0" in run.log
    assert objects.lands(late, world.told) == (first, {0: 16, 1: 16})


def test_a_rollout_between_two_moves_of_a_plan_does_what_was_left_of_it(
    make_world: MakeWorld, make_workloads: MakeWorkloads, plane: Plane, tmp_path: Path
) -> None:
    world = make_world()
    world.start()
    objects, workloads = world.objects, make_workloads(world)
    first = objects.node(devices=2, units=16)
    names = ("api", "web")
    old = {name: workloads.make("deployments", name) for name in names}
    uids = {name: pod["metadata"]["uid"] for name, pod in old.items()}
    second = objects.node(devices=2, units=10)
    workloads.allow(1, *names)
    late = objects.pod(32, annotations={COUNT: "2"})
    objects.refusal(late, "Insufficient")
    run = Process("run", _applied(late, plane), tmp_path)
    until(lambda: len(_left(uids, objects)) == 1, lambda: run.log)
    (rolled,) = _left(uids, objects)
    workloads.allow(0, rolled)  # so that the second eviction waits
    workloads.roll(rolled)
    workloads.wait(lambda: run.ended_with("Done: "))
    assert "what was left of the plan need not move" in run.log
    assert run.log.count("evicting") == 1
    assert [move["settled"] for move in _recorded(world)] == [True]
    assert {objects.node_of(workloads.running(name)[0]) for name in names} == {second}
    assert objects.lands(late, world.told) == (first, {0: 16, 1: 16})


def _applied(late: Json, plane: Plane) -> list[str]:
    """The command that makes room for the pod."""
    command = [*GPUSHARE, "defrag", "--for", "pod", late["metadata"]["name"], "--apply", "--yes"]
    return [*command, "--kubeconfig", str(plane.kubeconfig(ADMIN))]


def _left(uids: Mapping[str, str], objects: Objects) -> list[str]:
    """The workloads with their first pod still alive."""
    existing = {pod["metadata"]["uid"] for pod in objects.pods()}
    return [name for name, uid in uids.items() if uid in existing]


def test_a_leader_that_dies_after_an_eviction_is_followed_by_one_that_goes_on(
    make_world: MakeWorld, make_workloads: MakeWorkloads, make_pair: MakePair
) -> None:
    flags = ("--defrag-moves-per-hour", "2", "--defrag-after", "2")
    world = make_world(flags=flags)
    plane = world.plane
    apply(plane, "extender/moves")
    world.start()
    users = plane.kubeconfig(SCHEDULER), plane.kubeconfig("extender", account_token(world.api))
    access = Access(plane.version(), *users)
    another = make_pair(moved(world.pair.file.read_text()), access, flags=flags)
    another.extender.launch()
    objects, workloads = world.objects, make_workloads(world)
    first = objects.node(devices=1, units=16)
    mover = workloads.make("statefulsets", "set")
    second = objects.node(devices=1, units=20)
    assert objects.lands(objects.pod(8), world.told) == (second, {0: 8})
    workloads.allow(0, "set")
    late = objects.pod(16)
    objects.refusal(late, "Insufficient")
    time.sleep(5)
    assert objects.node_of(mover) == first  # the budget allows no eviction
    workloads.kill_makers()
    workloads.allow(1, "set")
    path = objects.path(mover)
    until(lambda: world.api.get(path).status == 404, world.told, _LATE)
    world.kill()
    (body,) = _recorded(world)
    assert (body["uid"], body["settled"]) == (mover["metadata"]["uid"], False)
    assert not another.extender.ready()
    workloads.start_makers()
    until(lambda: len(workloads.pods("set")) == 1, another.told)
    another.start_scheduler()
    another.extender.wait_ready()
    _five_minutes_later(world)
    workloads.wait(lambda: bool(objects.node_of(late)) and bool(workloads.running("set")))
    assert objects.lands(late, another.told) == (first, {0: 16})
    (heir,) = workloads.running("set")
    assert objects.lands(heir, another.told) == (second, {0: 10})
    uids = [move["uid"] for move in _recorded(world)]
    assert len(uids) == len(set(uids)), "nobody is evicted twice"
    apply(plane, "extender/moves", "delete")


def _recorded(world: World) -> list[Json]:
    result: list[Json] = json.loads(world.api.get(_RECORD).body["data"]["moves"])
    return result


def _five_minutes_later(world: World) -> None:
    """Let the recorded evictions be older than any that may be under way."""
    moves = [move | {"at": move["at"] - 301} for move in _recorded(world)]
    world.objects.patch(_RECORD, {"data": {"moves": json.dumps(moves)}})
