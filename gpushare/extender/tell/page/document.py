"""The JSON document of the page: nodes, devices, pods, and the pending pods with reasons.

Keys with the same meaning are the same as in `kubectl inspect gpushare -o json` (docs/inspect.md).
The source is one copy of the books (`Reader.books`), without the lock of the books. The text of a
node is reused until the node changes, so in a large cluster few texts are made again.
"""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from gpushare import __version__
from gpushare.core.amounts import PERCENT_AMOUNTS, DeviceAmount, by_name
from gpushare.core.model import NodeSpec, PodRef, Request
from gpushare.core.node_filters import Availability, NodeState
from gpushare.core.selectors import Demands
from gpushare.core.states.entry import Entry, Waiting, memory_limits
from gpushare.core.stranded import stranded_units
from gpushare.errors import MessageError
from gpushare.explain.claims import Readings, explain_claims
from gpushare.explain.document import progress_document
from gpushare.explain.pod import explanation_of
from gpushare.explain.text import claims_sentence, sentence
from gpushare.extender.claims.view import ClaimsView
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.shadow.shadow import Shadow
from gpushare.extender.tell.events.mistaken_pods import MistakenPods
from gpushare.extender.tell.group_progress import waiting_groups
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.verbs.offers import held_places, offers_of
from gpushare.ledger import LedgerView
from gpushare.turns import in_turns
from gpushare.wire.held import held_document
from gpushare.wire.objects import PODS
from gpushare.wire.pods import Claimant

_Entries = tuple[Entry, ...]
_PercentsUsed = tuple[tuple[DeviceAmount, tuple[int, ...]], ...]
"""Each shown amount with the percent in use of each device."""
_Books = tuple[NodeSpec, _Entries, tuple[int, ...], int, _PercentsUsed]
"""(shape, charges, used units, typical request, used percents)."""
_Key = tuple[_Books, NodeState | None, str]
"""The key of the text of a node: (books, state, why autoscalers leave the node alone)."""

_Question = TypeVar("_Question", bound=Hashable)
"""The key of an explanation, such as (claimant, demands of the pod)."""

_ANY_POD = PodRef("", "", "")

Version = tuple[int, int]
"""The versions of the books and of the node states for kube-scheduler's own filters."""

_NEVER: Version = (-1, -1)
_TOO_LARGE = "its spec is too large to be judged here: gpushare explain judges it"
_BUDGET = 0.05
"""Seconds of one turn; each turn makes at least one explanation."""
_REST = 9.0
"""Rest after a turn, as a multiple of the time of the turn."""

_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Documents:
    """Makes the document; any thread may call.

    unit: the memory unit of the cluster. not_ready: why this process does not answer kube-scheduler
    now, or "". called: whether filter was called for the pod of that uid. mistaken_pods: the pods
    that wait because of a mistake. shadow: the shadow policy. claims: the view of claims, None if
    claims are not followed. kept_nodes: returns why autoscalers leave nodes alone, by name.
    """

    def __init__(
        self,
        resources: ManagedResources,
        unit: str,
        last_hour: LastHour,
        *,
        not_ready: Callable[[], str],
        called: Callable[[str], bool],
        mistaken_pods: MistakenPods,
        shadow: Shadow | None = None,
        claims: ClaimsView | None = None,
        kept_nodes: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._kept_nodes = kept_nodes
        self._gate = resources.gate
        self._unit = unit
        self._not_ready = not_ready
        told = unit, last_hour, called, mistaken_pods
        self._parts = [_KeptPart(resource, *told, shadow=shadow) for resource in resources]
        if claims is not None:
            self._parts.append(_ClaimsPart(claims.source, *told, claims=claims))
        self._since = last_hour.since
        self._making = threading.Lock()
        self._key: object = None
        self._body = b""

    def body(self) -> bytes:
        """Return the document; the one made before if nothing has changed since."""
        with self._making:
            reason = self._not_ready()
            kept_nodes = self._kept_nodes()
            groups = [progress_document(group) for group in waiting_groups(self._gate)]
            key = (reason, [part.version() for part in self._parts], kept_nodes, groups)
            if key != self._key or not all(part.explanations.complete for part in self._parts):
                head = {
                    "version": __version__,
                    "unit": self._unit,
                    "notReady": reason or None,
                    "countingSince": int(self._since),
                    "groups": groups,
                }
                parts = ",".join(part.text(kept_nodes) for part in self._parts)
                self._body = f'{_ENCODE(head)[:-1]},"resources":[{parts}]}}'.encode()
                self._key = key
            return self._body


class ExplanationCache:
    """The explanations of the pending requests for one resource, each in one sentence.

    An explanation on a full cluster takes up to 0.5 s of CPU, and many requests may be pending. So
    pods with equal questions share one explanation, and explanations take at most a tenth of the
    time; the other pods keep their last sentence until their turn.

    clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rested_at = 0.0
        self._sentences: dict[Hashable, tuple[Version, str]] = {}
        self.complete = True
        """Whether all sentences are of the last snapshot."""

    def about(
        self, questions: Iterable[_Question], explain: Callable[[_Question], str], version: Version
    ) -> Mapping[Hashable, str]:
        """Return the sentences; a question before its first turn has none.

        questions: in turns of the namespaces, so that none waits for all sentences of another.
        """
        open_questions = dict.fromkeys(questions)
        sentences = self._sentences.items()
        self._sentences = {
            question: answer for question, answer in sentences if question in open_questions
        }
        # First those without a sentence, then those with the oldest ones.
        stale = [question for question in open_questions if self._age(question) != version]
        stale.sort(key=self._age)
        begin = now = self._clock()
        while stale and begin >= self._rested_at and now <= begin + _BUDGET:
            question = stale.pop(0)
            self._sentences[question] = version, explain(question)
            now = self._clock()
        if now > begin:
            self._rested_at = now + (now - begin) * _REST
        self.complete = not stale
        return {question: text for question, (_, text) in self._sentences.items()}

    def _age(self, question: Hashable) -> Version:
        return self._sentences.get(question, (_NEVER, ""))[0]


@dataclass(eq=False)
class _KeptPart:
    """The part of the document about one managed resource."""

    more: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Keys that not every part has."""

    resource: ManagedResource
    unit: str
    last_hour: LastHour
    called: Callable[[str], bool]
    mistaken_pods: MistakenPods
    _: KW_ONLY
    shadow: Shadow | None = None

    def __post_init__(self) -> None:
        self.explanations = ExplanationCache()
        self._offers = offers_of(self.resource)
        self._texts: dict[str, tuple[_Key, str]] = {}

    def version(self) -> object:
        """Return a value that differs whenever the text does."""
        resource = self.resource
        hour = self.last_hour.figures(resource.names.resource)
        resource.holds.expire(time.monotonic())
        changes = [resource.ledger.version(), resource.filters.states.version]
        changes += [self.mistaken_pods.version, resource.holds.version]
        shadow = _shadow_document(self.shadow, resource.names.resource)
        return changes, hour, resource.ranking_policy, resource.choice, shadow

    def text(self, kept_nodes: Mapping[str, str]) -> str:
        """Return the JSON of this part. kept_nodes: why autoscalers leave nodes alone, by name."""
        resource, books = self.resource, self.resource.ledger.view()
        typical = books.typical_units
        head = {
            "resource": resource.names.resource,
            **self.more,
            "typical": typical,
            "policy": _policy(resource),
            "shadow": _shadow_document(self.shadow, resource.names.resource),
            "lastHour": self.last_hour.figures(resource.names.resource),
            "pending": self._pending(books),
            "held": [held_document(place) for place in held_places(resource.holds)],
        }
        # Node by node: no other thread runs while one call of json works.
        return (
            f'{_ENCODE(head)[:-1]},"nodes":[{",".join(self._nodes(books, typical, kept_nodes))}]}}'
        )

    def _pending(self, books: LedgerView) -> list[dict[str, Any]]:
        holds, states = self.resource.holds, self.resource.filters.states
        version = books.snapshot.generation, states.version + holds.version
        # Pods without a hold of their own stand alike to the holds of others, except that
        # reservations of younger pods let older pods pass.
        latest = max((hold.pod.created for hold in holds.reservations()), default=0.0)
        questions = {
            pod.uid: (
                Claimant(
                    pod.ref if pod.uid in holds else _ANY_POD,
                    pod.request,
                    pod.priority,
                    created=pod.created if pod.created < latest else 0.0,
                ),
                pod.demands,
            )
            for pod in in_turns(books.waiting, lambda pod: pod.ref.namespace)
        }
        sentences = self.explanations.about(questions.values(), self._explain, version)
        pending_pods = [
            self._waiting(pod, sentences.get(questions[pod.uid])) for pod in books.waiting
        ]
        resource, waiting_uids = self.resource.names.resource, {pod.uid for pod in books.waiting}
        unread = self.mistaken_pods.standing(resource)
        return pending_pods + [
            _pending_pod(mistake.ref, f"its request makes no sense: {mistake.text}")
            for mistake in unread
            if mistake.ref.uid not in waiting_uids
        ]

    def _explain(self, question: tuple[Claimant, Demands]) -> str:
        claim, demands = question
        try:
            self.resource.ranking(claim.request)
            books = self.resource.ledger.snapshot()
            snapshot = self._offers.to(claim, books, time.monotonic())
            explanation = explanation_of(
                self.resource, claim.request, demands, time.time(), snapshot=snapshot
            )
        except MessageError as error:
            return f"its request makes no sense: {error}"
        return sentence(explanation, self.unit)

    def _waiting(self, pod: Waiting, reason: str | None) -> dict[str, Any]:
        was_called = self.called(pod.ref.uid)
        return _pending_pod(
            pod.ref,
            reason,
            request=pod.request,
            created=pod.created,
            asked=was_called,
            scheduler=None if was_called else _not_asked(pod),
        )

    def _nodes(
        self, books: LedgerView, typical: int, kept_nodes: Mapping[str, str]
    ) -> Iterable[str]:
        on_node: dict[str, list[Entry]] = defaultdict(list)
        for entry in books.entries.values():
            on_node[entry.node].append(entry)
        texts, self._texts = self._texts, {}
        snapshot = books.snapshot
        shown_percents = [
            (amount, percents_used)
            for amount, percents_used in zip(PERCENT_AMOUNTS, snapshot.percents_used, strict=True)
            if percents_used.any()
        ]
        for name in sorted(books.nodes):
            spec = books.nodes[name]
            if not self.resource.concerns(spec, on_node.get(name, ())):
                continue
            row = snapshot.row[name]
            used = tuple(snapshot.used[row].tolist())
            percents = tuple(
                (amount, tuple(percents_used[row].tolist()))
                for amount, percents_used in shown_percents
            )
            books_of_node = spec, tuple(on_node[name]), used, typical, percents
            kept_reason, state = kept_nodes.get(name, ""), self.resource.filters.states.get(name)
            key = books_of_node, state, kept_reason
            before, text = texts.get(name, (None, ""))
            if before != key:
                node_object = node_document(*books_of_node, judgement=self.resource.judge(spec))
                if kept_reason:
                    node_object["keptFromScaleDown"] = kept_reason
                text = _ENCODE(node_object)
            self._texts[name] = key, text
            yield text


@dataclass(eq=False)
class _ClaimsPart(_KeptPart):
    """The part about the devices of the driver: claims hold memory, and pods with claims wait."""

    more: ClassVar[Mapping[str, str]] = MappingProxyType({"holder": "claim"})
    _: KW_ONLY
    claims: ClaimsView

    def __post_init__(self) -> None:
        super().__post_init__()
        self._readings: tuple[Version, Readings] = _NEVER, {}

    def version(self) -> object:
        """Return a value that differs whenever the text does."""
        return super().version(), self.claims.books.version, self.claims.waiting.version

    def _pending(self, books: LedgerView) -> list[dict[str, Any]]:
        del books
        by_class = self.claims.books.resources.keys()
        pods = [pod for pod in self.claims.waiting.all().values() if pod.asks_by_claims(by_class)]
        version = self.claims.books.version, self.resource.filters.states.version
        if self._readings[0] != version:
            self._readings = version, {}
        questions = [pod.needs for pod in in_turns(pods, lambda pod: pod.ref.namespace)]
        sentences = self.explanations.about(questions, self._why_pending, version)
        return [
            _pending_pod(
                pod.ref,
                sentences.get(pod.needs),
                created=pod.created,
                asked=self.called(pod.ref.uid),
                scheduler=pod.scheduler,
            )
            for pod in sorted(pods, key=lambda pod: (pod.created, str(pod.ref)))
        ]

    def _why_pending(self, needs: bytes) -> str:
        if not needs:
            return _TOO_LARGE
        claims, (_, readings) = self.claims, self._readings
        books, filters, pod = claims.books, claims.source.filters, PODS.decode(needs)
        explained = explain_claims(
            pod, books, filters, claims.matches, self.unit, readings=readings
        )
        return claims_sentence(explained)


def _pending_pod(
    ref: PodRef,
    why: str | None,
    *,
    request: Request = Request(),  # noqa: B008 -- frozen
    created: float = 0.0,
    asked: bool = False,
    scheduler: str | None = None,
) -> dict[str, Any]:
    """Return the object of a pending pod. request: of memory, as far as the books know it."""
    return {
        "namespace": ref.namespace,
        "name": ref.name,
        "requested": request.total,
        "devices": request.devices,
        **by_name(request.percents),
        "created": int(created) or None,
        "asked": asked,
        "why": why,
        "scheduler": scheduler,
    }


def _not_asked(pod: Waiting) -> str:
    """Return why no scheduler has asked about the pod."""
    if pod.demands.gated:
        return "its scheduling gates hold it back"
    if not pod.served:
        return "kube-scheduler's file has no profile of its schedulerName"
    if pod.gated:
        return "kube-scheduler's own filters leave it no node"
    return "no scheduler has asked gpushare about it"


def _policy(resource: ManagedResource) -> Mapping[str, Any]:
    """Return the ranking policy and the figures of the last trial, as in the inspect document."""
    choice = resource.choice
    names = {"name": resource.ranking_policy, "default": resource.default_policy}
    if choice is None:
        return names | dict.fromkeys(("since", "lead", "error", "second")) | {"candidates": []}
    return names | {
        "since": int(choice.since),
        "lead": choice.lead if choice.second else None,
        "error": choice.error if choice.second else None,
        "second": choice.second or None,
        "candidates": [
            {"name": name, "allocated": allocated, "refused": choice.refused_percent.get(name)}
            for name, allocated in choice.allocated.items()
        ],
    }


def _shadow_document(shadow: Shadow | None, resource: str) -> dict[str, Any] | None:
    """Return the results of the shadow for a managed resource; None without a shadow."""
    if shadow is None:
        return None
    counts = shadow.counts[resource]
    return {
        "policy": shadow.policy,
        "off": shadow.off or None,
        "choices": dict(counts.choices),
        "pods": dict(counts.pods),
        "inexact": sum(counts.inexact.values()),
        "rebases": counts.rebases,
        "dropped": sum(shadow.dropped.values()),
        "real": counts.real._asdict(),
        "books": counts.shadow._asdict(),
    }


def node_document(
    spec: NodeSpec,
    entries: _Entries,
    used: tuple[int, ...],
    typical: int,
    percents_used: _PercentsUsed = (),
    *,
    judgement: tuple[Availability, str] = (Availability.OPEN, ""),
) -> dict[str, Any]:
    """Return the JSON object of a node.

    judgement: whether the node takes pods, and what kube-scheduler's own filters object to.
    percents_used: the percent of each device, for each amount that a pod of the cluster uses.
    """
    availability, left_out = judgement
    closed_reason = spec.closed.value if spec.closed else None
    unavailable = None
    if not availability.takes_pods:
        is_closed = availability is Availability.CLOSED
        unavailable = closed_reason or ("all devices are closed" if is_closed else left_out)
    ordered = sorted(entries, key=lambda entry: (entry.ref.namespace, entry.ref.name))
    allocated, pods = [0] * len(spec.capacity), [0] * len(spec.capacity)
    for entry in ordered:
        for device, units in _shares(entry, spec):
            allocated[device] += units
            pods[device] += 1
    unplaced_pods = [entry for entry in ordered if not _shares(entry, spec)]
    unplaced = sum(entry.units(spec.capacity) for entry in unplaced_pods)
    devices: list[dict[str, Any]] = []
    for index, total in enumerate(spec.capacity):
        has_place = pods[index] + len(unplaced_pods) < spec.max_sharers
        is_open = spec.healthy[index] and availability.takes_pods and has_place
        free = max(total - used[index], 0) if is_open else 0
        devices.append(
            {
                "index": index,
                "uuid": (spec.uuids[index] or None) if spec.uuids else None,
                "model": (spec.models[index] or None) if spec.models else None,
                "healthy": spec.healthy[index],
                "total": total,
                "allocated": allocated[index],
                "free": free,
                "stranded": stranded_units(free, typical),
            }
        )
    limits = memory_limits(ordered, used, spec.capacity)
    for device_object, units in zip(devices, limits, strict=bool(limits)):
        device_object["limits"] = units
    stranded_by: dict[str, int] = {}
    for amount, percents in percents_used:
        key = f"strandedBy{amount.title}"
        for device_object, percent in zip(devices, percents, strict=False):
            device_object[amount.name] = percent
            if amount.is_exclusive:
                # Without a free part of the amount no memory is free. Unplaced pods count.
                is_full = percent >= amount.whole
                device_object[key] = device_object["free"] if is_full else 0
                device_object.update({"free": 0, "stranded": 0} if is_full else {})
        if amount.is_exclusive:
            stranded_by[key] = sum(device[key] for device in devices)
    return {
        "name": spec.name,
        "state": availability.value,
        "unavailable": unavailable,
        "closed": closed_reason,
        "leftOut": left_out or None,
        "total": sum(spec.capacity),
        "allocated": sum(allocated) + unplaced,
        "unplaced": unplaced,
        "free": sum(device["free"] for device in devices),
        **stranded_by,
        "devices": devices,
        "pods": [_pod(entry, spec, [amount for amount, _ in percents_used]) for entry in ordered],
    }


def _pod(entry: Entry, spec: NodeSpec, amounts: Iterable[DeviceAmount]) -> dict[str, Any]:
    percents = by_name(entry.largest_percents)
    return {
        "namespace": entry.ref.namespace,
        "name": entry.ref.name,
        "assigned": entry.assigned,
        "allocated": entry.units(spec.capacity),
        **{amount.name: percents.get(amount.name, 0) for amount in amounts},
        "devices": [
            {"index": device, "allocated": units} for device, units in _shares(entry, spec)
        ],
    }


def _shares(entry: Entry, spec: NodeSpec) -> tuple[tuple[int, int], ...]:
    """Return the devices of the pod on the node; () if unknown."""
    shares = entry.placement or ()
    is_there = all(device < len(spec.capacity) for device, _ in shares)
    return entry.charges(spec.capacity) if is_there else ()
