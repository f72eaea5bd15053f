"""The invariants after every step, judged by the true state of the devices and not by our books.

S1 no device is promised beyond its capacity. S2 a process that answers charges at least the held
units. S3 each pod is charged once, with the request of the spec. S4 annotations, books and devices
agree. S5 nobody binds who does not lead, is not synced, or is stale, and never do two lead. S6 what
may still land stays charged. S8 no number is negative. S9 no Binding is sent for a pod that must
not be bound. S10 pods that nobody schedules do not count among those that come. S11 the word of a
node about itself counts within bounds. S12 an evicted pod has a lower priority, and the preemptor
then fits. S13 no more than all compute of a device is promised, and a pod that asks for all of it
is alone there. S14 no two pods of a workload that stay apart are put on one device. S15 no device
is given to more pods than the label of its node allows. "Held" are the units of pods that we bound,
and of others that the process has been shown: nobody can know more than that.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from operator import ge

from gpushare.core.states.entry import Entry, NodeBooks
from gpushare.errors import ApiError
from gpushare.extender.follow.auditor import Finding
from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare_localcluster.api.objects import Change
from tests.simulation.network import Client, Request
from tests.simulation.replica import AUDIT, PATHS, Replica
from tests.simulation.server import EPOCH, Line, Server
from tests.simulation.tasks import Tasks
from tests.simulation.truth import (
    ASSIGNED,
    ASSUMED,
    DEV,
    IDX,
    MAX_GRACE,
    MAX_LATE,
    MAX_SIZES,
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
"""Upper bound in seconds of the error of a process's clock."""


class Violation(AssertionError):
    """A promise is broken; the text begins with the name of the promise."""


@dataclass(slots=True)
class Decision:
    """The knowledge of a process at its decision where a pod goes; number: running number.

    shares: units by index. cards: the devices of the node. rooms: units of each device taken.
    shown, loose: pods, see Known. names: whether the process ever saw names of the node's cards.
    order: the cards in the last order of the node. indexed: pods, see Known.
    """

    number: int
    shares: dict[int, int]
    cards: Cards
    rooms: dict[int, int]
    shown_pods: frozenset[str]
    loose: dict[str, frozenset[str]]
    names: bool
    order: tuple[str, ...]
    indexed: frozenset[str]

    @property
    def put(self) -> dict[str, int]:
        """Units by card."""
        return {self.cards.card(device): units for device, units in self.shares.items()}

    def where(self, device: int, cards: Cards) -> int | None:
        """The index of the device of these cards here, if units of it were taken.

        Without uuids only an index is known: cards change places unseen.
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
    _audit_reports: list[str] = field(default_factory=list)
    _decided: int = 0
    _position: int = 1
    _checked: dict[str, tuple[int, int]] = field(default_factory=dict)

    # -- events ---------------------------------------------------------------------------------

    def sent(self, request: Request) -> None:
        """A process sends a request: for a Binding, judge whether it may."""
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
        knowledge = self.known[replica.identity]
        entry = replica.ledger.entry(uid)
        if entry is None or entry.node != node or dict(entry.cover.written or ()) != shares:
            raise Violation(f"S6 a Binding of {uid} is sent that is not charged so: {entry}")
        if not entry.in_doubt and not self._may_land_already(replica, uid):
            self._decided += 1
            knowledge.since[uid] = knowledge.changes[node]
            self.decisions[replica.identity, uid] = Decision(
                self._decided,
                shares,
                knowledge.nodes[node],
                {device: knowledge.room(node, device) for device in shares},
                frozenset(knowledge.pods),
                dict(knowledge.loose),
                node in knowledge.named,
                knowledge.orders.get(node, knowledge.nodes[node].ids),
                frozenset(knowledge.indexed),
            )

    def _may_land_already(self, replica: Replica, uid: str) -> bool:
        entry = replica.ledger.entry(uid)
        return (replica.identity, uid) in self.decisions and entry is not None and entry.in_doubt

    def applied(self, request: Request, answer: object) -> None:
        """The server has handled a request: a bound pod must have room."""
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
        for written_index, units in decision.shares.items():
            last, device = self._last_decided(node, written_index, decision)
            card = decision.cards.card(written_index)
            holders = self._holders(node, device, pod.by, last)
            used_units = sum(holders.values())
            charged_units = pod.asked.charged(units, last.cards.units[device])
            if used_units + charged_units > last.rooms[device]:
                raise Violation(
                    f"S1 {pod.uid} is given {charged_units} units of {node}'s {card}, its device"
                    f" {device}: {used_units} of {last.rooms[device]} were held"
                )
            if len(holders) >= last.cards.sharers:
                raise Violation(f"S15 {pod.uid} is given {node}'s {card} beside {[*holders]}")
            holder_cores = [self.pods[uid].asked.cores_on(part) for uid, part in holders.items()]
            alone = holder_cores and _ALL_CORES in (pod.asked.cores, *holder_cores)
            # The last decision had to see that no room was left.
            full = last is decision and sum(holder_cores) >= _ALL_CORES
            fellows = [uid for uid in holders if self.pods[uid].stays_apart]
            if fellows and pod.stays_apart and last is decision:
                raise Violation(f"S14 {pod.uid} is given {node}'s {card} beside {fellows}")
            if alone or full or sum(holder_cores) + pod.asked.cores > _ALL_CORES:
                raise Violation(
                    f"S13 {pod.uid} is given {pod.asked.cores} % of {node}'s {card}, beside"
                    f" {holder_cores} % of {[*holders]}"
                )

    def _last_decided(self, node: str, device: int, decision: Decision) -> tuple[Decision, int]:
        """Return the last of the decisions of the units there, this one included, and the
        device then.

        The last decision had to count all others, and the devices at that time.
        """
        candidates = [(decision, device)]
        for pod in self.pods.values():
            by_it = self.decisions.get((pod.by, pod.uid))
            if by_it and pod.node == node and not pod.ended:
                device_then = by_it.where(device, decision.cards)
                if device_then is not None:
                    candidates.append((by_it, device_then))
        return max(candidates, key=lambda each: each[0].number)

    def later(self, pod: PodTruth, two: PodTruth) -> Decision:
        """The later of the decisions where the two pods go; `pod` was bound by one of ours."""
        decisions = [self.decisions.get((pod_truth.by, pod_truth.uid)) for pod_truth in (pod, two)]
        return max(
            (pod_truth for pod_truth in decisions if pod_truth is not None),
            key=lambda each: each.number,
        )

    def _judge_leader(self, by: Client, pod: PodTruth) -> None:
        for replica_ in self.replicas:
            if replica_ is not by and replica_.leading is not None and replica_.leads():
                raise Violation(
                    f"S5 {pod.uid} is bound by {pod.by} while {replica_.identity} leads"
                )

    def _holders(self, node: str, device: int, by: str, decision: Decision) -> dict[str, int]:
        """Units held by each other pod there: of ours, and of those the process had been shown."""
        shares_by_uid = {
            holder.uid: least_charged(
                holder, decision.cards, decision.loose.get(holder.uid, _NONE), decision.names
            ).get(device, 0)
            for holder in self.pods.values()
            if holder.node == node
            and not holder.ended
            and holder.put is not None
            and can_find(holder, decision.cards, decision.order, holder.uid in decision.indexed)
            and self._counts(holder, by)
            and (holder.by or holder.uid in decision.shown_pods)
        }
        return {uid: units for uid, units in shares_by_uid.items() if units}

    def _written(self, pod: PodTruth, annotations: Json) -> dict[int, int]:
        """Units by device as a Binding writes them, and as the pod has them then."""
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
        """The size of the first device, for plug-ins and the original's inspect."""
        first = int(annotations[IDX].split(",")[0])
        units = self.known[replica.identity].nodes[node].units
        if first >= len(units) or annotations[DEV] != str(units[first]):
            raise Violation(f"S4 device {first} of {node} has {units}, not {annotations[DEV]}")

    def _may_bind(self, replica: Replica, now: float) -> None:
        knowledge = self.known[replica.identity]
        if not replica.leads() and now > knowledge.led + BUDGET:
            raise Violation(f"S5 {replica.identity} binds and does not lead")
        for name in ("nodes", "pods"):
            heard = knowledge.heard.get(name)
            if heard is None:
                raise Violation(f"S5 {replica.identity} binds before {name} are listed")
            if now > heard + _STALE + 5:
                raise Violation(f"S5 {replica.identity} binds, last word of {name} at {heard}")

    def counted(self, identity: str, cpu: int) -> None:
        """A process counts a pod of so much CPU among those that come."""
        marked = [pod for pod in self.pods.values() if pod.cpu == cpu == UNCOUNTED_CPU]
        if marked and not any(pod.node for pod in marked):
            self._audit_reports.append(
                f"S10 {identity} counts one of {[pod.uid for pod in marked]}"
            )

    def audited(self, identity: str, finding: Finding, healed: bool) -> None:
        """An audit tells of a mistake in the books."""
        did = "and corrects it" if healed else ""
        self._audit_reports.append(f"X2 the audit of {identity} tells of {finding} {did}".rstrip())

    # -- deliveries -------------------------------------------------------------------------------

    def shown_line(self, replica: Replica, path: str, line: Line) -> None:
        """A line of a watch reaches a process."""
        if b'"type":"ERROR"' in line.text:
            return
        knowledge = self.known[replica.identity]
        name = next(name for name, of in PATHS.items() if of == path)
        knowledge.heard[name] = self.tasks.now
        if line.record is None or _refuses(replica, name):
            return
        if line.kind == "DELETED":
            self._unshow(knowledge, name, line.record.body)
        else:
            self._show(knowledge, name, line.record.body)

    def shown_list(self, replica: Replica, request: Request) -> None:
        """A page of a list reaches a process; the last page replaces the earlier knowledge."""
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
        knowledge = self.known[replica.identity]
        if "continue" not in request.query:
            knowledge.pages[name] = []
        knowledge.heard[name] = self.tasks.now
        knowledge.pages[name] += page["items"]
        if name == "pods":
            _meet(knowledge, page["items"])
        if not page["metadata"].get("continue") and not _refuses(replica, name):
            take = partial(self._replace, knowledge, name, knowledge.pages[name])
            sink = replica.sinks[name]
            if sink.pause is None or sink.failures:
                take()
            else:
                sink.taken = take

    def _replace(self, knowledge: Known, name: str, items: list[Json]) -> None:
        before = dict(knowledge.pods)
        if name == "nodes":
            for node_name in knowledge.nodes.keys() - {item["metadata"]["name"] for item in items}:
                knowledge.show_node(node_name, None)
        elif name == "pods":
            knowledge.pods.clear()
        else:
            node_names = {item["metadata"]["name"].removeprefix(UNHEALTHY) for item in items}
            knowledge.closed = {
                node: devices for node, devices in knowledge.closed.items() if node in node_names
            }
        for item in items:
            self._show(knowledge, name, item)
        knowledge.pods.update((uid, before[uid]) for uid in knowledge.pods.keys() & before.keys())

    def _show(self, knowledge: Known, name: str, body: Json) -> None:
        metadata = body["metadata"]
        if name == "nodes":
            version = metadata["resourceVersion"]
            knowledge.show_node(metadata["name"], self.cards[metadata["name"], version])
            for pod in self.pods.values():
                # For any other pod the process cannot know which cards came to the indices.
                its_own = pod.by == knowledge.identity or pod.uid in knowledge.pods
                if pod.node == metadata["name"] and its_own:
                    knowledge.loosen(pod)
        elif name == "pods" and body["spec"].get("nodeName"):
            uid = metadata["uid"]
            knowledge.pods.setdefault(uid, int(metadata["resourceVersion"]))
            if "deletionTimestamp" in metadata:
                knowledge.ending.add(uid)
            if "startTime" in body["status"]:
                knowledge.admitted.add(uid)
            self.follow()
            knowledge.show_pod(self.pods[uid])
        elif name == "configmaps":
            tokens = [token for token in body["data"].get("gpus", "").split(",") if token]
            if all(token.isdigit() for token in tokens):
                node = metadata["name"].removeprefix(UNHEALTHY)
                knowledge.closed[node] = frozenset(map(int, tokens))

    def _unshow(self, knowledge: Known, name: str, body: Json) -> None:
        metadata = body["metadata"]
        if name == "nodes":
            knowledge.show_node(metadata["name"], None)
        elif name == "pods":
            knowledge.pods.pop(metadata["uid"], None)
        else:
            knowledge.closed.pop(metadata["name"].removeprefix(UNHEALTHY), None)

    def sink_failed(self, replica: Replica) -> None:
        """The last delivery was not taken: only the books' knowledge counts.

        A charge that is still assumed has appeared in no list or watch: the process may
        have a read.
        """
        knowledge = self.known[replica.identity]
        for uid in list(knowledge.pods):
            entry = replica.ledger.entry(uid)
            if entry is None or entry.assumption is not None:
                del knowledge.pods[uid]
        knowledge.loose.clear()
        knowledge.indexed.clear()
        knowledge.ending.clear()

    # -- after every step -----------------------------------------------------------------------

    def follow(self) -> None:
        """Take over the changes since."""
        if self.server.store.version == self._position:
            return
        changes = self.server.changes("pods", self._position)
        self._position = self.server.store.version
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
        """Record the cards of a pod that one of our processes bound."""
        pod.uuids, pod.put, pod.named = uuids_of(annotations), decision.put, decision.cards.named
        pod.home = {decision.cards.card(device): device for device in decision.shares}
        named_cards = set(decision.put) if pod.named else set()
        if set(pod.uuids) != named_cards:
            raise Violation(f"S4 {pod.uid} is bound to {named_cards or 'no uuids'}: {annotations}")

    def check(self) -> None:
        """Judge every live process, and the findings of audits. Raises Violation."""
        if self._audit_reports:
            raise Violation(self._audit_reports[0])
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
        is_shown = pod.by or pod.uid in self.known[identity].pods
        return bool(is_shown and pod.asked.devices and not pod.ended) and self._counts(
            pod, identity
        )

    def _add_least(
        self, minimum: list[int], pod: PodTruth, identity: str, cores: bool = False
    ) -> None:
        """Add the units that the process must charge for the pod, by device.

        cores: the compute instead, on the same devices.
        """
        knowledge = self.known[identity]
        cards = knowledge.nodes.get(pod.node)
        if cards is not None and knowledge.can_find(pod, cards):
            loose, names = knowledge.loose.get(pod.uid, _NONE), pod.node in knowledge.named
            charged_units = least_charged(pod, cards, loose, names)
            if cores:
                charged_units = {
                    device: pod.asked.cores_on(units) for device, units in charged_units.items()
                }
            _add(minimum, charged_units)

    def judge_victims(
        self, replica: Replica, pod: PodTruth, victims: Mapping[str, Collection[str]]
    ) -> None:
        """A process has named victims, by node, by its current knowledge. Raises Violation."""
        knowledge = self.known[replica.identity]
        for node, uids in victims.items():
            for uid in uids:
                if self.pods[uid].priority >= pod.priority:
                    raise Violation(f"S12 {uid} is to make room for {pod}, but is {self.pods[uid]}")
            if replica.sinks["pods"].failed or node not in knowledge.nodes:
                continue
            count = len(knowledge.nodes[node].units)
            minimum = [0] * count
            for bound_pod in self.pods.values():
                stays = bound_pod.node == node and not self._frees(
                    knowledge, bound_pod, bound_pod.uid in uids
                )
                if stays and self._charged(bound_pod, replica.identity):
                    self._add_least(minimum, bound_pod, replica.identity)
            room = [knowledge.room(node, device) - minimum[device] for device in range(count)]
            sizes = knowledge.nodes[node].units
            needed = [pod.asked.charged(pod.asked.units, size) for size in sizes]
            if sum(map(ge, room, needed)) < pod.asked.devices:
                raise Violation(f"S12 without {uids} {node} has room for {room}, not for {pod}")

    def _frees(self, knowledge: Known, pod: PodTruth, victim: bool) -> bool:
        """Whether the pod may count as gone soon: allowing for an early or late end."""
        if not pod.terminating:
            return victim
        seconds_left = pod.ends_by - self.tasks.now
        soon = -MAX_LATE - _SKEW <= seconds_left <= MAX_GRACE + _SKEW
        return soon or (victim and pod.uid not in knowledge.ending)

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
        written_units = sum(units for _, units in entry.cover.written or ()) or pod.asked.total
        twofold = pod.odd or pod.edited
        wrong = written_units < pod.asked.total if twofold else written_units != pod.asked.total
        if entry.request.total != pod.asked.total or wrong:
            raise Violation(f"S3 {entry} is charged for {pod.asked}")

    def check_flight(self, requests: list[Request]) -> None:
        """A write that may still land stays charged at its node. Raises Violation."""
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


def _meet(knowledge: Known, items: list[Json]) -> None:
    """Take over that a list of pods is on the way into the books, which may take a while."""
    for item in items:
        if item["spec"].get("nodeName"):
            knowledge.meet(item["metadata"]["uid"], item["spec"]["nodeName"])


def _refuses(replica: Replica, name: str) -> bool:
    """Whether the books will not take the next delivery (of pods: see sink_failed)."""
    return name != "pods" and replica.sinks[name].failures > 0


def _add(minimum: list[int], charged_units: dict[int, int]) -> None:
    for device, units in charged_units.items():
        if device < len(minimum):
            minimum[device] += units


def _check_node(replica: Replica, node: NodeBooks, minimum: list[int], cores: list[int]) -> None:
    if len({*node.spec.capacity}) > MAX_SIZES:
        raise Violation(f"S11 {replica.identity} takes {node.spec} over")
    for device, (used, min_units) in enumerate(zip(node.used, minimum, strict=True)):
        if used < 0:
            raise Violation(f"S8 {replica.identity}: {node.spec.name}/{device} has {used} used")
        if used < min_units:
            raise Violation(
                f"S2 {replica.identity} charges {used} on {node.spec.name}/{device},"
                f" {min_units} held"
            )
    for device, min_units in enumerate(cores):
        charged_cores = node.cores_used[device] if node.cores_used else 0
        if charged_cores < min_units:
            raise Violation(
                f"S2 {replica.identity} charges {charged_cores} % of {node.spec.name}/{device}'s"
                f" compute, {min_units} % held"
            )
