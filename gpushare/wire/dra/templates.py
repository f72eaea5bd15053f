"""Templates of claims that are named after their size, and which of them a pod waits for.

At admission a pod of a Deployment has neither name nor uid, so no claim can be named after it: the
policy of config/extender/claims-pods names a template by what the pod asks for, and nothing else
has to be known to write it.

Tested in `tests/unit/wire/dra`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.wire.dra.claims import MAX_DEVICES
from gpushare.wire.dra.objects import ClaimsPod
from gpushare.wire.dra.slices import MEMORY
from gpushare.wire.objects import Metadata

POD_CLAIM = "gpushare"
"""What a pod calls its claim of such a template."""
ASKED = "gpushare.io/asked"
"""Annotation of such a pod: what it asked for before, by container. Users can edit it."""

_NAME = re.compile(r"gpushare-([1-9][0-9]{0,8})mi(?:-x([1-9][0-9]?))?")


@dataclass(frozen=True, slots=True)
class SizedTemplate:
    """A template whose name says all of it."""

    namespace: str
    name: str
    mib: int
    """Memory of each device."""
    devices: int

    def body(self, class_name: str) -> bytes:
        """Return the object for the API server. Nobody owns it: it stays when the pod goes."""
        exactly: Mapping[str, Any] = {
            "deviceClassName": class_name,
            "count": self.devices,
            "capacity": {"requests": {MEMORY: f"{self.mib}Mi"}},
        }
        requests = [{"name": "gpu", "exactly": exactly}]
        labels = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/managed-by": "gpushare"}
        return json.dumps(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": self.name, "labels": labels},
                "spec": {"spec": {"devices": {"requests": requests}}},
            }
        ).encode()


def awaited_template(pod: ClaimsPod) -> SizedTemplate | None:
    """Return the template by size of which the pod's claim is still to be made; None if it has one.

    Pods are their owners' own words: of each one template at most, in its own namespace, by a name
    that can be written in one way only.
    """
    metadata = pod.metadata or Metadata()
    statuses = (pod.status and pod.status.resource_claim_statuses) or ()
    if metadata.deletion_timestamp or any(status.name == POD_CLAIM for status in statuses):
        return None
    for claim in (pod.spec and pod.spec.resource_claims) or ():
        if claim.name == POD_CLAIM:
            template = claim.resource_claim_template_name or ""
            return sized_template(metadata.namespace or "", template)
    return None


def sized_template(namespace: str, name: str) -> SizedTemplate | None:
    """Return the template of this name; None if it is none by size."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    devices = int(match[2] or "1")
    # One device is not counted in the name.
    if match[2] == "1" or devices > MAX_DEVICES:
        return None
    return SizedTemplate(namespace, name, int(match[1]), devices)
