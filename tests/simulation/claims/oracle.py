"""The judge of claims: it knows every version of each, and each card as it truly is.

Its counts are its own, in bytes, by what the API server has committed. An allocation has the card
that its device meant when it landed. Nobody can count what nobody has told him: a card that was
numbered anew since the write was decided, or what others have allocated since, is not held against
the process that wrote.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from gpushare.extender.claims.books import claim_ref
from gpushare.wire.dra.claims import FINALIZER, claim_request
from tests.simulation.claims.replica import Lease, Replica, gang_of
from tests.simulation.claims.server import CLAIMS, Json
from tests.simulation.oracle import Violation
from tests.unit.wire.dra.objects import CLASS, DRIVER, GIB

MIB = 2**20
_UNITS = {"Gi": GIB, "Mi": MIB}


def in_bytes(text: str) -> int:
    """Return an amount as stories write it."""
    return int(text[:-2]) * _UNITS[text[-2:]] if text[-2:] in _UNITS else int(text)


def asked_of(claim: Json) -> list[tuple[str, int]]:
    """Return what a claim asks for: of each device its request, and the bytes; the most first."""
    found = []
    for request in claim["spec"]["devices"]["requests"]:
        exactly = request["exactly"]
        memory = in_bytes(exactly["capacity"]["requests"]["memory"])
        found += [(request["name"], memory)] * exactly.get("count", 1)
    return sorted(found, key=lambda each: -each[1])


def class_of(claim: Json) -> str:
    """Return the class that the claim names."""
    return str(claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"])


def results_of(claim: Json | None) -> list[Json]:
    """Return the results of a claim's allocation, of our driver's devices."""
    allocation = ((claim or {}).get("status") or {}).get("allocation")
    every = allocation["devices"]["results"] if allocation else []
    return [each for each in every if each["driver"] == DRIVER]


@dataclass
class Node:
    """A node's cards as they are: uuid and bytes by the name that the driver has for them now."""

    name: str
    cards: dict[str, tuple[str, int]]
    step: int
    """Bytes; the driver deals out multiples."""
    hurt: set[str] = field(default_factory=set)
    """Devices that are tainted, in the slices that come next."""
    generation: int = 1
    parts: int = 1
    """Slices that its pool has."""
    unsaid: list[int] = field(default_factory=list)
    """Slices that are still to be written as they are now."""

    def device(self, uuid: str) -> str:
        """Return what the card is called now."""
        return next(name for name, (found, _) in self.cards.items() if found == uuid)

    def consumed(self, asked: int, size: int) -> int | None:
        """Return the bytes that a claim for so many takes of a card; None: it cannot have them."""
        amount = -(-asked // self.step) * self.step
        return amount if amount <= size else None


@dataclass
class Given:
    """An allocation as it landed."""

    claim: Json
    version: int
    ours: bool
    cards: dict[str, int]
    """Bytes by uuid."""
    devices: dict[tuple[str, str], str]
    """The card's uuid by node and device."""
    meant: set[tuple[tuple[str, str], str]]
    """With every card that it has meant since, and that its writer took it for, each device."""
    clear: bool = True
    """Who wrote it knew which cards these are."""


@dataclass(frozen=True)
class Sent:
    """An allocation that a process sends, and what it had been told by then."""

    writer: Replica
    cards: dict[tuple[str, str], str]
    """The uuids of devices that may be given out, by the slices that it was shown."""
    knows: frozenset[tuple[str, int]]


class Oracle:
    """Judges each version of a claim as it is committed. Raises Violation."""

    def __init__(
        self,
        nodes: dict[str, Node],
        pods: dict[str, Json],
        lease: Lease,
        now: Callable[[], float],
        alive: Callable[[], list[Replica]],
    ) -> None:
        self._nodes, self._pods, self._lease, self._now = nodes, pods, lease, now
        self._alive = alive
        self._sizes = {uuid: size for node in nodes.values() for uuid, size in node.cards.values()}
        self._homes = {
            uuid: node.name for node in nodes.values() for uuid, _ in node.cards.values()
        }
        self.given: dict[str, Given] = {}
        self.landed = 0
        """Allocations of ours."""
        self.broken = ""
        """The promise that was broken first; whoever called may have caught the Violation."""
        self._shares: set[str] = set()
        self.gathered = Counter[tuple[str, int]]()
        """How many pods of each gang have come."""
        self._begun: set[tuple[str, tuple[str, int]]] = set()
        # By process: the claims that it was told of, and those whose cards it could tell from that.
        self._told: dict[str, dict[str, Json]] = defaultdict(dict)
        self._knows: dict[str, set[tuple[str, int]]] = defaultdict(set)
        # By process: the card that each device has meant last, and by claim all those that its
        # devices have meant since it was told that the claim has them.
        self._named: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
        self._counted: dict[str, dict[str, set[str]]] = defaultdict(dict)

    # -- what processes are told ------------------------------------------------------------------

    def told(self, replica: Replica, kind: str, event: str, raw: Json) -> None:
        """Note what a process was told."""
        told = self._told[replica.name]
        if kind == CLAIMS:
            uid = raw["metadata"]["uid"]
            if event == "DELETED":
                told.pop(uid, None)
            else:
                told[uid] = raw
        named = shown_cards(replica.shown, closed=True)
        last, counted = self._named[replica.name] | named, self._counted[replica.name]
        self._named[replica.name] = last
        for uid, claim in told.items():
            results = results_of(claim)
            if not results:
                counted.pop(uid, None)
            keys = [(each["pool"], each["device"]) for each in results]
            counted.setdefault(uid, set()).update(last[key] for key in keys if key in last)
        for uid, claim in told.items():
            given = self.given.get(uid)
            if not given or not results_of(claim) or version(claim) < given.version:
                continue
            if all(named.get(key) == uuid for key, uuid in given.devices.items()):
                self._knows[replica.name].add((uid, given.version))

    def may_count(self, uid: str, card: str) -> bool:
        """Return whether the books may count a claim with devices on the card, whichever it has:
        its devices have meant it since, or a process that lives was told so.
        """
        counted = (self._counted[each.name].get(uid, ()) for each in self._alive())
        return card in {found for _, found in self.given[uid].meant}.union(*counted)

    def sending(self, replica: Replica, patch: Json) -> Sent:
        """Judge an allocation as it is sent."""
        if not patch["metadata"].get("uid") or not patch["metadata"].get("resourceVersion"):
            raise self._broken("D2 an allocation without uid and resourceVersion")
        if replica.followers[CLAIMS].status.listed_at < self._lease.since:
            raise self._broken("D8 who leads anew has not listed what the one before has written")
        self._judge_gang(replica, patch["status"].get("reservedFor", []))
        cards = shown_cards(replica.shown, closed=False)
        for each in patch["status"]["allocation"]["devices"]["results"]:
            if (each["pool"], each["device"]) not in cards:
                raise self._broken(f"D6 {each['pool']}/{each['device']} is not offered any more")
        return Sent(replica, cards, frozenset(self._knows[replica.name]))

    def _judge_gang(self, replica: Replica, reserved: list[Json]) -> None:
        """Who begins with a gang has cards for as many of its pods as it needs."""
        pod = self._pods.get(reserved[0]["name"]) if reserved else None
        gang = gang_of(pod) if pod and pod["metadata"]["uid"] == reserved[0]["uid"] else None
        if gang is None or (replica.name, gang) in self._begun:
            return
        self._begun.add((replica.name, gang))
        found = [each for each in self._pods.values() if gang_of(each) == gang]
        if len(found) < self.gathered[gang]:
            return  # one has gone, which it need not know yet
        known = {each["metadata"]["uid"] for each in found}
        able = replica.holds.without_claims(f"coscheduling default/{gang[0]}") - known
        places = len(able) + sum(self._has_place(replica, each) for each in found)
        if places < gang[1]:
            raise self._broken(f"D10 {places} of a gang have a place, and {gang[1]} are needed")

    def _has_place(self, replica: Replica, pod: Json) -> bool:
        if pod["spec"].get("nodeName"):
            return True
        claims = [replica.books.named("default", name) for name in claims_of(pod)]
        charged = replica.books.in_flight() | {*self.given}
        # Of one that was made anew under its name since it was charged, the name tells.
        return all(
            claim_ref(each).uid in charged or claim_ref(each).name in replica.taken
            for each in claims
            if each and claim_request(each, CLASS) is not None
        )

    # -- what is committed ------------------------------------------------------------------------

    def renumbered(self, node: Node) -> None:
        """Note that the devices of a node are others now."""
        for given in self.given.values():
            for pool, device in given.devices:
                if pool == node.name and device in node.cards:
                    given.meant.add(((pool, device), node.cards[device][0]))

    def committed(self, before: Json | None, after: Json | None, writer: object) -> None:
        """Judge a version of a claim."""
        had, has = results_of(before), results_of(after)
        old = before or after
        assert old
        if had and not has:
            del self.given[old["metadata"]["uid"]]
            if isinstance(writer, Sent):
                self._judge_taken_back(old)
        if after is None:
            return
        if has and not had:
            given = self._as_landed(after, isinstance(writer, Sent))
            if isinstance(writer, Sent):
                self.landed += 1
                self._judge_form(after, given)
                self._judge_node(after)
                self._judge_writer(writer, after["metadata"]["uid"])
                self._judge_room(given, writer)
            self.given[after["metadata"]["uid"]] = given

    def _as_landed(self, claim: Json, ours: bool) -> Given:
        devices, cards = {}, defaultdict[str, int](int)
        for each in results_of(claim):
            uuid, size = self._nodes[each["pool"]].cards[each["device"]]
            devices[each["pool"], each["device"]] = uuid
            taken = each.get("consumedCapacity", {}).get("memory")
            cards[uuid] += size if taken is None else in_bytes(taken)
        return Given(claim, version(claim), ours, cards, devices, set(devices.items()))

    def _judge_writer(self, sent: Sent, uid: str) -> None:
        if sent.writer.alive and uid not in sent.writer.books.in_flight():
            raise self._broken("D3 what may still land is charged no more")
        if self._lease.holder is not sent.writer or self._now() > self._lease.until:
            raise self._broken(f"D8 what {sent.writer.name} has sent lands, and it leads no more")

    def _judge_form(self, claim: Json, given: Given) -> None:
        metadata, status = claim["metadata"], claim["status"]
        if FINALIZER not in metadata.get("finalizers", ()):
            raise self._broken("D2 an allocation without finalizer")
        if metadata.get("deletionTimestamp"):
            raise self._broken("D2 an allocation of what is being deleted")
        if not status["allocation"].get("allocationTimestamp"):
            raise self._broken("D2 an allocation without timestamp")
        if not status.get("reservedFor"):
            raise self._broken("D5 an allocation that nobody has reserved is never freed")
        asked = asked_of(claim)
        homes = {self._homes[uuid] for uuid in given.cards}
        if len(homes) != 1 or not len(given.cards) == len(results_of(claim)) == len(asked):
            raise self._broken(f"D4 cards of one node for {asked} were asked for: {given.devices}")
        terms = status["allocation"]["nodeSelector"]["nodeSelectorTerms"]
        if [each["values"] for term in terms for each in term["matchFields"]] != [[*homes]]:
            raise self._broken(f"D4 the node is {homes}, and the selector says {terms}")
        (step,) = {self._nodes[each["pool"]].step for each in results_of(claim)}
        rounded = sorted((name, -(-memory // step) * step) for name, memory in asked)
        if rounded != sorted(map(_consumed, results_of(claim))):
            raise self._broken(f"D1 {asked} in steps of {step} are not {results_of(claim)}")
        for each in results_of(claim):
            if each["shareID"] in self._shares:
                raise self._broken("D2 a shareID is used twice")
            self._shares.add(each["shareID"])
        sources = [each["source"] for each in status["allocation"]["devices"].get("config", ())]
        if sources != ["FromClass"]:
            raise self._broken(f"D2 the settings of the class are not there: {sources}")

    def _judge_node(self, claim: Json) -> None:
        """A pod's claims of our class have devices of one node, or the pod can never start."""
        name = claim["metadata"]["name"]
        nodes = {each["pool"] for each in results_of(claim)}
        for holder in claim["status"]["reservedFor"]:
            pod = self._pods.get(holder["name"])
            others = set(claims_of(pod)) - {name} if pod else set()
            for given in self.given.values():
                if given.claim["metadata"]["name"] in others and class_of(given.claim) == CLASS:
                    homes = {pool for pool, _ in given.devices}
                    if homes and homes != nodes:
                        raise self._broken(f"D4 a pod has claims of {homes} and of {nodes}")

    def _judge_room(self, new: Given, sent: Sent) -> None:
        new.meant |= {(key, sent.cards[key]) for key in new.devices}
        new.clear = new.meant == set(new.devices.items())
        if not new.clear:
            return
        for uuid, amount in new.cards.items():
            others = [each for each in self.given.values() if self._must_count(each, sent)]
            used = sum(each.cards.get(uuid, 0) for each in others)
            if used + amount > self._sizes[uuid]:
                names = [each.claim["metadata"]["name"] for each in others if uuid in each.cards]
                raise self._broken(
                    f"D1 {uuid} of {self._sizes[uuid] // MIB} MiB has {used // MIB} given out to"
                    f" {names}, and now {amount // MIB} more"
                )

    def _must_count(self, given: Given, sent: Sent) -> bool:
        if (given.claim["metadata"]["uid"], given.version) in sent.knows:
            return True
        same = all(
            self._nodes[node].cards[device][0] == uuid
            for (node, device), uuid in given.devices.items()
        )
        return given.ours and given.clear and same and given.meant == set(given.devices.items())

    def _judge_taken_back(self, claim: Json) -> None:
        """What we take back nobody may be using."""
        for holder in claim["status"].get("reservedFor", ()):
            pod = self._pods.get(holder["name"])
            if pod and pod["metadata"]["uid"] == holder["uid"] and pod["spec"].get("nodeName"):
                raise self._broken("D3 cards are taken back from a pod that runs")

    def _broken(self, promise: str) -> Violation:
        self.broken = self.broken or promise
        return Violation(promise)


def _consumed(result: Json) -> tuple[str, int]:
    return result["request"], in_bytes(result["consumedCapacity"]["memory"])


def claims_of(pod: Json) -> list[str]:
    """Return the names of a pod's claims."""
    return [each["resourceClaimName"] for each in pod["spec"]["resourceClaims"]]


def version(claim: Json) -> int:
    """Return the claim's resourceVersion."""
    return int(claim["metadata"]["resourceVersion"])


def shown_cards(slices: dict[str, Json], *, closed: bool) -> dict[tuple[str, str], str]:
    """Return the uuids by pool and device that slices tell; closed: also those not to be given out.

    Each pool is one node's.
    """
    pools: dict[str, list[Json]] = defaultdict(list)
    for each in slices.values():
        pools[each["spec"]["pool"]["name"]].append(each["spec"])
    found: dict[tuple[str, str], str] = {}
    for pool, specs in pools.items():
        newest = max(each["pool"]["generation"] for each in specs)
        current = [each for each in specs if each["pool"]["generation"] == newest]
        whole = all(each["pool"]["resourceSliceCount"] == len(current) for each in current)
        for spec in current:
            for device in spec["devices"]:
                if closed or (whole and not device.get("taints")):
                    found[pool, device["name"]] = device["attributes"]["uuid"]["string"]
    return found
