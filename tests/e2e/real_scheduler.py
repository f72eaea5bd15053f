"""A real kube-scheduler on our API server: nodes, pods, and the decisions.

The decisions are read from the pods, the scores from the log.
"""

import re
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from gpushare.errors import ApiConflict
from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.informer import Informer
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from tests.e2e.processes import PATIENCE, Process
from tests.e2e.random_clusters import PRIORITIES
from tests.e2e.random_namespaces import budgets, namespaces, selecting
from tests.e2e.scheduler_releases import Release

Json = dict[str, Any]
Scores = dict[tuple[str, str], int]
"""(plug-in, node) -> weighted score, without zeros."""

_NODES = "/api/v1/nodes"
_LOGGED = "schedule_one=10,generic_scheduler=10,eventhandlers=3"
"""The source files that log each plug-in's scores, of today and of 1.22, and what is known."""
_SCORED = re.compile(
    r'"Plugin scored node for pod" pod="(?P<pod>[^"]*)" plugin="(?P<plugin>[^"]*)"'
    r' node="(?P<node>[^"]*)" score=(?P<score>-?\d+)'
)


class RealScheduler:
    """kube-scheduler with a file of its release, and the objects that it decides about."""

    def __init__(self, folder: Path, program: Path, release: Release) -> None:
        self._server = ApiServer(Store())
        self._server.start()
        self._started = datetime(2026, 1, 1, tzinfo=UTC)
        self.api = ApiClient(self._server.url, user_agent="test")
        self._create_what_stays(release)
        self._pods: dict[str, Json] = {}
        self._changed = threading.Condition()
        self._informer = Informer(self.api, "/api/v1/pods", self._take_in)
        self._informer.start()
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(self._server.kubeconfig())
        access = {
            "kubeconfig": str(kubeconfig),
            "contentType": "application/json",
            "qps": 1000,
            "burst": 2000,
        }
        file = folder / "scheduler.yaml"
        file.write_text(yaml.safe_dump(release.whole(access)))
        command = (program, *release.flags(file, kubeconfig), "--vmodule", _LOGGED)
        self._process = Process("kube-scheduler", command, folder)
        self._log = self._process.log_file.open(errors="replace")
        self._logged = ""

    def _create_what_stays(self, release: Release) -> None:
        """Create the objects that kube-scheduler must know before the first pod."""
        for name, value in PRIORITIES.items():
            head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            body = head | {"metadata": {"name": name}, "value": value}
            self.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        for namespace in namespaces():
            head = {"apiVersion": "v1", "kind": "Namespace"}
            self.api.create("/api/v1/namespaces", head | namespace)
        for _, path, selector in selecting():
            self.api.create(path, selector)
        for path, budget in budgets() if release.of_today else ():
            self.api.create(path, budget)
            status = {"status": budget["status"]}
            self.api.patch(f"{path}/{budget['metadata']['name']}/status", status)

    def stop(self) -> None:
        self._process.kill()
        self._log.close()
        self._informer.stop()
        self.api.close()
        self._server.stop()

    def _take_in(self, before: Json | None, after: Json | None) -> None:
        known_names: Json = after or before or {}
        name = known_names["metadata"]["name"]
        with self._changed:
            if after:
                self._pods[name] = after
            else:
                self._pods.pop(name, None)
            self._changed.notify_all()

    def _until(self, true: Callable[[], bool], description: str) -> None:
        """Return once it is true of the pods as the watch shows them."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while not true():
                self._changed.wait(1)
                self._process.running()
                assert time.monotonic() < deadline, f"not in {PATIENCE} s: {description}"

    def nodes_are(self, nodes: list[Json]) -> None:
        """Put these nodes in the place of all others; return when kube-scheduler knows them."""
        for pod in self.api.get("/api/v1/pods")["items"]:
            self.delete(pod)
        self._forget_log()
        former = [node["metadata"]["name"] for node in self.api.get(_NODES)["items"]]
        names = [node["metadata"]["name"] for node in nodes]
        for name in former:
            self.api.delete(f"{_NODES}/{name}")
        for node in nodes:
            self.api.create(_NODES, node)
        self._knows("Delete event for node", former)
        self._knows("Add event for node", names)
        # It counts the nodes that have an image when a node changes; so each changes once more.
        for name in names:
            self.api.patch(f"{_NODES}/{name}", {"metadata": {"labels": {"complete": "yes"}}})
        # It takes in changes of nodes one after the other; not all releases log all of them.
        last = f"{names[0]}-last"
        head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": last}}
        self.api.create(_NODES, head)
        self._knows("Add event for node", [last])
        self.api.delete(f"{_NODES}/{last}")
        self._knows("Delete event for node", [last])

    def snapshot(self) -> Snapshot:
        """All nodes with the pods that are bound to them."""
        infos = {
            item["metadata"]["name"]: NodeInfo(read_node(item))
            for item in self.api.get(_NODES)["items"]
        }
        for item in self.api.get("/api/v1/pods")["items"]:
            if home := item["spec"].get("nodeName"):
                infos[home] = infos[home].with_pod(read_pod(item))
        return Snapshot(tuple(infos.values()))

    def create(self, pod: Json) -> Json:
        """Create the pod, and return the stored object; later log lines are about this pod."""
        self._forget_log()
        return self.api.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    def delete(self, pod: Json) -> None:
        self.api.delete(_path(pod))

    def settled(self, pod: Json) -> Json:
        """The pod, once it is bound or told why it waits."""
        name = pod["metadata"]["name"]

        def is_settled() -> bool:
            now = self._pods.get(name, pod)
            return bool(now["spec"].get("nodeName") or waits(now))

        self._until(is_settled, f"{name} is neither bound nor told why it waits")
        return self._pods[name]

    def scores(self, pod: Json) -> Scores:
        """The scores of each plug-in for each node in the log, for the last created pod."""
        return {
            (result["plugin"], result["node"]): int(result["score"])
            for result in _SCORED.finditer(self._log_so_far())
            if result["pod"] == _key(pod) and result["score"] != "0"
        }

    def has_gone(self, victims: Collection[PodView]) -> bool:
        """Whether these pods go in time, and kube-scheduler knows that."""
        return self._comes("Delete event for scheduled pod", [victim.key for victim in victims])

    def bind(self, pod: Json, node: str) -> str:
        """Bind a nominated pod, and return its node.

        kube-scheduler would bind the pod after back-off, a second or more later, or may be faster.
        """
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        meta = {"name": pod["metadata"]["name"]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        with suppress(ApiConflict):
            self.api.create(f"{_path(pod)}/binding", body)
        self._knows("Add event for scheduled pod", [_key(pod)])
        return str(self.api.get(_path(pod))["spec"]["nodeName"])

    def _forget_log(self) -> None:
        self._log.read()
        self._logged = ""

    def _log_so_far(self) -> str:
        self._logged += self._log.read()
        return self._logged

    def _knows(self, event: str, keys: Collection[str]) -> None:
        """Return once kube-scheduler has logged the event for each of these objects."""
        assert self._comes(event, keys), f"{event}: not for {keys}; {self._log_so_far()[-3000:]}"

    def _comes(self, event: str, keys: Collection[str]) -> bool:
        kind = event.rpartition(" ")[2]
        expected = [f'"{event}" {kind}="{key}"' for key in keys]
        deadline = time.monotonic() + PATIENCE
        while not all(line in self._log_so_far() for line in expected):
            self._process.running()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def starts(self, pod: Json) -> None:
        """Have a bound pod start, each a second later than the one before, as a kubelet would."""
        self._started += timedelta(seconds=1)
        moment = self._started.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.api.patch(f"{_path(pod)}/status", {"status": {"startTime": moment}})


def waits(pod: Json) -> str:
    """The message of a pending pod, without texts of plug-ins that the small scheduler lacks."""
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = str(condition.get("message", ""))
            return re.sub(r"no new claims to deallocate, ", "", message)
    return ""


def _key(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _path(pod: Json) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
