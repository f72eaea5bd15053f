"""Stories of pods that wait between filter and bind: PodGroups of Kubernetes, late volumes.

A small kube-scheduler calls real verbs over real books, in virtual time. kube-scheduler retries a
pod that filter refused when something happens in the cluster, including our writes on nodes, and
never because of time: the five minutes are longer than any story. Processes end and others lead in
between; the state of an ended process is lost. All pods ask for the same, so the number of places
are can be counted without any code of ours, and nobody's choice of a device spoils another's.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from gpushare.extender.follow.wake import SchedulerWaker
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.service import Service
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.filter import FilterOptions
from gpushare.extender.verbs.holds import FLOOR
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.wire.objects import PODS
from tests.simulation.chance import Chance, Weighted
from tests.simulation.oracle import Violation
from tests.support.scripted_api import BOUND, Call, ScriptedApi
from tests.unit.core.clusters import node
from tests.unit.extender.follow.test_watch_handlers import event, page
from tests.unit.extender.kit import managed_resources, pod_json
from tests.unit.extender.scripted_extender import bind_request, request

UNITS, CARD = 10, 16
"""One pod on each device."""
NODES = {"n0": 2, "n1": 2, "n2": 1}
LONGEST = 20.0
"""Seconds after which kube-scheduler gives up a pod that waits for a volume."""
_MAX_RETRIES = 7
"""Times that a pod is asked about, each second: longer than a pod without volumes holds a place."""
_IDX = "ALIYUN_COM_GPU_MEM_IDX"

Json = dict[str, Any]


class HeldProcess:
    """One of our processes: verbs, books and holds, filled by a list and a watch."""

    def __init__(self, world: "HeldStory") -> None:
        self.resources = managed_resources()
        (self.managed,) = self.resources
        self.managed.holds.nominates = world.nominates
        self.managed.ledger.replace_nodes(
            [node(name, *[CARD] * cards) for name, cards in NODES.items()]
        )
        self.watch = PodEventHandler(self.resources, clock=world.api.clock)
        self.service = Service(
            self.resources,
            Binder(world.api, self.resources, lambda: float("inf"), world.api.clock),
            not_ready=str,
            filter_options=FilterOptions(best_only=True),
            bind_slots=BindSlots(8),
            clock=world.api.clock,
        )
        nodes = ScriptedApi(forever=world.on_write)
        self.waker = SchedulerWaker(nodes, self.resources, lambda: True, world.api.clock)
        self.watch.replace([page(PODS, *world.pods.values())], world.api.now)


@dataclass
class HeldStory:
    """A cluster, our processes, and kube-scheduler. nominates: version 1.35 or later.

    waits: node by pod, of those that are assumed and not bound; since when. groups: members by
    name. hopeless: groups that kube-scheduler gives up each time after filter. refused: pods and
    groups that kube-scheduler has set aside until an event. shaken: whether a process has ended or
    lost the lead while something waited.
    """

    nominates: bool
    api: ScriptedApi = field(default_factory=ScriptedApi)
    pods: dict[str, Json] = field(default_factory=dict)
    waits: dict[str, tuple[str, float]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    hopeless: set[str] = field(default_factory=set)
    refused_names: set[str] = field(default_factory=set)
    shaken: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    _pod_count: int = 0
    _ticked: float = 0.0

    def __post_init__(self) -> None:
        self.leader, self.follower = HeldProcess(self), HeldProcess(self)

    # -- events ---------------------------------------------------------------------------------

    def step(self, chance: Chance) -> None:
        """One step of the story, and the checks."""
        name = _STEPS.draw(chance)
        getattr(self, f"_{name}")(chance)
        self.api.now += 0.05
        self._expire()
        self._tick()
        self._judge_devices()

    def _tick(self) -> None:
        """Our own thread that looks once a second."""
        if self.api.now >= self._ticked + 1.0:
            self._ticked = self.api.now
            self.leader.waker.tick(is_ready=True)
            self.follower.waker.tick(is_ready=False)

    def on_write(self, call: Call) -> bytes:
        """Our write on a node: kube-scheduler retries the pods set aside."""
        if all(map(self._node, self.pods)):
            raise Violation(f"H5 {call.path} is written, and every pod is bound")
        self._count("woken")
        self.refused_names.clear()
        return b"{}"

    def _pass(self, chance: Chance) -> None:
        self.api.now += chance.pick((0.2, 0.5, 1.0, 3.0, 10.0))

    def _plain(self, chance: Chance) -> None:
        # An idle pod is approved and never bound, as if it waited for ever for a plug-in.
        kind = "idle" if chance.once_in(5) else "plain"
        self._create(f"{kind}{self._number()}")

    def _slow(self, chance: Chance) -> None:
        claim = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
        self._create(f"slow{self._number()}", volumes=claim)

    def _group(self, chance: Chance) -> None:
        name = f"group{self._number()}"
        self.groups[name] = [f"{name}-{n}" for n in range(2 + chance.below(2))]
        if chance.once_in(3):
            self.hopeless.add(name)
        for pod in self.groups[name]:
            self._create(pod, schedulingGroup={"podGroupName": name})

    def _volume(self, chance: Chance) -> None:
        slow = [name for name in self.waits if name.startswith("slow")]
        if slow:
            self._bind(chance.pick(slow))

    def _delete(self, chance: Chance) -> None:
        if self.pods:
            self._gone(chance.pick(sorted(self.pods)))

    def _restart(self, chance: Chance) -> None:
        self.leader = HeldProcess(self)
        self.shaken = self.shaken or bool(self.waits)

    def _lead(self, chance: Chance) -> None:
        self.leader, self.follower = self.follower, self.leader
        self.shaken = self.shaken or bool(self.waits)

    def _schedule(self, chance: Chance) -> None:
        """kube-scheduler takes the next pod, or a whole PodGroup."""
        queue = self._queue(aside=False)
        if queue:
            self._try(chance.pick(queue), chance)

    # -- kube-scheduler ---------------------------------------------------------------------------

    def _queue(self, *, aside: bool = True) -> list[str]:
        """The pods and PodGroups that wait; aside: include those set aside."""
        waiting_names = [
            name for name in self.pods if name not in self.waits and not self._node(name)
        ]
        queue = {_group_of(n) if n.startswith("group") else n for n in waiting_names}
        return sorted(queue if aside else queue - self.refused_names)

    def _try(self, name: str, chance: Chance) -> None:
        if name.startswith("group"):
            self._try_group(name, chance)
            return
        node_name = self._filter(name)
        if not node_name or name.startswith("idle"):
            return
        if name.startswith("plain"):
            if not chance.once_in(6):  # else a plug-in refuses it in Reserve, without any call
                self._assume(name, node_name)
                self._bind(name)
            return
        self._assume(name, node_name)
        self._nominate(name, node_name)

    def _try_group(self, name: str, chance: Chance) -> None:
        """Filter for each member before the first bind; one that is refused has none bound."""
        members = [pod_name for pod_name in self.groups[name] if pod_name in self.pods]
        if len(members) < len(self.groups[name]) or any(map(self._node, members)):
            return
        for member in members:
            node_name = self._filter(member)
            if not node_name:
                break
            self._assume(member, node_name)
        whole = all(member in self.waits for member in members)
        if not whole or name in self.hopeless:
            for member in members:
                self.waits.pop(member, None)
            return
        if chance.once_in(8):
            self._restart(chance)
        for member in members:
            self._bind(member)
        bound_members = [member for member in members if self._node(member)]
        if not self.shaken and len(bound_members) < len(members):
            raise Violation(f"H3 of {members} only {bound_members} are bound")

    def _filter(self, name: str) -> str:
        """The node that filter names, or ""; the call has the nodes with room by sums."""
        names = [
            node_name
            for node_name, cards in NODES.items()
            if (len(self._on(node_name)) + 1) * UNITS <= cards * CARD
        ]
        self.refused_names.add(_group_of(name) if name.startswith("group") else name)
        if not names:
            return ""
        answer = json.loads(self.leader.service.filter(request(self.pods[name], names)))
        if answer["Error"]:
            raise Violation(f"H0 {answer}")
        self._count("fit" if answer["NodeNames"] else "refused")
        if not answer["NodeNames"]:
            return ""
        self.refused_names.discard(_group_of(name) if name.startswith("group") else name)
        return str(answer["NodeNames"][0])

    def _assume(self, name: str, node_name: str) -> None:
        self.waits[name] = (node_name, self.api.now)

    def _nominate(self, name: str, node_name: str) -> None:
        if self.nominates:
            self.pods[name]["status"]["nominatedNodeName"] = node_name
            self._show(name)

    def _give_up(self, name: str) -> None:
        self.waits.pop(name)
        self.refused_names.clear()
        if self.pods[name]["status"].pop("nominatedNodeName", None):
            self._show(name)

    def _bind(self, name: str) -> None:
        target, _ = self.waits.pop(name)
        # Before 1.35 nothing says that a pod still waits, and the hold for that pod expires.
        lapses = not self.nominates and not self._held(name)
        calls: list[Call] = []

        def land(call: Call) -> bytes:
            calls.append(call)
            return BOUND

        self.api.answers = [land]
        self.api.forever = json.dumps(self.pods[name]).encode()
        error = json.loads(self.leader.service.bind(bind_request(self.pods[name], target)))["Error"]
        self._count("refused bind" if error else "bound")
        if error or self.nominates:  # 1.22 asks about no other pod when one was bound
            self.refused_names.clear()
        if error:
            if not self.shaken and not lapses:
                raise Violation(f"H4 the bind of {name} to {target} is refused: {error}")
            self.pods[name]["status"].pop("nominatedNodeName", None)
        else:
            body = next(call for call in calls if call.path.endswith("/binding")).document
            self.pods[name]["spec"]["nodeName"] = target
            self.pods[name]["metadata"]["annotations"] |= body["metadata"]["annotations"]
            self.pods[name]["status"].pop("nominatedNodeName", None)
        self._show(name)

    def _held(self, name: str) -> bool:
        live = self.leader.managed.holds.live()
        return any(hold.pod.ref.name == name for hold in live)

    def _expire(self) -> None:
        """The pods that kube-scheduler gives up because of time."""
        for name, (_, since) in sorted(self.waits.items()):
            if name in self.waits and self.api.now >= since + LONGEST:
                self._count("given up")
                self._give_up(name)

    # -- the cluster ------------------------------------------------------------------------------

    def _number(self) -> int:
        self._pod_count += 1
        return self._pod_count

    def _create(self, name: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
        body = pod_json(name, UNITS)
        body["metadata"]["labels"] = labels or {}
        body["spec"] |= spec
        self.pods[name] = body
        self._show(name)

    def _gone(self, name: str) -> None:
        if self.waits.pop(name, None) or self._node(name):
            self.refused_names.clear()
        deleted = self.pods.pop(name)
        for process in (self.leader, self.follower):
            process.watch.apply(event(PODS, "DELETED", deleted))

    def _show(self, name: str) -> None:
        for process in (self.leader, self.follower):
            process.watch.apply(event(PODS, "MODIFIED", self.pods[name]))

    def _node(self, name: str) -> str:
        return str(self.pods[name]["spec"]["nodeName"]) if name in self.pods else ""

    def _on(self, node_name: str) -> list[str]:
        """The pods that have a place on the node, or wait for one there."""
        bound_names = [name for name in self.pods if self._node(name) == node_name]
        return bound_names + [
            name for name, (target, _) in self.waits.items() if target == node_name
        ]

    def _count(self, happening: str) -> None:
        self.counts[happening] = self.counts.get(happening, 0) + 1

    # -- the judge --------------------------------------------------------------------------------

    def _judge_devices(self) -> None:
        taken_devices: set[tuple[str, str]] = set()
        for name, body in self.pods.items():
            place = self._node(name), body["metadata"]["annotations"].get(_IDX, "")
            if place[0] and place in taken_devices:
                raise Violation(f"H1 {name} is on {place} with another pod")
            taken_devices.add(place)

    def judge_end(self) -> None:
        """Nobody waits while a place is free longer than a hold lasts, whatever groups go on."""
        chance = Chance(0)
        plain_names = [name for name in self._queue() if name.startswith("plain")]
        for _ in range(60):
            self.api.now += 1.5
            self._expire()
            for name in sorted(self.hopeless):
                if self._queue(aside=False).count(name):
                    self._try(name, chance)
            self.api.now += 1.5 if not self.nominates else FLOOR
            self._tick()
            for name in plain_names:
                if name in self._queue(aside=False):
                    # Twice, as with a nominated node: the pod's own hold does not exclude the pod.
                    self._filter(name)
                    self._try(name, chance)
        free = sum(max(cards - len(self._on(node_name)), 0) for node_name, cards in NODES.items())
        unbound_names = [name for name in plain_names if not self._node(name)]
        if free and unbound_names:
            raise Violation(f"H2 {unbound_names} wait, and {free} places are free")
        ended = [name for name in self.pods if self._node(name) and name.startswith("plain")][:1]
        for name in ended:
            self._gone(name)
        if ended:
            late = f"late{self._number()}"
            self._create(late)
            if not self._offered_beside_idle(late, free + 1):
                raise Violation(f"H2 {late} is kept out of a place by what nobody binds")
        self._judge_devices()

    def _offered_beside_idle(self, name: str, free: int) -> bool:
        """Whether the pod is offered a place in time though idle ones are, again and again."""
        idle = [f"idle{self._number()}" for _ in range(free)]
        for idle_node in idle:
            self._create(idle_node)
        offered_node = ""
        for _ in range(_MAX_RETRIES):
            for idle_node in idle:
                self._filter(idle_node)
            offered_node = offered_node or self._filter(name)
            self.api.now += 1.0
        for idle_node in idle:
            self._gone(idle_node)
        return bool(offered_node)


def _group_of(name: str) -> str:
    return name.rpartition("-")[0]


_STEPS = Weighted(
    {
        "schedule": 30,
        "pass": 6,
        "plain": 6,
        "slow": 3,
        "group": 2,
        "volume": 4,
        "delete": 5,
        "restart": 1,
        "lead": 1,
    }
)
