"""Say whether all pods of a workload have devices at once, before they exist.

Workloads are judged one after the other on a copy of the books, by the placer of `gpushare whatif
--gang`. Pods that wait for a node are placed first, then the promised pods of admitted workloads.
No I/O.

Tested in `tests/unit/explain/test_admission.py`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from gpushare.core.mutable_cluster import Placement
from gpushare.core.policy import Policy
from gpushare.explain.autoscalers import batch_of, first_pending
from gpushare.explain.placer import PlacementResult, Placer, PodBatch
from gpushare.explain.pod import ExplainSource, explanation_of
from gpushare.explain.text import sentence, units_text
from gpushare.wire.kueue import WorkloadPods


class AdmissionJudge:
    """Judges workloads in turn; a workload that fits keeps its places in later judgements.

    unit: the memory unit of the cluster. promised: pods that are admitted and do not exist yet.
    """

    def __init__(
        self,
        sources: Sequence[ExplainSource],
        unit: str,
        policy: Policy,
        promised: Iterable[WorkloadPods],
    ) -> None:
        self._sources = {source.names.resource: source for source in sources}
        self._unit = unit
        self._placers: dict[str, Placer] = {}
        self._promised = Counter[str]()
        promised_pods = _by_resource(promised)
        for resource, source in self._sources.items():
            view = source.ledger.view()
            placer = Placer.over(view.snapshot, source.filters, policy)
            for batch in [*map(batch_of, first_pending(view)), *promised_pods[resource]]:
                placer.put(batch)
            self._placers[resource] = placer
            self._promised[resource] = _count(promised_pods[resource])

    def admit(self, pods: Sequence[WorkloadPods]) -> bool:
        """Return whether all pods have devices at once; if so, keep their places."""
        kept: list[tuple[Placer, list[Placement]]] = []
        for resource, batches in _by_resource(pods).items():
            placer = self._placers[resource]
            places, missing = placer.put_all(batches)
            if missing is not None:
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
            places, missing = placer.put_all(batches)
            if missing is not None:
                results = placer.placed_at_once(batches).results
                return self._text(self._sources[resource], placer, results, reader)
            placer.take_back(places)
        return ""

    def _text(
        self,
        source: ExplainSource,
        placer: Placer,
        results: Sequence[PlacementResult],
        reader: str,
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
        if not result.fit:
            explanation = explanation_of(source, batch.request, batch.demands, snapshot=placer.view)
            if explanation.remedies or explanation.never or not promised:
                parts += filter(None, [sentence(explanation, self._unit, reader)])
        return "; ".join(parts)


def _count(batches: Iterable[PodBatch]) -> int:
    return sum(batch.count or 0 for batch in batches)


def _by_resource(pods: Iterable[WorkloadPods]) -> defaultdict[str, list[PodBatch]]:
    """Return the pods as batches by managed resource."""
    batches = defaultdict[str, list[PodBatch]](list)
    for part in pods:
        batch = PodBatch(part.pod_set, part.request, part.count, part.demands)
        batches[part.resource].append(batch)
    return batches
