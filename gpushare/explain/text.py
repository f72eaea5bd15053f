"""An explanation as people read it: some lines, or one sentence. It decides nothing.

Tested in `tests/unit/explain/test_pod.py`.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from gpushare.core.explanation import BoundPodScore, Explanation, Remedy
from gpushare.core.model import ANY_CARD, Cards, Reason, Request
from gpushare.core.states.entry import Entry
from gpushare.explain.pod import ClaimSaid, GroupNeed, Outstanding, PodExplanation
from gpushare.wire.conditions import SchedulerView

_MOST_NAMES = 5
"""Names in a line; the document has all."""


NO_UNIT = "units"
"""What memory counts in if nobody says what a unit is."""


def amount(units: int, unit: str) -> str:
    """Return a number of units as people read it: 8 GiB, or 8 x 256MiB of a chunk."""
    return f"{units} {unit}" if unit in ("GiB", "MiB", NO_UNIT) else f"{units} x {unit}"


def group_text(group: GroupNeed, unit: str, when: str = " now") -> str:
    """Return how many pods of a group are needed, of each kind, and how many of them fit."""
    asked = " and ".join(f"{needed} x {_size(asks, unit)}" for asks, needed, _ in group.kinds)
    fitting = " and ".join(str(fitting) for *_, fitting in group.kinds)
    asked = f"needs {asked} at once" if group.at_once else f"waits for {asked}"
    return f"{asked}: {fitting} fit{when}"


def sentence(
    found: Explanation,
    unit: str,
    reader: str | None = None,
    between: Outstanding = Outstanding(),  # noqa: B008 -- frozen
    *,
    holder: str = "pod",
) -> str:
    """Return what would help, in few words, for an event of the pod; "" if it fits.

    reader: the namespace whose users read it, and may not know the names of pods elsewhere; None
    for those who may. between: what its group needs. holder: "claim" if the books are of claims.
    """
    group = f"its group {group_text(between.group, unit)}" if between.group else ""
    return "; ".join(filter(None, (group, _help(found, unit, reader, holder))))


def _help(found: Explanation, unit: str, reader: str | None, holder: str) -> str:
    if found.fit:
        return ""
    if found.never:
        return f"it can never fit: {_most(found, unit)}"
    compute = _compute(found, unit)
    free = f"{_free(found, unit)}, but {compute}" if compute else _free(found, unit)
    return f"free now: {free}; {_remedies(found, unit, reader, holder)}"


def lines(said: PodExplanation) -> list[str]:
    """Return the lines for a terminal."""
    rows = [("Pod", _head(said))]
    rows += [("Claim", _claim(claim, said.unit)) for claim in said.claims]
    if said.waits:
        rows.append(("Waits", said.waits))
    found, scored = said.explanation, said.judgement
    if found is not None:
        rows.append(("Free now", _free(found, said.unit)))
        if compute := _compute(found, said.unit):
            rows.append(("Compute", compute))
        rows.append(("Nodes", _nodes(found)))
        rows.append(_outlook(found, said))
    if said.moves:
        moves = "1 move" if said.moves == 1 else f"{said.moves} moves"
        rows.append(("Moves", f"{moves} would make room: gpushare defrag --for pod {said.ref}"))
    if said.node_ask is not None:
        rows.append(("New node", said.node_ask.text))
    rows += _outstanding(said)
    if scored is not None:
        rows.append(("Node", _node_score(scored)))
        rows.append(("Devices", _device_scores(scored, said.unit)))
        rows.append(("Judged", f"by policy {scored.policy}, {_AS_OF_NOW}"))
    if said.mistake:
        rows.append(("Mistake", said.mistake))
    if said.shares and said.detail:
        rows.append(("Note", said.detail))
    if said.state == "pending":
        rows.append(("Scheduler", _scheduler_of_claims(said) if said.claims else _scheduler(said)))
    return [f"{label + ':':<12}{text}" for label, text in rows]


_AS_OF_NOW = "as the books are now without this pod; those of the time of its bind are gone"


def _head(said: PodExplanation) -> str:
    asks = f"asks for {_asked(said.request, said.unit)} ({said.resource})" if said.request else ""
    match said.state:
        case "bound" if said.claims:
            return f"{said.ref} is bound to {said.node}, by claims of class {said.resource}"
        case "pending" if said.claims:
            return f"{said.ref} is pending, and asks by claims of class {said.resource}"
        case "pending":
            return f"{said.ref} is pending and {asks}"
        case "bound" if said.shares:
            given = ", ".join(
                f"{amount(units, said.unit)} on device {device}" for device, units in said.shares
            )
            return f"{said.ref} is bound to {said.node}: {given} ({said.resource})"
        case "bound":
            return f"{said.ref} is bound to {said.node} and {asks}; {said.detail}"
        case "binding":
            return f"{said.ref} is being bound to {said.node} and {asks}"
        case "refused":
            return f"{said.ref} fits no node, since its request makes no sense: {said.detail}"
    return f"{said.ref} has ended and holds nothing"


def _claim(claim: ClaimSaid, unit: str) -> str:
    asks = f"asks for {_asked(claim.asked.request, unit)}" if claim.asked else ""
    match claim.state:
        case "allocated":
            given = ", ".join(
                f"{'all' if card.units is None else amount(card.units, unit)} of {card.device}"
                + (f" ({card.uuid})" if card.uuid else "")
                for card in claim.cards
            )
            where = f" on {claim.node}" if claim.node else ""
            users = f"; reserved for {_some(claim.pods)}" if claim.pods else ""
            return f"{claim.ref} is allocated{where}: {given or 'no device'}{users}"
        case "in doubt":
            return f"{claim.ref} is being allocated: {asks}"
        case "refused":
            return f"{claim.ref} can have no device: {claim.detail}"
        case "missing":
            return f"{claim.ref} is not there"
    return f"{claim.ref} waits and {asks}"


def _asked(request: Request, unit: str) -> str:
    if request.split:
        text = f"{units_text(request, unit)}, each on a device of its own"
    else:
        text = _on_devices(request.units, request.devices, unit)
    if request.alone:
        text += " that nobody else uses" if request.devices == 1 else ", which nobody else uses"
    elif request.cores:
        text += f", with {request.cores} % of its cores"
    wish = _wish(request.cards)
    return f"{text}, on cards {wish}" if wish else text


def units_text(request: Request, unit: str) -> str:
    """Return the units of each device, of a split request one after the other: 30 + 10 GiB."""
    return _parts(request.split, unit) if request.split else amount(request.units, unit)


def _parts(parts: Sequence[int], unit: str) -> str:
    *others, least = parts
    return " + ".join([*map(str, others), amount(least, unit)])


def _wish(cards: Cards) -> str:
    """Return which cards are wanted; "" for any."""
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


def _compute(found: Explanation, unit: str) -> str:
    """Return how compute keeps the pod out where memory does not; "" if it does not."""
    request, devices = found.request, found.with_memory
    if found.fit or not found.reasons.keys() & _BY_CORES:
        return ""
    if request.devices > 1:
        if request.alone:
            return f"no node has {request.devices} such devices that nobody uses"
        share = f"also {request.cores} % of its cores" if request.cores else "any cores"
        return f"no node has {request.devices} devices with the memory and {share} free"
    if not devices or found.with_both:
        return ""
    one = devices == 1
    have = "1 device has" if one else f"{devices} devices have"
    have += f" {amount(request.units, unit)}"
    if request.alone:
        return f"{have} free and {'is in use' if one else 'all of them are in use'}"
    if not request.cores:
        return f"{have} free, and all of {'its' if one else 'their'} cores are given"
    which = "not" if one else "none of them"
    return (
        f"{have} free, {which} also {request.cores} % of its cores (at most {found.most_cores} %)"
    )


_BY_CORES = frozenset({Reason.INSUFFICIENT_CORES, Reason.INSUFFICIENT_TOGETHER})


def _on_devices(units: int, devices: int, unit: str) -> str:
    each = "one device" if devices == 1 else f"each of {devices} devices"
    return f"{amount(units, unit)} on {each}"


def _free(found: Explanation, unit: str) -> str:
    if found.largest is None:
        return "nothing"
    largest = found.largest
    text = f"at most {amount(largest.units, unit)} on {largest.node} device {largest.device}"
    devices = found.request.devices
    if devices == 1:
        if found.rounded and found.fits_now < largest.units:
            less = f"a claim for at most {amount(found.fits_now, unit)}"
            fits = less if found.fits_now else "no claim"
            return f"{text}; as the driver rounds amounts up, {fits} fits now"
        wants = found.request.cards != ANY_CARD and found.fits_now < largest.units
        if not wants or not found.most_alone:
            return text
        with_cores = " with room for its cores" if found.request.cores else ""
        return f"{text}, and {amount(found.fits_now, unit)} on the cards that it wants{with_cores}"
    if not found.fits_now:
        return f"{text}; no node has {devices} devices with memory free"
    if found.parts_now:
        return f"{text}, and {_parts(found.parts_now, unit)} on {devices} devices of one node"
    return f"{text}, and {_on_devices(found.fits_now, devices, unit)} of one node"


def _nodes(found: Explanation) -> str:
    reasons = [f"{count} {why.value}" for why, count in found.reasons.items()]
    reasons += [f"{found.unknown} not found"] if found.unknown else []
    text = f"{len(found.fit)} of {found.nodes} have room on their devices"
    text += f": {', '.join(reasons)}" if reasons else ""
    left_out = [f"{count} {why}" for why, count in found.kept_out.items()]
    if left_out:
        more = sum(found.kept_out.values())
        text += f"; kube-scheduler itself leaves out {more} more: {', '.join(left_out)}"
    if found.other_models:
        are = "is" if found.other_models == 1 else "are"
        text += f"; {found.other_models} more {are} of another GPU model than the pod accepts"
    return text


def _outlook(found: Explanation, said: PodExplanation) -> tuple[str, str]:
    if found.fit and said.scheduler.gates:
        return "Would fit", f"on {_some(found.fit)} once its scheduling gates are removed"
    if found.fit:
        again = "; kube-scheduler tries a pod that it has refused again within 5 minutes"
        return "Fits now", f"on {_some(found.fit)}" + again * bool(said.scheduler.ours)
    if found.never:
        return "Never fits", _most(found, said.unit)
    holder = "claim" if said.claims else "pod"
    text = _remedies(found, said.unit, holder=holder)
    return "Would fit", text.removeprefix("it would fit ")


def _outstanding(said: PodExplanation) -> list[tuple[str, str]]:
    """Return a row for the pod's group, and one for each place that is kept for another pod."""
    rows, between = [], said.outstanding
    if between.group:
        rows.append(("Group", group_text(between.group, said.unit)))
    for held in between.held[:_MOST_NAMES]:
        asks = Request(held.units, held.devices, cores=held.cores, split=held.split)
        size = _size(asks, said.unit)
        rows.append(("Held", f"{size} on {held.node} for {held.pod} until {held.until_text}"))
    if len(between.held) > _MOST_NAMES:
        rows.append(("Held", f"and {len(between.held) - _MOST_NAMES} more"))
    return rows


def _size(request: Request, unit: str) -> str:
    text = units_text(request, unit)
    if request.devices > 1 and not request.split:
        text += f" x {request.devices} devices"
    return f"{text} with {request.cores} % of cores" if request.cores else text


def _most(found: Explanation, unit: str) -> str:
    """Return the largest requests with which the pod could fit."""
    request, could = found.request, []
    if found.most_parts:
        parts = _parts(found.most_parts, unit)
        could.append(f"with at most {parts} on {request.devices} devices")
    elif found.most_units:
        could.append(f"with at most {_on_devices(found.most_units, request.devices, unit)}")
    if found.most_devices and not request.split:
        devices = "one device" if found.most_devices == 1 else f"{found.most_devices} devices"
        could.append(f"on at most {devices} of {units_text(request, unit)}")
    if not could and found.most_alone:
        could.append(f"with at most {_on_devices(found.most_alone, 1, unit)}")
    if not could and found.models and (wish := _wish(request.cards)):
        return f"no device is one {wish}; there are models {_some(found.models)}"
    if not could and found.kept_out:
        return "kube-scheduler itself leaves out every node with a device that would do"
    if not could:
        return "no node that the pod may use shares a device"
    if found.split:
        each = request.total // found.split
        spread = _on_devices(each, found.split, unit)
        place = " in place of its split" if request.split else ""
        count = f"a gpu-count of {found.split}, as an annotation of the pod{place}"
        could.append(f"with {spread}: {count}")
    return f"even on an empty node it could only fit {' or '.join(could)}"


def _remedies(found: Explanation, unit: str, reader: str | None = None, holder: str = "pod") -> str:
    if not found.remedies:
        return "it may fit soon: the books have just changed, or are about to"
    ways = (_remedy(remedy, unit, reader, holder) for remedy in found.remedies)
    return f"it would fit {'; or '.join(ways)}"


def _remedy(remedy: Remedy, unit: str, reader: str | None, holder: str) -> str:
    needs = []
    if remedy.serves:
        names = _some(_name(entry, reader, holder) for entry in remedy.serves)
        have = "has" if len(remedy.serves) == 1 else "have"
        needs.append(f"{names} {have} been given the device by the device plug-in")
    if remedy.opens:
        indices = ", ".join(map(str, remedy.opens))
        several = len(remedy.opens) > 1
        needs.append(f"closed device{'s' * several} {indices} return{'s' * (not several)}")
    if remedy.ends:
        names = _some(
            f"{_name(each, reader, holder)} ({_held(each, unit)})" for each in remedy.ends
        )
        ends, end = _ENDS[holder]
        needs.append(f"{names} {ends if len(remedy.ends) == 1 else end}")
    needs += remedy.cures
    text = f"on {remedy.node} once {' and '.join(needs)}"
    lacks = " and ".join(remedy.lacks)
    return f"{text} (but the node would still have too little {lacks})" if lacks else text


_ENDS = {"pod": ("ends", "end"), "claim": ("is freed", "are freed")}
"""How the memory of one comes back, and of several."""


def _name(entry: Entry, reader: str | None, holder: str) -> str:
    if reader not in (None, entry.ref.namespace):
        return f"a {holder} of another namespace"
    return f"claim {entry.ref}" if holder == "claim" else str(entry.ref)


def _held(entry: Entry, unit: str) -> str:
    ending = ""
    if entry.terminating:
        ending = ", being deleted"
        if entry.ends_by:
            until = datetime.fromtimestamp(entry.ends_by, UTC)
            ending += f" with a grace until {until:%Y-%m-%d %H:%M:%S} UTC"
    cores = f" with {entry.cores} % of cores" if entry.cores else ""
    return f"{amount(entry.request.total, unit)}{cores}{ending}"


def _some(names: Iterable[str]) -> str:
    """Return the first names and the number of the others."""
    every = list(names)
    more = [f"{len(every) - _MOST_NAMES} more"] if len(every) > _MOST_NAMES else []
    *first, last = [*every[:_MOST_NAMES], *more]
    return f"{', '.join(first)} and {last}" if first else last


def _node_score(scored: BoundPodScore) -> str:
    if not scored.fits:
        return f"it would not fit on {scored.node} any more"
    score = f"score {scored.score} of 10"
    score += "" if scored.best == scored.node else f" ({scored.best} has 10)"
    return f"{score}; nodes with room: {scored.fitting}"


def _device_scores(scored: BoundPodScore, unit: str) -> str:
    parts = []
    for each in scored.devices:
        value = "too little" if each.value is None else f"value {each.value:.4g}"
        parts.append(f"{each.device} has {amount(each.free, unit)} free, {value}")
    best = ", ".join(map(str, scored.chosen))
    taken = f"; the policy would take {best}" if scored.chosen else ""
    return f"{'; '.join(parts)}{taken}"


def _scheduler(said: PodExplanation) -> str:
    view = said.scheduler
    if view.gates:
        return "scheduling gates hold the pod back: no scheduler looks at it until they are removed"
    if said.served is False:
        return f"kube-scheduler's file has no profile {view.name!r}: nobody schedules this pod"
    if view.message is None:
        text = f"no scheduler has looked at it yet: does one run with the name {view.name!r}?"
        return f"{text} {_ASKED}" if said.asked else text
    text = f"{view.name} removed {_own(view)} itself" if view.own else ""
    if view.ours or said.asked:
        return f"{text}, and asked gpushare about the others" if text else f"{view.name} {_ASKED}"
    if text:
        all_removed = sum(view.own.values()) >= view.nodes
        return f"{text}, and did not ask gpushare" if all_removed else text
    return f"{view.name} has not asked gpushare: {view.message}"


def _scheduler_of_claims(said: PodExplanation) -> str:
    """Return what kube-scheduler says, which takes a pod whose claims have their devices."""
    view = said.scheduler
    if view.gates:
        return (
            "scheduling gates hold the pod back: its claims get no devices until they are removed"
        )
    return f"{view.name} says: {view.message}" if view.message else "it has said nothing yet"


_ASKED = "has asked gpushare"


def _own(view: SchedulerView) -> str:
    """Return how many nodes kube-scheduler removed itself: a node may have several reasons."""
    reasons = ", ".join(f"{count} {text}" for text, count in view.own.items())
    return f"{view.nodes - sum(view.ours.values())} of {view.nodes} nodes ({reasons})"
