"""The real process on a cluster of the test, and all that no input may change.

Knows the tests' own cluster and process; nothing of the inputs.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpushare.extender.follow.wake import KEY
from tests.badinput.attempt import SMUGGLED, Targets
from tests.integration.cluster import NODES, PODS, Cluster
from tests.integration.process import Extender
from tests.support.waiting import poll

_TOLD = ("gpushare_pods{", "gpushare_alarms_total{", "gpushare_audit_findings ")


class BadWorld:
    """An extender with nodes and bound pods, and its books."""

    def __init__(self, cluster: Cluster, extender: Extender) -> None:
        self.cluster, self.extender = cluster, extender
        nodes = [cluster.node(devices=4, total=64) for _ in range(4)]
        extender.knows(*nodes)
        bound_pod = [cluster.pod(3 + index % 5) for index in range(8)]
        for index, pod in enumerate(bound_pod):
            extender.filter(pod, nodes)
            assert extender.bind(pod, nodes[index % 3]) == ""
        cluster.pod(2)  # waits, and must go on waiting
        poll(self._all_shown, "the watch has shown every bind, and the pod that waits")
        self.targets = Targets(nodes, [cluster.get(pod) for pod in bound_pod])
        self._before = self.state()
        self._read = 0

    def state(self) -> dict[str, Any]:
        """The books in the inspect document, and the objects of the API server."""
        metrics = self.extender.probe("/metrics").body.decode()
        return {
            "inspect": self.extender.inspect(),
            "metrics": [line for line in metrics.splitlines() if line.startswith(_TOLD)],
            "pods": self.cluster.all(PODS),
            "nodes": [_own(node) for node in self.cluster.all(NODES)],
        }

    def books_changed(self) -> list[str]:
        """Differences from the state before all inputs."""
        now = self.state()
        return [
            f"{part} changed: {json.dumps(self._before[part])} -> {json.dumps(now[part])}"
            for part in now
            if now[part] != self._before[part]
        ]

    def changes(self) -> list[str]:
        """Differences from the state before all inputs, and log lines that must not come."""
        result = self.books_changed()
        with self.extender.log_file.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        if b"Traceback" in new:
            at = new.index(b"Traceback")
            result.append("a traceback in the log: " + new[max(0, at - 400) : at + 3000].decode())
        if any(SMUGGLED in path for _, path in list(self.cluster.server.requests)):
            result.append("a bind that was hidden in another request was tried")
        if self.extender.ended():
            result.append("the process has ended")
        elif not self.extender.ready():
            result.append("the process is not ready")
        return result

    @property
    def probe_port(self) -> int:
        return self.extender.health_port

    def _all_shown(self) -> bool:
        text = self.extender.probe("/metrics").body.decode()
        counts = [line for line in text.splitlines() if line.startswith("gpushare_pods{")]
        shown_text = ('state="bound"} 8.0', 'state="waiting"} 1.0')
        return all(any(state in line for line in counts) for state in shown_text)


@contextlib.contextmanager
def bad_world(folder: Path) -> Iterator[BadWorld]:
    """A world that lasts as long as the block."""
    cluster = Cluster()
    try:
        flags = ("--leadership", "off")
        as_in_the_image = {"MALLOC_ARENA_MAX": "1"}
        kubeconfig = cluster.kubeconfig(folder)
        extender = Extender(folder, kubeconfig, *flags, environment=as_in_the_image)
        try:
            extender.wait_ready()
            yield BadWorld(cluster, extender)
        finally:
            extender.stop()
    finally:
        cluster.stop()


def _own(node: dict[str, Any]) -> dict[str, Any]:
    """The node without the time of the extender's last wake-up annotation."""
    meta = node["metadata"]
    annotations = {key: item for key, item in meta["annotations"].items() if key != KEY}
    return {**node, "metadata": {**meta, "annotations": annotations, "resourceVersion": ""}}
