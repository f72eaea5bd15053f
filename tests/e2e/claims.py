"""A control plane where claims are allocated from outside: slices, claims and pods, by hand.

Knows the JSON of resource.k8s.io; what is written into a claim is made by gpushare.wire.dra, and
sent with the rights of our account. There is no driver and no kubelet: a slice is an object.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpushare.core.model import PodRef
from gpushare.wire.dra.claims import claim_request, is_protected
from gpushare.wire.dra.objects import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ResourceClaim,
)
from gpushare.wire.dra.slices import DeviceKey, SliceCard, cards_of
from gpushare.wire.dra.writes import allocation, protection
from tests.contract.apiserver.client import MERGE, Json, Reply
from tests.e2e.binaries import needed
from tests.e2e.extender import Extender
from tests.e2e.objects import fresh
from tests.e2e.plane import SCHEDULER, Plane
from tests.e2e.processes import Process, until
from tests.e2e.world import account_token, apply

API = "/apis/resource.k8s.io/v1"
CLAIMS, SLICES, CLASSES = (
    f"{API}/namespaces/default/resourceclaims",
    f"{API}/resourceslices",
    f"{API}/deviceclasses",
)
CLASS, DRIVER = "gpushare.io", "gpu.nvidia.com"
"""As config/extender/claims names them."""


def ref(pod: Json) -> PodRef:
    meta = pod["metadata"]
    return PodRef(meta["namespace"], meta["name"], meta["uid"])


class ClaimWorld:
    """kube-scheduler and the controller of claims on a plane, with our class, rights and fence.

    folders: of config/, with these. kube-scheduler has no configuration file.
    """

    def __init__(
        self,
        plane: Plane,
        folder: Path,
        folders: Sequence[str] = ("extender/base", "extender/claims"),
    ) -> None:
        folder.mkdir(exist_ok=True)
        for each in folders:
            apply(plane, each)
        self.plane = plane
        self.api, self.objects = plane.api(), plane.objects()
        self.ours = plane.api(account_token(self.api))
        file = plane.kubeconfig(SCHEDULER)
        command: list[str | Path] = [
            *(needed("kube-scheduler"), "--kubeconfig", file, "--leader-elect=false"),
            *("--authentication-kubeconfig", file, "--authorization-kubeconfig", file),
            *("--secure-port", "0", "-v", "2"),
        ]
        self.scheduler = Process("kube-scheduler", command, folder)
        program = needed("kube-controller-manager")
        self.controllers = plane.start_controllers(program, "resourceclaim-controller")
        # A policy is in force a moment after it is there.
        until(self.comes_protected, "a new claim is protected")
        self.clear()

    def stop(self) -> None:
        self.scheduler.kill()
        self.controllers.kill()

    # -- made -----------------------------------------------------------------------------------

    def node(self, *gibs: int, driver: str = DRIVER, cpu: str = "96") -> str:
        """A node with shared cards of so many GiB, in this order in its slice."""
        name = self.objects.node(devices=0)
        if cpu != "96":
            amounts = {"cpu": cpu}
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            self.objects.patch(f"/api/v1/nodes/{name}/status", status)
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": {"uuid": {"string": f"GPU-{name}-{number}"}},
                "capacity": {
                    "memory": {
                        "value": f"{gib}Gi",
                        "requestPolicy": {
                            "default": f"{gib}Gi",
                            "validRange": {"min": "1Mi", "step": "1Mi"},
                        },
                    }
                },
                "allowMultipleAllocations": True,
            }
            for number, gib in enumerate(gibs)
        ]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": name, "pool": pool, "devices": devices}
        self.api.create(SLICES, {"metadata": {"name": fresh("slice")}, "spec": spec})
        return name

    def device_class(self, driver: str) -> str:
        """An ordinary class: kube-scheduler gives out the driver's devices, first fit."""
        name = fresh("class")
        selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
        self.api.create(CLASSES, {"metadata": {"name": name}, "spec": {"selectors": [selector]}})
        return name

    def claim(
        self, gib: int, of: str = CLASS, *, name: str = "", more: int = 0, **exactly: object
    ) -> str:
        """A claim; more: so many GiB in a second request, called `more`."""
        requests = [
            {
                "name": each,
                "exactly": {
                    "deviceClassName": of,
                    "capacity": {"requests": {"memory": f"{size}Gi"}},
                    **exactly,
                },
            }
            for each, size in (("gpu", gib), ("more", more))
            if size
        ]
        spec = {"devices": {"requests": requests}}
        name = name or fresh("claim")
        self.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
        return name

    def pod(
        self,
        claim: str,
        *,
        cpu: str = "0",
        scheduler: str = "default-scheduler",
        labels: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> Json:
        """A pod that has the claim."""
        has = [{"name": "gpu", "resourceClaimName": claim}]
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
        return self.objects.pod(
            0,
            labels=labels,
            resourceClaims=has,
            containers=[container],
            schedulerName=scheduler,
            **spec,
        )

    # -- read -----------------------------------------------------------------------------------

    def cards(self) -> dict[DeviceKey, SliceCard]:
        items = self.api.get(SLICES).body["items"]
        return cards_of(RESOURCE_SLICES.decode(json.dumps(item).encode()) for item in items)

    def card(self, node: str, number: int) -> SliceCard:
        return self.cards()[DeviceKey(DRIVER, node, f"gpu-{number}")]

    def read(self, claim: str) -> ResourceClaim:
        reply = self.ours.get(f"{CLAIMS}/{claim}")
        assert reply.status == 200, reply.body
        return RESOURCE_CLAIMS.decode(json.dumps(reply.body).encode())

    # -- written --------------------------------------------------------------------------------

    def patch(self, claim: str, body: bytes, part: str = "") -> Reply:
        path = f"{CLAIMS}/{claim}{part}"
        return self.ours.call("PATCH", path, raw=body, content_type=MERGE)

    def allocation(self, claim: ResourceClaim, pod: Json, *cards: SliceCard) -> bytes:
        request = claim_request(claim, CLASS)
        assert request
        found = self.ours.get(f"{CLASSES}/{CLASS}").body
        return allocation(
            claim,
            request,
            cards,
            DEVICE_CLASSES.decode(json.dumps(found).encode()),
            pod=ref(pod),
            share_ids=[str(uuid.uuid4()) for _ in cards],
            now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    def allocate(self, claim: str, pod: Json, *cards: SliceCard) -> None:
        """Give these cards to the claim of the pod, as an allocator does: protect it first."""
        read = self.read(claim)
        if not is_protected(read):
            reply = self.patch(claim, protection(read))
            assert reply.status == 200, reply.body
        reply = self.patch(claim, self.allocation(self.read(claim), pod, *cards), "/status")
        assert reply.status == 200, reply.body

    # -- awaited --------------------------------------------------------------------------------

    def bound(self, pods: Sequence[Json]) -> None:
        for pod in pods:
            self.objects.lands(pod, self._told)

    def comes_protected(self, of: str = CLASS) -> bool:
        """Return whether a new claim has the finalizer."""
        return is_protected(self.read(self.claim(10, of)))

    def waits(self, claim: str, allocated: bool) -> None:
        """Return once the claim has an allocation, or has none."""
        until(
            lambda: bool(self._allocation(claim)) is allocated,
            lambda: f"{self.api.get(f'{CLAIMS}/{claim}').body}; {self.scheduler.last_lines()}",
        )

    def _told(self) -> str:
        return f"{self.api.get(CLAIMS).body['items']}\n{self.scheduler.last_lines()}"

    def gone(self, claim: str) -> None:
        path = f"{CLAIMS}/{claim}"
        until(lambda: self.api.get(path).status == 404, lambda: f"{self.api.get(path).body}")

    def clear(self) -> None:
        """Delete what tests have made; the controller takes back what is allocated."""
        self.objects.clear()
        for path in (SLICES, CLAIMS):
            for item in self.api.get(path).body["items"]:
                self.api.delete(f"{path}/{item['metadata']['name']}")
        until(lambda: not self.api.get(CLAIMS).body["items"], "claims are still there")

    def _allocation(self, claim: str) -> object:
        status = self.read(claim).status
        return status and status.allocation


class OurWorld(ClaimWorld):
    """The same with our process, which a subclass starts."""

    extender: Extender

    def stop(self) -> None:
        self.extender.stop()
        super().stop()

    def _told(self) -> str:
        log = "\n".join(self.extender.log.splitlines()[-40:])
        return f"{super()._told()}\n{log}"
