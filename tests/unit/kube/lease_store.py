"""One Lease of an API server, with resourceVersions, 404 and 409, and nothing else."""

import json
from typing import Any

from gpushare.errors import ApiConflict, ApiNotFound


class LeaseStore:
    """Holds at most one Lease; every write gets the next version."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None
        self._version = self._made = 0

    @property
    def spec(self) -> dict[str, Any]:
        assert self.document is not None
        spec: dict[str, Any] = self.document["spec"]
        return spec

    def get(self) -> bytes:
        if self.document is None:
            raise ApiNotFound("no such lease", 404)
        return json.dumps(self.document).encode()

    def create(self, body: bytes) -> bytes:
        if self.document is not None:
            raise ApiConflict("exists", 409)
        return self._keep(json.loads(body))

    def update(self, body: bytes) -> bytes:
        document = json.loads(body)
        if self.document is None:
            raise ApiNotFound("no such lease", 404)
        if document["metadata"]["resourceVersion"] != self.document["metadata"]["resourceVersion"]:
            raise ApiConflict("modified", 409)
        return self._keep(document)

    def write(self, holder: str, **spec: Any) -> None:
        """Write as another process: a renewal or a change of holder."""
        new: dict[str, Any] = {"leaseTransitions": 0, "renewTime": "0"}
        old = dict(self.spec) if self.document else new
        is_new_holder = holder != old.get("holderIdentity") and self.document is not None
        old.setdefault("leaseDurationSeconds", 15)
        old["leaseTransitions"] += is_new_holder and holder != ""
        old["renewTime"] = f"{old['renewTime']}+"
        self._keep({"metadata": {"name": "x"}, "spec": {**old, "holderIdentity": holder, **spec}})

    def edit(self, holder: str) -> None:
        """Change the holder as an operator does by hand: another name, and nothing else."""
        if self.document is not None:
            self._keep({**self.document, "spec": {**self.spec, "holderIdentity": holder}})

    def _keep(self, document: dict[str, Any]) -> bytes:
        self._made += self.document is None
        self._version += 1
        marks = {"uid": f"lease-{self._made}", "resourceVersion": str(self._version)}
        metadata = {**document["metadata"], **marks}
        self.document = document = {**document, "kind": "Lease", "metadata": metadata}
        return json.dumps(document).encode()
