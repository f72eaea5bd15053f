"""Texts of the device plug-in's events about pods and the node.

Tested in `tests/integration/test_device_plugin.py`.
"""

from collections.abc import Iterable

from gpushare.core.model import PodRef
from gpushare.daemon.events import EventRecorder
from gpushare.device_plugin.cards import NodeCards
from gpushare.device_plugin.container import COMPUTE_LIMITS
from gpushare.device_plugin.identity import ContainerCandidate, Grant, granted
from gpushare.device_plugin.memory import NO_LIMIT, ContainerUse, Unenforced
from gpushare.device_plugin.node_pod import NodePod
from gpushare.device_plugin.start_check import WrongDevices
from gpushare.wire.events import ObjectReference


class PluginEvents:
    """Passes events about pods, and about the node, to the recorder; never waits, never fails."""

    def __init__(self, records: EventRecorder, node: str) -> None:
        self._records = records
        # As the kubelet does: `kubectl describe node` selects events by this uid.
        self._node = ObjectReference("Node", "", node, node)

    def wrong_device(self, wrong: WrongDevices) -> None:
        """Record that a container was told other devices than those of the Binding."""
        note = (
            f"container {wrong.container} {wrong.reason}; delete the pod, so that it is started"
            " anew"
        )
        self._warn(wrong.pod.ref, "GPUShareWrongDevice", "Check", note)

    def other_card_ids(self, owner: ContainerCandidate, grant: Grant) -> None:
        """Record that the kubelet counts a container by ids of devices that are not granted."""
        note = (
            f"container {owner.container.name} has {grant}; the kubelet had no ids of it free and"
            " counts the container by others"
        )
        self._warn(owner.pod.ref, "GPUShareOtherDeviceIds", "Allocate", note)

    def cards_changed(self, before: NodeCards, after: NodeCards, pods: Iterable[NodePod]) -> None:
        """Record a change of the cards, for the node and for the pods on the cards."""
        problems_before = {card.uuid: card.problem for card in before.all}
        failed_uuids = set()
        for card in after.all:
            subject = f"GPU {card.uuid} (index {card.index})"
            if card.problem and card.problem != problems_before.get(card.uuid):
                note = f"{subject} is unhealthy: {card.problem}"
                self._records.record(
                    self._node, "GPUShareDeviceUnhealthy", "Health", note, warning=True
                )
            if card.problem and not problems_before.get(card.uuid):
                failed_uuids.add(card.uuid)
            if not card.problem and problems_before.get(card.uuid):
                note = f"{subject} is healthy again"
                self._records.record(self._node, "GPUShareDeviceHealthy", "Health", note)
        for uuid in sorted(set(after.uncounted) - set(before.uncounted)):
            note = f"GPU {uuid} was added, and counts after a restart of the device plug-in"
            self._records.record(self._node, "GPUShareDeviceAdded", "Health", note)
        if not failed_uuids:
            return
        for pod in pods:
            if pod.ended:
                continue
            affected_uuids: set[str] = set()
            for container in pod.gpu_containers:
                grant = granted(ContainerCandidate(pod, container), after, healthy=False)
                affected_uuids |= failed_uuids & grant.uuids if isinstance(grant, Grant) else set()
            for card in after.all:
                if card.uuid in affected_uuids:
                    note = (
                        f"the pod's device {card.uuid} is unhealthy: {card.problem}; it gets no"
                        " other by itself"
                    )
                    self._warn(pod.ref, "GPUShareDeviceUnhealthy", "Health", note)

    def memory(self, use: ContainerUse) -> None:
        """Record that a container uses more memory than allowed, or that a limit does not hold."""
        if use.exceeded:
            by = f"--isolation {use.isolation} does not keep it to that"
            note = (
                f"container {use.container} uses {_mib(use.used)} MiB of {use.uuid} and was given"
                f" {_mib(use.allowed)}; "
                + ("nothing keeps it to that" if use.isolation == "none" else by)
            )
            self._warn(use.pod.ref, "GPUShareMemoryExceeded", "Memory", note)
            return
        has = "no limit" if use.limit == NO_LIMIT else f"a limit of {_mib(use.limit or 0)} MiB"
        note = (
            f"container {use.container} has {has} on {use.uuid} and was to have"
            f" {_mib(use.told_limit)} MiB; is NVIDIA's container toolkit 1.20.1 on the node?"
        )
        self._warn(use.pod.ref, "GPUShareMemoryNotLimited", "Memory", note)

    def compute(self, unenforced: Unenforced) -> None:
        """Record that a pod's containers ask for compute without any limit of compute."""
        shares_text = ", ".join(
            f"{container.name} ({container.cores} percent)" for container in unenforced.containers
        )
        if unenforced.isolation in COMPUTE_LIMITS:
            reason = (
                "which pod the kubelet asked for was not certain, or a release that sets none has"
                " served it; delete the pod, so that it is started anew"
            )
        else:
            reason = (
                f"--isolation {unenforced.isolation} has none; it counts for placing pods, and a"
                " program may use more"
            )
        note = f"no limit of compute is set for {shares_text}: {reason}"
        self._warn(unenforced.pod.ref, "GPUShareComputeNotLimited", "Compute", note)

    def _warn(self, ref: PodRef, reason: str, action: str, note: str) -> None:
        regarding = ObjectReference("Pod", ref.namespace, ref.name, ref.uid)
        self._records.record(regarding, reason, action, note, warning=True)


def _mib(size: int) -> int:
    return -(-size // 2**20)
