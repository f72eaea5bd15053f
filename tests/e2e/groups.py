"""Groups of pods as created by controllers, and a watch for partly bound groups.

Knows the labels, annotations and owners that JobSet, LeaderWorkerSet and Job write on pods, and the
objects with the size of a group. No such controller runs here.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self
from uuid import uuid4

from tests.contract.apiserver.client import Api, Json
from tests.e2e.claims import CLAIMS
from tests.e2e.objects import MEM, Objects, fresh

_PODS = "/api/v1/namespaces/default/pods"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "tests/group"
"""The label of a group's pods for the watch; no other code reads it."""
_LOOK_EVERY = 0.1

JOB_SETS = ("jobset.x-k8s.io", "v1alpha2", "JobSet")
LEADER_WORKER_SETS = ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet")
POD_GROUPS = ("scheduling.x-k8s.io", "v1alpha1", "PodGroup")


def define(api: Api, group: str, version: str, kind: str) -> None:
    """Define a custom resource of any shape, and return when it is served."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [served]}
    api.create(_DEFINITIONS, {"metadata": {"name": f"{plural}.{group}"}, "spec": spec})
    deadline = time.monotonic() + 60
    while api.get(f"/apis/{group}/{version}/{plural}").status != 200:
        assert time.monotonic() < deadline, f"{plural} are not served"
        time.sleep(0.1)


def made(api: Api, kind: tuple[str, str, str], name: str, spec: Json) -> Json:
    """Return a new custom object of this name and spec."""
    group, version, title = kind
    path = f"/apis/{group}/{version}/namespaces/default/{title.lower()}s"
    body = {"apiVersion": f"{group}/{version}", "kind": title, "metadata": {"name": name}}
    return api.create(path, body | {"spec": spec}).body


def job_set(objects: Objects, units: int, size: int) -> list[Json]:
    """Return the pods of a JobSet of two Jobs, which together are so many."""
    name = fresh("jobset")
    parts = [size // 2, size - size // 2]
    jobs = [
        {"name": f"part-{number}", "template": {"spec": {"parallelism": n, "completions": n}}}
        for number, n in enumerate(parts)
    ]
    made(objects.api, JOB_SETS, name, {"replicatedJobs": jobs})
    return [
        _pod(
            objects,
            units,
            name,
            {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/job-index": "0"},
        )
        for _ in range(size)
    ]


def leader_worker_set(objects: Objects, units: int, size: int) -> list[Json]:
    """Return the pods of the one group of a LeaderWorkerSet."""
    name = fresh("lws")
    template = {"size": size, "workerTemplate": {"spec": {}}}
    body = {"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}
    made(objects.api, LEADER_WORKER_SETS, name, body)
    prefix = "leaderworkerset.sigs.k8s.io"
    return [
        _pod(
            objects,
            units,
            name,
            {
                f"{prefix}/name": name,
                f"{prefix}/group-index": "0",
                f"{prefix}/group-key": f"{name}-key",
                f"{prefix}/worker-index": str(index),
            },
            {f"{prefix}/size": str(size)},
        )
        for index in range(size)
    ]


def job(objects: Objects, units: int, size: int) -> list[Json]:
    """Return the pods of a Job with the size of the group in the template."""
    name, owner = fresh("job"), job_owner()
    return [member(objects, units, name, size, owner) for _ in range(size)]


def job_owner() -> Json:
    """Return the reference to a new Job."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": fresh("job"), "controller": True}
    return owner | {"uid": str(uuid4())}


def member(
    objects: Objects,
    units: int,
    group: str,
    size: int,
    owner: Json,
    *,
    annotations: dict[str, str] | None = None,
    **spec: object,
) -> Json:
    """Return a pod of a Job that needs so many at once."""
    annotations = {"gpushare.io/group-size": str(size), **(annotations or {})}
    return _pod(objects, units, group, {}, annotations, owner=owner, **spec)


def with_claims(objects: Objects, device_class: str, size: int) -> list[Json]:
    """Return the pods of a Job with a claim for a device each, without resources."""
    name, owner, pods = fresh("job"), job_owner(), []
    for _ in range(size):
        claim = fresh("claim")
        exactly = {"deviceClassName": device_class}
        requests = [{"name": "card", "exactly": exactly}]
        body = {"metadata": {"name": claim}, "spec": {"devices": {"requests": requests}}}
        objects.api.create(CLAIMS, body)
        claims = [{"name": "card", "resourceClaimName": claim}]
        pods.append(member(objects, 0, name, size, owner, resourceClaims=claims))
    return pods


def pod_group(objects: Objects, units: int, size: int, seconds: int = 5) -> list[Json]:
    """Return the pods of a PodGroup of the coscheduling plug-in, which waits so long at Permit."""
    name = fresh("podgroup")
    body = {"minMember": size, "scheduleTimeoutSeconds": seconds}
    made(objects.api, POD_GROUPS, name, body)
    labels = {"scheduling.x-k8s.io/pod-group": name}
    return [_pod(objects, units, name, labels) for _ in range(size)]


def name_of(pods: list[Json]) -> str:
    """Return the name of the group of these pods."""
    return str(pods[0]["metadata"]["labels"][GROUP])


def _pod(
    objects: Objects,
    units: int,
    group: str,
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
    *,
    owner: Json | None = None,
    **spec: object,
) -> Json:
    limits = {MEM: str(units)} if units else {}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    metadata = {
        "name": fresh("member"),
        "labels": {**labels, GROUP: group},
        "annotations": annotations or {},
        "ownerReferences": [owner] if owner else [],
    }
    body = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    return objects.api.create(_PODS, {"metadata": metadata, "spec": body}).body


class TornGroups:
    """Watches how long each group has some of its pods bound and not all, from `with` on."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._sizes: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self.longest: Counter[str] = Counter()
        """Milliseconds while a group was bound in part, by name."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def expect(self, pods: list[Json]) -> None:
        """Watch a group from now on."""
        self._sizes[name_of(pods)] = len(pods)

    def forget(self, pods: list[Json]) -> None:
        """Stop the watch of a group before the deletion of single pods."""
        self._sizes.pop(name_of(pods), None)
        self._since.pop(name_of(pods), None)

    def bound(self) -> Counter[str]:
        """Return how many pods of each group are bound."""
        counts: Counter[str] = Counter()
        for pod in self._api.get(_PODS).body["items"]:
            group = (pod["metadata"].get("labels") or {}).get(GROUP)
            if group and pod["spec"].get("nodeName"):
                counts[group] += 1
        return counts

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY):
            sizes, counts, now = dict(self._sizes), self.bound(), time.monotonic()
            for group, size in sizes.items():
                if 0 < counts[group] < size:
                    since = self._since.setdefault(group, now)
                    lasted = int(1000 * (now - since))
                    self.longest[group] = max(self.longest[group], lasted)
                else:
                    self._since.pop(group, None)


Make = Callable[[Objects, int, int], list[Json]]
