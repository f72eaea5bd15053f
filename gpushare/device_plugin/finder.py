"""Looks for the containers that the kubelet may be asking for: in its List, and among the pods.

Knows the rules of identity.py, and where to read what they need; decides nothing. A pod that the
kubelet shows and the watch does not is read before it is left out.

Tested in `tests/unit/device_plugin/test_allocator.py`.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from gpushare.device_plugin.answered import Container
from gpushare.device_plugin.identity import (
    Candidate,
    Listed,
    PodKey,
    candidates,
    may_be_another,
    next_part,
    unlisted,
)
from gpushare.device_plugin.node_pod import NodePod
from gpushare.device_plugin.pods import Pods
from gpushare.errors import GpuShareError

log = logging.getLogger("gpushare.allocate")

_UNKNOWN_FOR = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates. changes: how many changes of the pods there had been before.

    shown: the kubelet shows them, and no other pod of which nobody can tell what it waits for.
    """

    candidates: Sequence[Candidate]
    shown: bool
    changes: int


class CandidateFinder:
    """Looks; may be called by several threads. listed: what the kubelet shows; raises
    GpuShareError.
    """

    def __init__(
        self,
        pods: Pods,
        listed: Callable[[], Listed],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._listed = listed
        self._clock = clock
        # Of pods that there are none of by the API server: (since when, when to ask it again).
        self._unknown: Mapping[PodKey, tuple[float, float]] = {}

    def find(
        self, units: int, answered: Set[Container], refused: Collection[str], began: float
    ) -> Found:
        """Return who may be asking for so many units, in a question that was asked at `began`."""
        try:
            listed = self._listed()
        except GpuShareError as error:
            log.warning("pod-resources does not answer error=%s", error)
            return self.unlisted(units, answered, refused)
        pods, changes = self._known(listed)
        found = candidates(listed, pods, answered, refused, units)
        doubtful = [
            pod.key
            for pod in (
                [each.pod for each in found] or [pods[key] for key in listed if key in pods]
            )
            if may_be_another(pod, listed[pod.key], answered, refused)
        ]
        if doubtful:
            read = self._pods.look_up(doubtful)
            pods, changes = self._pods.now()
            # Of one that cannot be read it is not known whether it is still the same.
            unread = {key for key in doubtful if not read.get(key)}
            pods = {key: pod for key, pod in pods.items() if key not in unread}
            found = candidates(listed, pods, answered, refused, units)
        if found:
            return Found(found, not self._anybody(listed, pods, began), changes)
        if any(key not in pods for key in listed):
            return Found((), True, changes)
        # A kubelet that does not show the pod it is admitting.
        return self.unlisted(units, answered, refused, but=listed)

    def unlisted(
        self,
        units: int,
        answered: Set[Container],
        refused: Collection[str],
        *,
        but: Collection[PodKey] = (),
    ) -> Found:
        """Return who may be asking by the pods alone, but for those of these names."""
        pods, changes = self._pods.now()
        rest = [pod for key, pod in pods.items() if key not in but]
        return Found(unlisted(rest, answered, refused, units), False, changes)

    def read_anew(self, found: Sequence[Candidate]) -> None:
        """Read the pods that may be meant, and those that the kubelet shows and that wait."""
        pods, _ = self._pods.now()
        keys = {each.pod.key for each in found}
        with suppress(GpuShareError):
            listed = self._listed()
            keys |= {
                key
                for key in listed
                if key not in pods or next_part(pods[key], listed[key], frozenset())
            }
        self._pods.look_up(keys)

    def _known(self, listed: Listed) -> tuple[Mapping[PodKey, NodePod], int]:
        """Return the pods; those that the kubelet shows and the watch does not are read first."""
        pods, changes = self._pods.now()
        now = self._clock()
        late = [key for key in listed if key not in pods and now >= self._unknown_until(key)]
        if late:
            read = self._pods.look_up(late)
            pods, changes = self._pods.now()
            self._note_unknown([key for key in read if key not in pods], listed)
        return pods, changes

    def _unknown_until(self, key: PodKey) -> float:
        _, until = self._unknown.get(key, (math.inf, -math.inf))
        return until

    def _note_unknown(self, keys: Iterable[PodKey], listed: Listed) -> None:
        """Do not look up again at once what nobody knows, such as a static pod without a mirror."""
        now = self._clock()
        kept = {key: times for key, times in self._unknown.items() if key in listed}
        new = {key: (kept.get(key, (now, now))[0], now + _UNKNOWN_FOR) for key in keys}
        self._unknown = kept | new

    def _anybody(self, listed: Listed, pods: Mapping[PodKey, NodePod], began: float) -> bool:
        """Return whether the kubelet may be asking for a pod that nobody knows.

        One that was there at an earlier question, and has no ids still, asks for none.
        """
        for key, containers in listed.items():
            since, _ = self._unknown.get(key, (math.inf, 0.0))
            if key not in pods and not all(containers.values()) and since >= began:
                return True
        return False
