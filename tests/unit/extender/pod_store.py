"""The pods of an API server, as far as a Binding can tell: the rules of kube-apiserver's registry.

`setPodHostAndAnnotations` (pkg/registry/core/pod/storage): a Binding is refused where the uid is
not the pod's, where the pod is being deleted or has a node already; else it sets the node and
merges the annotations in one write. No latency and no loss here: users of the store add those.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import ApiConflict, ApiError, ApiNotFound
from gpushare.wire.codec import WatchEvent
from gpushare.wire.objects import PODS, Pod


@dataclass
class PodStore:
    """Pods by name, and every change in order, as a watch shows it.

    A pod is never changed but replaced, so a shallow copy of a store is independent.
    """

    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def create(self, pod: dict[str, Any]) -> None:
        self.pods[pod["metadata"]["name"]] = pod
        self.log.append(("ADDED", pod))

    def get(self, name: str) -> bytes:
        """Raises ApiNotFound."""
        if name not in self.pods:
            raise ApiNotFound(f"pods {name!r} not found", 404)
        return json.dumps(self.pods[name]).encode()

    def bind(self, body: bytes) -> None:
        """Raises ApiNotFound or ApiConflict."""
        binding = json.loads(body)
        expected = binding["metadata"]
        pod = self.pods.get(expected["name"])
        if pod is None:
            raise ApiNotFound(f"pods {expected['name']!r} not found", 404)
        refusal_result = _refusal(pod, expected["uid"])
        if refusal_result:
            raise ApiConflict(refusal_result, 409)
        annotations = {**pod["metadata"]["annotations"], **expected["annotations"]}
        self._change(
            {
                **pod,
                "metadata": {**pod["metadata"], "annotations": annotations},
                "spec": {**pod["spec"], "nodeName": binding["target"]["name"]},
            }
        )

    def delete(self, name: str) -> None:
        """A pod without a node is gone at once, any other when its kubelet has ended it."""
        pod = self.pods[name]
        if not pod["spec"]["nodeName"]:
            self.remove(name)
            return
        marked = {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        self._change({**pod, "metadata": marked})

    def remove(self, name: str) -> None:
        self.log.append(("DELETED", self.pods.pop(name)))

    def read(self, name: str) -> Pod | ApiError | None:
        """The argument of `Bind.read`."""
        try:
            return PODS.decode(self.get(name))
        except ApiNotFound:
            return None

    def event(self, version: int) -> WatchEvent[Pod]:
        kind, pod = self.log[version]
        return WatchEvent(kind, PODS.decode(json.dumps(pod).encode()), str(version + 1))

    def _change(self, pod: dict[str, Any]) -> None:
        self.pods[pod["metadata"]["name"]] = pod
        self.log.append(("MODIFIED", pod))


def _refusal(pod: dict[str, Any], uid: str) -> str:
    metadata = pod["metadata"]
    if metadata["uid"] != uid:
        return f"precondition failed: UID in precondition: {uid}"
    if "deletionTimestamp" in metadata:
        return f"pod {metadata['name']} is being deleted, cannot be assigned to a host"
    if pod["spec"]["nodeName"]:
        return f"pod {metadata['name']} is already assigned to node"
    return ""
