"""A cluster with claims in virtual time: its users, kube-scheduler, controllers, drivers, and us.

Two processes of ours call the API server through here, where answers are lost, writes are late,
processes die, and other things happen while one is under way. All of it is drawn from the number of
the step (chance.py).
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpushare.errors import ApiError, ApiUnavailable, ApiUnreachable
from gpushare.wire.dra.claims import FINALIZER
from tests.simulation.chance import Chance, Weighted
from tests.simulation.claims.oracle import (
    MIB,
    Node,
    Oracle,
    asked_of,
    claims_of,
    class_of,
    results_of,
)
from tests.simulation.claims.replica import Lease, Replica, gang_of
from tests.simulation.claims.server import CLAIMS, PODS, SLICES, Json, Store, changed
from tests.simulation.oracle import Violation
from tests.unit.wire.dra.objects import CLASS, DRIVER, GIB, device

_FENCE = Path(__file__).parents[3] / "config/extender/claims/fence.yaml"
_POLICY, _BINDING = yaml.safe_load_all(_FENCE.read_text().replace("gpu.nvidia.com", DRIVER))
_SETTINGS: Mapping[str, Json] = {
    "validatingadmissionpolicies": {"kind": f"{_POLICY['kind']}List", "items": [_POLICY]},
    "validatingadmissionpolicybindings": {"kind": f"{_BINDING['kind']}List", "items": [_BINDING]},
}
"""What the operator has made: it can be read, and stays as it is."""

_TERM, _HANDS_OVER = 10.0, 15.0
"""Seconds that a term lasts, and after which another process may take a Lease that nobody renews.
"""
_LANDS_WITHIN = 3.0
"""Seconds after which the API server has given up a write (`timeout` of its query)."""
_FAULTS = Weighted(
    {
        "": 30,
        "lost": 3,  # it lands without an answer
        "never": 2,
        "late": 6,  # no answer; it lands soon, if it still can
        "refused": 1,  # 429
        "unreachable": 1,
        "stranger": 1,  # it lands, and a proxy answers 200 with something else
        "killed before": 1,
        "killed after": 1,
        "killed, late": 1,
    }
)
_SIZES = ((80,), (80, 24), (24, 24, 16), (40, 80))
_ASKED = ("10Gi", "24Gi", "12Gi", "24Gi", "40Gi", "40Gi", "80Gi", "1536Mi", "1Mi", "200Gi")


class Killed(BaseException):
    """A process ended in the middle of a call."""


@dataclass
class _Late:
    due: float
    land: Callable[[], object]


class World:
    """Everything, and each step that it can make."""

    def __init__(self, number: int) -> None:
        chance = self.chance = Chance(number)
        self.now = 1000.0
        self.fired: dict[str, int] = {}
        self.calm = False
        """Nothing goes wrong any more."""
        self.fenced = chance.below(3) > 0
        self.steady = chance.below(2) > 0
        """Devices keep their numbers."""
        steps = (MIB, MIB, GIB, 4 * GIB)
        self.nodes = {
            f"n{at}": self._node(f"n{at}", chance.pick(_SIZES), chance.pick(steps), chance)
            for at in range(chance.pick((2, 1, 3)))
        }
        self.store = Store()
        self.pods = self.store.objects[PODS]
        self.gang, self.gang_size = "", 0
        """The last one that came."""
        self.lease = Lease()
        self.oracle = Oracle(self.nodes, self.pods, self.lease, lambda: self.now, self.alive)
        self.store.committed = self.oracle.committed
        self.renewed = -math.inf
        self.unwell = False
        """The Lease cannot be renewed."""
        self._late: list[_Late] = []
        self._names = 0
        for node in self.nodes.values():
            self._say_all(node)
        self.replicas = [self._replica() for _ in range(2)]
        for replica in self.replicas:
            replica.catch_up()
        self.lead()

    # -- one step ---------------------------------------------------------------------------------

    def step(self, number: int) -> str:
        """Make a step; return what it was."""
        self.chance = Chance(number)
        what = _STEPS.draw(self.chance)
        self._do(what)
        self._renew()
        self.advance(self.chance.pick((0.1, 0.5, 1.0, 2.0, 6.0)))
        self._check_books()
        return what

    def advance(self, seconds: float) -> None:
        """Let time pass; what is late lands."""
        until = self.now + seconds
        while self._late and min(each.due for each in self._late) <= until:
            first = min(self._late, key=lambda each: each.due)
            self._late.remove(first)
            self.now = max(self.now, first.due)
            self._try(first.land)
        self.now = until

    def _do(self, what: str) -> None:
        self.fired[what] = self.fired.get(what, 0) + 1
        getattr(self, what)()

    # -- users ------------------------------------------------------------------------------------

    def _fresh(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _claim(self, name: str, owner: Json | None = None, *, ours: bool = False) -> None:
        of = CLASS if ours or self.chance.below(12) < 11 else "other"
        requests = [
            {"name": each, "exactly": self._exactly(of)}
            for each in ("gpu", "more")[: 1 + self.chance.once_in(6)]
        ]
        spec = {"devices": {"requests": requests}}
        meta = {"owner": owner["metadata"]["uid"]} if owner else {}
        self.store.create(CLAIMS, name, {"spec": spec}, meta=meta)

    def _exactly(self, device_class: str) -> Json:
        memory = self.chance.pick(_ASKED)
        exactly = {"deviceClassName": device_class, "capacity": {"requests": {"memory": memory}}}
        return {**exactly, "count": 2} if self.chance.once_in(6) else exactly

    def _pod(self, *claims: str, gang: bool = False) -> Json:
        has = [{"name": f"c{at}", "resourceClaimName": name} for at, name in enumerate(claims)]
        refused = [name for name in self.nodes if self.chance.once_in(6)]
        meta: Json = {
            "creationTimestamp": f"2026-01-01T00:00:{self._names:05d}Z",
            "annotations": {"refused": "" if gang else ",".join(refused)},
        }
        if gang:
            meta["labels"] = {
                "scheduling.x-k8s.io/pod-group": self.gang,
                "pod-group.scheduling.sigs.k8s.io/min-available": str(self.gang_size),
            }
        spec = {"containers": [{"name": "main"}], "resourceClaims": has}
        body = {"spec": spec, "status": {"phase": "Pending"}}
        return self.store.create(PODS, self._fresh("p"), body, meta=meta)

    def arrive(self) -> None:
        """A pod comes with one claim, or with two; made for it alone, or by hand."""
        names = [self._fresh("c") for _ in range(1 + self.chance.once_in(10))]
        owned, early = self.chance.once_in(3), self.chance.below(2)
        if owned or early:
            pod = self._pod(*names)
        for name in names:
            self._claim(name, pod if owned else None)
        if not (owned or early):
            self._pod(*names)

    def gather(self) -> None:
        """A gang comes, in steps or at once, and perhaps never whole; or one more of the last."""
        if not self.gang or self.chance.once_in(2):
            self.gang, size = self._fresh("g"), self.chance.pick((2, 2, 3))
            self.gang_size = size
            come = self.chance.pick((size, size, size - 1, size + 1))
        else:
            come = 1
        for _ in range(come):
            name = self._fresh("c")
            pod = self._pod(name, gang=True)
            self._claim(name, pod, ours=True)
            self.oracle.gathered[self.gang, self.gang_size] += 1

    def share(self) -> None:
        if claims := sorted(self.store.objects[CLAIMS]):
            self._pod(self.chance.pick(claims))

    def leave(self) -> None:
        if pods := sorted(self.pods):
            self.store.delete(PODS, self.chance.pick(pods))

    def finish(self) -> None:
        running = [pod for pod in self.pods.values() if pod["spec"].get("nodeName")]
        if running:
            ended = {"status": {"phase": self.chance.pick(("Succeeded", "Failed"))}}
            self.store.update(PODS, changed(self.chance.pick(running), ended))

    def drop(self) -> None:
        if claims := sorted(self.store.objects[CLAIMS]):
            self.store.delete(CLAIMS, self.chance.pick(claims))

    def recreate(self) -> None:
        """A claim goes, and another one comes under its name."""
        if claims := sorted(self.store.objects[CLAIMS]):
            name = self.chance.pick(claims)
            ours = class_of(self.store.objects[CLAIMS][name]) == CLASS
            self.store.delete(CLAIMS, name)
            if name not in self.store.objects[CLAIMS]:
                self._claim(name, ours=ours)

    def touch(self) -> None:
        if claims := sorted(self.store.objects[CLAIMS]):
            found = self.store.objects[CLAIMS][self.chance.pick(claims)]
            note = {"metadata": {"annotations": {"note": str(self._names)}}}
            self.store.update(CLAIMS, changed(found, note))
            self._names += 1

    # -- Kubernetes -------------------------------------------------------------------------------

    def waiting(self) -> list[Json]:
        """Return the pods without a node."""
        return [pod for pod in self.pods.values() if not pod["spec"].get("nodeName")]

    def schedule(self) -> None:
        if waiting := self.waiting():
            self.schedule_one(self.chance.pick(waiting))

    def schedule_one(self, pod: Json) -> None:
        """Reserve, then bind; what it cannot use it takes back (PostFilter)."""
        claims = [self.store.objects[CLAIMS].get(name) for name in claims_of(pod)]
        found = [each for each in claims if each and not each["metadata"].get("deletionTimestamp")]
        if len(found) < len(claims):
            return
        given = [each for each in found if results_of(each)]
        homes = {result["pool"] for each in given for result in results_of(each)}
        mine = {"resource": "pods", "name": _name(pod), "uid": pod["metadata"]["uid"]}
        if len(homes) > 1 or homes & set(refused(pod)):
            free = [each for each in given if each["status"].get("reservedFor", []) in ([], [mine])]
            if free:
                nothing = {"status": {"allocation": None, "reservedFor": None}}
                self.store.update(CLAIMS, changed(self.chance.pick(free), nothing))
            return
        others = [each for each in found if class_of(each) != CLASS]
        if not homes or len(given) + len(others) < len(found):
            return
        if self._waits_at_permit(pod):
            return
        for each in given:
            reserved = each["status"].get("reservedFor", [])
            if mine not in reserved:
                self.store.update(
                    CLAIMS, changed(each, {"status": {"reservedFor": [*reserved, mine]}})
                )
                return
        self.store.update(PODS, changed(pod, {"spec": {"nodeName": next(iter(homes))}}))

    def _waits_at_permit(self, pod: Json) -> bool:
        """Return whether too few pods of its gang have devices, as its plug-in tells them."""
        if (gang := gang_of(pod)) is None:
            return False
        able = [each for each in self.pods.values() if gang_of(each) == gang and self.able(each)]
        waits = len(able) < gang[1]
        if not waits:
            self.fired["gang bound"] = self.fired.get("gang bound", 0) + 1
        return waits

    def able(self, pod: Json) -> bool:
        """Return whether the pod is on a node, or has devices for all its claims."""
        claims = [self.store.objects[CLAIMS].get(name) for name in claims_of(pod)]
        return bool(pod["spec"].get("nodeName")) or all(map(results_of, claims))

    def control(self) -> None:
        """The controller of claims: reserve for who is on a node, free what nobody has any more."""
        for pod in list(self.pods.values()):
            for name in claims_of(pod) if pod["spec"].get("nodeName") else ():
                claim = self.store.objects[CLAIMS].get(name)
                reserved = ((claim or {}).get("status") or {}).get("reservedFor", [])
                uids = [each["uid"] for each in reserved]
                if claim and results_of(claim) and pod["metadata"]["uid"] not in uids:
                    mine = {"resource": "pods", "name": _name(pod), "uid": pod["metadata"]["uid"]}
                    self.store.update(
                        CLAIMS, changed(claim, {"status": {"reservedFor": [*reserved, mine]}})
                    )
        for claim in list(self.store.objects[CLAIMS].values()):
            self._free(claim)
        owners = {None, *(pod["metadata"]["uid"] for pod in self.pods.values())}
        for claim in list(self.store.objects[CLAIMS].values()):
            if claim["metadata"].get("owner") not in owners:
                self.store.delete(CLAIMS, _name(claim))

    def _free(self, claim: Json) -> None:
        status = claim.get("status") or {}
        reserved = status.get("reservedFor", [])
        valid = [each for each in reserved if self._uses(each)]
        deleted = claim["metadata"].get("deletionTimestamp")
        if len(valid) < len(reserved):
            left: Json = {"status": {"reservedFor": valid or None}}
            if not valid:
                left["status"]["allocation"] = None
            claim = self.store.update(CLAIMS, changed(claim, left))
            release = not valid
        else:
            release = bool(deleted) and not valid
            if release and status.get("allocation"):
                claim = self.store.update(CLAIMS, changed(claim, {"status": {"allocation": None}}))
        if release:
            kept = [each for each in claim["metadata"].get("finalizers", []) if each != FINALIZER]
            self.store.update(CLAIMS, changed(claim, {"metadata": {"finalizers": kept}}))

    def _uses(self, holder: Json) -> bool:
        pod = self.pods.get(holder["name"])
        ended = pod and pod["status"]["phase"] in ("Succeeded", "Failed")
        return bool(pod and pod["metadata"]["uid"] == holder["uid"] and not ended)

    def foreign(self) -> None:
        """Another allocator, where no fence keeps it off: it gives what is truly free."""
        claims = [each for each in self.store.objects[CLAIMS].values() if not results_of(each)]
        if self.fenced or self.calm or not claims:
            return
        claim = self.chance.pick(claims)
        node = self.chance.pick(sorted(self.nodes.values(), key=lambda each: each.name))
        name = self.chance.pick(sorted(node.cards))
        uuid, size = node.cards[name]
        used = sum(each.cards.get(uuid, 0) for each in self.oracle.given.values())
        request, memory = asked_of(claim)[0]
        if claim["metadata"].get("deletionTimestamp") or used + memory > size:
            return
        result: Json = {"request": request, "driver": DRIVER, "pool": node.name, "device": name}
        result |= {"consumedCapacity": {"memory": str(memory)}, "shareID": "theirs"}
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.name]}]}
        allocation = {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [term]},
        }
        finalizers = sorted({*claim["metadata"].get("finalizers", ()), FINALIZER})
        patch: Json = {"metadata": {"finalizers": finalizers}, "status": {"allocation": allocation}}
        self.store.update(CLAIMS, changed(claim, patch))

    # -- drivers ----------------------------------------------------------------------------------

    def _node(self, name: str, sizes: tuple[int, ...], step: int, chance: Chance) -> Node:
        cards = {f"gpu-{at}": (f"GPU-{name}-{at}", gib * GIB) for at, gib in enumerate(sizes)}
        return Node(name, cards, step, parts=min(len(sizes), 1 + chance.once_in(4)))

    def _any_node(self) -> Node:
        return self.nodes[self.chance.pick(sorted(self.nodes))]

    def _say(self, node: Node, part: int) -> None:
        """Write a slice of a node as its cards are now."""
        devices = []
        for at, (name, (uuid, size)) in enumerate(sorted(node.cards.items())):
            if at % node.parts == part:
                step = f"{node.step // MIB}Mi"
                policy = {"default": step, "validRange": {"min": step, "step": step}}
                memory = {"value": f"{size // GIB}Gi", "requestPolicy": policy}
                changes: Json = {
                    "attributes": {"uuid": {"string": uuid}},
                    "capacity": {"memory": memory},
                }
                if name in node.hurt:
                    changes["taints"] = [{"key": "hurt", "effect": "NoSchedule"}]
                devices.append({**device(0), **changes, "name": name})
        pool = {"name": node.name, "generation": node.generation}
        pool["resourceSliceCount"] = node.parts
        spec = {"driver": DRIVER, "nodeName": node.name, "pool": pool, "devices": devices}
        name = f"{node.name}-{part}"
        before = self.store.objects[SLICES].get(name)
        if before is None:
            self.store.create(SLICES, name, {"spec": spec})
        else:
            self.store.update(SLICES, {**before, "spec": spec})

    def _say_all(self, node: Node) -> None:
        node.unsaid = []
        for part in range(node.parts):
            self._say(node, part)

    def _changed(self, node: Node) -> None:
        node.generation += 1
        node.unsaid = list(range(node.parts))

    def publish(self) -> None:
        """A driver writes the next of its slices."""
        if nodes := [each for each in self.nodes.values() if each.unsaid]:
            node = self.chance.pick(nodes)
            self._say(node, node.unsaid.pop(0))

    def wipe(self) -> None:
        """The kubelet starts anew: the slices of its node go."""
        node = self._any_node()
        for part in range(node.parts):
            self.store.delete(SLICES, f"{node.name}-{part}")
        self._changed(node)

    def renumber(self) -> None:
        """The cards of a node have other names after it was started anew."""
        node = self._any_node()
        if self.steady or self.calm or len(node.cards) < 2:
            return
        names = sorted(node.cards)
        node.cards = dict(
            zip(names[1:] + names[:1], (node.cards[name] for name in names), strict=True)
        )
        self._changed(node)
        self.oracle.renumbered(node)

    def hurt(self) -> None:
        node = self._any_node()
        if not self.calm:
            node.hurt ^= {self.chance.pick(sorted(node.cards))}
            self._changed(node)

    # -- processes of ours ------------------------------------------------------------------------

    def _replica(self) -> Replica:
        name = self._fresh("replica")
        caller = _Caller(self)
        caller.replica = found = Replica(
            name,
            self.store,
            caller,
            self.lease,
            clock=lambda: self.now,
            nodes=tuple(self.nodes),
            told=self.oracle.told,
            between=self._between,
        )
        return found

    def _between(self) -> None:
        """Something is told to a process while its allocator works, in another thread of it."""
        if not self.calm and self.chance.once_in(4):
            self.show()

    def alive(self) -> list[Replica]:
        return [each for each in self.replicas if each.alive]

    def show(self) -> None:
        """Processes are told some of what there is, each at its own pace."""
        for replica in self.alive():
            for kind in (CLAIMS, PODS, SLICES):
                if most := self.chance.pick((0, 1, 3, 100)):
                    replica.show(kind, most)

    def round(self) -> None:
        """The allocators make rounds, as they do after each change; each knows whether it leads."""
        for _ in range(self.chance.pick((1, 2, 3))):
            for replica in self.alive():
                self.run(replica)
            if not self.calm and self.chance.once_in(20):
                self.stop()
            self.advance(self.chance.pick((0.1, 1.0)))
            self.show()

    def run(self, replica: Replica) -> None:
        """Have a process make a round, which may be its end."""
        replica.taken.clear()
        try:
            replica.allocator.round()
        except Killed:
            replica.alive = False
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"X3 a round fails: {error!r}") from error
        if self.oracle.broken:
            raise Violation(self.oracle.broken)

    def restart_watch(self) -> None:
        if alive := self.alive():
            self.chance.pick(alive).followers[self.chance.pick((CLAIMS, PODS, SLICES))].begin(
                self.now
            )

    def hang(self) -> None:
        """A watch of who does not lead tells nothing for a while, and nobody knows."""
        if others := [each for each in self.alive() if each is not self.lease.holder]:
            self.chance.pick(others).followers[
                self.chance.pick((CLAIMS, CLAIMS, SLICES))
            ].hangs = True

    def kill(self) -> None:
        if alive := self.alive():
            self.chance.pick(alive).alive = False

    def stop(self) -> None:
        """A process ends in order; it gives the Lease back if nothing of it can land any more."""
        if alive := self.alive():
            replica = self.lease.holder if self.lease.holder in alive else self.chance.pick(alive)
            assert replica
            replica.allocator.stop()
            replica.alive = False
            if replica.allocator.settled() and self.lease.holder is replica:
                self.lease.holder, self.lease.until = None, self.now
                self.renewed = -math.inf

    def start(self) -> None:
        for at, replica in enumerate(self.replicas):
            if not replica.alive:
                self.replicas[at] = self._replica()

    def _renew(self) -> None:
        holder = self.lease.holder
        if holder and holder.alive and not self.unwell and self.now < self.lease.until:
            self.renewed, self.lease.until = self.now, self.now + _TERM

    def lead(self) -> None:
        """Another process takes the Lease, if nobody has renewed it for long enough."""
        self._renew()
        holder = self.lease.holder
        others = [each for each in self.alive() if each is not holder] or self.alive()
        if self.now >= self.renewed + _HANDS_OVER and others:
            self.unwell = False
            self.lease.holder, self.lease.since = others[0], self.now
            self.renewed, self.lease.until = self.now, self.now + _TERM

    def ail(self) -> None:
        """The Lease cannot be renewed for a while."""
        self.unwell = True

    # -- calls of ours ----------------------------------------------------------------------------

    def call(self, replica: Replica, path: str, body: bytes | None, not_after: float) -> bytes:
        """Do what a process asks of the API server, or fail."""
        if body is None:
            return json.dumps(_SETTINGS[path.rpartition("/")[2]]).encode()
        part = "/status" if path.endswith("/status") else ""
        name = path.removesuffix(part).rpartition("/")[2]
        return self._send(replica, name, body, part, not_after)

    def _send(self, replica: Replica, name: str, body: bytes, part: str, not_after: float) -> bytes:
        fault = "" if self.calm else _FAULTS.draw(self.chance)
        if fault:
            self.fired[fault] = self.fired.get(fault, 0) + 1
        if not self.calm and self.chance.once_in(20):
            self.advance(self.chance.pick((1.0, 5.0, 20.0)))  # the process stands still
        if fault == "unreachable" or self.now > not_after:
            raise ApiUnreachable("nothing was sent", 0)
        if fault == "killed before":
            raise Killed
        patch, writer = json.loads(body), None
        if part and (patch.get("status") or {}).get("allocation"):
            writer = self.oracle.sending(replica, patch)

        def land() -> bytes:
            return self.store.patch(name, patch, part, writer or replica)

        if fault in ("late", "killed, late"):
            self._late.append(_Late(self.now + self.chance.pick((0.2, 1.0, 2.9)), land))
        elif fault == "refused":
            raise ApiError("too many requests", 429)
        elif fault != "never":
            return self._answered(land, fault)
        if fault == "killed, late":
            raise Killed
        self.advance(self.chance.pick((0.0, 0.1, 3.0)))
        raise ApiUnavailable("no answer", 0)

    def _answered(self, land: Callable[[], bytes], fault: str) -> bytes:
        """Have a write land; its answer may be lost, or another one."""
        if not self.calm and self.chance.once_in(4):
            self._do(_MEANWHILE.draw(self.chance))
            self.advance(self.chance.pick((0.1, 1.0, 2.8)))
        answer = land()
        if fault == "killed after":
            raise Killed
        if fault == "lost":
            raise ApiUnavailable("no answer", 0)
        return b'{"kind": "Login"}' if fault == "stranger" else answer

    def _try(self, land: Callable[[], object]) -> None:
        try:
            land()
        except ApiError:
            self.fired["too late"] = self.fired.get("too late", 0) + 1

    # -- what must hold of books ------------------------------------------------------------------

    def _check_books(self) -> None:
        """Books of a process that was told everything are those that are made anew."""
        well = [each for each in self.alive() if not each.hangs()]
        if self.chance.once_in(8) and well:
            replica = self.chance.pick(well)
            replica.catch_up()
            if not replica.books.in_flight():
                self.compare(replica)

    def compare(self, replica: Replica) -> None:
        """Judge the books of a process that has been told everything."""
        has, made = _used(replica.books), _used(replica.rebuilt())
        for card in has.keys() | made.keys():
            one, other = has.get(card, 0), made.get(card, 0)
            # Of cards that had other names it knows more than the API server tells.
            exact = self.steady and not self.nodes[card[0]].unsaid
            if one < other or (exact and one > other):
                raise Violation(f"D3 {card} has {one} units in the books, {other} in new ones")


class _Caller:
    """The API server as one process reaches it."""

    replica: Replica

    def __init__(self, world: World) -> None:
        self._world = world

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float,
        not_after: float = math.inf,
    ) -> bytes:
        assert timeout <= _LANDS_WITHIN
        return self._world.call(self.replica, path, body, min(not_after, self._world.now + timeout))


def _used(books: Any) -> dict[tuple[str, str], int]:
    """Return the units that are charged, by node and card."""
    snapshot = books.ledger.snapshot()
    found: dict[tuple[str, str], int] = {}
    for node, row in snapshot.row.items():
        for at, uuid in enumerate(snapshot.uuids[row]):
            if units := int(snapshot.used[row, at]):
                found[node, uuid] = units
    return found


def _name(found: Json) -> str:
    return str(found["metadata"]["name"])


def refused(pod: Json) -> list[str]:
    """Return the nodes on which the pod cannot start, as kube-scheduler alone knows."""
    return [each for each in pod["metadata"]["annotations"]["refused"].split(",") if each]


_STEPS = Weighted(
    {
        "show": 24,
        "round": 24,
        "lead": 10,
        "arrive": 13,
        "gather": 2,
        "schedule": 14,
        "control": 8,
        "publish": 8,
        "start": 6,
        "leave": 5,
        "finish": 4,
        "share": 2,
        "drop": 2,
        "recreate": 2,
        "touch": 2,
        "wipe": 2,
        "renumber": 1,
        "hurt": 1,
        "restart_watch": 1,
        "hang": 5,
        "kill": 2,
        "stop": 1,
        "ail": 1,
        "foreign": 3,
    }
)
_MEANWHILE = Weighted(
    {"show": 8, "schedule": 2, "control": 2, "leave": 2, "drop": 1, "recreate": 1, "touch": 2}
    | {"arrive": 1, "wipe": 1, "publish": 1, "renumber": 1, "foreign": 1, "lead": 1}
)
