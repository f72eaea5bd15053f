"""Check that each container was told the devices of its pod's Binding.

The kubelet asks right before each creation of a container, and passes the container the answer in
the checkpoint. The question has the ids only, so the owner is looked up in the checkpoint, which
has the pods' uids; the kubelet's API has names only.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gpushare.device_plugin.cards import NodeCards, uuids_of
from gpushare.device_plugin.container import visible_devices
from gpushare.device_plugin.identity import CheckpointEntry, ContainerCandidate, PodDevices, granted
from gpushare.device_plugin.kubelet import parse_answer
from gpushare.device_plugin.node_pod import NodePod
from gpushare.device_plugin.pods import Found, Pods
from gpushare.errors import GpuShareError, RequestRefused
from gpushare.logline import Line

log = logging.getLogger("gpushare.check")


@dataclass(frozen=True, slots=True)
class WrongDevices:
    """A container that was told other devices than those of its pod's Binding."""

    pod: NodePod
    container: str
    reason: str
    units_by_uuid: Mapping[str, int]
    """The cards of this node in the container's answer, and the units that the container may have
    on each.
    """

    def __str__(self) -> str:
        return f"pod {self.pod.ref} container {self.container}: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class StartCheck:
    """The check."""

    pods: Pods
    record: Callable[[], Sequence[CheckpointEntry]]
    """Returns the kubelet's record; raises GpuShareError."""
    pod_devices: Callable[[], PodDevices]
    """Returns the kubelet's view; raises GpuShareError."""
    cards: Callable[[], NodeCards]
    certain: Callable[[Collection[str]], bool] = lambda ids: True
    """Returns whether the owner of these ids was known when the ids were served."""

    def check(self, ids: Collection[str]) -> None:
        """Check that the container of these ids may start. Raises RequestRefused."""
        requested_ids = frozenset(ids)
        try:
            owners = [entry for entry in self.record() if entry.ids == requested_ids]
        except GpuShareError as error:
            raise RequestRefused(f"not checked which devices the container has: {error}") from error
        if not owners:
            raise RequestRefused(
                f"the kubelet's checkpoint has no container with these {len(requested_ids)} ids, so"
                " it cannot be checked which devices it has"
            )
        if not any(self.pods.by_uid(entry.uid) for entry in owners):
            self._read(requested_ids)
        known_entries = [entry for entry in owners if self.pods.by_uid(entry.uid)]
        for entry in known_entries:
            wrong = self.wrong(entry)
            if wrong:
                # The kubelet writes the text into the status of the pod that has these ids now,
                # perhaps another pod.
                log.warning(Line("wrong devices", found=wrong))
                raise RequestRefused(
                    f"not started: {wrong.reason}; delete the pod, so that it is started anew"
                )
        if known_entries:
            return
        # If the ids are of the cards in the answer, this plug-in chose the ids.
        if not (
            self.certain(requested_ids)
            and visible_devices(parse_answer(owners[-1].response)) == uuids_of(requested_ids)
        ):
            raise RequestRefused(
                "the pod is not known, as the API server does not answer, so it cannot be checked"
                " which devices it has; the kubelet tries again"
            )

    def wrong(self, entry: CheckpointEntry) -> WrongDevices | None:
        """Return the wrong devices of a container on record; None if right, or if the pod or the
        container is not known, or the pod has ended.

        Raises MessageError.
        """
        pod = self.pods.by_uid(entry.uid)
        container = pod.gpu_container(entry.container) if pod else None
        if pod is None or container is None or pod.ended:
            return None
        visible = visible_devices(parse_answer(entry.response))
        cards = self.cards()
        units_by_uuid = {
            card.uuid: len(entry.ids)
            for card in cards.all
            if card.uuid in visible or str(card.index) in visible
        }
        if pod.problem:
            return WrongDevices(pod, container.name, pod.problem, units_by_uuid)
        grant = granted(ContainerCandidate(pod, container), cards, healthy=False)
        if isinstance(grant, str):
            return WrongDevices(pod, container.name, grant, units_by_uuid)
        indices = {str(card.index) for card, _ in grant.shares}
        if visible in (grant.uuids, indices):
            return None
        has = ", ".join(sorted(visible)) or "none"
        return WrongDevices(
            pod,
            container.name,
            f"was bound to {grant}, but was told of device {has}",
            units_by_uuid,
        )

    def _read(self, requested_ids: frozenset[str]) -> None:
        """Read the pod that the kubelet shows with these ids. Raises RequestRefused if gone."""
        try:
            pod_devices = self.pod_devices()
        except GpuShareError as error:
            log.warning(Line("pod-resources does not answer", error=error))
            return
        read = self.pods.look_up(
            key for key, containers in pod_devices.items() if requested_ids in containers.values()
        )
        for (namespace, name), found in read.items():
            if found is Found.GONE:
                log.warning(Line("the kubelet shows a pod that is gone", pod=f"{namespace}/{name}"))
                raise RequestRefused(
                    "the API server does not have the pod, so it cannot be checked which devices"
                    " it has"
                )
