"""Stories of groups of pods that wait for each other at bind.

A small kube-scheduler asks real verbs over real books, in virtual time: filter for one pod after
the other, bind for each pod by itself. Watches lag. Pods are deleted, evicted, end by themselves,
and come again; the name of a group is used again with another size; nodes are cordoned; Bindings
are refused; processes are killed, lose the lead or stop while pods wait. All pods with a device ask
for the same, and a node has room for a count of pods, so places can be counted without our code.

Promises: G1 no two pods on one device. G2 of a group never some are bound and some not, once the
writes of a step are over, unless a pod of the group was deleted, ended or refused by the API server
since the first was bound. G3 when nothing happens any more, no group waits while all pods have
room. G4 no charge is left of pods that are not bound. G5 each bind gets one answer, in time.
"""

import json
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import ApiError, ApiNotFound
from gpushare.extender.follow.wake import SchedulerWaker
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.service import Service
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare.extender.verbs.filter import FilterOptions
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
NODES = {"n0": 2, "n1": 2, "n2": 2}
WAIT = 3.0
_IDX = "ALIYUN_COM_GPU_MEM_IDX"
_GROUP = "scheduling.x-k8s.io/pod-group"
_LEAST = "pod-group.scheduling.sigs.k8s.io/min-available"

Json = dict[str, Any]


class GateProcess:
    """One of our processes: verbs, books and gate, filled by a list and a watch."""

    def __init__(self, world: "GateStory") -> None:
        self.world = world
        self.leads = True
        self.resources = managed_resources()
        (self.managed,) = self.resources
        self.managed.holds.nominates = True
        self.managed.ledger.replace_nodes(
            [node(name, *[CARD] * cards) for name, cards in NODES.items()]
        )
        self.resources.gate.wait = WAIT
        self.watch = PodEventHandler(self.resources, clock=world.api.clock)
        self.waker = SchedulerWaker(
            ScriptedApi(forever=world.on_wake), self.resources, lambda: True, world.api.clock
        )
        self.binder = Binder(
            world.api,
            self.resources,
            lambda: world.api.now + (2 * BUDGET if self.leads else -1.0),
            world.api.clock,
            room_on=self.waker.room_on,
        )
        self.service = Service(
            self.resources,
            self.binder,
            not_ready=str,
            filter_options=FilterOptions(best_only=True),
            bind_slots=BindSlots(8),
            clock=world.api.clock,
        )
        self.unseen: list[tuple[str, Json]] = []
        """Changes that the watch has yet to deliver."""
        self.watch.replace([page(PODS, *world.pods.values())], world.api.now)

    def look(self) -> None:
        """The work of the gate's thread."""
        self.binder.guard_gate(0.0)

    def catch_up(self, max_events: int = 1_000_000) -> None:
        """Have the watch show so many events."""
        for _ in range(min(max_events, len(self.unseen))):
            kind, body = self.unseen.pop(0)
            self.watch.apply(event(PODS, kind, body))
            self.binder.open_gate()


@dataclass
class Group:
    """A group as the controller makes it."""

    name: str
    size: int
    generation: int
    priority: int = 0
    excused: bool = False
    """A pod was deleted, has ended, or was refused since the first one was bound, or the leader has
    not been shown yet that all are gone."""


@dataclass
class GateStory:
    """A cluster, our processes, and kube-scheduler.

    waits: by pod, the node, since when, and the answer that is to come.
    """

    api: ScriptedApi = field(default_factory=ScriptedApi)
    pods: dict[str, Json] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    waits: dict[str, tuple[str, float, Future[bytes]]] = field(default_factory=dict)
    cordoned: set[str] = field(default_factory=set)
    refused_names: set[str] = field(default_factory=set)
    backoff: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    refuse_next: bool = False
    _pod_count: int = 0
    _ticked: float = 0.0

    def __post_init__(self) -> None:
        self.api.forever = self.on_call
        self.leader, self.follower = GateProcess(self), GateProcess(self)
        self.follower.leads = False

    # -- events ---------------------------------------------------------------------------------

    def step(self, chance: Chance) -> None:
        """One step of the story, and the checks."""
        getattr(self, f"_{_STEPS.draw(chance)}")(chance)
        self.pass_time(0.02)
        self.judge()

    def pass_time(self, seconds: float) -> None:
        self.api.now += seconds
        self.leader.look()
        self.follower.look()
        self._take_answers()
        if self.api.now >= self._ticked + 1.0:
            self._ticked = self.api.now
            self.leader.binder.settle_overdue()
            self.leader.waker.tick(is_ready=True)
            self.follower.waker.tick(is_ready=False)

    def _pass(self, chance: Chance) -> None:
        self.pass_time(chance.pick((0.2, 0.5, 1.0, 2.0)))

    def _watch(self, chance: Chance) -> None:
        chance.pick((self.leader, self.follower)).catch_up(1 + chance.below(8))

    def _group(self, chance: Chance) -> None:
        if len(self.groups) < 6:
            size = 2 + chance.below(3)
            priority = 5 if chance.once_in(5) else 0
            self.make_group(f"g{self._number()}", size, chance.below(2), priority)

    def _plain(self, chance: Chance) -> None:
        del chance
        if sum(name.startswith("plain") for name in self.pods) < 3:
            self._create(f"plain{self._number()}")

    def _again(self, chance: Chance) -> None:
        """The pods of a group are deleted, and the name of the group is used again."""
        if self.groups:
            group = self.groups[chance.pick(sorted(self.groups))]
            for name in self.members_of(group):
                self._gone(name)
            size = 2 + chance.below(4)
            self.make_group(group.name, size, chance.below(2), group.priority)

    def _complete(self, chance: Chance) -> None:
        """The controller of a group creates the missing pods."""
        for group in self.groups.values():
            while len(self.members_of(group)) < group.size:
                self._member(group)
        del chance

    def _delete(self, chance: Chance) -> None:
        if self.pods:
            self._gone(chance.pick(sorted(self.pods)))

    def _end(self, chance: Chance) -> None:
        """A pod succeeds: the watch, which selects pods that have not ended, reports a deletion."""
        limit = sorted(name for name in self.pods if self._node(name))
        if limit:
            self._gone(chance.pick(limit), ended=True)

    def _forget_group(self, chance: Chance) -> None:
        if self.groups:
            group = self.groups.pop(chance.pick(sorted(self.groups)))
            for name in self.members_of(group):
                self._gone(name)

    def _cordon(self, chance: Chance) -> None:
        name = chance.pick(sorted(NODES))
        if name in self.cordoned:
            self.cordoned.discard(name)
            self.refused_names.clear()
        elif not self.cordoned:
            self.cordoned.add(name)

    def _refuse(self, chance: Chance) -> None:
        del chance
        self.refuse_next = True

    def _kill(self, chance: Chance) -> None:
        """The process ends: nobody answers the binds that wait."""
        del chance
        self._count("killed with waits" if self.waits else "killed")
        for name in list(self.waits):
            self._forget_bind(name)
        self.leader = GateProcess(self)

    def _lead(self, chance: Chance) -> None:
        """The other process leads; the pods that wait at the old leader are turned back."""
        del chance
        self._count("lead lost with waits" if self.waits else "lead lost")
        self.leader.leads = False
        self.pass_time(0.0)
        self.leader, self.follower = self.follower, self.leader
        # As after a change of leader: pods are listed once more before the first answer.
        self.leader.unseen.clear()
        self.leader.watch.replace([page(PODS, *self.pods.values())], self.api.now)
        self.leader.leads = True

    def _stop(self, chance: Chance) -> None:
        """The process stops by itself, and another begins."""
        del chance
        self.leader.resources.gate.stop()
        self.leader.binder.open_gate()
        self._take_answers()
        if self.waits:
            raise Violation(f"G5 {sorted(self.waits)} have no answer when the process stops")
        self.leader = GateProcess(self)

    def _schedule(self, chance: Chance) -> None:
        queue = self.queue()
        if queue:
            self.try_pod(chance.pick(queue))

    # -- kube-scheduler ---------------------------------------------------------------------------

    def queue(self) -> list[str]:
        return sorted(
            name
            for name in self.pods
            if not self._node(name)
            and name not in self.waits
            and name not in self.refused_names
            and self.backoff.get(name, 0.0) <= self.api.now
        )

    def try_pod(self, name: str) -> None:
        names = [
            node_name
            for node_name, cards in NODES.items()
            if node_name not in self.cordoned
            and ("launcher" in name or len(self._on(node_name)) < cards)
        ]
        self.refused_names.add(name)
        if not names:
            return
        answer = json.loads(self.leader.service.filter(request(self.pods[name], names)))
        if answer["Error"]:
            raise Violation(f"G0 {answer}")
        if not answer["NodeNames"]:
            self._count("refused")
            return
        self.refused_names.discard(name)
        target = str(answer["NodeNames"][0])
        began = self.leader.service.begin_bind(bind_request(self.pods[name], target))
        if isinstance(began, bytes):
            future: Future[bytes] = Future()
            future.set_result(began)
        else:
            future = began
            self._count("waited")
        self.waits[name] = (target, self.api.now, future)
        self._take_answers()

    def _take_answers(self) -> None:
        for name, (target, since, future) in sorted(self.waits.items()):
            if not future.done():
                if self.api.now > since + WAIT + BUDGET:
                    raise Violation(f"G5 the bind of {name} has no answer in time")
                continue
            error = json.loads(future.result())["Error"]
            if error:
                self._count("bind refused")
                self._forget_bind(name)
            else:
                del self.waits[name]
                self._count("bound")
                if name in self.pods and self._node(name) != target:
                    raise Violation(f"G5 {name} is said to be bound to {target}, and is not")

    def _forget_bind(self, name: str) -> None:
        """kube-scheduler forgets the pod, and tries others again at once."""
        del self.waits[name]
        self.refused_names.clear()
        self.backoff[name] = self.api.now + 1.0

    def on_wake(self, call: Call) -> bytes:
        """A write of ours on a node: kube-scheduler looks again at refused pods."""
        del call
        self._count("woken")
        self.refused_names.clear()
        return b"{}"

    # -- the API server ---------------------------------------------------------------------------

    def on_call(self, call: Call) -> bytes:
        """Answer a Binding, or a read of a pod."""
        name = call.path.split("/pods/")[1].split("/")[0]
        body = self.pods.get(name)
        if call.method == "GET":
            if body is None:
                raise ApiNotFound("no such pod", 404)
            return json.dumps(body).encode()
        if body is None or body["metadata"]["uid"] != call.document["metadata"]["uid"]:
            self._excuse(name)
            raise ApiNotFound("no such pod", 404)
        if self.refuse_next:
            self.refuse_next = False
            self._count("refused by the API server")
            self._excuse(name)
            raise ApiError("a webhook says no", 403)
        target = call.document["target"]["name"]
        body["spec"]["nodeName"] = target
        body["metadata"]["annotations"] |= call.document["metadata"].get("annotations", {})
        self._show("MODIFIED", name)
        return BOUND

    # -- the cluster ------------------------------------------------------------------------------

    def _number(self) -> int:
        self._pod_count += 1
        return self._pod_count

    def make_group(self, name: str, size: int, late: int, priority: int) -> None:
        group = self.groups[name] = Group(name, size, self._number(), priority)
        for _ in range(size - late):
            self._member(group)

    def _member(self, group: Group) -> None:
        launcher = group.generation % 4 == 0 and not any(
            "launcher" in name for name in self.members_of(group)
        )
        kind = "launcher" if launcher else "m"
        self._create(f"{group.name}-{kind}{self._number()}", group)

    def members_of(self, group: Group) -> list[str]:
        return sorted(name for name in self.pods if name.startswith(f"{group.name}-"))

    def _create(self, name: str, group: Group | None = None) -> None:
        body = pod_json(name, 0 if "launcher" in name else UNITS)
        if group is not None:
            body["metadata"]["labels"] = {_GROUP: group.name, _LEAST: str(group.size)}
            body["spec"]["priority"] = group.priority
        body["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{self._pod_count % 60:02}Z"
        self.pods[name] = body
        self._show("ADDED", name)

    def _gone(self, name: str, *, ended: bool = False) -> None:
        if name in self.waits or self._node(name):
            self.refused_names.clear()
        self._excuse(name)
        deleted = self.pods.pop(name)
        if not ended:
            stamp = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
            deleted = deleted | {"metadata": deleted["metadata"] | stamp}
        for process in (self.leader, self.follower):
            process.unseen.append(("DELETED", json.loads(json.dumps(deleted))))

    def _excuse(self, name: str) -> None:
        group = self.groups.get(name.partition("-")[0])
        if group is not None:
            group.excused = True

    def _show(self, kind: str, name: str) -> None:
        for process in (self.leader, self.follower):
            process.unseen.append((kind, json.loads(json.dumps(self.pods[name]))))

    def _node(self, name: str) -> str:
        return str(self.pods[name]["spec"]["nodeName"]) if name in self.pods else ""

    def _on(self, node_name: str) -> list[str]:
        """The pods with a device that are on the node, or assumed there."""
        bound_names = [name for name in self.pods if self._node(name) == node_name]
        assumed = [name for name, (target, *_) in self.waits.items() if target == node_name]
        return [name for name in {*bound_names, *assumed} if "launcher" not in name]

    def _count(self, happening: str) -> None:
        self.counts[happening] = self.counts.get(happening, 0) + 1

    # -- the judge --------------------------------------------------------------------------------

    def judge(self) -> None:
        places: set[tuple[str, str]] = set()
        for name, body in self.pods.items():
            place = self._node(name), body["metadata"]["annotations"].get(_IDX, "")
            if place[0] and place[1]:
                if place in places:
                    raise Violation(f"G1 {name} is on {place} with another pod")
                places.add(place)
        for group in self.groups.values():
            bound_names = [name for name in self.members_of(group) if self._node(name)]
            unseen = any(
                kind == "DELETED" and body["metadata"]["name"].startswith(f"{group.name}-")
                for kind, body in self.leader.unseen
            )
            if not bound_names and not unseen:
                group.excused = False
            elif 0 < len(bound_names) < group.size and not group.excused:
                raise Violation(f"G2 of {group} only {bound_names} are bound")
            if len(bound_names) >= group.size:
                self._count("whole")

    def judge_end(self) -> None:
        """Only kube-scheduler's retries happen any more: every pod that fits is bound."""
        self.refuse_next = False
        self.cordoned.clear()
        self.refused_names.clear()
        for group in [group for group in self.groups.values() if group.excused]:
            del self.groups[group.name]
            for name in self.members_of(group):
                self._gone(name)
        for turn in range(80):
            self._complete(Chance(0))
            self.catch_up()
            for number, name in enumerate(self.queue()):
                self.try_pod(name)
                if (number + turn) % 3 == 0:
                    self.pass_time(0.1)
                self.catch_up()
            self.pass_time(0.7)
            self.judge()
        self.pass_time(2 * WAIT)
        self.catch_up()
        self.judge()
        self._judge_places()

    def catch_up(self) -> None:
        for process in (self.leader, self.follower):
            process.catch_up()

    def _judge_places(self) -> None:
        free = sum(NODES.values()) - sum(len(self._on(node_name)) for node_name in NODES)
        for group in self.groups.values():
            needs = [n for n in self.members_of(group) if not self._node(n) and "launcher" not in n]
            if needs and len(needs) <= free:
                raise Violation(f"G3 {group} waits for {len(needs)} places, and {free} are free")
        plain = [name for name in self.pods if name.startswith("plain") and not self._node(name)]
        if plain and free:
            raise Violation(f"G3 {plain} wait, and {free} places are free")
        bound_uids = {
            body["metadata"]["uid"] for name, body in self.pods.items() if self._node(name)
        }
        unbound_charges = self.leader.managed.ledger.view().entries.keys() - bound_uids
        if unbound_charges or self.leader.resources.gate.state()["gate_pods"]:
            raise Violation(f"G4 {unbound_charges} are charged, and not bound")


_STEPS = Weighted(
    {
        "schedule": 40,
        "watch": 20,
        "pass": 6,
        "group": 5,
        "complete": 4,
        "plain": 3,
        "delete": 3,
        "end": 2,
        "again": 3,
        "forget_group": 2,
        "cordon": 2,
        "refuse": 1,
        "kill": 1,
        "lead": 1,
        "stop": 1,
    }
)
