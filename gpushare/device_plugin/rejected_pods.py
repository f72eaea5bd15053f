"""Deletes pods of this node that the kubelet failed because the device plug-in was not there.

Only on request, so that nobody has to clean up after a reboot. Knows the API server's calls. Only
pods of a controller are deleted, which has made new ones; never a pod that this plug-in refused
itself: its status says why.
"""

import json
import logging
from collections.abc import Iterable
from typing import Any

from gpushare.device_plugin.node_pod import NodePod
from gpushare.device_plugin.server import SAYS
from gpushare.errors import ApiError
from gpushare.kube.api import Api
from gpushare.logline import Line

log = logging.getLogger("gpushare.pods")

_REASON = "UnexpectedAdmissionError"
_TIMEOUT = 5.0


class RejectedPods:
    """Deletes rejected pods; each pod that has ended is read once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._seen: set[str] = set()

    def clear(self, pods: Iterable[NodePod]) -> None:
        """Delete the pods that were rejected. What fails is tried again next time."""
        ended = {pod.ref.uid: pod for pod in pods if pod.ended and pod.gpu_containers}
        self._seen &= ended.keys()
        for uid, pod in ended.items():
            if uid not in self._seen:
                try:
                    self._look(pod)
                    self._seen.add(uid)
                except (ApiError, ValueError) as error:
                    log.warning(Line("rejected pod not looked at", pod=pod.ref, error=error))

    def _look(self, pod: NodePod) -> None:
        path = f"/api/v1/namespaces/{pod.ref.namespace}/pods/{pod.ref.name}"
        document: Any = json.loads(self._api.request("GET", path, timeout=_TIMEOUT))
        if isinstance(document, dict) and _was_rejected(document, pod.ref.uid):
            options = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": {"uid": pod.ref.uid},
            }
            body = json.dumps(options).encode()
            self._api.request("DELETE", path, body=body, timeout=_TIMEOUT)
            log.info(Line("deleted, as no device plug-in was there for it", pod=pod.ref))


def _was_rejected(body: dict[str, Any], uid: str) -> bool:
    """Return whether it is that pod, has a controller, and failed without a device plug-in."""
    metadata, status = body.get("metadata") or {}, body.get("status") or {}
    owners = metadata.get("ownerReferences") or ()
    return (
        metadata.get("uid") == uid
        and status.get("phase") == "Failed"
        and status.get("reason") == _REASON
        and SAYS not in str(status.get("message"))
        and any(owner.get("controller") for owner in owners)
    )
