"""The pods of this node: kept up to date by a watch, looked up if the watch is late.

Knows the API server's calls and, if there is one, the kubelet's Pods API (by a function that is
handed in). Each change wakes the threads that wait for one.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gpushare.device_plugin.identity import PodKey
from gpushare.device_plugin.node_pod import NodePod, node_pod
from gpushare.errors import ApiError, ApiNotFound, GpuShareError, WireError
from gpushare.kube.api import Api
from gpushare.logline import Line
from gpushare.wire.annotations import Names
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.objects import STARTED_PODS, Metadata, Pod

log = logging.getLogger("gpushare.pods")

_GET_SECONDS = 0.8


class Found(Enum):
    """What a read says of a pod: it exists, it is gone, or nothing."""

    EXISTS = "exists"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(eq=False)
class Pods:
    """The cache, and the sink of the watch. kubelet_pods: pods by the kubelet, or () without."""

    api: Api
    names: Names
    """The names of the resource."""
    node: str
    kubelet_pods: Callable[[], Iterable[Pod]] = tuple

    def __post_init__(self) -> None:
        self._news = threading.Condition()
        self._changes = 0
        self._by_key: dict[PodKey, NodePod] = {}
        # Pods from direct reads that the watch does not show yet.
        self._ahead: set[PodKey] = set()
        self.listed = False
        """Whether the first list of the watch has come."""

    def now(self) -> tuple[Mapping[PodKey, NodePod], int]:
        """Return (the pods, the number of changes so far). The mapping never changes."""
        with self._news:
            return self._by_key, self._changes

    @property
    def asking(self) -> int:
        """How many pods ask for device memory."""
        return sum(bool(pod.gpu_containers) for pod in self.now()[0].values())

    def by_uid(self, uid: str) -> NodePod | None:
        """Return the pod of that uid, or None for an unknown uid."""
        return next((pod for pod in self.now()[0].values() if pod.ref.uid == uid), None)

    def wait(self, changes: int, seconds: float) -> None:
        """Return when there are more changes than these, or the time is over."""
        with self._news:
            self._news.wait_for(lambda: self._changes != changes, seconds)

    def look_up(self, keys: Iterable[PodKey]) -> Mapping[PodKey, Found]:
        """Read the pods again, from the kubelet if its Pods API has the pod, else one by one from
        the API server.

        Return whether each pod exists; a pod without an answer stays unchanged.
        """
        found = dict.fromkeys(keys, Found.UNKNOWN)
        try:
            for pod in self.kubelet_pods():
                metadata = pod.metadata or Metadata()
                key = (metadata.namespace or "", metadata.name or "")
                if key in found:
                    found[key] = Found.EXISTS
                    self._take(pod, ahead=True)
        except GpuShareError as error:
            log.warning(Line("the kubelet's Pods API does not answer", error=error))
        for namespace, name in sorted(key for key in found if found[key] is Found.UNKNOWN):
            try:
                path = f"/api/v1/namespaces/{namespace}/pods/{name}"
                body = self.api.request("GET", path, timeout=_GET_SECONDS)
                self._take(STARTED_PODS.decode_answer(body, namespace, name), ahead=True)
                found[namespace, name] = Found.EXISTS
            except ApiNotFound as error:
                log.warning(Line("no such pod", pod=f"{namespace}/{name}", error=error))
                found[namespace, name] = Found.GONE
            except WireError as error:
                log.warning(Line("pod not understood", pod=f"{namespace}/{name}", error=error))
            except ApiError as error:
                log.warning(Line("pod not read", pod=f"{namespace}/{name}", error=error))
                # Further requests would fail too, and the kubelet waits.
                break
        return found

    def trim(self, page: Decoded[Pod]) -> Decoded[NodePod]:
        """Return the page with the kept part of each pod: pods may be large."""
        pods = [self._read(item) for item in page.items]
        return page.with_items([pod for pod in pods if pod is not None])

    def replace(self, pages: Sequence[Decoded[Pod] | Decoded[NodePod]], started: float) -> None:
        """Take over all pods (of the watch)."""
        del started
        unread = [bad for page in pages for bad in page.bad]
        for bad in unread:
            log.warning(Line("pod not understood", error=bad))
        unread_uids = {bad.ref.uid for bad in unread}
        before, _ = self.now()
        pods = {key: pod for key, pod in before.items() if pod.ref.uid in unread_uids}
        for page in pages:
            for item in page.items:
                pod = item if isinstance(item, NodePod) else self._read(item)
                if pod is not None:
                    pods[pod.key] = pod.as_first_seen(before.get(pod.key))
        with self._news:
            self._ahead.clear()
            self._put(pods)
            self.listed = True

    def apply(self, event: WatchEvent[Pod]) -> None:
        """Take over one change (of the watch)."""
        if event.object is None:
            if event.bad:
                log.warning(Line("pod not understood", error=event.bad))
            return
        if event.kind != "DELETED":
            self._take(event.object)
            return
        deleted_pod = self._read(event.object)
        if deleted_pod is not None:
            with self._news:
                cached_pod = self._by_key.get(deleted_pod.key)
                if cached_pod is not None and cached_pod.ref.uid == deleted_pod.ref.uid:
                    self._put(
                        {key: pod for key, pod in self._by_key.items() if key != deleted_pod.key}
                    )

    def _take(self, item: Pod, *, ahead: bool = False) -> None:
        pod = self._read(item)
        if pod is None:
            return
        with self._news:
            cached_pod = self._by_key.get(pod.key)
            is_same = cached_pod is not None and cached_pod.ref.uid == pod.ref.uid
            if ahead and not is_same:
                self._ahead.add(pod.key)
            elif pod.key in self._ahead and not is_same:
                return  # the watch still tells of a pod that had this name before
            elif not ahead:
                self._ahead.discard(pod.key)
            self._put({**self._by_key, pod.key: pod.as_first_seen(cached_pod)})

    def _read(self, item: Pod) -> NodePod | None:
        """Return the pod; None for a pod of another node, or an unreadable one."""
        if item.spec is None or item.spec.node_name != self.node:
            return None
        try:
            return node_pod(item, self.names)
        except WireError as error:
            log.warning(Line("pod not understood", error=error))
            return None

    def _put(self, pods: Mapping[PodKey, NodePod]) -> None:
        with self._news:
            self._by_key = dict(pods)
            self._changes += 1
            self._news.notify_all()
