"""Pods without a node that ask by claims, as the watch shows the pods, for the page.

kube-scheduler calls no extender for a pod that has no devices on any node, so the watch tells of
these pods. A bounded part of each pod is kept as JSON, and a bounded number of pods; a namespace
with many pods loses its own.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from gpushare.core.model import PodRef
from gpushare.errors import WireError
from gpushare.explain.text import last_words
from gpushare.extender.follow.shown import Shown
from gpushare.turns import in_turns
from gpushare.wire.conditions import scheduler_view
from gpushare.wire.dra.objects import needs_of
from gpushare.wire.objects import Metadata, Pod, PodSpec, seconds_of
from gpushare.wire.pods import names_any, pod_ref
from gpushare.wire.request_mistakes import resources_of

MAX_PODS = 2048
MAX_NEEDS = 8 << 10
"""Bytes that are kept of a pod for an explanation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPod:
    """A pod that may wait for devices of claims."""

    ref: PodRef
    created: float
    """Seconds since the epoch."""
    has_claims: bool
    resources: frozenset[str]
    """Extended resources that kube-scheduler may make a claim for."""
    scheduler: str
    """Last words of the pod's scheduler about the pod."""
    needs: bytes
    """The fields of the pod that an explanation reads, as JSON; empty if these are too large."""

    def asks_by_claims(self, by_class: Collection[str]) -> bool:
        """Return whether the pod has claims. by_class: resources that a DeviceClass serves."""
        return self.has_claims or not self.resources.isdisjoint(by_class)


def waiting_pod(pod: Pod, managed: Collection[str]) -> WaitingPod | None:
    """Return the record of a pod without a node; None for a pod that can have no claims, or asks
    for a managed resource.
    """
    metadata, spec = pod.metadata or Metadata(), pod.spec or PodSpec()
    resources = frozenset(name for name in resources_of(pod) if "/" in name)
    if not (spec.resource_claims or resources) or names_any(pod, managed):
        return None
    try:
        ref = pod_ref(pod)
    except WireError:
        return None
    needs = needs_of(pod)
    is_small = len(needs) <= MAX_NEEDS
    return WaitingPod(
        ref=ref,
        created=seconds_of(metadata.creation_timestamp),
        has_claims=bool(spec.resource_claims),
        resources=resources if is_small else frozenset(),
        scheduler=last_words(scheduler_view(pod)),
        needs=needs if is_small else b"",
    )


class WaitingPods(Shown[WaitingPod]):
    """The pods that may wait for devices of claims, by uid; at most MAX_PODS."""

    def __init__(self) -> None:
        """Begin without pods."""
        super().__init__()
        self.version = 0
        """A number that grows with each change."""

    def replace(self, values: Mapping[str, WaitingPod], keep: Collection[str]) -> None:
        """Set the pods of a whole list; namespaces take turns."""
        super().replace(values, keep)
        turns = in_turns(self._shown.items(), lambda item: item[1].ref.namespace)
        self._shown = dict(islice(turns, MAX_PODS))
        self.version += 1

    def put(self, key: str, value: WaitingPod | None) -> None:
        """Set or remove one pod; the largest namespace loses the newest pod of too many."""
        if self._shown.get(key) == value:
            return
        super().put(key, value)
        self.version += 1
        if len(self._shown) > MAX_PODS:
            sizes = Counter(pod.ref.namespace for pod in self._shown.values())
            largest = max(sizes, key=sizes.__getitem__)
            newest = next(
                uid for uid, pod in reversed(self._shown.items()) if pod.ref.namespace == largest
            )
            super().put(newest, None)
