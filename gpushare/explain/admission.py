"""Say whether all pods of a workload have devices at once, before they exist.

Workloads are judged one after the other on a copy of the books, by the placer of `gpushare whatif
--gang`. First come the places that filter keeps, then other pods that wait for a node, then the
promised pods of admitted workloads. No I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpushare.core.model import Request, Shares
from gpushare.core.mutable_cluster import Placement
from gpushare.core.policy import Policy
from gpushare.errors import MessageError
from gpushare.explain.autoscalers import batch_of, first_pending
from gpushare.explain.placer import PlacementResult, Placer, PodBatch
from gpushare.explain.pod import ExplainSource, explanation_of
from gpushare.explain.text import sentence, units_text
from gpushare.wire.kueue import WorkloadPods


class KeptPlace(NamedTuple):
    """A place that filter keeps for a pod."""

    uid: str
    node: str
    request: Request
    shares: Shares = ()
    """Units by device, perhaps not free yet; (): of free devices of the node."""


class AdmissionJudge:
    """Judges workloads in turn; a workload that fits keeps its places in later judgements.

    unit: the memory unit of the cluster. promised: pods that are admitted and do not exist yet.
    kept: the places that filter keeps, by resource. unused: uids of pending pods that take no
    place: kube-scheduler did not use theirs.
    """

    def __init__(
        self,
        sources: Sequence[ExplainSource],
        unit: str,
        policy: Policy,
        promised: Iterable[WorkloadPods],
        *,
        kept: Mapping[str, Iterable[KeptPlace]] | None = None,
        unused: Collection[str] = (),
    ) -> None:
        self._sources = {source.names.resource: source for source in sources}
        self._unit = unit
        self._placers: dict[str, Placer] = {}
        self._promised = Counter[str]()
        self._kept = Counter[str]()
        self.placed = set[str]()
        """The uids of pods that wait for a node and have free devices, used or not."""
        promised_pods = _by_resource(promised)
        for resource, source in self._sources.items():
            view = source.ledger.view()
            placer = Placer.over(view.snapshot, source.filters, policy)
            places_of_filter = (kept or {}).get(resource, ())
            taken = [place for place in places_of_filter if placer.keep(*place[1:])]
            self.placed |= {place.uid for place in taken if not place.shares}
            has_place = {place.uid for place in taken}
            self._kept[resource] = len(taken)
            for pod in first_pending(view, unused):
                if pod.uid in has_place or _mistake(source, pod.request):
                    continue
                if places := placer.put(batch_of(pod)):
                    self.placed.add(pod.uid)
                if pod.uid in unused:
                    placer.take_back(places)
            for batch in promised_pods[resource]:
                placer.put(batch)
            self._placers[resource] = placer
            self._promised[resource] = _count(promised_pods[resource])

    def admit(self, pods: Sequence[WorkloadPods]) -> bool:
        """Return whether all pods have devices at once; if so, keep their places."""
        kept: list[tuple[Placer, list[Placement]]] = []
        for resource, batches in _by_resource(pods).items():
            placer = self._placers[resource]
            places, missing = placer.put_all(batches)
            if missing is not None or self._mistake_in(resource, batches):
                kept.append((placer, places))
                for other, other_places in kept:
                    other.take_back(other_places)
                return False
            kept.append((placer, places))
        for resource, batches in _by_resource(pods).items():
            self._promised[resource] += _count(batches)
        return True

    def reason(self, pods: Sequence[WorkloadPods], reader: str) -> str:
        """Return why pods that were not admitted have no devices, and what would help.

        reader: the namespace of the workload, whose users may not learn names of other namespaces.
        """
        for resource, batches in _by_resource(pods).items():
            placer = self._placers[resource]
            if mistake := self._mistake_in(resource, batches):
                return mistake
            places, missing = placer.put_all(batches)
            if missing is not None:
                results = placer.placed_at_once(batches).results
                return self._text(self._sources[resource], placer, results, reader)
            placer.take_back(places)
        return ""

    def _mistake_in(self, resource: str, batches: Iterable[PodBatch]) -> str:
        mistakes = (_mistake(self._sources[resource], batch.request) for batch in batches)
        return next(filter(None, mistakes), "")

    def _text(
        self, source: ExplainSource, placer: Placer, results: Sequence[PlacementResult], reader: str
    ) -> str:
        """Return the reason against the first pods without a place."""
        result = next(result for result in results if not result.all_fit)
        batch = result.batch
        reasons = ", ".join(f"{count} {reason}" for reason, count in result.reasons.items())
        size = units_text(batch.request, self._unit)
        text = f"{result.fit} of {batch.count} pods {batch.name} ({size}) have a device now"
        parts = [text, f"nodes: {reasons}"] if reasons else [text]
        promised = self._promised[source.names.resource]
        if promised:
            parts.append(f"{promised} pods of other workloads are promised devices")
        kept = self._kept[source.names.resource]
        if kept:
            parts.append(f"{kept} pods that wait for a node have places")
        if not result.fit:
            explanation = explanation_of(source, batch.request, batch.demands, snapshot=placer.view)
            if explanation.remedies or explanation.never or not (promised or kept):
                parts += filter(None, [sentence(explanation, self._unit, reader)])
        return "; ".join(parts)


def _mistake(source: ExplainSource, request: Request) -> str:
    """Return why filter refuses the request on every node, or ""."""
    try:
        source.ranking(request)
    except MessageError as error:
        return str(error)
    return ""


def _count(batches: Iterable[PodBatch]) -> int:
    return sum(batch.count or 0 for batch in batches)


def _by_resource(pods: Iterable[WorkloadPods]) -> defaultdict[str, list[PodBatch]]:
    """Return the pods as batches by managed resource."""
    batches = defaultdict[str, list[PodBatch]](list)
    for part in pods:
        batch = PodBatch(part.pod_set, part.request, part.count, part.demands)
        batches[part.resource].append(batch)
    return batches
