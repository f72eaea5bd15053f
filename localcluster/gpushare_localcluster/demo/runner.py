"""Runs a scenario on a cluster: creates, deletes, waits, and checks expectations.

Knows the API server's paths and the extender's inspect document, through HTTP only, so any cluster
will do. Starts and stops no process; a DRA driver is only slices.
"""

import contextlib
import http.client
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, HttpClient, Json
from gpushare_localcluster.controllers.claims import claims_of
from gpushare_localcluster.demo.board import Board, PodState, told_of
from gpushare_localcluster.demo.expectations import Facts, complaint
from gpushare_localcluster.demo.manifests import (
    API,
    CLASS,
    NAMESPACE,
    NIC_DRIVER,
    budget_document,
    claim_books,
    class_document,
    given,
    held_by_claims,
    node_document,
    pod_document,
    priority_class_document,
    slice_documents,
    template_document,
)
from gpushare_localcluster.demo.plan import (
    Expect,
    NodePlan,
    PodPlan,
    Protect,
    Scenario,
    Step,
    Texts,
    WaitFor,
    several,
)
from gpushare_localcluster.demo.report import Report
from gpushare_localcluster.scheduler.trace import CycleTrace

if TYPE_CHECKING:  # it needs gRPC
    from gpushare_localcluster.devices.nodes import NodeDevices

# Seconds in which an expectation must come true, as the extender gets changes by a watch.
_PATIENCE = 10.0
_POLL = 0.05
_PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
_OWNERS = (
    *(f"/apis/apps/v1/{kind}" for kind in ("deployments", "replicasets", "statefulsets")),
    *("/apis/apps/v1/daemonsets", "/apis/batch/v1/jobs"),
    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
)
"""Kinds with controllers that would recreate deleted pods."""
_CLEAN_TIMEOUT = 20.0
_NODE_SECONDS = 0.2
_FORBIDDEN = 403
_MOST_NAMES = 5

_READY: dict[str, Callable[[PodState], bool]] = {
    "bound": lambda pod: bool(pod.node),
    "pending": lambda pod: not pod.node and bool(pod.reason),
    "settled": lambda pod: bool(pod.node or pod.reason),
    "done": lambda pod: pod.ended,
}


class Runner:
    """Runs scenarios one after another on one cluster.

    stretch: the factor on all time limits. devices: the device managers of a local cluster. cycles:
    the scheduling cycles of the small scheduler. sees: whether the small scheduler knows a node.
    """

    def __init__(
        self,
        api: ApiClient,
        extender: HttpClient,
        board: Board,
        report: Report,
        *,
        stretch: float = 1.0,
        devices: "NodeDevices | None" = None,
        cycles: deque[CycleTrace] | None = None,
        sees: Callable[[str], bool] | None = None,
    ) -> None:
        self._api = api
        self._extender = extender
        self._board = board
        self._report = report
        self._stretch = stretch
        self._devices = devices
        self._cycles = deque[CycleTrace]() if cycles is None else cycles
        self._sees = sees
        self._by_driver: set[str] = set()
        """Nodes with devices of a DRA driver, now or before."""
        report.claimed = self._claimed

    def run(self, scenario: Scenario) -> bool:
        """Run all steps; return whether all waits and expectations held. Raises ApiError."""
        self._cycles.clear()
        for number, node in enumerate(scenario.nodes):
            self._api.create("/api/v1/nodes", node_document(node, number))
        self._start_drivers([node for node in scenario.nodes if node.driver])
        device_nodes = {node.name for node in scenario.nodes if node.devices and not node.driver}
        if not self._wait_for_books(device_nodes):
            self._report.expectation("the extender knows all nodes", "it does not")
            return False
        if self._devices and (bare := self._devices.beyond):
            remark = (
                f"device plug-ins run on {len(device_nodes) - len(bare)} of {len(device_nodes)}"
            )
            self._report.say(
                f"{remark} nodes, which is the limit; the kubelet stands in on the others"
            )
        if not self._wait_for_scheduler([node.name for node in scenario.nodes], True):
            self._report.expectation("the scheduler knows all nodes", "it does not")
            return False
        self._report.sizes(self.books())
        good = True
        for step in scenario.steps:
            is_good = self._step(step)
            good = good and is_good
            if not is_good and step.wait_for:
                # The later steps depend on this wait; their complaints would only confuse.
                return False
        return good

    def books(self) -> list[Json]:
        """Return the nodes of the extender and of DRA drivers. Raises ApiUnavailable."""
        nodes = [node for node in self._inspected() if node["name"] not in self._by_driver]
        return [*nodes, *self._claim_books()]

    def told(self) -> None:
        """Print the variables that device plug-ins gave to containers."""

        def started(pods: dict[str, PodState]) -> bool:
            return not any(pod.node and pod.phase == "Pending" for pod in pods.values())

        self._board.wait_until(started, _PATIENCE * self._stretch)
        rows = self._devices.told() if self._devices else ()
        self._report.told(sorted(rows, key=lambda row: row[:2]))

    def clean(self) -> None:
        """Delete all pods and nodes, and wait until nobody knows them. Raises ApiError."""
        for path in _OWNERS:
            root, _, kind = path.rpartition("/")
            owners: list[Json] = []
            with contextlib.suppress(ApiNotFound):  # the cluster lacks this API
                owners = self._api.get(path)["items"]
            for item in owners:
                meta = item["metadata"]
                self._delete(f"{root}/namespaces/{meta['namespace']}/{kind}/{meta['name']}")
        for pod in self._board.pods().values():
            namespace = pod.raw["metadata"].get("namespace", NAMESPACE)
            self._delete(f"/api/v1/namespaces/{namespace}/pods/{pod.name}")
        for budget in self._api.get(_BUDGETS)["items"]:
            self._delete(_budget_path(budget["metadata"]))
        self._board.wait_until(lambda pods: not pods, _CLEAN_TIMEOUT * self._stretch)
        if self._by_driver:
            self._stop_drivers()
        deleted = [node["metadata"]["name"] for node in self._api.get("/api/v1/nodes")["items"]]
        for name in deleted:
            self._delete(f"/api/v1/nodes/{name}")
        if not self._wait_for_books(set()):
            raise ApiUnavailable("the extender still lists nodes that were deleted", 0)
        if not self._wait_for_scheduler(deleted, False):
            raise ApiUnavailable("the scheduler still sees nodes that were deleted", 0)

    def _inspected(self) -> list[Json]:
        """Return the nodes of the extender's inspect document. Raises ApiUnavailable."""
        try:
            answer = self._extender.call("GET", "/inspect", timeout=5.0)
            nodes: list[Json] = json.loads(answer.body)["nodes"]
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise ApiUnavailable(f"the extender's inspect does not answer: {error}", 0) from error
        return nodes

    def _claim_books(self) -> list[Json]:
        if not self._by_driver:
            return []
        slices, claims = (
            self._api.get(f"{API}/{kind}")["items"] for kind in ("resourceslices", "resourceclaims")
        )
        return claim_books(slices, claims)

    def _claimed(self, pod: Json) -> dict[int, int]:
        """Return the units by device that a bound pod has by claims."""
        units: dict[int, int] = {}
        for name in filter(None, claims_of(pod)):
            with contextlib.suppress(ApiError):
                path = f"{API}/namespaces/{pod['metadata']['namespace']}/resourceclaims/{name}"
                units |= given(self._api.get(path))
        return units

    def _start_drivers(self, nodes: Sequence[NodePlan]) -> None:
        """Publish the slices of DRA drivers on these nodes, and create the device classes."""
        self._by_driver |= {node.name for node in nodes}
        for name in {CLASS, NIC_DRIVER, *(node.driver for node in nodes)} if nodes else ():
            with contextlib.suppress(ApiConflict):
                self._api.create(f"{API}/deviceclasses", class_document(name))
        for document in (item for node in nodes for item in slice_documents(node)):
            self._api.create(f"{API}/resourceslices", document)

    def _stop_drivers(self) -> None:
        """Delete slices and templates, and wait for the deletion of the claims."""
        for kind in ("resourceclaimtemplates", "resourceslices"):
            for item in self._api.get(f"{API}/{kind}")["items"]:
                namespace = item["metadata"].get("namespace")
                home = f"/namespaces/{namespace}" if namespace else ""
                self._delete(f"{API}{home}/{kind}/{item['metadata']['name']}")
        if not self._wait_until(lambda: not self._api.get(f"{API}/resourceclaims")["items"], 0):
            raise ApiUnavailable("there are still claims of pods that were deleted", 0)

    def _step(self, step: Step) -> bool:
        """Run a step; return whether it, a wait or an expectation, held."""
        if step.wait_for:
            return self._wait_for(step.wait_for)
        if step.expect:
            return self._expect(step.expect)
        if step.say:
            self._report.say(step.say)
        elif step.pause:
            time.sleep(step.pause)
        elif step.apply:
            pods = several(step.apply)
            for pod in pods:
                self._apply(pod)
            # Later steps read the board, which gets these pods by a watch.
            names = {pod.name for pod in pods}
            self._board.wait_until(lambda board: names <= board.keys(), _PATIENCE * self._stretch)
        elif step.protect:
            self._protect(step.protect)
        for name in self._board.pods() if step.delete else ():
            if _matches(name, step.delete):
                self._delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        for name in several(step.cordon):
            self._cordon(name, True)
        for name in several(step.uncordon):
            self._cordon(name, None)
        return True

    def _apply(self, pod: PodPlan) -> None:
        if pod.priority:
            with contextlib.suppress(ApiConflict):
                self._api.create(_PRIORITY_CLASSES, priority_class_document(pod.priority))
        if pod.claim:
            templates = f"{API}/namespaces/{NAMESPACE}/resourceclaimtemplates"
            self._api.create(templates, template_document(pod, NAMESPACE))
        deadline = time.monotonic() + _PATIENCE * self._stretch
        while True:
            try:
                self._api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod_document(pod))
            except ApiError as error:
                # A real API server may see a new priority class a moment later.
                if error.status != _FORBIDDEN or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL)
            else:
                return

    def _protect(self, step: Protect) -> None:
        document = budget_document(step)
        self._api.create(_budget_path({**document["metadata"], "name": ""}), document)
        labels = ", ".join(f"{key}={value}" for key, value in step.labels.items())
        self._report.say(f"of the pods with {labels}, {step.allowed} may be evicted")

    def _cordon(self, name: str, unschedulable: bool | None) -> None:
        change: Json = {"spec": {"unschedulable": unschedulable}}
        self._api.patch(f"/api/v1/nodes/{name}", change, MERGE_PATCH)
        self._report.say(f"node {name} is {'closed' if unschedulable else 'opened'}")

    def _wait_for(self, step: WaitFor) -> bool:
        timeout = step.timeout * self._stretch
        if self._board.wait_until(lambda pods: not _late(step, pods), timeout):
            return True
        pods = self._board.pods()
        names = _late(step, pods)
        reasons = told_of(pods[name] for name in names if name in pods)
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        late = ", ".join(names[:_MOST_NAMES]) + more
        self._report.expectation(
            f"{', '.join(several(step.pods))}: {step.state} within {timeout:g} s",
            f"not so: {late}{reasons}",
        )
        return False

    def _expect(self, step: Expect) -> bool:
        deadline = time.monotonic() + _PATIENCE * self._stretch
        while True:
            text = complaint(step, self._facts())
            if text is None or time.monotonic() > deadline:
                self._report.expectation(step.words, text)
                return text is None
            time.sleep(_POLL)

    def _facts(self) -> Facts:
        nodes = self._api.get("/api/v1/nodes")["items"]
        books = self.books()
        claimed_devices = held_by_claims(book for book in books if book["name"] in self._by_driver)
        pods = {
            name: replace(pod, devices=claimed_devices[name])
            if pod.node and name in claimed_devices
            else pod
            for name, pod in self._board.pods().items()
        }
        return Facts(pods, nodes, books, tuple(self._cycles.copy()))

    def _wait_for_books(self, names: set[str]) -> bool:
        """Wait until the extender lists exactly these nodes; return whether it does."""
        return self._wait_until(
            lambda: (
                (self._devices is None or self._devices.serve(names))
                and {node["name"] for node in self._inspected() if node["devs"]} - self._by_driver
                == names
            ),
            len(names),
        )

    def _wait_for_scheduler(self, nodes: Sequence[str], is_known: bool) -> bool:
        """Wait until the scheduler knows all or none of these nodes; return whether it does."""
        sees = self._sees
        return sees is None or self._wait_until(
            lambda: all(sees(node) is is_known for node in nodes), len(nodes)
        )

    def _wait_until(self, true: Callable[[], bool], nodes: int) -> bool:
        """Wait for a condition on so many nodes; return whether it became true."""
        deadline = time.monotonic() + (_CLEAN_TIMEOUT + nodes * _NODE_SECONDS) * self._stretch
        while not true():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def _delete(self, path: str) -> None:
        try:
            self._api.delete(path, grace_seconds=0)
        except ApiNotFound:
            return
        except ApiError as error:
            raise ApiError(f"{path} cannot be deleted: {error}", error.status) from error


def _budget_path(meta: Json) -> str:
    path = f"/apis/policy/v1/namespaces/{meta['namespace']}/poddisruptionbudgets"
    return f"{path}/{meta['name']}".rstrip("/")


def _late(step: WaitFor, pods: dict[str, PodState]) -> list[str]:
    """Return the pods that are not in the state yet, and patterns without a match."""
    if step.state == "gone":
        return [name for name in pods if _matches(name, step.pods)]
    late = [p for p in several(step.pods) if not any(fnmatchcase(name, p) for name in pods)]
    ready = _READY[step.state]
    # The state is checked first: matching the names of all pods would take a tenth of a demo's CPU.
    late += [n for n, pod in pods.items() if not ready(pod) and _matches(n, step.pods)]
    return late


def _matches(name: str, patterns: Texts | None) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in several(patterns))
