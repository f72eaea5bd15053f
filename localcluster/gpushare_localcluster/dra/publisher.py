"""Keeps the node's ResourceSlice as the GPUs are: made again when it is gone, changed when they do.

Each GPU is a device whose memory is shared by the unit. A device is named by its GPU's index, as
NVIDIA's driver names them by their minor numbers: it may be another GPU after cards were changed.
Which GPU it is, the attribute `uuid` says.

The kubelet deletes all slices of its node when it starts, and those of a driver that is away for
30 s; so what is there is followed by a watch. Each look goes by what is there alone, whoever wrote
it.
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
"""The capacity and the attributes of a device, named as NVIDIA's driver names them."""
UNHEALTHY = "gpushare.io/unhealthy"
"""The taint of a device that new claims are to keep off."""

_LONGEST_ATTRIBUTE = 64
_LOOK_SECONDS = 2.0
"""Until the GPUs are read again, and until a write is tried again."""
_WRITE_SECONDS = 5.0


class Publisher:
    """The thread. read: returns the GPUs as they are now; raises GpuShareError."""

    def __init__(
        self, api: Api, driver: str, node: str, read_cards: Callable[[], NodeCards]
    ) -> None:
        self._api = api
        self._driver, self._node = driver, node
        self._read = read_cards
        self.name = f"{node}-{driver}"
        """Of the slice. It is the same each time, so that there are never two."""
        self._slice: ResourceSlice | None = None
        self._listed = False
        self._last_error = ""
        self._stopping = False
        self._wake = threading.Event()
        # A node's own account may see the slices of its node alone.
        query = (("fieldSelector", f"spec.nodeName={node},spec.driver={driver}"),)
        self._reflector = Reflector(api, ListWatch(SLICES, RESOURCE_SLICES, query), self)
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Follow the slice, and start the thread."""
        self._reflector.start()
        self._thread.start()

    def stop(self) -> None:
        """End both. The slice stays: the kubelet deletes it if no driver comes back."""
        self._stopping = True
        self._wake.set()
        self._reflector.stop()
        self._thread.join(2 * _WRITE_SECONDS)

    def replace(self, pages: Sequence[Decoded[ResourceSlice]], started: float) -> None:
        """Take over the list of the driver's slices on the node."""
        del started
        items = (item for page in pages for item in page.items)
        self._slice = next((item for item in items if self._is_ours(item)), None)
        self._listed = True
        self._wake.set()

    def apply(self, event: WatchEvent[ResourceSlice]) -> None:
        """Take over a change of one of them."""
        if event.object is not None and self._is_ours(event.object):
            self._slice = None if event.kind == "DELETED" else event.object
            self._wake.set()

    def step(self) -> None:
        """Write the slice if it is missing, or not as it should be. Raises GpuShareError.

        What is written shows by the watch. A second try before that is refused, as it makes what is
        there, or names an old version.
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
    """Return by what the slice names the GPU."""
    return f"gpu-{card.index}"


def _device(card: Card, unit_mib: int) -> dict[str, Any]:
    attributes = {UUID: {"string": card.uuid}}
    if card.model:
        attributes[MODEL] = {"string": card.model[:_LONGEST_ATTRIBUTE]}
    unit, whole = _quantity(unit_mib), _quantity(card.unit_count * unit_mib)
    # Who names no amount gets the whole GPU.
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
    """Return so many MiB in the largest unit that takes them whole, as the API server does."""
    units = ["Mi", "Gi", "Ti", "Pi"]
    while mib % 1024 == 0 and len(units) > 1:
        mib //= 1024
        units.pop(0)
    return f"{mib}{units[0]}"
