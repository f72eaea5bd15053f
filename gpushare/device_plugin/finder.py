"""Finds the containers that the kubelet may be asking for: in its List, and among the pods.

Knows the rules of identity.py, and where to read what they need; decides nothing. A pod that the
kubelet shows and the watch does not is read before it is left out.

Tested in `tests/unit/device_plugin/test_allocator.py`.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from gpushare.device_plugin.identity import (
    Candidate,
    ContainerKey,
    Listed,
    PodKey,
    candidates,
    may_be_another,
    next_container,
    unlisted,
)
from gpushare.device_plugin.node_pod import NodePod
from gpushare.device_plugin.pods import Pods
from gpushare.errors import GpuShareError
from gpushare.logline import Line

log = logging.getLogger("gpushare.allocate")

_UNKNOWN_FOR = 10.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates. changes: the number of changes of the pods before.

    shown: the kubelet shows them, and it shows no pod without ids that could not be read.
    """

    candidates: Sequence[Candidate]
    shown: bool
    changes: int


class CandidateFinder:
    """Finds candidates; several threads may call it.

    listed: what the kubelet shows; raises GpuShareError.
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
        # Pods that the API server does not have: when to ask it again.
        self._unknown: Mapping[PodKey, float] = {}

    def find(self, units: int, answered: Set[ContainerKey], refused: Collection[str]) -> Candidates:
        """Return the containers that may be asking for this number of units."""
        try:
            listed = self._listed()
        except GpuShareError as error:
            log.warning(Line("pod-resources does not answer", error=error))
            return self.unlisted(units, answered, refused)
        pods, changes, unread = self._known(listed)
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
            # A pod that cannot be read may have been replaced by a newer one.
            gone = {key for key in doubtful if not read.get(key)}
            pods = {key: pod for key, pod in pods.items() if key not in gone}
            found = candidates(listed, pods, answered, refused, units)
            unread |= gone - read.keys()
        if found:
            return Candidates(found, all(all(listed[key].values()) for key in unread), changes)
        if any(key not in pods for key in listed):
            return Candidates((), True, changes)
        # A kubelet that does not show the pod it is admitting.
        return self.unlisted(units, answered, refused, but=listed)

    def unlisted(
        self,
        units: int,
        answered: Set[ContainerKey],
        refused: Collection[str],
        *,
        but: Collection[PodKey] = (),
    ) -> Candidates:
        """Return the candidates among all pods except those named."""
        pods, changes = self._pods.now()
        rest = [pod for key, pod in pods.items() if key not in but]
        return Candidates(unlisted(rest, answered, refused, units), False, changes)

    def read_again(self, found: Sequence[Candidate]) -> None:
        """Read again the candidates, and the pods that the kubelet shows without all their ids."""
        pods, _ = self._pods.now()
        keys = {each.pod.key for each in found}
        with suppress(GpuShareError):
            listed = self._listed()
            keys |= {
                key
                for key in listed
                if key not in pods or next_container(pods[key], listed[key], frozenset())
            }
        self._pods.look_up(keys)

    def _known(self, listed: Listed) -> tuple[Mapping[PodKey, NodePod], int, set[PodKey]]:
        """Return (the pods, how many changes there were, those that could not be read).

        Pods that the kubelet shows and the watch does not are read first. If the API server has
        no such pod (a static pod without a mirror), it is not asked again at once.
        """
        pods, changes = self._pods.now()
        now = self._clock()
        late = {key for key in listed if key not in pods and now >= self._unknown.get(key, now)}
        if not late:
            return pods, changes, set()
        read = self._pods.look_up(late)
        pods, changes = self._pods.now()
        kept = {key: until for key, until in self._unknown.items() if until > now}
        until = self._clock() + _UNKNOWN_FOR
        self._unknown = kept | {key: until for key in read if key not in pods}
        return pods, changes, late - read.keys() - pods.keys()
