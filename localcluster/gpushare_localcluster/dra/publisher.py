"""Keeps the node's ResourceSlice equal to the GPUs: recreated after a deletion, updated on changes.

Each GPU is a device with memory shared by the unit. A device is named by the index of the GPU, as
NVIDIA's driver names devices by minor number: the name may mean another GPU after an exchange of
cards. The attribute `uuid` identifies the GPU. A starting kubelet deletes all slices of its node,
and the slices of a driver that is away for 30 s; so a watch follows the slice. Each step compares
with the current slice, regardless of the writer.
"""

import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gpushare.device_plugin.cards import Card, NodeCards
from gpushare.errors import GpuShareError
from gpushare.kube.api import Api
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.logline import Line
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.dra.objects import RESOURCE_SLICES, ResourceSlice

log = logging.getLogger("gpushare.dra")

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
MEMORY, MODEL, UUID = "memory", "productName", "uuid"
"""The capacity and the attributes of a device, named as in NVIDIA's driver."""
UNHEALTHY = "gpushare.io/unhealthy"
"""The taint that keeps new claims off a device."""

_LONGEST_ATTRIBUTE = 64
_LOOK_SECONDS = 2.0
"""Seconds until the next read of the GPUs, and until a write is repeated."""
_WRITE_SECONDS = 5.0


class Publisher:
    """The publishing thread. read_cards: returns the current GPUs; raises GpuShareError."""

    def __init__(
        self, api: Api, driver: str, node: str, read_cards: Callable[[], NodeCards]
    ) -> None:
        self._api = api
        self._driver, self._node = driver, node
        self._read = read_cards
        self.name = f"{node}-{driver}"
        """The name of the slice, always the same, so that there is one slice."""
        self._slice: ResourceSlice | None = None
        self._listed = False
        self._last_error = ""
        self._stopping = False
        self._wake = threading.Event()
        # The account of a node may read only the slices of this node.
        query = (("fieldSelector", f"spec.nodeName={node},spec.driver={driver}"),)
        self._reflector = Reflector(api, ListWatch(SLICES, RESOURCE_SLICES, query), self)
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Start to watch the slice, and start the thread."""
        self._reflector.start()
        self._thread.start()

    def stop(self) -> None:
        """End watch and thread. The kubelet deletes the slice if no driver comes back."""
        self._stopping = True
        self._wake.set()
        self._reflector.stop()
        self._thread.join(2 * _WRITE_SECONDS)

    def replace(self, pages: Sequence[Decoded[ResourceSlice]], started: float) -> None:
        """Handle the list of the driver's slices on the node."""
        del started
        items = (item for page in pages for item in page.items)
        self._slice = next((item for item in items if self._is_ours(item)), None)
        self._listed = True
        self._wake.set()

    def apply(self, event: WatchEvent[ResourceSlice]) -> None:
        """Handle a change of a slice."""
        if event.object is not None and self._is_ours(event.object):
            self._slice = None if event.kind == "DELETED" else event.object
            self._wake.set()

    def step(self) -> None:
        """Write a missing or outdated slice.

        Raises GpuShareError. The watch shows the result. The API server refuses a second write
        before that, as the slice exists or the version is old.
        """
        if not self._listed:
            return
        current, cards = self._slice, self._read()
        if current is None:
            self._write("POST", SLICES, {}, self._spec(cards, 1))
            return
        pool = current.spec and current.spec.pool
        generation = (pool and pool.generation) or 0
        desired = {"spec": self._spec(cards, generation)}
        if RESOURCE_SLICES.decode(json.dumps(desired).encode()).spec != current.spec:
            version = current.metadata and current.metadata.resource_version
            spec = self._spec(cards, generation + 1)
            self._write("PUT", f"{SLICES}/{self.name}", {"resourceVersion": version}, spec)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(_LOOK_SECONDS)
            self._wake.clear()
            try:
                self.step()
                self._last_error = ""
            except GpuShareError as error:
                if str(error) != self._last_error:
                    self._last_error = str(error)
                    log.warning(Line("slice not written", error=error))
            except Exception:  # the thread must go on
                log.exception("slice not written")

    def _spec(self, cards: NodeCards, generation: int) -> dict[str, Any]:
        """Return the spec of the pool's only slice, as the API server would write it."""
        return {
            "driver": self._driver,
            "nodeName": self._node,
            "pool": {"name": self._node, "generation": generation, "resourceSliceCount": 1},
            "devices": [_device(card, cards.unit_mib) for card in cards.all if card.unit_count],
        }

    def _write(self, method: str, path: str, more: dict[str, Any], spec: dict[str, Any]) -> None:
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": self.name, **more},
            "spec": spec,
        }
        self._api.request(method, path, body=json.dumps(body).encode(), timeout=_WRITE_SECONDS)
        log.info(Line("slice written", name=self.name, generation=spec["pool"]["generation"]))

    def _is_ours(self, item: ResourceSlice) -> bool:
        return bool(item.metadata and item.metadata.name == self.name)


def device_name(card: Card) -> str:
    """Return the name of the GPU in the slice."""
    return f"gpu-{card.index}"


def _device(card: Card, unit_mib: int) -> dict[str, Any]:
    attributes = {UUID: {"string": card.uuid}}
    if card.model:
        attributes[MODEL] = {"string": card.model[:_LONGEST_ATTRIBUTE]}
    unit, whole = _quantity(unit_mib), _quantity(card.unit_count * unit_mib)
    # A request without an amount gets the whole GPU.
    policy = {"default": whole, "validRange": {"min": unit, "step": unit}}
    device = {
        "name": device_name(card),
        "attributes": attributes,
        "capacity": {MEMORY: {"value": whole, "requestPolicy": policy}},
        "allowMultipleAllocations": True,
    }
    if card.problem:
        fault = {"key": UNHEALTHY, "value": card.problem.fault.value, "effect": "NoSchedule"}
        device["taints"] = [fault]
    return device


def _quantity(mib: int) -> str:
    """Return so many MiB as a quantity in the largest exact unit, as the API server does."""
    units = ["Mi", "Gi", "Ti", "Pi"]
    while mib % 1024 == 0 and len(units) > 1:
        mib //= 1024
        units.pop(0)
    return f"{mib}{units[0]}"
