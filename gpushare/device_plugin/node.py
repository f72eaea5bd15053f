"""The device plug-in's writes on the Node: inventory, label, number of GPUs, compute, and the
strategy of handing over devices.

Knows the API server's calls. Written when the cards change, and again when the Node says something
else: a kubelet that registers its node again drops the number of GPUs and the compute.

Tested in `tests/integration/test_device_plugin.py`.
"""

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

from gpushare.core.model import ALL_CORES
from gpushare.daemon.loop import Loop
from gpushare.device_plugin.cards import NodeCards
from gpushare.errors import AnnotationError, ApiError, WireError
from gpushare.kube.api import Api, merge_patch
from gpushare.logline import Line
from gpushare.wire.annotations import Names
from gpushare.wire.device_list import DEVICE_LIST, DeviceList, encode_device_list
from gpushare.wire.inventory import decode_inventory, encode_inventory
from gpushare.wire.objects import NODES, Metadata, Node, NodeInfo

log = logging.getLogger("gpushare.node")

LABEL = "gpushare"
CGPU_LABEL = "cgpu.disable.isolation"

_TIMEOUT = 5.0


@dataclass(eq=False)
class NodeWriter(Loop):
    """The thread. cards: returns the present cards. interval: seconds until the Node is read again.
    advertise_cores: whether compute is written; if not, an earlier value stays. look: returns the
    strategy of handing over devices for (container runtime, kubelet) in the Node's status.
    """

    api: Api
    node: str
    names: Names
    cards: Callable[[], NodeCards]
    interval: float = 30.0
    _: KW_ONLY
    look: Callable[[str, str], DeviceList]
    advertise_cores: bool = True

    def __post_init__(self) -> None:
        failed = "node not written"
        super().__init__("node", self.step, self.interval, log=log, failed=failed, at_once=True)
        self._path = f"/api/v1/nodes/{self.node}"
        self.written = threading.Event()
        """Set by the first write."""
        self._failures = 0
        self.cgpu_disabled = False
        """Whether the label of the node says so; read with the Node."""

    def problem(self) -> str:
        """Return why the extender does not know the cards, or ""."""
        return "" if self.written.is_set() else f"node {self.node} has not been written yet"

    def step(self) -> float | None:
        """Write the cards; return the seconds to the next try if that failed."""
        try:
            self._write(self.cards())
        except (ApiError, WireError) as error:
            self._failures += 1
            log.warning(Line("node not written", node=self.node, error=error))
            return min(self._interval, 0.5 * 2.0 ** min(self._failures, 6))
        self.written.set()
        self._failures = 0
        return None

    def _write(self, cards: NodeCards) -> None:
        """Write the values that differ from the Node's. Raises ApiError, WireError."""
        body = self.api.request("GET", self._path, timeout=_TIMEOUT)
        node = NODES.decode_answer(body, "", self.node)
        metadata = node.metadata or Metadata()
        labels = metadata.labels or {}
        self.cgpu_disabled = labels.get(CGPU_LABEL) == "true"
        before = (metadata.annotations or {}).get(self.names.inventory)
        inventory = cards.inventory()
        with suppress(AnnotationError):  # one that cannot be read names no cards
            inventory = inventory.after(decode_inventory(before or ""))
        text = encode_inventory(inventory)
        annotated = before == text
        if not annotated or labels.get(LABEL) != "true":
            change = {"annotations": {self.names.inventory: text}, "labels": {LABEL: "true"}}
            self._patch(self._path, {"metadata": change})
            log.info(Line("inventory written", node=self.node, devices=len(cards.all)))
        self._write_amount(node, self.names.count, len(cards.all))
        # An admission policy of an earlier release lets only the inventory and the count through.
        if self.advertise_cores:
            try:
                self._write_amount(node, self.names.cores, ALL_CORES * len(cards.all))
            except ApiError as error:
                log.warning(Line("compute not advertised", node=self.node, error=error))
        info = (node.status and node.status.node_info) or NodeInfo()
        device_list = self.look(info.container_runtime_version or "", info.kubelet_version or "")
        text = encode_device_list(device_list)
        if (metadata.annotations or {}).get(DEVICE_LIST) != text:
            try:
                self._patch(self._path, {"metadata": {"annotations": {DEVICE_LIST: text}}})
            except ApiError as error:
                log.warning(Line("device list not written", node=self.node, error=error))

    def _write_amount(self, node: Node, resource: str, amount: int) -> None:
        """Write capacity and allocatable, unless both say so. Raises ApiError."""
        status = node.status
        both = (status.capacity, status.allocatable) if status else (None, None)
        if all(str((resources or {}).get(resource, "")) == str(amount) for resources in both):
            return
        amounts = {resource: str(amount)}
        self._patch(
            f"{self._path}/status", {"status": {"capacity": amounts, "allocatable": amounts}}
        )

    def _patch(self, path: str, change: dict[str, Any]) -> None:
        merge_patch(self.api, path, json.dumps(change).encode(), _TIMEOUT)
