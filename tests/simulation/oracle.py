"""What must be true after every step, judged by what is true of the devices and not by our books.

S1 no device is promised beyond what it has. S2 a process that answers charges at least what is
held. S3 each pod is charged once, with what its spec asks for. S4 annotations, books and devices
agree. S5 nobody binds who does not lead, is not synced, or is stale, and never do two lead. S6 what
may still land stays charged. S8 no number is negative. S9 no Binding is sent for a pod that must
not be bound. S10 pods that nobody schedules do not count among those that come. S11 what a node
says of itself is taken within bounds. S12 who is evicted is of lower priority, and the pod for whom
he goes then fits. S13 no more than all compute of a device is promised, and who asks for all of it
is alone there. "Held" is what pods hold that we bound, and those of others that the process has
been shown: nobody can know what he has not been told yet.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from gpushare.core.states.entry import Entry, NodeBooks
from gpushare.errors import ApiError
from gpushare.extender.follow.auditor import Finding
from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare_localcluster.api.records import Change
from tests.simulation.network import Client, Request
from tests.simulation.replica import AUDIT, PATHS, Replica
from tests.simulation.server import EPOCH, Line, Server
from tests.simulation.tasks import Tasks
from tests.simulation.truth import (
    ASSIGNED,
    ASSUMED,
    DEV,
    IDX,
    MOST_GRACE,
    MOST_LATE,
    MOST_SIZES,
    POD,
    UNCOUNTED_CPU,
    UNHEALTHY,
    Cards,
    Json,
    Known,
    PodTruth,
    can_find,
    claim_of,
    granted,
    least_charged,
    put_by,
    uuids_of,
)

_NONE: frozenset[str] = frozenset()
_STALE = 150.0
"""Seconds without a word from the API server after which nobody may bind any more."""


_ALL_CORES = 100
"""Percent of a device's compute that there are."""

_SKEW = 10.0
"""Seconds by which the clock of a process may be wrong."""


class Violation(AssertionError):
    """A promise is broken; the text begins with its name."""


@dataclass(slots=True)
class Decision:
    """What a process knew when it decided where a pod goes; number: of how many it is the last.

    shares: units by index. cards: the devices of the node. rooms: units of each device taken.
    shown, loose: pods, see Known. names: whether the node ever named its cards to it. order: of
    the cards as the node named them last. indexed: pods, see Known.
    """

    number: int
    shares: dict[int, int]
    cards: Cards
    rooms: dict[int, int]
    shown: frozenset[str]
    loose: dict[str, frozenset[str]]
    names: bool
    order: tuple[str, ...]
    indexed: frozenset[str]

    @property
    def put(self) -> dict[str, int]:
        """Units by card."""
        return {self.cards.card(device): units for device, units in self.shares.items()}

    def where(self, device: int, cards: Cards) -> int | None:
        """The index that the device of these cards had here, if units of it were taken.

        Where no uuids are told an index is all there is: cards change their places unseen.
        """
        if not (cards.named and self.cards.named):
            return device if device in self.shares else None
        card = cards.card(device)
        return next((at for at in self.shares if self.cards.card(at) == card), None)


@dataclass(repr=False)
class Oracle:
    """Watches a story. replicas: the processes alive."""

    tasks: Tasks
    server: Server
    replicas: list[Replica]
    pods: dict[str, PodTruth] = field(default_factory=dict)
    cards: dict[tuple[str, str], Cards] = field(default_factory=dict)
    latest: dict[str, Cards] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    decisions: dict[tuple[str, str], Decision] = field(default_factory=dict)
    stamps: set[tuple[str, int]] = field(default_factory=set)
    _told: list[str] = field(default_factory=list)
    _decided: int = 0
    _seen: int = 1
    _checked: dict[str, tuple[int, int]] = field(default_factory=dict)

    # -- what happens ---------------------------------------------------------------------------

    def sent(self, request: Request) -> None:
        """A process sends a request: where it is a Binding, judge whether it may."""
        body = request.binding
        if body is None:
            return
        replica = request.client
        assert isinstance(replica, Replica)
        uid, node = body["metadata"].get("uid", ""), body["target"]["name"]
        annotations = body["metadata"]["annotations"]
        pod = self.pods.get(uid)
        if pod is None:
            return
        if pod.refused:
            raise Violation(f"S9 a Binding of {uid} is sent, which is {pod.refused}")
        self._may_bind(replica, request.sent)
        if bool(annotations) != bool(pod.asked.devices):
            raise Violation(f"S3 {uid} gets {annotations} for {pod.asked}")
        if not annotations:
            return
        shares = self._written(pod, annotations)
        self._check_device(replica, node, annotations)
        stamp = int(annotations[ASSUMED])
        if (replica.identity, stamp) in self.stamps:
            raise Violation(f"S4 {uid} has the assume time {stamp} that another pod has")
        self.stamps.add((replica.identity, stamp))
        known_items = self.known[replica.identity]
        entry = replica.ledger.entry(uid)
        if entry is None or entry.node != node or dict(entry.cover.written or ()) != shares:
            raise Violation(f"S6 a Binding of {uid} is sent that is not charged so: {entry}")
        if not entry.in_doubt and not self._may_land_already(replica, uid):
            self._decided += 1
            known_items.since[uid] = known_items.changes[node]
            self.decisions[replica.identity, uid] = Decision(
                self._decided,
                shares,
                known_items.nodes[node],
                {device: known_items.room(node, device) for device in shares},
                frozenset(known_items.pods),
                dict(known_items.loose),
                node in known_items.named,
                known_items.orders.get(node, known_items.nodes[node].ids),
                frozenset(known_items.indexed),
            )

    def _may_land_already(self, replica: Replica, uid: str) -> bool:
        entry = replica.ledger.entry(uid)
        return (replica.identity, uid) in self.decisions and entry is not None and entry.in_doubt

    def applied(self, request: Request, answer: object) -> None:
        """The server has worked on a request: where it bound a pod, there must be room for it."""
        body = request.binding
        if body is None or isinstance(answer, ApiError):
            return
        pod = self.pods.get(body["metadata"].get("uid", ""))
        if pod is None:
            raise Violation(f"S4 a pod is bound whoever it is: {body}")
        pod.by = request.client.identity
        if not body["metadata"]["annotations"]:
            return
        self._judge_leader(request.client, pod)
        decision = self.decisions.get((pod.by, pod.uid))
        if decision is None:
            raise Violation(f"S4 {pod.uid} is bound without a decision: {body}")
        node = body["target"]["name"]
        for entry, units in decision.shares.items():
            last, device = self._last_decided(node, entry, decision)
            card = decision.cards.card(entry)
            holders = self._holders(node, device, pod.by, last)
            total = sum(holders.values())
            if total + units > last.rooms[device]:
                raise Violation(
                    f"S1 {pod.uid} is given {units} units of {node}'s {card}, its device {device}:"
                    f" {total} of {last.rooms[device]} were held"
                )
            remaining_items = [self.pods[uid].asked.cores_on(part) for uid, part in holders.items()]
            alone = remaining_items and _ALL_CORES in (pod.asked.cores, *remaining_items)
            # Whoever decided last had to see that nothing was left for it.
            full = last is decision and sum(remaining_items) >= _ALL_CORES
            if alone or full or sum(remaining_items) + pod.asked.cores > _ALL_CORES:
                raise Violation(
                    f"S13 {pod.uid} is given {pod.asked.cores} % of {node}'s {card}, beside"
                    f" {remaining_items} % of {[*holders]}"
                )

    def _last_decided(self, node: str, device: int, decision: Decision) -> tuple[Decision, int]:
        """Of this decision and those by which units are held there, the one made last, and where
        the device was for it.

        It had to reckon with all the others, and with the devices as they had become by then.
        """
        created = [(decision, device)]
        for pod in self.pods.values():
            by_it = self.decisions.get((pod.by, pod.uid))
            if by_it and pod.node == node and not pod.ended:
                where_result = by_it.where(device, decision.cards)
                if where_result is not None:
                    created.append((by_it, where_result))
        return max(created, key=lambda each: each[0].number)

    def later(self, pod: PodTruth, pod_truth: PodTruth) -> Decision:
        """The later of the decisions where the two pods go; `pod` was bound by one of ours."""
        created = [self.decisions.get((item.by, item.uid)) for item in (pod, pod_truth)]
        return max((item for item in created if item is not None), key=lambda each: each.number)

    def _judge_leader(self, by: Client, pod: PodTruth) -> None:
        for replica in self.replicas:
            if replica is not by and replica.leading is not None and replica.leads():
                raise Violation(f"S5 {pod.uid} is bound by {pod.by} while {replica.identity} leads")

    def _holders(self, node: str, device: int, by: str, decision: Decision) -> dict[str, int]:
        """Units held by each other pod there: of ours, and of those the process had been shown."""
        holding = {
            pod.uid: least_charged(
                pod, decision.cards, decision.loose.get(pod.uid, _NONE), decision.names
            ).get(device, 0)
            for pod in self.pods.values()
            if pod.node == node
            and not pod.ended
            and pod.put is not None
            and can_find(pod, decision.cards, decision.order, pod.uid in decision.indexed)
            and self._counts(pod, by)
            and (pod.by or pod.uid in decision.shown)
        }
        return {uid: units for uid, units in holding.items() if units}

    def _written(self, pod: PodTruth, annotations: Json) -> dict[int, int]:
        """Units by device as a Binding writes them, and as its pod has them then."""
        claim = claim_of(annotations, pod.asked)
        if claim is None or len(claim) != pod.asked.devices:
            raise Violation(f"S4 {pod.uid} gets {annotations.get(IDX)!r} for {pod.asked}")
        grants, shares = granted(annotations), dict(claim)
        within = all(units <= shares.get(device, 0) for device, units in grants.items())
        if not within or sum(grants.values()) != sum(pod.asked.containers):
            raise Violation(f"S4 {pod.uid}: IDX and the allocation map differ: {annotations}")
        if annotations[POD] != str(pod.asked.total) or annotations[ASSIGNED] != "false":
            raise Violation(f"S3 {pod.uid} gets {annotations} for {pod.asked}")
        return shares

    def _check_device(self, replica: Replica, node: str, annotations: Json) -> None:
        """The size of the first device, as plug-ins and the original's inspect want it."""
        first = int(annotations[IDX].split(",")[0])
        units = self.known[replica.identity].nodes[node].units
        if first >= len(units) or annotations[DEV] != str(units[first]):
            raise Violation(f"S4 device {first} of {node} has {units}, not {annotations[DEV]}")

    def _may_bind(self, replica: Replica, now: float) -> None:
        known_items = self.known[replica.identity]
        if not replica.leads() and now > known_items.led + BUDGET:
            raise Violation(f"S5 {replica.identity} binds and does not lead")
        for name in ("nodes", "pods"):
            heard = known_items.heard.get(name)
            if heard is None:
                raise Violation(f"S5 {replica.identity} binds before {name} are listed")
            if now > heard + _STALE + 5:
                raise Violation(f"S5 {replica.identity} binds, last word of {name} at {heard}")

    def counted(self, identity: str, cpu: int) -> None:
        """A process counts a pod of so much CPU among those that come."""
        marked = [pod for pod in self.pods.values() if pod.cpu == cpu == UNCOUNTED_CPU]
        if marked and not any(pod.node for pod in marked):
            self._told.append(f"S10 {identity} counts one of {[pod.uid for pod in marked]}")

    def audited(self, identity: str, finding: Finding, healed: bool) -> None:
        """An audit tells of a mistake in the books."""
        did = "and corrects it" if healed else ""
        self._told.append(f"X2 the audit of {identity} tells of {finding} {did}".rstrip())

    # -- what is shown to whom ------------------------------------------------------------------

    def shown_line(self, replica: Replica, path: str, line: Line) -> None:
        """A line of a watch reaches a process."""
        if b'"type":"ERROR"' in line.text:
            return
        known_items = self.known[replica.identity]
        name = next(name for name, of in PATHS.items() if of == path)
        known_items.heard[name] = self.tasks.now
        if line.record is None or _refuses(replica, name):
            return
        if line.kind == "DELETED":
            self._unshow(known_items, name, line.record.body)
        else:
            self._show(known_items, name, line.record.body)

    def shown_list(self, replica: Replica, request: Request) -> None:
        """A page of a list reaches a process; the last one takes the place of what was known."""
        name = next((name for name, of in PATHS.items() if of == request.path), None)
        audit = request.task is not None and request.task.name == AUDIT
        if name is None or audit or not isinstance(request.answer, bytes):
            return
        try:
            page = json.loads(request.answer)
        except ValueError:
            return
        if "items" not in page:
            return
        known_items = self.known[replica.identity]
        if "continue" not in request.query:
            known_items.pages[name] = []
        known_items.heard[name] = self.tasks.now
        known_items.pages[name] += page["items"]
        if name == "pods":
            _meet(known_items, page["items"])
        if not page["metadata"].get("continue") and not _refuses(replica, name):
            take = partial(self._replace, known_items, name, known_items.pages[name])
            sink = replica.sinks[name]
            if sink.pause is None or sink.failures:
                take()
            else:
                sink.taken = take

    def _replace(self, known: Known, name: str, items: list[Json]) -> None:
        before = dict(known.pods)
        if name == "nodes":
            for key in known.nodes.keys() - {item["metadata"]["name"] for item in items}:
                known.show_node(key, None)
        elif name == "pods":
            known.pods.clear()
        else:
            listing = {item["metadata"]["name"].removeprefix(UNHEALTHY) for item in items}
            known.closed = {node: entry for node, entry in known.closed.items() if node in listing}
        for item in items:
            self._show(known, name, item)
        known.pods.update((uid, before[uid]) for uid in known.pods.keys() & before.keys())

    def _show(self, known: Known, name: str, body: Json) -> None:
        metadata = body["metadata"]
        if name == "nodes":
            version = metadata["resourceVersion"]
            known.show_node(metadata["name"], self.cards[metadata["name"], version])
            for pod in self.pods.values():
                # Of any other pod it cannot know which cards came to its indices.
                its_own = pod.by == known.identity or pod.uid in known.pods
                if pod.node == metadata["name"] and its_own:
                    known.loosen(pod)
        elif name == "pods" and body["spec"].get("nodeName"):
            uid = metadata["uid"]
            known.pods.setdefault(uid, int(metadata["resourceVersion"]))
            if "deletionTimestamp" in metadata:
                known.ending.add(uid)
            if "startTime" in body["status"]:
                known.admitted.add(uid)
            self.follow()
            known.show_pod(self.pods[uid])
        elif name == "configmaps":
            tokens = [token for token in body["data"].get("gpus", "").split(",") if token]
            if all(token.isdigit() for token in tokens):
                node = metadata["name"].removeprefix(UNHEALTHY)
                known.closed[node] = frozenset(map(int, tokens))

    def _unshow(self, known_items: Known, name: str, body: Json) -> None:
        metadata = body["metadata"]
        if name == "nodes":
            known_items.show_node(metadata["name"], None)
        elif name == "pods":
            known_items.pods.pop(metadata["uid"], None)
        else:
            known_items.closed.pop(metadata["name"].removeprefix(UNHEALTHY), None)

    def sink_failed(self, replica: Replica) -> None:
        """What was shown last was not taken: only what the books have of it counts as known.

        A charge that is still assumed is one that no list or watch has shown: of its pod they may
        have a read.
        """
        known_items = self.known[replica.identity]
        for uid in list(known_items.pods):
            entry = replica.ledger.entry(uid)
            if entry is None or entry.assumption is not None:
                del known_items.pods[uid]
        known_items.loose.clear()
        known_items.indexed.clear()
        known_items.ending.clear()

    # -- after every step -----------------------------------------------------------------------

    def follow(self) -> None:
        """Take over what has become true since."""
        if self.server.store.version == self._seen:
            return
        changes = self.server.changes("pods", self._seen)
        self._seen = self.server.store.version
        for change in changes:
            self._follow(change)

    def _follow(self, change: Change) -> None:
        body = change.record.body
        metadata = body["metadata"]
        pod = self.pods[metadata["uid"]]
        annotations = metadata.get("annotations") or {}
        pod.gone = change.type == "DELETED"
        pod.ended = pod.gone or body["status"].get("phase") in ("Succeeded", "Failed")
        pod.terminating = "deletionTimestamp" in metadata
        if pod.terminating:
            ends = datetime.fromisoformat(metadata["deletionTimestamp"])
            pod.ends_by = (ends - EPOCH).total_seconds()
        pod.runs = body["status"].get("phase") == "Running"
        pod.assigned = annotations.get(ASSIGNED) == "true"
        node = body["spec"].get("nodeName") or ""
        if node and not pod.node:
            pod.node, pod.bound, pod.claim = node, change.version, claim_of(annotations, pod.asked)
            if pod.by and pod.asked.devices:
                self._written(pod, annotations)
                self._put(pod, self.decisions[pod.by, pod.uid], annotations)
            else:
                put_by(pod, annotations, self.latest.get(node))

    def _put(self, pod: PodTruth, decision: Decision, annotations: Json) -> None:
        """Note on which cards a pod was put that one of ours bound."""
        pod.uuids, pod.put, pod.named = uuids_of(annotations), decision.put, decision.cards.named
        pod.home = {decision.cards.card(device): device for device in decision.shares}
        expected = set(decision.put) if pod.named else set()
        if set(pod.uuids) != expected:
            raise Violation(f"S4 {pod.uid} is bound to {expected or 'no uuids'}: {annotations}")

    def check(self) -> None:
        """Judge every process that is alive, and what audits told. Raises Violation."""
        if self._told:
            raise Violation(self._told[0])
        self._check_leaders()
        for replica in self.replicas:
            key = (self.server.store.version, replica.ledger.snapshot().generation)
            if self._checked.get(replica.identity) != key and replica.ready():
                self._check_books(replica)
                self._checked[replica.identity] = key

    def _check_leaders(self) -> None:
        leaders = [replica.identity for replica in self.replicas if replica.leads()]
        if len(leaders) > 1:
            raise Violation(f"S5 {leaders} lead at one time")
        for identity in leaders:
            self.known[identity].led = self.tasks.now

    def _check_books(self, replica: Replica) -> None:
        entries: dict[str, Entry] = {}
        nodes = {node.spec.name: node for node in replica.ledger.dump()}
        for node in nodes.values():
            entries.update((entry.ref.uid, entry) for entry in node.entries)
        minimum = {name: [0] * len(node.used) for name, node in nodes.items()}
        cores = {name: [0] * len(node.used) for name, node in nodes.items()}
        for pod in self.pods.values():
            if pod.node in nodes and self._charged(pod, replica.identity):
                self._check_entry(replica, pod, entries.get(pod.uid))
                self._add_least(minimum[pod.node], pod, replica.identity)
                self._add_least(cores[pod.node], pod, replica.identity, cores=True)
        for name, node in nodes.items():
            _check_node(replica, node, minimum[name], cores[name])
        for entry in entries.values():
            self._check_size(entry)

    def _charged(self, pod: PodTruth, identity: str) -> bool:
        """Whether the process has to charge the pod, which is on a node."""
        displayed = pod.by or pod.uid in self.known[identity].pods
        return bool(displayed and pod.asked.devices and not pod.ended) and self._counts(
            pod, identity
        )

    def _add_least(
        self, minimum: list[int], pod: PodTruth, identity: str, cores: bool = False
    ) -> None:
        """Add what the process must charge for the pod to what it must charge by device.

        cores: of their compute, which is where the memory is.
        """
        known_items = self.known[identity]
        cards = known_items.nodes.get(pod.node)
        if cards is not None and known_items.can_find(pod, cards):
            loose, names = known_items.loose.get(pod.uid, _NONE), pod.node in known_items.named
            least_charged_result = least_charged(pod, cards, loose, names)
            if cores:
                least_charged_result = {
                    device: pod.asked.cores_on(units)
                    for device, units in least_charged_result.items()
                }
            _add(minimum, least_charged_result)

    def judge_victims(
        self, replica: Replica, pod: PodTruth, result: Mapping[str, Collection[str]]
    ) -> None:
        """A process has named victims, by node, by what it knows now. Raises Violation."""
        known_items = self.known[replica.identity]
        for node, uids in result.items():
            for uid in uids:
                if self.pods[uid].priority >= pod.priority:
                    raise Violation(f"S12 {uid} is to make room for {pod}, but is {self.pods[uid]}")
            if replica.sinks["pods"].failed or node not in known_items.nodes:
                continue
            count = len(known_items.nodes[node].units)
            minimum = [0] * count
            for item in self.pods.values():
                stays = item.node == node and not self._frees(known_items, item, item.uid in uids)
                if stays and self._charged(item, replica.identity):
                    self._add_least(minimum, item, replica.identity)
            room = [known_items.room(node, device) - minimum[device] for device in range(count)]
            if sum(units >= pod.asked.units for units in room) < pod.asked.devices:
                raise Violation(f"S12 without {uids} {node} has room for {room}, not for {pod}")

    def _frees(self, known: Known, pod: PodTruth, victim: bool) -> bool:
        """Whether the pod may count as gone soon: with what its end may be early or late by."""
        if not pod.terminating:
            return victim
        remaining = pod.ends_by - self.tasks.now
        soon = -MOST_LATE - _SKEW <= remaining <= MOST_GRACE + _SKEW
        return soon or (victim and pod.uid not in known.ending)

    def _counts(self, pod: PodTruth, identity: str) -> bool:
        """Whether the process can know where the pod is: users may have edited that since."""
        first = self.known[identity].pods.get(pod.uid)
        its_own = pod.by == identity and not pod.unstamped
        latched = its_own or (first is not None and first < pod.edited)
        return not pod.edited or latched

    def _check_entry(self, replica: Replica, pod: PodTruth, entry: Entry | None) -> None:
        if entry is None:
            raise Violation(f"S2 {replica.identity} does not charge {pod.uid} on {pod.node}: {pod}")
        sure = self.known[replica.identity].at_home(pod)
        as_written = pod.odd or entry.cover.written == pod.claim
        if entry.node != pod.node or not as_written or (sure and entry.placement != pod.claim):
            raise Violation(f"S4 {replica.identity} charges {entry} for {pod}")

    def _check_size(self, entry: Entry) -> None:
        pod = self.pods[entry.ref.uid]
        writes = sum(units for _, units in entry.cover.written or ()) or pod.asked.total
        twofold = pod.odd or pod.edited
        wrong = writes < pod.asked.total if twofold else writes != pod.asked.total
        if entry.request.total != pod.asked.total or wrong:
            raise Violation(f"S3 {entry} is charged for {pod.asked}")

    def check_flight(self, requests: list[Request]) -> None:
        """What may still land stays charged where it was sent. Raises Violation."""
        for request in requests:
            replica, body = request.client, request.binding
            if body is None or replica not in self.replicas:
                continue
            assert isinstance(replica, Replica)
            pod = self.pods.get(body["metadata"].get("uid", ""))
            if pod is None or pod.node or pod.ended or pod.terminating:
                continue
            if not request.path.endswith(f"/pods/{pod.name}/binding"):
                continue  # another pod has that name: the API server refuses by the uid
            if body["metadata"]["annotations"] and replica.ledger.entry(pod.uid) is None:
                raise Violation(f"S6 {replica.identity} has dropped {pod.uid}, which may land")


def _meet(known_items: Known, items: list[Json]) -> None:
    """Take over that a list of pods is on its way into the books, which may take a while."""
    for item in items:
        if item["spec"].get("nodeName"):
            known_items.meet(item["metadata"]["uid"], item["spec"]["nodeName"])


def _refuses(replica: Replica, name: str) -> bool:
    """Whether its books will not take what it is shown next (of pods: see sink_failed)."""
    return name != "pods" and replica.sinks[name].failures > 0


def _add(least: list[int], charged: dict[int, int]) -> None:
    for device, units in charged.items():
        if device < len(least):
            least[device] += units


def _check_node(replica: Replica, node: NodeBooks, minimum: list[int], cores: list[int]) -> None:
    if len({*node.spec.capacity}) > MOST_SIZES:
        raise Violation(f"S11 {replica.identity} takes {node.spec} over")
    for device, (used, item) in enumerate(zip(node.used, minimum, strict=True)):
        if used < 0:
            raise Violation(f"S8 {replica.identity}: {node.spec.name}/{device} has {used} used")
        if used < item:
            raise Violation(
                f"S2 {replica.identity} charges {used} on {node.spec.name}/{device}, {item} held"
            )
    for device, core in enumerate(cores):
        charges = node.cores_used[device] if node.cores_used else 0
        if charges < core:
            raise Violation(
                f"S2 {replica.identity} charges {charges} % of {node.spec.name}/{device}'s compute,"
                f" {core} % held"
            )
