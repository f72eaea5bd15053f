"""The nodes' side: kubelets that run pods, device plug-ins that give them devices.

What a container truly holds is only known here: a card, for as long as its pod runs, wherever that
card is counted later. A kubelet tells its plug-in how much, not for which pod; what the plug-in
makes of that is its kind:

own     finds the oldest container of that size, of a Pending pod, that nobody has served, marks its
        pod when all its containers are served, and refuses (the pod fails) where there is none.
aliyun  the original's: finds the oldest Pending pod not marked whose regular containers have that
        size together, marks it; where there is none the container runs without a device. On nodes
        of one device it gives that and marks nothing.
blind   gives the pod what its own annotation says, and marks nothing.
exact   gpushare's own, by its own code (plugin.py): gives the pod the cards whose uuids its
        annotations name, where they name none what is at its indices, and marks it; it refuses
        what it does not know. On its nodes the inventory says so.

All but the last read indices alone: they give what is at that index when they are asked, by the
order in which they count the cards then.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.objects import with_metadata
from gpushare_localcluster.api.resources import PODS
from gpushare_localcluster.api.status import StatusError
from gpushare_localcluster.devices.admission import AdmissionError
from tests.simulation.chance import Chance
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.plugin import OurPlugin, Weather, units_by_card, wrongly_given
from tests.simulation.server import Server
from tests.simulation.truth import ASSIGNED, ASSUMED, Cards, Json, PodTruth, Shares


@dataclass(repr=False)
class Kubelets:
    """All nodes' kubelets. running: uid -> whose devices each container truly holds (a uid), from
    its admission on; it is shown as Running later.

    served: uid -> the sizes of its containers that have been given devices. muddled: nodes where a
    container of somebody else's has taken what was meant for ours; nobody can tell them apart there
    any more. forged: nodes with pods whose annotations somebody has written who should not. cards:
    the devices as the nodes' objects tell them. slots: the cards of each node, as its plug-in
    counts them. memory: units that each kubelet has been told of. sizes: units of each card, sick:
    those that are not well. ours: nodes with our own plug-in.
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
        """Take over how the plug-in of a node counts its cards, and tells them to the kubelet."""
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
        """The pods marked deleted whose containers may be stopped now."""
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
        """The pods that are admitted and not shown as Running: their images are pulled."""
        return [pod for pod in self.started() if not pod.runs]

    def admit(self, pod: PodTruth, chance: Chance | None = None) -> str:
        """Admit the pod, or refuse it; what was done. chance: None where all goes well."""
        cards = self.cards[pod.node]
        if cards.plugin == "exact" and pod.asked.devices:
            return self._admit_by_ours(pod, chance or Chance(0))
        total = sum(self.oracle.pods[uid].asked.total for uid in self.running_on(pod.node))
        if total + pod.asked.total > self.memory[pod.node]:
            return self._end(pod, "Failed")
        inputs = [self._serve(pod, cards, size) for size in pod.asked.calls]
        if cards.plugin == "own" and None in inputs:
            self.muddled.add(pod.node)
            return self._end(pod, "Failed")
        counted_result = self._counted(pod)
        if inputs and not counted_result and cards.plugin == "own":
            return self._end(pod, "Failed")
        self.running[pod.uid] = [uid for uid in inputs if uid is not None]
        self._judge(pod)
        if inputs and set(inputs) == {pod.uid}:
            pod.cards = counted_result
        self._set_status(pod, startTime="2026-01-01T00:00:01Z")
        return "admitted"

    def _admit_by_ours(self, pod: PodTruth, chance: Chance) -> str:
        """Admit the pod on a node with our own plug-in, or refuse it. Raises Violation."""
        plugin, weather = self._ours(pod.node, chance), Weather.of(chance)
        remaining_items = [
            self._body(item)
            for item in self.admissible()
            if item.node == pod.node and item is not pod and item.asked.devices
        ]
        wanted_result, free = self._wanted(pod), plugin.free()
        try:
            serve_result = plugin.serve(self._body(pod), remaining_items, weather)
        except AdmissionError as error:
            plugin.remove(pod.uid)
            present = (
                bool(wanted_result) and wanted_result.keys() <= free.keys() - self.sick[pod.node]
            )
            if (
                present
                and weather.fair
                and self._certain(pod)
                and "devices unavailable" not in str(error)
            ):
                raise Violation(f"L3 {pod.uid} is refused by its plug-in: {error}") from error
            return self._end(pod, "Failed")
        self.running[pod.uid] = [pod.uid] * len(serve_result)
        union_result = frozenset().union(*(item.told for item in serve_result.values()))
        pod.cards = (
            wanted_result
            if union_result == wanted_result.keys()
            else units_by_card(serve_result.values())
        )
        if self._certain(pod):
            # The kubelet takes any ids of an init container for those after it.
            own_ids = not pod.asked.inits and all(
                free.get(card, 0) >= units for card, units in wanted_result.items()
            )
            wrong = wrongly_given(pod, wanted_result, serve_result.values(), own_ids=own_ids)
            if wrong:
                raise Violation(
                    f"S4 {pod.uid} at {wanted_result} of {pod.node}: {wrong}: {serve_result}"
                )
        if any(
            item & self.sick[pod.node] for item in (item.told for item in serve_result.values())
        ):
            raise Violation(f"S4 {pod.uid} is given a sick card: {serve_result}")
        if not plugin.complete(self._body(pod)):
            raise Violation(f"S4 {pod.uid} is served and would not be marked")
        self._mark(pod)
        self._set_status(pod, startTime="2026-01-01T00:00:01Z")
        return f"admitted, {serve_result}"

    def _ours(self, node: str, chance: Chance) -> OurPlugin:
        """Our plug-in on the node, which knows what is on record there; it may have begun anew."""
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
        """Units by card of what its annotations name, by uuid, else by index; {} as below."""
        slots = self.slots[pod.node]
        if pod.uuids:
            return pod.asked.on_cards(pod.uuids) if set(pod.uuids) <= set(slots) else {}
        return self._counted(pod)

    @staticmethod
    def _certain(pod: PodTruth) -> bool:
        """Whether its annotations are those of a Binding of ours, and its spec makes sense."""
        return bool(pod.by) and not pod.edited and not pod.forged

    def _body(self, pod: PodTruth) -> Json:
        return self.server.registry.get(PODS, pod.namespace, pod.name).body

    def _read(self, name: str) -> Json:
        """The pod of that name; no two namespaces have pods of one name here."""
        return self._body(next(pod for pod in self.oracle.pods.values() if pod.name == name))

    def _counted(self, pod: PodTruth) -> dict[str, int]:
        """Units by card at the indices of its annotations, as the plug-in counts; {} where one has
        none.
        """
        slots = self.slots[pod.node]
        claim = pod.claim or ()
        present = all(device < len(slots) for device, _ in claim)
        return {slots[device]: units for device, units in claim} if present else {}

    def start(self, pod: PodTruth) -> str:
        """Its containers have started."""
        self._set_status(pod, phase="Running")
        return "runs"

    def running_on(self, node: str) -> list[str]:
        """The uids of the pods that run there."""
        pods = self.oracle.pods
        return [uid for uid in self.running if pods[uid].node == node and not pods[uid].ended]

    def reboot(self, node: str, chance: Chance) -> None:
        """Containers end; those that are started again keep the cards that their pods have."""
        for uid in self.running_on(node):
            if chance.below(2):
                self._end(self.oracle.pods[uid], "Failed")

    def finish(self, pod: PodTruth, phase: str) -> str:
        """Its containers have ended."""
        return self._end(pod, phase)

    def stop(self, pod: PodTruth) -> str:
        """Its containers are stopped: the pod may go."""
        self.delete(pod, 0)
        return "gone"

    def delete(self, pod: PodTruth, grace: int | None) -> None:
        """Delete the pod, if it is there still."""
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
        """Whose devices the container gets; None: none at all."""
        if cards.plugin == "blind":
            return pod.uid
        if cards.plugin == "aliyun" and len(self.slots[pod.node]) == 1:
            return pod.uid
        waiting_pods = sorted(
            (self._order(item), item.uid)
            for item in self.oracle.pods.values()
            if item.node == pod.node
            and not (item.ended or item.assigned or item.runs)
            and item.claim is not None
            and size in self._unserved(item, cards)
        )
        if not waiting_pods:
            return None
        chosen = self.oracle.pods[waiting_pods[0][1]]
        if not pod.by or pod.edited or chosen.edited or self._untold(pod, chosen):
            self.muddled.add(pod.node)
        self.served.setdefault(chosen.uid, []).append(size)
        if cards.plugin == "aliyun" or not self._unserved(chosen, cards):
            self._mark(chosen)
        return chosen.uid

    def _untold(self, pod: PodTruth, other: PodTruth) -> bool:
        """Whether who bound the pod had not yet been shown the other, which he did not bind."""
        decision = self.oracle.decisions.get((pod.by, pod.uid))
        return not other.by and (decision is None or other.uid not in decision.shown)

    def _unserved(self, pod: PodTruth, cards: Cards) -> list[int]:
        if cards.plugin == "aliyun":
            return [sum(pod.asked.containers)]
        remaining = list(pod.asked.calls)
        for size in self.served.get(pod.uid, ()):
            remaining.remove(size)
        return remaining

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
            second = self.oracle.pods[uid]
            paired = not self.oracle.later(pod, second).cards.exact
            if paired and not _interchangeable(pod.claim or (), second.claim or ()):
                raise Violation(f"S4 {pod.uid} at {pod.claim} was given {uid}'s {second.claim}")


def _interchangeable(one: Shares, shares: Shares) -> bool:
    """Whether containers of one size may be swapped: on one device they weigh alike."""
    same = [device for device, _ in one] == [device for device, _ in shares]
    return same and (len(one) == 1 or one == shares)
