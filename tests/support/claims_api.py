"""An API server that has claims and slices alone, and the GPUs that tests offer."""

import json
import math
from collections.abc import Mapping
from typing import Any

from gpushare.device_plugin.cards import DetectedGpu, Fault, NodeCards, Problem, make_cards
from gpushare.errors import ApiConflict, ApiNotFound, ApiUnavailable

Json = dict[str, Any]
DRIVER, NODE = "gpu.example.com", "n1"
UID = "01234567-89ab-4def-8123-456789abcdef"
GIB = 1024


def cards(*gibs: int, first: int = 0, sick: int = -1) -> NodeCards:
    """GPUs of so many GiB, which are called GPU-FIRST and so on; the one of index `sick` is ill."""
    outcome = [
        DetectedGpu(
            f"GPU-{first + index}",
            index,
            gib * GIB,
            "A100",
            problem=Problem(Fault.FILE, "is not well") if index == sick else None,
        )
        for index, gib in enumerate(gibs)
    ]
    return make_cards(outcome, "GiB", 0)


def result(device: int, memory: str = "10Gi", **changes: object) -> Json:
    """A device of a claim's allocation."""
    return {
        "request": "gpu",
        "driver": DRIVER,
        "pool": NODE,
        "device": f"gpu-{device}",
        "shareID": f"share-{device}",
        "consumedCapacity": {"memory": memory},
        **changes,
    }


class ClaimsApi:
    """Objects by path. down: no request is answered."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.down = False
        self.sent: list[tuple[str, str]] = []

    def claim(self, *results: Json, name: str = "c", uid: str = UID) -> None:
        """Store a claim with this allocation, or without one."""
        allocation = {"devices": {"results": list(results)}} if results else None
        self.objects[f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}"] = {
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "status": {"allocation": allocation},
        }

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float,
        not_after: float = math.inf,
    ) -> bytes:
        del query, content_type, timeout, not_after
        if self.down:
            raise ApiUnavailable(f"{method} {path}: no answer", 0)
        self.sent.append((method, path))
        if method == "POST":
            path = f"{path}/{json.loads(body or b'')['metadata']['name']}"
            if path in self.objects:
                raise ApiConflict("it is there already", 409)
        elif path not in self.objects:
            raise ApiNotFound("it is not there", 404)
        if body is not None:
            self._put(path, json.loads(body))
        return json.dumps(self.objects[path]).encode()

    def _put(self, path: str, text: Json) -> None:
        meta = self.objects.get(path, {}).get("metadata", {"resourceVersion": "0"})
        if text["metadata"].get("resourceVersion") not in {None, meta["resourceVersion"]}:
            raise ApiConflict("it has been changed", 409)
        version = str(int(meta["resourceVersion"]) + 1)
        self.objects[path] = {
            **text,
            "metadata": {**text["metadata"], "resourceVersion": version},
        }
