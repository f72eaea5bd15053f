"""The device managers of all nodes, and the folders that they share with the device plug-ins.

The inventory or the totals of a new Node object say which GPUs the node has. Each node has a
folder: with the kubelet's sockets, the devices file, and at last the file `node` with the name,
which makes `plugins.py` start a device plug-in.

Tested in `tests/integration/test_demo_devices.py`.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpushare.core.model import NodeSpec
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.inventory import mib_of
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES
from gpushare_localcluster.devices.manager import HEALTHY, DeviceManager
from gpushare_localcluster.pod_status import AdmissionError, Json, asked_units

log = logging.getLogger(__name__)

NODE_FILE = "node"
DEVICES_FILE = "devices.json"
UNIT = "GiB"

_MOST_UNITS = 16384
"""Upper bound on the units of a node; a node with more gets no device plug-in here."""
_REGISTRATION_SECONDS = 60.0
"""Seconds that pods wait for the plug-in; a real kubelet does not wait, but here a node and its
pods come at the same time.
"""


@dataclass(frozen=True, slots=True)
class _Node:
    uid: str
    manager: DeviceManager
    since: float


class NodeDevices:
    """The device managers of all nodes with devices."""

    def __init__(self, folder: Path, node_limit: int) -> None:
        """Start without nodes; node_limit: upper bound on nodes with a device plug-in."""
        self.changed: Callable[[str], None] = lambda node: None
        """A callback with the name of a node whose devices changed, set by the kubelet."""
        self.beyond: set[str] = set()
        """Nodes without a device plug-in, since the limit was reached."""
        self.folder = folder
        self._most = node_limit
        self._nodes: dict[str, _Node] = {}
        self._bare: set[str] = set()
        """Nodes without a device plug-in."""
        self._made = 0

    def see(self, node: Json) -> None:
        """Give the node a device manager, where it has devices and none yet. Raises WireError."""
        name, uid = str(node["metadata"]["name"]), str(node["metadata"]["uid"])
        old_node = self._nodes.get(name)
        if old_node is not None and old_node.uid == uid:
            return
        self.forget(name)
        spec = node_spec(NODES.decode(json.dumps(node).encode()), ALIYUN, UNIT)
        if spec.closed or not 0 < sum(spec.capacity) <= _MOST_UNITS:
            self._bare.add(name)
            return
        if len(self._nodes) >= self._most:
            self._bare.add(name)
            self.beyond.add(name)
            return
        self._made += 1
        folder = self.folder / str(self._made)
        manager = DeviceManager(folder, ALIYUN.resource, lambda: self.changed(name))
        manager.start()
        (folder / DEVICES_FILE).write_text(json.dumps({"devices": _cards(spec)}), encoding="utf-8")
        self._nodes[name] = _Node(uid, manager, time.monotonic())
        new = folder / "node.new"
        new.write_text(name, encoding="utf-8")
        new.replace(folder / NODE_FILE)

    def forget(self, node: str) -> None:
        """End the device manager of a node that is gone."""
        self._bare.discard(node)
        self.beyond.discard(node)
        old_node = self._nodes.pop(node, None)
        if old_node is not None:
            (old_node.manager.folder / NODE_FILE).unlink(missing_ok=True)
            old_node.manager.stop()

    def stop(self) -> None:
        """End all device managers."""
        for name in list(self._nodes):
            self.forget(name)

    def amounts(self, node: str) -> tuple[int, int] | None:
        """Return (units, healthy units) of a node; None before its device plug-in has told."""
        known_node = self._nodes.get(node)
        devices = known_node.manager.devices if known_node else {}
        return (len(devices), [*devices.values()].count(HEALTHY)) if devices else None

    def serve(self, nodes: Set[str]) -> bool:
        """Return whether the device plug-ins of these nodes, if any, have told of their devices."""
        known_nodes = [self._nodes.get(name) for name in nodes - self._bare]
        return all(node is not None and node.manager.devices for node in known_nodes)

    def admit(self, pod: Json) -> Mapping[str, Mapping[str, str]] | None:
        """Return the variables of the containers; None: the plug-in is not ready.

        Raises AdmissionError. On a node without a device plug-in there are none.
        """
        node = self._nodes.get(pod["spec"]["nodeName"])
        if node is None or not asked_units(pod):
            return {}
        manager, uid = node.manager, str(pod["metadata"]["uid"])
        if not manager.devices and time.monotonic() < node.since + _REGISTRATION_SECONDS:
            return None
        if uid in manager.failed:
            raise AdmissionError(manager.failed[uid])
        if uid not in manager.pods:
            manager.add(pod)
        names = [grant.container for grant in manager.grants if grant.uid == uid]
        try:
            return {name: manager.start_container(uid, name) for name in names}
        except (grpc.RpcError, AdmissionError) as error:
            log.info("not started pod=%s error=%s", pod["metadata"]["name"], error)
            return None

    def release(self, uid: str) -> None:
        """Release the devices of the pod, if any."""
        for node in list(self._nodes.values()):
            node.manager.remove(uid)

    def told(self) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """Yield (pod, container, variables) of the containers that hold devices."""
        for node in list(self._nodes.values()):
            for grant in list(node.manager.grants):
                with contextlib.suppress(KeyError):  # the pod was just released
                    pod = node.manager.pods[grant.uid]
                    yield pod["metadata"]["name"], grant.container, grant.envs


def _cards(spec: NodeSpec) -> list[Json]:
    """Return the cards for a devices file; cards without a uuid in the Node get one."""
    return [
        {
            "uuid": spec.uuids[index] or f"GPU-{spec.name[:100]}-{index}",
            "index": index,
            "memoryMiB": units * mib_of(UNIT),
            "model": spec.models[index],
            "healthy": spec.healthy[index],
        }
        for index, units in enumerate(spec.capacity)
    ]
