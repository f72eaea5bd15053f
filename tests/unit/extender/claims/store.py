"""An API server that has claims alone, whose answers may be lost and whose writes may be late."""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from gpushare.wire.dra.objects import CLAIMS_PODS, RESOURCE_CLAIMS, ClaimsPod, ResourceClaim
from tests.unit.wire.dra.objects import DRIVER, exactly

Json = dict[str, Any]
FENCE = Path(__file__).parents[4] / "config/extender/claims/fence.yaml"


class ClaimStore:
    """Claims by name, and all events of them.

    fault: called with each write, says what becomes of it: "" (it lands and is answered), "lost"
    (it lands, without an answer), "late" (no answer; it is tried once `land` is called), "refused".
    """

    def __init__(self, fault: Callable[[str], str] = lambda _path: "") -> None:
        self.fault = fault
        self.claims: dict[str, Json] = {}
        self.events: list[tuple[str, ResourceClaim]] = []
        self.late: list[tuple[str, Json]] = []
        self.writes = 0
        self.fence: list[Json] | ApiError = list(
            yaml.safe_load_all(FENCE.read_text().replace("gpu.nvidia.com", DRIVER))
        )
        self._versions = itertools.count(100)

    def create(self, name: str, gib: int, *more: int, **request: object) -> None:
        """Create a claim; more: of further requests, which are named after their size."""
        requests = [{"name": "gpu", "exactly": exactly(f"{gib}Gi", **request)}]
        requests += [{"name": f"of-{each}", "exactly": exactly(f"{each}Gi")} for each in more]
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}-{next(self._versions)}"}
        spec = {"devices": {"requests": requests}}
        self._put(name, {"kind": "ResourceClaim", "metadata": meta, "spec": spec}, "ADDED")

    def create_all(self, names: Iterable[str], gib: Callable[[], int]) -> None:
        for name in names:
            self.create(name, gib())

    def take_back(self, name: str) -> None:
        self._put(name, self.claims[name] | {"status": {}})

    def touch(self, name: str) -> None:
        """Show the claim as it is in a new version."""
        self._put(name, self.claims[name])

    def delete(self, name: str) -> None:
        self.events.append(("DELETED", _decoded(self.claims.pop(name))))

    def land(self) -> None:
        """Let the writes that are late land now, if they still can."""
        late, self.late = self.late, []
        for name, patch in late:
            if name in self.claims and self._met(self.claims[name], patch):
                self._merge(name, patch)

    def listed(self) -> list[ResourceClaim]:
        return [_decoded(each) for each in self.claims.values()]

    def read(self, name: str) -> ResourceClaim:
        return _decoded(self.claims[name])

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
        name = path.removesuffix("/status").rpartition("/")[2]
        if "admissionregistration" in path:
            if isinstance(self.fence, ApiError):
                raise self.fence
            kind = {"validatingadmissionpolicies": 0, "validatingadmissionpolicybindings": 1}[name]
            found = self.fence[kind : kind + 1]
            names = ("ValidatingAdmissionPolicyList", "ValidatingAdmissionPolicyBindingList")
            return json.dumps({"kind": names[kind], "items": found}).encode()
        if body is None:
            if name not in self.claims:
                raise ApiNotFound("no such claim", 404)
            return json.dumps(self.claims[name]).encode()
        self.writes += 1
        fault, patch = self.fault(path), json.loads(body)
        if fault == "late":
            self.late.append((name, patch))
            raise ApiUnavailable("no answer", 0)
        if fault == "refused":
            raise ApiError("forbidden", 403)
        if name not in self.claims:
            raise ApiNotFound("no such claim", 404)
        if not self._met(self.claims[name], patch):
            raise ApiConflict("another version", 409)
        self._merge(name, patch)
        if fault == "lost":
            raise ApiUnavailable("no answer", 0)
        return json.dumps(self.claims[name]).encode()

    def given(self) -> dict[str, int]:
        """GiB by pool and device that the claims have together."""
        found: dict[str, int] = {}
        for each in self.claims.values():
            allocation = each.get("status", {}).get("allocation") or {"devices": {"results": []}}
            for result in allocation["devices"]["results"]:
                key = f"{result['pool']}/{result['device']}"
                amount = int(result["consumedCapacity"]["memory"]) >> 30
                found[key] = found.get(key, 0) + amount
        return found

    def _met(self, claim: Json, patch: Json) -> bool:
        meta, wanted = claim["metadata"], patch["metadata"]
        return all(wanted.get(key, meta[key]) == meta[key] for key in ("uid", "resourceVersion"))

    def _merge(self, name: str, patch: Json) -> None:
        claim = self.claims[name]
        meta = claim["metadata"] | patch["metadata"]
        status = claim.get("status", {}) | patch.get("status", {})
        status = {key: value for key, value in status.items() if value is not None}
        self._put(name, claim | patch | {"metadata": meta, "status": status})

    def _put(self, name: str, claim: Json, kind: str = "MODIFIED") -> None:
        meta = claim["metadata"] | {"resourceVersion": str(next(self._versions))}
        self.claims[name] = claim | {"metadata": meta}
        self.events.append((kind, _decoded(self.claims[name])))


def waiting_pod(name: str, *claims: str) -> ClaimsPod:
    has = [{"name": f"c{at}", "resourceClaimName": each} for at, each in enumerate(claims)]
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    spec = {"containers": [{"name": "main"}], "resourceClaims": has}
    return CLAIMS_PODS.decode(json.dumps({"metadata": meta, "spec": spec}).encode())


def _decoded(claim: Json) -> ResourceClaim:
    return RESOURCE_CLAIMS.decode(json.dumps(claim).encode())
