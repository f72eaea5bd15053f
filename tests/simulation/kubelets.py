"""The nodes' side: kubelets that run pods, and device plug-ins that serve devices.

Only this module knows the devices that a container truly holds: a card, for as long as the pod
runs, at any later index. A kubelet tells the plug-in an amount, not a pod; the plug-in's kind
decides the rest:

own     finds the oldest unserved container of that size, of a Pending pod, marks the
        pod when all containers are served, and refuses (the pod fails) if there is none.
aliyun  the original's: finds the oldest unmarked Pending pod whose regular containers have that
        size together, marks the pod; if there is none the container runs without a device. On nodes
        of one device it serves that device and marks nothing.
blind   serves the devices of the pod's annotation, and marks nothing.
exact   gpushare's own code (plugin.py): serves the cards of the uuids in the
        annotations, or without uuids the cards at the indices, and marks the pod; refuses unknown
        cards. The inventory of such a node says so.

All but the last read indices alone: they serve the card that is at the index at the call, by the
current order of the cards.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.objects import with_metadata
from gpushare_localcluster.api.resources import PODS
from gpushare_localcluster.api.status import StatusError
from gpushare_localcluster.pod_status import AdmissionError
from tests.simulation.chance import Chance
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.plugin import OurPlugin, Weather, units_by_card, wrongly_given
from tests.simulation.server import Server
from tests.simulation.truth import ASSIGNED, ASSUMED, Cards, Json, PodTruth, Shares


@dataclass(repr=False)
class Kubelets:
    """All nodes' kubelets. running: uid -> the uid whose devices each container truly holds, from
    admission on; the status becomes Running later.

    served: uid -> sizes of the containers that have been served. muddled: nodes where a container
    of somebody else took the devices of one of our pods; from then on nobody can tell them apart
    there. forged: nodes with pods with annotations that somebody else has written. cards: the
    devices by the nodes' objects. slots: the cards of each node in the order of the plug-in.
    memory: units that each kubelet counts. sizes: units of each card, sick: those that are not
    well. ours: nodes with our own plug-in.
    """

    server: Server
    oracle: Oracle
    cards: dict[str, Cards]
    pairing: bool
    slots: dict[str, tuple[str, ...]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    sick: dict[str, frozenset[str]] = field(default_factory=dict)
    ours: dict[str, OurPlugin] = field(default_factory=dict)
    running: dict[str, list[str]] = field(default_factory=dict)
    served: dict[str, list[int]] = field(default_factory=dict)
    muddled: set[str] = field(default_factory=set)
    forged: set[str] = field(default_factory=set)

    def count(self, node: str, cards: Cards) -> None:
        """Take over the order of a node's cards from the plug-in, and report the cards to the
        kubelet.
        """
        self.slots[node], self.memory[node] = cards.ids, sum(cards.units)
        self.sizes |= dict(zip(cards.ids, cards.units, strict=True))
        sick = zip(cards.ids, cards.healthy, strict=True)
        self.sick[node] = frozenset(card for card, healthy in sick if not healthy)

    def admissible(self) -> list[PodTruth]:
        """The pods that have a node and are not run yet."""
        return [
            pod
            for pod in self.oracle.pods.values()
            if pod.node in self.cards
            and not (pod.ended or pod.terminating or pod.uid in self.running)
        ]

    def stoppable(self) -> list[PodTruth]:
        """The deleted pods with containers that may be stopped now."""
        return [
            pod
            for pod in self.oracle.pods.values()
            if pod.terminating and not (pod.gone or (pod.lasts and pod.uid in self.running))
        ]

    def started(self) -> list[PodTruth]:
        """The pods that run and may end by themselves."""
        pods = self.oracle.pods
        return [pods[uid] for uid in self.running if not pods[uid].ended]

    def starting(self) -> list[PodTruth]:
        """The admitted pods that are not Running yet: images are pulled."""
        return [pod for pod in self.started() if not pod.runs]

    def admit(self, pod: PodTruth, chance: Chance | None = None) -> str:
        """Admit the pod, or refuse it; return a description. chance: None: without faults."""
        cards = self.cards[pod.node]
        if cards.plugin == "exact" and pod.asked.devices:
            return self._admit_by_ours(pod, chance or Chance(0))
        running_units = sum(self.oracle.pods[uid].asked.total for uid in self.running_on(pod.node))
        if running_units + pod.asked.total > self.memory[pod.node]:
            return self._end(pod, "Failed")
        allocations = [self._serve(pod, cards, size) for size in pod.asked.calls]
        if cards.plugin == "own" and None in allocations:
            self.muddled.add(pod.node)
            return self._end(pod, "Failed")
        assumed_shares = self._counted(pod)
        if allocations and not assumed_shares and cards.plugin == "own":
            return self._end(pod, "Failed")
        self.running[pod.uid] = [uid for uid in allocations if uid is not None]
        self._judge(pod)
        if allocations and set(allocations) == {pod.uid}:
            pod.cards = assumed_shares
        self._set_status(pod, startTime="2026-01-01T00:00:01Z")
        return "admitted"

    def _admit_by_ours(self, pod: PodTruth, chance: Chance) -> str:
        """Admit the pod on a node with our own plug-in, or refuse it. Raises Violation."""
        plugin, weather = self._ours(pod.node, chance), Weather.of(chance)
        other_bodies = [
            self._body(other_pod)
            for other_pod in self.admissible()
            if other_pod.node == pod.node and other_pod is not pod and other_pod.asked.devices
        ]
        expected, free = self._wanted(pod), plugin.free()
        try:
            allocations = plugin.serve(self._body(pod), other_bodies, weather)
        except AdmissionError as error:
            plugin.remove(pod.uid)
            has_cards = bool(expected) and expected.keys() <= free.keys() - self.sick[pod.node]
            if (
                has_cards
                and weather.fair
                and self._certain(pod)
                and "devices unavailable" not in str(error)
            ):
                raise Violation(f"L3 {pod.uid} is refused by its plug-in: {error}") from error
            return self._end(pod, "Failed")
        self.running[pod.uid] = [pod.uid] * len(allocations)
        announced_cards = frozenset().union(
            *(allocation.told for allocation in allocations.values())
        )
        pod.cards = (
            expected if announced_cards == expected.keys() else units_by_card(allocations.values())
        )
        if self._certain(pod):
            # The kubelet reuses ids of an init container for later containers.
            own_ids = not pod.asked.inits and all(
                free.get(card, 0) >= units for card, units in expected.items()
            )
            wrong = wrongly_given(pod, expected, allocations.values(), own_ids=own_ids)
            if wrong:
                raise Violation(f"S4 {pod.uid} at {expected} of {pod.node}: {wrong}: {allocations}")
        if any(
            announced_cards & self.sick[pod.node]
            for announced_cards in (allocation.told for allocation in allocations.values())
        ):
            raise Violation(f"S4 {pod.uid} is given a sick card: {allocations}")
        if not plugin.complete(self._body(pod)):
            raise Violation(f"S4 {pod.uid} is served and would not be marked")
        self._mark(pod)
        self._set_status(pod, startTime="2026-01-01T00:00:01Z")
        return f"admitted, {allocations}"

    def _ours(self, node: str, chance: Chance) -> OurPlugin:
        """Our plug-in on the node, with the kubelet's record; it may have restarted."""
        plugin = self.ours.get(node)
        if plugin is None:
            plugin = self.ours[node] = OurPlugin(node, self._read, lambda: self.oracle.tasks.now)
        plugin.count(self.slots[node], self.sizes, self.sick[node])
        running = self.running_on(node)
        for uid in plugin.pods.keys() - running:
            plugin.remove(uid)
        for uid in running:
            pod = self.oracle.pods[uid]
            if uid not in plugin.pods and pod.asked.devices:
                plugin.hold(self._body(pod), [*(pod.cards or ())])
        if chance.once_in(6):
            plugin.restart_plugin()
        return plugin

    def _wanted(self, pod: PodTruth) -> dict[str, int]:
        """Units by card of the annotations, by uuid, else by index; {} as below."""
        slots = self.slots[pod.node]
        if pod.uuids:
            return pod.asked.on_cards(pod.uuids) if set(pod.uuids) <= set(slots) else {}
        return self._counted(pod)

    @staticmethod
    def _certain(pod: PodTruth) -> bool:
        """Whether the annotations are those of our Binding, and the spec is valid."""
        return bool(pod.by) and not pod.edited and not pod.forged

    def _body(self, pod: PodTruth) -> Json:
        return self.server.registry.get(PODS, pod.namespace, pod.name).body

    def _read(self, name: str) -> Json:
        """The pod of that name; no two namespaces have pods of one name here."""
        return self._body(next(pod for pod in self.oracle.pods.values() if pod.name == name))

    def _counted(self, pod: PodTruth) -> dict[str, int]:
        """Units by card at the indices of the annotations, in the plug-in's order; {} if an index
        has none.
        """
        slots = self.slots[pod.node]
        claim = pod.claim or ()
        is_on_node = all(device < len(slots) for device, _ in claim)
        return {slots[device]: units for device, units in claim} if is_on_node else {}

    def start(self, pod: PodTruth) -> str:
        """The containers have started."""
        self._set_status(pod, phase="Running")
        return "runs"

    def running_on(self, node: str) -> list[str]:
        """The uids of the pods that run there."""
        pods = self.oracle.pods
        return [uid for uid in self.running if pods[uid].node == node and not pods[uid].ended]

    def reboot(self, node: str, chance: Chance) -> None:
        """Containers end; restarted containers keep the cards of their pods."""
        for uid in self.running_on(node):
            if chance.below(2):
                self._end(self.oracle.pods[uid], "Failed")

    def finish(self, pod: PodTruth, phase: str) -> str:
        """The containers have ended."""
        return self._end(pod, phase)

    def stop(self, pod: PodTruth) -> str:
        """The containers are stopped: the pod may be deleted."""
        self.delete(pod, 0)
        return "gone"

    def delete(self, pod: PodTruth, grace: int | None) -> None:
        """Delete the pod, if present."""
        try:
            self.server.registry.delete(
                PODS, pod.namespace, pod.name, DeleteOptions(grace, pod.uid)
            )
        except StatusError:
            return

    def revise(
        self, pod: PodTruth, change: Callable[[Json], Json], *, status: bool = False
    ) -> bool:
        """Whether the pod was there to be changed."""
        try:
            part = "status" if status else ""
            self.server.registry.revise(PODS, pod.namespace, pod.name, change, part=part)
        except StatusError:
            return False
        return True

    def _end(self, pod: PodTruth, phase: str) -> str:
        self._set_status(pod, phase=phase)
        self.running.pop(pod.uid, None)
        return phase

    def _set_status(self, pod: PodTruth, **status: str) -> None:
        def change(body: Json) -> Json:
            return {**body, "status": {**body["status"], **status}}

        self.revise(pod, change, status=True)

    def _serve(self, pod: PodTruth, cards: Cards, size: int) -> str | None:
        """The uid with the devices for the container; None: no devices."""
        if cards.plugin == "blind":
            return pod.uid
        if cards.plugin == "aliyun" and len(self.slots[pod.node]) == 1:
            return pod.uid
        candidates = sorted(
            (self._order(candidate), candidate.uid)
            for candidate in self.oracle.pods.values()
            if candidate.node == pod.node
            and not (candidate.ended or candidate.assigned or candidate.runs)
            and candidate.claim is not None
            and size in self._unserved(candidate, cards)
        )
        if not candidates:
            return None
        chosen = self.oracle.pods[candidates[0][1]]
        if not pod.by or pod.edited or chosen.edited or self._untold(pod, chosen):
            self.muddled.add(pod.node)
        self.served.setdefault(chosen.uid, []).append(size)
        if cards.plugin == "aliyun" or not self._unserved(chosen, cards):
            self._mark(chosen)
        return chosen.uid

    def _untold(self, pod: PodTruth, candidate: PodTruth) -> bool:
        """Whether who bound the pod had not yet been shown the other, which he did not bind."""
        decision = self.oracle.decisions.get((pod.by, pod.uid))
        return not candidate.by and (decision is None or candidate.uid not in decision.shown_pods)

    def _unserved(self, pod: PodTruth, cards: Cards) -> list[int]:
        if cards.plugin == "aliyun":
            return [sum(pod.asked.containers)]
        remaining_calls = list(pod.asked.calls)
        for size in self.served.get(pod.uid, ()):
            remaining_calls.remove(size)
        return remaining_calls

    def _order(self, pod: PodTruth) -> int:
        text = str(self._body(pod)["metadata"]["annotations"].get(ASSUMED, ""))
        return int(text) if text.isascii() and text.isdigit() else 0

    def _mark(self, pod: PodTruth) -> None:
        def change(body: Json) -> Json:
            annotations = {**body["metadata"].get("annotations", {}), ASSIGNED: "true"}
            return with_metadata(body, annotations=annotations)

        self.revise(pod, change)
        pod.assigned = True

    def _judge(self, pod: PodTruth) -> None:
        """S4: the devices are those of the annotation, although a plug-in cannot tell pods apart.

        Not promised where the process that bound the later one was told that the plug-in can.
        """
        if not (self.pairing and pod.by) or pod.edited or pod.node in self.muddled:
            return
        for uid in self.running[pod.uid]:
            served_pod = self.oracle.pods[uid]
            paired = not self.oracle.later(pod, served_pod).cards.exact
            if paired and not _interchangeable(pod.claim or (), served_pod.claim or ()):
                raise Violation(f"S4 {pod.uid} at {pod.claim} was given {uid}'s {served_pod.claim}")


def _interchangeable(one: Shares, two: Shares) -> bool:
    """Whether containers of one size may be swapped: on one device all are equal."""
    same = [device for device, _ in one] == [device for device, _ in two]
    return same and (len(one) == 1 or one == two)
