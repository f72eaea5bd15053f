"""Stories of pods that wait between filter and bind: PodGroups of Kubernetes, late volumes.

A small kube-scheduler asks real verbs over real books, in virtual time. What filter has refused it
asks about again when something happens in the cluster, our own writes on nodes among it, and never
because time passes: its five minutes are longer than any story. Processes end and others lead in
between; what they knew alone is lost. All pods ask for the same, so how many places there
are can be counted without any code of ours, and nobody's choice of a device spoils another's.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from gpushare.extender.follow.wake import SchedulerWaker
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.service import Service
from gpushare.extender.verbs.bind.binder import Binder
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
"""Seconds after which kube-scheduler gives up a pod that waits for its volume."""
_MOST_ASKED = 7
"""Times that a pod is asked about, each second: longer than a pod without volumes holds a place."""
_IDX = "ALIYUN_COM_GPU_MEM_IDX"

Json = dict[str, Any]


class Process:
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
            best_only=True,
            bind_slots=BindSlots(8),
            observe=lambda *_: None,
            clock=world.api.clock,
        )
        nodes = ScriptedApi(forever=world.on_write)
        self.waker = SchedulerWaker(nodes, self.resources, lambda: True, world.api.clock)
        self.watch.replace([page(PODS, *world.pods.values())], world.api.now)


@dataclass
class HeldStory:
    """A cluster, our processes, and kube-scheduler. nominates: it is 1.35 or later.

    waits: node by pod, of those that are assumed and not bound; since when. groups: members by
    name. hopeless: groups that kube-scheduler gives up each time after filter. refused: pods and
    groups that it has set aside until something happens. shaken: whether a process has ended or
    lost the lead while something waited.
    """

    nominates: bool
    api: ScriptedApi = field(default_factory=ScriptedApi)
    pods: dict[str, Json] = field(default_factory=dict)
    waits: dict[str, tuple[str, float]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    hopeless: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    shaken: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    _made: int = 0
    _ticked: float = 0.0

    def __post_init__(self) -> None:
        self.leader, self.follower = Process(self), Process(self)

    # -- what happens -----------------------------------------------------------------------------

    def step(self, chance: Chance) -> None:
        """One step of the story, and its judgement."""
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
        """A write of ours on a node: kube-scheduler looks again at what it has set aside."""
        if all(map(self._node, self.pods)):
            raise Violation(f"H5 {call.path} is written, and every pod is bound")
        self._count("woken")
        self.refused.clear()
        return b"{}"

    def _pass(self, chance: Chance) -> None:
        self.api.now += chance.pick((0.2, 0.5, 1.0, 3.0, 10.0))

    def _plain(self, chance: Chance) -> None:
        # An idle one is approved and never bound, as if it had to wait for something for ever.
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
        self.leader = Process(self)
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
        """The pods and PodGroups that wait; aside: those too that it has set aside."""
        waiting = [name for name in self.pods if name not in self.waits and not self._node(name)]
        found = {_group_of(n) if n.startswith("group") else n for n in waiting}
        return sorted(found if aside else found - self.refused)

    def _try(self, name: str, chance: Chance) -> None:
        if name.startswith("group"):
            self._try_group(name, chance)
            return
        found = self._filter(name)
        if not found or name.startswith("idle"):
            return
        if name.startswith("plain"):
            if not chance.once_in(6):  # else a plug-in refuses it in Reserve, without any call
                self._assume(name, found)
                self._bind(name)
            return
        self._assume(name, found)
        self._nominate(name, found)

    def _try_group(self, name: str, chance: Chance) -> None:
        """Filter for each member before the first bind; one that is refused has none bound."""
        members = [each for each in self.groups[name] if each in self.pods]
        if len(members) < len(self.groups[name]) or any(map(self._node, members)):
            return
        for member in members:
            found = self._filter(member)
            if not found:
                break
            self._assume(member, found)
        whole = all(member in self.waits for member in members)
        if not whole or name in self.hopeless:
            for member in members:
                self.waits.pop(member, None)
            return
        if chance.once_in(8):
            self._restart(chance)
        for member in members:
            self._bind(member)
        bound = [member for member in members if self._node(member)]
        if not self.shaken and len(bound) < len(members):
            raise Violation(f"H3 of {members} only {bound} are bound")

    def _filter(self, name: str) -> str:
        """The node that filter names, or ""; asked about nodes whose sums have room."""
        names = [
            each
            for each, cards in NODES.items()
            if (len(self._on(each)) + 1) * UNITS <= cards * CARD
        ]
        self.refused.add(_group_of(name) if name.startswith("group") else name)
        if not names:
            return ""
        answer = json.loads(self.leader.service.filter(request(self.pods[name], names)))
        if answer["Error"]:
            raise Violation(f"H0 {answer}")
        self._count("fit" if answer["NodeNames"] else "refused")
        if not answer["NodeNames"]:
            return ""
        self.refused.discard(_group_of(name) if name.startswith("group") else name)
        return str(answer["NodeNames"][0])

    def _assume(self, name: str, node_name: str) -> None:
        self.waits[name] = (node_name, self.api.now)

    def _nominate(self, name: str, node_name: str) -> None:
        if self.nominates:
            self.pods[name]["status"]["nominatedNodeName"] = node_name
            self._show(name)

    def _give_up(self, name: str) -> None:
        self.waits.pop(name)
        self.refused.clear()
        if self.pods[name]["status"].pop("nominatedNodeName", None):
            self._show(name)

    def _bind(self, name: str) -> None:
        where, _ = self.waits.pop(name)
        # Before 1.35 nothing says that a pod still waits, and what is held for it lapses.
        lapses = not self.nominates and not self._held(name)
        sent: list[Call] = []

        def land(call: Call) -> bytes:
            sent.append(call)
            return BOUND

        self.api.answers = [land]
        self.api.forever = json.dumps(self.pods[name]).encode()
        error = json.loads(self.leader.service.bind(bind_request(self.pods[name], where)))["Error"]
        self._count("refused bind" if error else "bound")
        if error or self.nominates:  # 1.22 asks about no other pod when one was bound
            self.refused.clear()
        if error:
            if not self.shaken and not lapses:
                raise Violation(f"H4 the bind of {name} to {where} is refused: {error}")
            self.pods[name]["status"].pop("nominatedNodeName", None)
        else:
            body = next(call for call in sent if call.path.endswith("/binding")).document
            self.pods[name]["spec"]["nodeName"] = where
            self.pods[name]["metadata"]["annotations"] |= body["metadata"]["annotations"]
            self.pods[name]["status"].pop("nominatedNodeName", None)
        self._show(name)

    def _held(self, name: str) -> bool:
        live = self.leader.managed.holds.live()
        return any(hold.pod.ref.name == name for hold in live)

    def _expire(self) -> None:
        """What kube-scheduler gives up by time."""
        for name, (_, since) in sorted(self.waits.items()):
            if name in self.waits and self.api.now >= since + LONGEST:
                self._count("given up")
                self._give_up(name)

    # -- the cluster ------------------------------------------------------------------------------

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _create(self, name: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
        made = pod_json(name, UNITS)
        made["metadata"]["labels"] = labels or {}
        made["spec"] |= spec
        self.pods[name] = made
        self._show(name)

    def _gone(self, name: str) -> None:
        if self.waits.pop(name, None) or self._node(name):
            self.refused.clear()
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
        bound = [name for name in self.pods if self._node(name) == node_name]
        return bound + [name for name, (where, _) in self.waits.items() if where == node_name]

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- the judge --------------------------------------------------------------------------------

    def _judge_devices(self) -> None:
        held: set[tuple[str, str]] = set()
        for name, body in self.pods.items():
            place = self._node(name), body["metadata"]["annotations"].get(_IDX, "")
            if place[0] and place in held:
                raise Violation(f"H1 {name} is on {place} with another pod")
            held.add(place)

    def judge_end(self) -> None:
        """Nobody waits while a place is free longer than a hold lasts, whatever groups go on."""
        chance = Chance(0)
        waiting = [name for name in self._queue() if name.startswith("plain")]
        for _ in range(60):
            self.api.now += 1.5
            self._expire()
            for name in sorted(self.hopeless):
                if self._queue(aside=False).count(name):
                    self._try(name, chance)
            self.api.now += 1.5 if not self.nominates else FLOOR
            self._tick()
            for name in waiting:
                if name in self._queue(aside=False):
                    # Twice, as with a nominated node: its own hold is not in its way.
                    self._filter(name)
                    self._try(name, chance)
        free = sum(max(cards - len(self._on(each)), 0) for each, cards in NODES.items())
        left = [name for name in waiting if not self._node(name)]
        if free and left:
            raise Violation(f"H2 {left} wait, and {free} places are free")
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
        for other in idle:
            self._create(other)
        found = ""
        for _ in range(_MOST_ASKED):
            for other in idle:
                self._filter(other)
            found = found or self._filter(name)
            self.api.now += 1.0
        for other in idle:
            self._gone(other)
        return bool(found)


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
