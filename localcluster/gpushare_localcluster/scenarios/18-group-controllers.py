"""JobSets and LeaderWorkerSets start whole, as their controllers make them."""

import time
from typing import Any

from kubernetes import client as k8s

from gpushare_localcluster.demo.programs import container, expect, node, say, wait_for

JOB_SETS = ("jobset.x-k8s.io", "v1alpha2", "default", "jobsets")
LEADER_WORKER_SETS = ("leaderworkerset.x-k8s.io", "v1", "default", "leaderworkersets")
Object = dict[str, Any]


def scenario(client: k8s.ApiClient) -> None:
    """JobSets and LeaderWorkerSets start whole, as their controllers make them."""
    scene = Scene(client)
    scene.a_job_set_starts_whole()
    scene.of_two_that_compete_one_starts_whole()
    scene.a_leader_waits_for_room_for_its_workers()


class Scene:
    """Four cards on two nodes, each for one pod of 10 GiB."""

    def __init__(self, client: k8s.ApiClient) -> None:
        self._core = k8s.CoreV1Api(client)
        self._custom = k8s.CustomObjectsApi(client)
        for name in ("card-a", "card-b"):
            self._core.create_node(node(name, cards=2))

    def a_job_set_starts_whole(self) -> None:
        """Its size is the sum of its Jobs; a launcher without a device counts."""
        say("a JobSet of a launcher and two Jobs of two workers each fits:")
        self._custom.create_namespaced_custom_object(*JOB_SETS, job_set("train", 2, launcher=True))
        wait_for(lambda: self._bound("train-") == 5)
        self._custom.delete_namespaced_custom_object(*JOB_SETS, "train")
        wait_for(lambda: not self._pods("train-"))

    def of_two_that_compete_one_starts_whole(self) -> None:
        """Two JobSets of three pods want four cards."""
        say("two JobSets of three pods each want four cards: one of them starts whole")
        for name in ("one", "two"):
            self._custom.create_namespaced_custom_object(*JOB_SETS, job_set(name, 1, 3))
        wait_for(lambda: sorted(map(self._bound, ("one-", "two-"))) == [0, 3])
        # Nothing of the other one is bound later on.
        time.sleep(2.0)
        counts = {name: self._bound(f"{name}-") for name in ("one", "two")}
        expect(sorted(counts.values()) == [0, 3], f"one whole and the other not at all: {counts}")
        first, second = sorted(counts, key=lambda name: -counts[name])
        say(f"{first} has started; when it has gone, {second} starts")
        self._custom.delete_namespaced_custom_object(*JOB_SETS, first)
        wait_for(lambda: self._bound(f"{second}-") == 3)
        self._custom.delete_namespaced_custom_object(*JOB_SETS, second)
        wait_for(lambda: not self._pods(""))

    def a_leader_waits_for_room_for_its_workers(self) -> None:
        """A LeaderWorkerSet of two groups of three: one finds room."""
        say("a LeaderWorkerSet of two groups of three pods: one finds room, the other waits whole")
        body = leader_worker_set("serve", replicas=2, size=3)
        self._custom.create_namespaced_custom_object(*LEADER_WORKER_SETS, body)
        wait_for(lambda: sorted(map(self._bound, ("serve-0", "serve-1"))) == [0, 3])
        time.sleep(2.0)
        counts = sorted(map(self._bound, ("serve-0", "serve-1")))
        expect(counts == [0, 3], f"one group whole and the other not at all: {counts}")
        say("a node comes, and the other group starts")
        self._core.create_node(node("card-c", cards=2))
        wait_for(lambda: self._bound("serve-") == 6)

    def _pods(self, prefix: str) -> list[Any]:
        pods = self._core.list_namespaced_pod("default").items
        return [pod for pod in pods if pod.metadata.name.startswith(prefix)]

    def _bound(self, prefix: str) -> int:
        return sum(bool(pod.spec.node_name) for pod in self._pods(prefix))


def job_set(name: str, jobs: int, pods: int = 2, *, launcher: bool = False) -> Object:
    """Return a JobSet of Jobs that each run so many pods of 10 GiB at once."""
    workers = {"name": "workers", "replicas": jobs, "template": job(pods, 10)}
    annotations = [{"name": "launcher", "replicas": 1, "template": job(1, 0)}] if launcher else []
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [*annotations, workers]},
    }


def job(pods: int, units: int) -> Object:
    """Return the template of a Job that runs so many pods at once."""
    template = {
        # Containers are no processes here: by default the pods of a Job end after 5 s.
        "metadata": {"annotations": {"localcluster.gpushare.io/run-seconds": "never"}},
        "spec": {"restartPolicy": "Never", "containers": [container(units)]},
    }
    return {"spec": {"parallelism": pods, "completions": pods, "template": template}}


def leader_worker_set(name: str, replicas: int, size: int) -> Object:
    """Return a LeaderWorkerSet of groups of that size, each pod with 10 GiB."""
    template = {"spec": {"containers": [container(10)]}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": template},
        },
    }
