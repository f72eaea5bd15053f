"""Write an explanation for people, as lines or as one sentence. Nothing is decided here.

Tested in `tests/unit/explain/test_pod.py`.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from gpushare.core.amounts import (
    NO_PERCENTS,
    PERCENT_AMOUNTS,
    beside_memory,
    by_name,
    memory_text,
    percents_text,
)
from gpushare.core.bound_pod import BoundPodScore
from gpushare.core.explain import Explanation, PodVerdict, Remedy
from gpushare.core.model import ANY_CARD, Cards, Reason, Request
from gpushare.core.states.entry import Entry
from gpushare.explain.pod import (
    ClaimExplanation,
    DeviceReading,
    GroupNeed,
    GroupProgress,
    Outstanding,
    PodExplanation,
    Rollout,
)
from gpushare.wire.conditions import SchedulerView

_MOST_NAMES = 5
"""The most names in a line; the document has all."""

_MOST_REQUESTS = 300
"""Characters of the requests of claims in a sentence."""


NO_UNIT = "units"
"""The unit of memory if no unit is known."""


def behind_amount(unit: str) -> str:
    """Return the text after a number of units: " GiB", or " x 256MiB" for another unit than GiB and
    MiB.
    """
    return f" {unit}" if unit in ("GiB", "MiB", NO_UNIT) else f" x {unit}"


def amount(units: int, unit: str) -> str:
    """Return units as text, such as 8 GiB, or 8 x 256MiB."""
    return f"{units}{behind_amount(unit)}"


def group_text(group: GroupNeed, unit: str, when: str = " now") -> str:
    """Return the needed and the fitting pods of a group by kind as text."""
    needs = " and ".join(f"{needed} x {_size(asks, unit)}" for asks, needed, _ in group.kinds)
    fitting = " and ".join(str(fitting) for *_, fitting in group.kinds)
    needs = f"needs {needs} at once" if group.at_once else f"waits for {needs}"
    return f"{needs}: {fitting} fit{when}"


def progress_text(group: GroupProgress) -> str:
    """Return the numbers of existing, bound and waiting pods of a group as text."""
    if not group.size:
        return f"{group.name} does not say how many pods it needs, so each is bound by itself"
    if group.size == 1:
        return f"{group.name}: each pod is bound by itself"
    are = "is" if group.existing == 1 else "are"
    parts = [f"{group.existing} of {group.size} pods {are} there", f"{group.bound_pods} bound"]
    if group.waiting_pods and group.until is not None:
        end = f"{datetime.fromtimestamp(group.until, UTC):%H:%M:%S} UTC"
        wait = "waits" if group.waiting_pods == 1 else "wait"
        parts.append(f"{group.waiting_pods} with a place {wait} at bind for the others until {end}")
    return f"{group.name}: {', '.join(parts)}"


def sentence(
    explanation: Explanation,
    unit: str,
    reader: str | None = None,
    between: Outstanding = Outstanding(),  # noqa: B008 -- frozen
) -> str:
    """Return the verdict in one sentence, for an event of the pod and for the page.

    reader: the namespace of the readers, who may not learn the names of pods of other namespaces;
    None: they may. between: the need of the pod's group.
    """
    parts = [f"its group {group_text(between.group, unit)}"] if between.group else []
    if explanation.verdict in (PodVerdict.WOULD_FIT, PodVerdict.MAY_FIT):
        compute = _by_percents(explanation, unit)
        free = f"{_free(explanation, unit)}, but {compute}" if compute else _free(explanation, unit)
        parts += [f"free now: {free}", *_fellows(explanation)]
        if reader is None and Reason.MOST_SHARERS in explanation.reasons:
            parts.append("free devices have the most pods that their node allows")
    if not explanation.fit or reader is None:
        parts.append(verdict_sentence(explanation, unit, reader))
    return "; ".join(parts)


_PREDICATES = {
    PodVerdict.FITS_NOW: "fits now",
    PodVerdict.WOULD_FIT: "would fit",
    PodVerdict.MAY_FIT: "may fit",
    PodVerdict.NEVER_FITS: "can never fit:",
}


def verdict_sentence(
    judged: Explanation | DeviceReading, unit: str = "", reader: str | None = None
) -> str:
    """Return the verdict as a sentence about the pod. Parameters as of `verdict_text`."""
    if judged.verdict is None:
        return ""
    return f"it {_PREDICATES[judged.verdict]} {verdict_text(judged, unit, reader)}"


def verdict_text(
    judged: Explanation | DeviceReading, unit: str = "", reader: str | None = None
) -> str:
    """Return the end of a sentence that begins with the verdict; "" without a verdict.

    unit: not needed for claims. reader: see `sentence`.
    """
    if judged.verdict is PodVerdict.FITS_NOW:
        return f"on {_some(judged.fit)}"
    if isinstance(judged, DeviceReading):
        return _claim_outlook(judged)
    match judged.verdict:
        case PodVerdict.WOULD_FIT:
            return "; or ".join(_remedy(item, unit, reader) for item in judged.remedies)
        case PodVerdict.MAY_FIT:
            return "soon: the books have just changed, or places are held for other pods"
    return _most(judged, unit)


def claims_sentence(pod: PodExplanation) -> str:
    """Return why a pending pod with claims waits, by the devices, in one sentence."""
    reading = pod.reading
    if reading is None:
        return "its claims have devices"
    requests = dict.fromkeys(text for claim in pod.claims for text in claim.requests)
    parts = [f"asks for {_some(requests)}"[:_MOST_REQUESTS]] if requests else []
    if reading.detail:
        return "; ".join([*parts, f"not judged: {reading.detail}"])
    return "; ".join(filter(None, [*parts, _claim_devices(reading), verdict_sentence(reading)]))


def last_words(view: SchedulerView) -> str:
    """Return the last words of a scheduler about a pod that asks by claims."""
    if view.gates:
        gates = f"scheduling gates hold the pod back: {_some(view.gates)}"
        return f"{gates}; no scheduler looks at it until they are removed"
    if view.message:  # the condition has the reason
        return f"{view.name} says: {view.message}"
    return f"{view.name} has said nothing yet"


def lines(pod: PodExplanation) -> list[str]:
    """Return the lines for a terminal."""
    rows = [("Pod", _head(pod))]
    rows += [("Claim", _claim(claim, pod.unit)) for claim in pod.claims]
    if pod.reading is not None:
        rows += [("Devices", _claim_devices(pod.reading)), *_outlook(pod.reading, pod)]
    explanation, scored = pod.explanation, pod.judgement
    if explanation is not None:
        rows.append(("Free now", _free(explanation, pod.unit)))
        if compute := _by_percents(explanation, pod.unit):
            rows.append((_percents_head(explanation.request), compute))
        rows.append(("Nodes", _nodes(explanation)))
        rows += [("Apart", text) for text in _fellows(explanation)]
        rows += _outlook(explanation, pod)
    rows += _ways(pod)
    if pod.node_ask is not None:
        at, text = pod.node_ask.asked_at, f"none was asked for: {pod.node_ask.why_not}"
        if at is not None:
            text = f"asked for at {_moment(at)}"
        rows.append(("New node", text))
    rows += _outstanding(pod)
    if scored is not None:
        rows += _judgement(scored, pod.unit)
    if pod.mistake:
        rows.append(("Mistake", pod.mistake))
    if pod.shares and pod.detail:
        rows.append(("Note", pod.detail))
    rows += _without_books(pod)
    if pod.state == "pending":
        rows.append(("Scheduler", _scheduler(pod)))
    return [f"{label + ':':<12}{text}" for label, text in rows]


def _ways(pod: PodExplanation) -> list[tuple[str, str]]:
    """Return the rows about what the owner of the pod may do."""
    rows = []
    if pod.rollout is not None:
        rows.append(("Rollout", _rollout(pod.rollout)))
    if pod.moves:
        moves = "1 move" if pod.moves == 1 else f"{pod.moves} moves"
        rows.append(("Moves", f"{moves} would make room: gpushare defrag --for pod {pod.ref}"))
    return rows


def _rollout(rollout: Rollout) -> str:
    names = _some(map(str, rollout.old_pods))
    are = "is an old pod" if len(rollout.old_pods) == 1 else "are old pods"
    return (
        f"{names} {are} of the same Deployment {rollout.deployment}, which may keep them until this"
        " pod runs: let old pods end first, by the strategy Recreate, or by maxSurge: 0 with"
        " maxUnavailable: 1"
    )


def _without_books(pod: PodExplanation) -> list[tuple[str, str]]:
    times = [f"{_moment(event.at)}: " if event.at else "" for event in pod.events]
    rows = [("Event", f"{at}{event.note}") for at, event in zip(times, pod.events, strict=True)]
    return [*rows, ("Judged", pod.basis)] if pod.basis else rows


_AS_OF_NOW = "as the books are now without this pod; those of the time of its bind are gone"


def _head(pod: PodExplanation) -> str:
    asks = f"asks for {_asked(pod.request, pod.unit)} ({pod.resource})" if pod.request else ""
    match pod.state:
        case "bound" if pod.asks_by_claims:
            return f"{pod.ref} is bound to {pod.node}, and asks by claims"
        case "pending" if pod.asks_by_claims:
            return f"{pod.ref} is pending, and asks by claims"
        case "pending":
            return f"{pod.ref} is pending and {asks}"
        case "bound" if pod.shares:
            shares = ", ".join(
                f"{amount(units, pod.unit)} on device {device}" for device, units in pod.shares
            )
            return f"{pod.ref} is bound to {pod.node}: {shares} ({pod.resource})"
        case "bound":
            return f"{pod.ref} is bound to {pod.node} and {asks}; {pod.detail}"
        case "binding":
            return f"{pod.ref} is being bound to {pod.node} and {asks}"
        case "refused":
            return f"{pod.ref} fits no node, since its request makes no sense: {pod.detail}"
    return f"{pod.ref} has ended and holds nothing"


def _claim(claim: ClaimExplanation, unit: str) -> str:
    match claim.state:
        case "allocated":
            devices = ", ".join(
                f"{'all' if card.units is None else amount(card.units, unit)} of {card.key.device}"
                + (f" ({card.uuid})" if card.uuid else "")
                for card in claim.cards
            )
            place = f" on {claim.node}" if claim.node else ""
            users = f"; reserved for {_some(claim.pods)}" if claim.pods else ""
            return f"{claim.ref} is allocated{place}: {devices or 'no device'}{users}"
        case "missing":
            return f"{claim.ref} is not there"
    return f"{claim.ref} has no devices and asks for {'; '.join(claim.requests) or 'none'}"


def _claim_outlook(reading: DeviceReading) -> str:
    if reading.remedy is None:
        return "no node has devices for its claims, even if all other claims end" * reading.never
    claims = _some(
        f"claim {claim.ref}" + (f" (of {_some(claim.pods)})" if claim.pods else "")
        for claim in reading.remedy.ends
    )
    verb = "ends" if len(reading.remedy.ends) == 1 else "end"
    return f"on {reading.remedy.node} once {claims} {verb}"


def _claim_devices(reading: DeviceReading) -> str:
    """Return the numbers of nodes with devices for the claims of a pending pod as text."""
    if reading.detail:
        return f"not judged: {reading.detail}; kube-scheduler judges them"
    text = f"{len(reading.fit)} of {reading.nodes} nodes have devices for its claims"
    text += _left_out(reading)
    for reason, count in reading.not_judged.items():
        text += f"; {count} more not judged: {reason}"
    return text


def _left_out(judged: Explanation | DeviceReading) -> str:
    """Return the nodes that kube-scheduler itself leaves out as the end of a text; "" for none."""
    if not judged.kept_out:
        return ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in judged.kept_out.items())
    return f"; kube-scheduler itself leaves out {sum(judged.kept_out.values())} more: {reasons}"


def _asked(request: Request, unit: str) -> str:
    text = units_text(request, unit)
    if request.split:
        text += ", each on a device of its own"
    else:
        text += f" on {_devices(request.devices)}"
    if request.alone:
        text += " that nobody else uses" if request.devices == 1 else ", which nobody else uses"
    elif percents := percents_text(request.percents, "its "):
        text += f", with {percents}"
    wish = _wish(request.cards)
    return f"{text}, on cards {wish}" if wish else text


def units_text(request: Request, unit: str) -> str:
    """Return the memory of each device, of a split request one after the other: 30 + 10 GiB."""
    size = _parts(request.split, unit) if request.split else amount(request.units, unit)
    return memory_text(size, request.units, request.percents)


def _parts(parts: Sequence[int], unit: str) -> str:
    *larger, smallest = parts
    return " + ".join([*map(str, larger), amount(smallest, unit)])


def _wish(cards: Cards) -> str:
    """Return the requested cards as text; "" for any card."""
    wishes = []
    if cards.models:
        wishes.append(f"with {' or '.join(cards.models)} in the model's name")
    if cards.not_models:
        wishes.append(f"without {' and '.join(cards.not_models)} in it")
    if cards.uuids:
        wishes.append(f"among {_some(cards.uuids)}")
    if cards.not_uuids:
        wishes.append(f"other than {_some(cards.not_uuids)}")
    return ", ".join(wishes)


def _by_percents(explanation: Explanation, unit: str) -> str:
    """Return a text about devices with enough memory and too little compute, or too little of
    another amount in percent; or "".
    """
    request, devices = explanation.request, explanation.with_memory
    if explanation.fit or not explanation.reasons.keys() & _BY_PERCENTS:
        return ""
    others = percents_text(request.percents, "its ")
    if request.devices > 1:
        if request.alone:
            return f"no node has {request.devices} such devices that nobody uses"
        share = f"also {others}" if others else f"any {_EXCLUSIVE}"
        return f"no node has {request.devices} devices with the memory and {share} free"
    if not devices or explanation.with_both:
        return ""
    single = devices == 1
    have = "1 device has" if single else f"{devices} devices have"
    have += f" {units_text(request, unit)}"
    if request.alone:
        return f"{have} free and {'is in use' if single else 'all of them are in use'}"
    if not others:
        return f"{have} free, and all of {'its' if single else 'their'} {_EXCLUSIVE} are given"
    which = "not" if single else "none of them"
    pairs = zip(beside_memory(request.percents), explanation.most_percents, strict=True)
    most = " and ".join(f"{percent} %" for requested, percent in pairs if requested)
    return f"{have} free, {which} also {others} (at most {most})"


def _percents_head(request: Request) -> str:
    """Return the head of the line that `_by_percents` gives: Compute."""
    others = beside_memory(request.percents)
    shown = [
        row.noun
        for row, percent in zip(PERCENT_AMOUNTS, others or NO_PERCENTS, strict=True)
        if percent or (row.is_exclusive and not others)
    ]
    return " and ".join(shown).capitalize()


_BY_PERCENTS = frozenset(
    {
        *(Reason(amount.reason) for amount in PERCENT_AMOUNTS if not amount.is_memory),
        Reason.INSUFFICIENT_TOGETHER,
    }
)
_EXCLUSIVE = " or ".join(amount.name for amount in PERCENT_AMOUNTS if amount.is_exclusive)


def _on_devices(units: int, devices: int, unit: str) -> str:
    return f"{amount(units, unit)} on {_devices(devices)}"


def _devices(count: int) -> str:
    return "one device" if count == 1 else f"each of {count} devices"


def _free(explanation: Explanation, unit: str) -> str:
    if explanation.largest is None:
        return "nothing"
    largest = explanation.largest
    text = f"at most {amount(largest.units, unit)} on {largest.node} device {largest.device}"
    devices = explanation.request.devices
    if devices == 1:
        wants = explanation.request.cards != ANY_CARD and explanation.fits_now < largest.units
        if not wants or not explanation.most_alone:
            return text
        names = " and ".join(by_name(beside_memory(explanation.request.percents)))
        with_percents = f" with room for its {names}" if names else ""
        fits = amount(explanation.fits_now, unit)
        return f"{text}, and {fits} on the cards that it wants{with_percents}"
    if not explanation.fits_now:
        return f"{text}; no node has {devices} devices with memory free"
    if explanation.parts_now:
        return f"{text}, and {_parts(explanation.parts_now, unit)} on {devices} devices of one node"
    return f"{text}, and {_on_devices(explanation.fits_now, devices, unit)} of one node"


def _nodes(explanation: Explanation) -> str:
    reasons = [f"{count} {reason.value}" for reason, count in explanation.reasons.items()]
    reasons += [f"{explanation.unknown} not found"] if explanation.unknown else []
    text = f"{len(explanation.fit)} of {explanation.nodes} have room on their devices"
    text += f": {', '.join(reasons)}" if reasons else ""
    text += _left_out(explanation)
    if explanation.other_models:
        are = "is" if explanation.other_models == 1 else "are"
        text += f"; {explanation.other_models} more {are} of another GPU model than the pod accepts"
    return text


def _fellows(explanation: Explanation) -> list[str]:
    """Return a text about the devices that pods of the same workload close for the pod, if any."""
    apart, closed = explanation.request.apart, explanation.closed_by_fellows
    if apart is None or not closed:
        return []
    places = _some(
        f"device{'s' * (len(devices) > 1)} {', '.join(map(str, devices))} of {node}"
        for node, devices in closed.items()
    )
    # Without the uid of a controller.
    workload = " ".join(apart.workload.split()[:2])
    return [f"pods of {workload} are already on {places}, and the pod stays apart from these"]


def _outlook(judged: Explanation | DeviceReading, pod: PodExplanation) -> list[tuple[str, str]]:
    """Return the row of the verdict; [] without a verdict."""
    verdict, text = judged.verdict, verdict_text(judged, pod.unit)
    if verdict is None:
        return []
    if verdict is PodVerdict.FITS_NOW and pod.scheduler.gates:
        return [("Would fit", f"{text} once its scheduling gates are removed")]
    if verdict is PodVerdict.FITS_NOW and pod.scheduler.by_extender:
        text += "; kube-scheduler tries a pod that it has refused again within 5 minutes"
    elif verdict is PodVerdict.FITS_NOW and pod.scheduler.left_none:
        text += (
            ", as nodes and devices are now; kube-scheduler refused it before, or for what they do"
            " not show: ports, volumes, affinity to pods"
        )
    return [(verdict.capitalize(), text)]


def _outstanding(pod: PodExplanation) -> list[tuple[str, str]]:
    """Return the rows of the pod's group, and a row for each hold for another pod."""
    rows, between = [], pod.outstanding
    if pod.group:
        rows.append(("Group", progress_text(pod.group)))
    if between.group:
        rows.append(("Needs", group_text(between.group, pod.unit)))
    if between.reserved:
        rows.append(("Reserved", f"{between.reserved.node} until {between.reserved.until_text}"))
    for hold in between.holds[:_MOST_NAMES]:
        asks = Request(hold.units, hold.devices, percents=hold.percents, split=hold.split)
        size = _size(asks, pod.unit)
        rows.append(("Held", f"{size} on {hold.node} for {hold.pod} until {hold.until_text}"))
    if len(between.holds) > _MOST_NAMES:
        rows.append(("Held", f"and {len(between.holds) - _MOST_NAMES} more"))
    return rows


def _size(request: Request, unit: str) -> str:
    text = units_text(request, unit)
    if request.devices > 1 and not request.split:
        text += f" x {request.devices} devices"
    percents = percents_text(request.percents)
    return f"{text} with {percents}" if percents else text


def _most(explanation: Explanation, unit: str) -> str:
    """Return the largest requests that would fit an empty node as text."""
    request, could = explanation.request, []
    if explanation.most_parts:
        parts = _parts(explanation.most_parts, unit)
        could.append(f"with at most {parts} on {request.devices} devices")
    elif explanation.most_units:
        could.append(f"with at most {_on_devices(explanation.most_units, request.devices, unit)}")
    if explanation.most_devices and not request.split:
        devices = (
            "one device" if explanation.most_devices == 1 else f"{explanation.most_devices} devices"
        )
        could.append(f"on at most {devices} of {units_text(request, unit)}")
    if not could and explanation.most_alone:
        could.append(f"with at most {_on_devices(explanation.most_alone, 1, unit)}")
    if not could and explanation.models and (wish := _wish(request.cards)):
        return f"no device is one {wish}; there are models {_some(explanation.models)}"
    if not could and explanation.kept_out:
        return "kube-scheduler itself leaves out every node with a device that would do"
    if not could:
        return "no node that the pod may use shares a device"
    if explanation.split:
        units = request.total // explanation.split
        spread = _on_devices(units, explanation.split, unit)
        place = " in place of its split" if request.split else ""
        count = f"a gpu-count of {explanation.split}, as an annotation of the pod{place}"
        could.append(f"with {spread}: {count}")
    return f"even on an empty node it could only fit {' or '.join(could)}"


def _remedy(remedy: Remedy, unit: str, reader: str | None) -> str:
    needs = []
    if remedy.serves:
        names = _some(_name(entry, reader) for entry in remedy.serves)
        have = "has" if len(remedy.serves) == 1 else "have"
        needs.append(f"{names} {have} been given the device by the device plug-in")
    if remedy.opens:
        indices = ", ".join(map(str, remedy.opens))
        several = len(remedy.opens) > 1
        needs.append(f"closed device{'s' * several} {indices} return{'s' * (not several)}")
    if remedy.ends:
        names = _some(f"{_name(entry, reader)} ({_held(entry, unit)})" for entry in remedy.ends)
        needs.append(f"{names} {'ends' if len(remedy.ends) == 1 else 'end'}")
    needs += remedy.cures
    text = f"on {remedy.node} once {' and '.join(needs)}"
    lacks = " and ".join(remedy.lacks)
    return f"{text} (but the node would still have too little {lacks})" if lacks else text


def _name(entry: Entry, reader: str | None) -> str:
    if reader not in (None, entry.ref.namespace):
        return "a pod of another namespace"
    return str(entry.ref)


def _held(entry: Entry, unit: str) -> str:
    ending = ""
    if entry.terminating:
        ending = ", being deleted"
        if entry.ends_by:
            ending += f" with a grace until {_moment(entry.ends_by)}"
    percents = percents_text(entry.largest_percents)
    percents = f" with {percents}" if percents else ""
    units = entry.request.total
    size = memory_text(amount(units, unit), units, entry.largest_percents)
    return f"{size}{percents}{ending}"


def _moment(at: float) -> str:
    """Return a time as text. at: seconds since the epoch."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _some(names: Iterable[str]) -> str:
    texts = list(names)
    more = [f"{len(texts) - _MOST_NAMES} more"] if len(texts) > _MOST_NAMES else []
    *first, last = [*texts[:_MOST_NAMES], *more]
    return f"{', '.join(first)} and {last}" if first else last


def _judgement(scored: BoundPodScore, unit: str) -> list[tuple[str, str]]:
    node = f"it would not fit on {scored.node} any more"
    if scored.fits:
        best = "" if scored.best == scored.node else f" ({scored.best} has 10)"
        node = f"score {scored.score} of 10{best}; nodes with room: {scored.fitting}"
    parts = []
    for device in scored.devices:
        value = "too little" if device.value is None else f"value {device.value:.4g}"
        parts.append(f"{device.device} has {amount(device.free, unit)} free, {value}")
    if scored.chosen:
        parts.append(f"the policy would take {', '.join(map(str, scored.chosen))}")
    basis = f"by policy {scored.policy}, {_AS_OF_NOW}"
    return [("Node", node), ("Devices", "; ".join(parts)), ("Judged", basis)]


def _scheduler(pod: PodExplanation) -> str:
    """Return kube-scheduler's message about the pod, and whether the extender was called."""
    view = pod.scheduler
    if view.gates or pod.asks_by_claims or pod.basis:
        return last_words(view)
    if pod.served is False:
        return f"kube-scheduler's file has no profile {view.name!r}: nobody schedules this pod"
    if view.message is None:
        text = f"no scheduler has looked at it yet: does one run with the name {view.name!r}?"
        return f"{text} {_ASKED}" if pod.was_called else text
    text = ""
    if view.by_scheduler:  # a node may have several reasons
        reasons = ", ".join(f"{count} {reason}" for reason, count in view.by_scheduler.items())
        removed = view.nodes - sum(view.by_extender.values())
        text = f"{view.name} removed {removed} of {view.nodes} nodes ({reasons}) itself"
    if view.by_extender or pod.was_called:
        return f"{text}, and asked gpushare about the others" if text else f"{view.name} {_ASKED}"
    if text:
        return f"{text}, and did not ask gpushare" if view.left_none else text
    return f"{view.name} has not asked gpushare: {view.message}"


_ASKED = "has asked gpushare"
