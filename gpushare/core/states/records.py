"""The books' record of a pod, and the next record after an event, by the table in phases.py.

Pure: nothing here is ever changed, time and tokens are arguments. A pod without a record is
uncharged, and no watch has shown it.

Tested in `tests/unit/ledger/test_ledger.py`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from gpushare.core.cover import with_given
from gpushare.core.model import Allocation, Apart, Charge, Cover, ObservedPod, PodRef, Request
from gpushare.core.states.entry import Assumption, Entry, Phase, Waiting
from gpushare.core.states.phases import TABLE, Event
from gpushare.errors import InvariantError

BINDING_LIFETIME = 65.0
"""Seconds a charge in doubt is kept although the pod reads as unbound.

kube-apiserver ends a request after 60 s (--request-timeout), so a binding sent earlier cannot land
later; the rest is for the read, which was sent a little before it is settled.
"""

# Python 3.11 takes long to look a member up; these are needed for each pod of a list.
_UNCHARGED, _CPU_ONLY, _GONE = Phase.UNCHARGED, Phase.CPU_ONLY, Phase.GONE
_WAITING, _SHOWN_BOUND = Event.SHOWN_WAITING, Event.SHOWN_BOUND
_SHOWN_CPU_ONLY = Event.SHOWN_CPU_ONLY
ON_NODE = (Phase.BOUND, Phase.CPU_ONLY)
"""The phases of a pod that the watch has shown on a node."""


@dataclass(frozen=True, slots=True)
class CpuOnly:
    """A pod on a node that asks for no device."""

    node: str
    request: Request
    namespace: str
    phase: ClassVar[Phase] = Phase.CPU_ONLY
    assumption: ClassVar[None] = None

    @property
    def charge(self) -> Charge:
        """The amounts that the pod takes from its node."""
        return Charge(self.node, self.request, None)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A pod that is there and has never been shown so that it could be read."""

    phase: ClassVar[Phase] = Phase.UNCHARGED
    assumption: ClassVar[None] = None
    charge: ClassVar[None] = None


Record = Entry | CpuOnly | Waiting | Unreadable


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that should not happen."""

    kind: str
    """Its name in `counts`."""
    ref: PodRef
    node: str
    """Where the pod is now, or was bound where it reads as unbound."""


class Step(NamedTuple):
    """The consequences of an event."""

    record: Record | None
    """None if nothing is kept."""
    alarm: Alarm | None = None


class Sent(NamedTuple):
    """A Binding: its assume time, the time now, and a token for the reads after it."""

    stamp: str
    now: float
    token: int


def next_phase(record: Record | None, event: Event) -> Phase | None:
    """Return the phase that the event leads to; None if it changes nothing."""
    return TABLE[event].get(_UNCHARGED if record is None else record.phase)


def is_counted(record: Record | None) -> bool:
    """Return whether the pod counts among those that come: the watch has shown it, and not with
    gates alone.
    """
    if record is None:
        return False
    assumption = record.assumption
    pending = assumption.waiting if assumption is not None else record
    if isinstance(pending, Waiting):
        return pending.counted
    return assumption is None or assumption.unbound


def observed_unreadable(record: Record | None) -> Record | None:
    """Return the record after the pod was shown in a form that cannot be read."""
    if record is None and next_phase(record, Event.SHOWN_UNREADABLE) is not None:
        return Unreadable()
    return record


def observed(record: Record | None, pod: ObservedPod) -> Step:
    """Return the record after the watch, a list or an audit has shown the pod."""
    if pod.ended:
        event = Event.GONE
    elif not pod.node:
        event = _WAITING
    else:
        event = _SHOWN_BOUND if pod.request.devices else _SHOWN_CPU_ONLY
    phase = next_phase(record, event)
    entry = record if isinstance(record, Entry) else None
    assumption = entry.assumption if entry else None
    if phase is None or phase is _GONE:
        return Step(record if phase is None else None)
    if phase is _CPU_ONLY:
        cpu_only = CpuOnly(pod.node, pod.request, pod.ref.namespace)
        return Step(record if record == cpu_only else cpu_only)
    if event is _WAITING:
        is_counted_pod = is_counted(record) or not pod.gated
        pending = Waiting(
            pod.ref,
            pod.request,
            pod.created,
            pod.gated,
            pod.crowded,
            is_counted_pod,
            pod.priority,
            pod.demands,
            pod.served,
        )
        if entry is None or assumption is None:
            return Step(pending)
        return Step(replace(entry, assumption=replace(assumption, waiting=pending)))
    if entry is None:
        return Step(_bound(pod, _cover(pod)))
    if assumption is None:
        return _shown_again(entry, pod)
    cover, _, alarm = _cover_when_bound(entry, assumption, pod)
    return Step(_bound(pod, cover), alarm)


def listed(record: Record | None, event: Event, *, now: float, token: int) -> Record | None:
    """Return the record after a whole list; the event says how the list shows the pod."""
    phase = next_phase(record, event)
    if phase is None:
        return record
    if not isinstance(record, Entry) or phase is Phase.GONE:
        return None
    assumption = record.assumption
    if assumption is None:
        binding = (record.node, record.cover, frozenset[str]())
        assumption = Assumption(token, *binding, now, due=True, unbound=True)
    elif event is Event.NOT_LISTED:
        assumption = replace(assumption, waiting=None)
    else:
        assumption = replace(assumption, due=True, token=token)
    return replace(record, phase=phase, assumption=assumption)


def read(record: Record | None, pod: ObservedPod | None, token: int, now: float) -> Step:
    """Return the record after a read of the pod, made since it was given the token.

    pod None: no pod of that name exists. A read that shows the pod bound makes its charge landed;
    it is a fact once the watch shows it, since a list under way may be older than the read. One
    that shows it unbound frees the charge once no late write can bind it any more; where it was
    known to be bound, an alarm tells it.
    """
    assumption = record.assumption if record else None
    if not isinstance(record, Entry) or assumption is None or assumption.token != token:
        return Step(record)
    if pod is None or pod.ref.uid != record.ref.uid or pod.ended:
        return Step(record if next_phase(record, Event.READ_GONE) is None else assumption.waiting)
    late = now >= assumption.since + BINDING_LIFETIME
    unbound = Event.READ_UNBOUND_LATE if late else Event.READ_UNBOUND
    phase = next_phase(record, Event.READ_BOUND if pod.node else unbound)
    if phase is None:
        return Step(record)
    if pod.node:
        cover, sure, alarm = _cover_when_bound(record, assumption, pod)
        landed = replace(assumption, since=now, due=False, sure=sure)
        return Step(replace(_bound(pod, cover), phase=phase, assumption=landed), alarm)
    alarm = None
    if not assumption.lost and (record.phase is Phase.LANDED or assumption.unbound):
        alarm = Alarm("binding_lost", record.ref, record.node)
        record = replace(record, assumption=replace(assumption, lost=True))
    return Step(assumption.waiting if phase is Phase.UNCHARGED else record, alarm)


def corrected(record: Record | None, pod: ObservedPod) -> Step:
    """Return the record, corrected by an audit's read of a bound pod that is charged wrongly.

    A pod never changes its node, so a charge elsewhere is nobody's. On its own node the pod is
    charged to every device: its place is in doubt. A charge without a fault stays:
    the watch may have put it right since the audit looked.
    """
    if not isinstance(record, Entry) or next_phase(record, Event.CORRECTED) is None:
        return observed(record, pod)
    if record.node == pod.node and record.charged[0] >= pod.request.total:
        return Step(record)
    return Step(_bound(pod, Cover() if record.node == pod.node else _cover(pod)))


def assumed(
    record: Record | None,
    ref: PodRef,
    request: Request,
    allocation: Allocation,
    binding: Sent,
    *,
    at_gate: bool = False,
) -> Entry:
    """Return the charge of a pod whose Binding is sent next, or waits at the gate."""
    phase = next_phase(record, Event.ASSUMED_AT_GATE if at_gate else Event.ASSUMED)
    if phase is None:
        raise InvariantError(f"pod {ref}: it is charged already")
    node, cover = allocation.node, Cover(allocation.shares, allocation.uuids)
    pending = record if isinstance(record, Waiting) else None
    stamps = frozenset([binding.stamp])
    assumption = Assumption(binding.token, node, cover, stamps, binding.now, waiting=pending)
    return Entry(ref, request, node, cover.written, assumption, cover=cover, phase=phase)


def sent_again(entry: Entry, binding: Sent) -> Entry:
    """Return the charge with a Binding that is sent once more."""
    was, phase = entry.assumption, next_phase(entry, Event.SENT_AGAIN)
    if was is None or phase is None:
        return entry
    stamps = was.stamps | {binding.stamp}
    again = replace(was, token=binding.token, since=binding.now, stamps=stamps)
    return replace(entry, phase=phase, assumption=again)


def answered(record: Record | None, event: Event, binding: Sent) -> Record | None:
    """Return the record after the answer to a Binding, or after the gate has let the pod through.

    The answer is ignored if the charge of that Binding has ended: its pod may have been seen bound,
    and gone, before the answer came, and another bind of the same uid may be under way.
    """
    phase, assumption = next_phase(record, event), record.assumption if record else None
    if (
        not isinstance(record, Entry)
        or assumption is None
        or binding.stamp not in assumption.stamps
    ):
        return record
    if phase is None or phase is Phase.UNCHARGED:
        return record if phase is None else assumption.waiting
    sure = assumption.sure or event is Event.ACCEPTED
    assumption = replace(assumption, since=binding.now, sure=sure)
    if event is Event.NO_ANSWER:
        assumption = replace(assumption, due=True, token=binding.token)
    return replace(record, phase=phase, assumption=assumption)


def _bound(pod: ObservedPod, cover: Cover) -> Entry:
    """Return the charge of a pod that is seen bound."""
    return Entry(
        ref=pod.ref,
        request=pod.request,
        node=pod.node,
        placement=cover.written,
        assigned=pod.assigned,
        priority=pod.priority,
        started=pod.started,
        terminating=pod.terminating,
        labels=pod.labels,
        running=pod.running,
        cover=cover,
        ends_by=pod.ends_by,
    )


def _editable(request: Request) -> tuple[int, int, Apart | None, int]:
    """Return the values that users may edit while the pod runs."""
    return request.cpu, request.memory, request.apart, request.memory_limit


def _shown_again(entry: Entry, pod: ObservedPod) -> Step:
    """Return the charge of a bound pod that is shown once more: its devices stay as first seen.

    Its CPU and memory, `Request.apart` and its memory limit are those of now, as after a restart.
    """
    same = _same(_cover(pod), entry.cover)
    alarm = None if same else Alarm("placement_edited", pod.ref, pod.node)
    request, now = entry.request, pod.request
    if _editable(now) != _editable(request):
        # CPU and memory of a running pod may be resized; extended resources cannot.
        request = replace(
            request, cpu=now.cpu, memory=now.memory, apart=now.apart, memory_limit=now.memory_limit
        )
    seen = Entry(
        *(entry.ref, request, entry.node, entry.placement, None, entry.assigned or pod.assigned),
        *(pod.priority, pod.started, pod.terminating, pod.labels, pod.running),
        with_given(entry.cover, pod.given),
        pod.ends_by,
    )
    return Step(seen, alarm)


def _cover_when_bound(
    entry: Entry, assumption: Assumption, pod: ObservedPod
) -> tuple[Cover, bool, Alarm | None]:
    """Return (its devices, whether our Binding landed, the alarm if another's did) as seen bound.

    If ours landed, its devices are those that were sent, whatever its annotations were edited to.
    Else the watch has the last word: a read may have shown annotations edited since the bind.
    """
    cover, sure = _cover(pod), assumption.sure
    if pod.node == assumption.node:
        sure |= bool(pod.stamp) and pod.stamp in assumption.stamps
        cover = assumption.sent if sure else cover
    if pod.node == entry.node and _same(cover, entry.cover):
        # With the cards that it has learned of meanwhile.
        return with_given(entry.cover, pod.given), sure, None
    return with_given(cover, pod.given), sure, Alarm("bound_by_another", pod.ref, pod.node)


def _cover(pod: ObservedPod) -> Cover:
    """Return the devices that its annotations name."""
    return Cover(pod.placement, pod.uuids, given=pod.given)


def _same(one: Cover, second: Cover) -> bool:
    """Return whether both say the same, whatever has been learned of either."""
    return (one.written, one.uuids) == (second.written, second.uuids)
