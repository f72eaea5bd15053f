"""How long pods have waited without a filter call: the sign of a scheduler that does not call us.

Pure: reads the ledger, time is an argument. kube-scheduler calls no extender for a pod that its own
plug-ins find no node for. So a pod counts only while the ledger shows a node with room for it, CPU
and memory of the host included, that kube-scheduler does not leave out.
"""

from collections import Counter
from collections.abc import Callable

from gpushare.core.decide import fits_somewhere
from gpushare.core.model import Kind
from gpushare.core.selectors import Demands
from gpushare.extender.managed_resources import ManagedResource, ManagedResources

_MAX_REQUESTS, _MAX_OF_ONE = 256, 8
"""Different requests tried at one scrape, in all and for the pods of one namespace; a cluster asks
for few, and one namespace must not hide the pods of another."""


def pending_without_call(
    resources: ManagedResources, called: Callable[[str], bool], since: float, now: float
) -> float:
    """Return how many seconds (of the wall clock) the oldest such pod has waited; 0 if there is
    none.

    called: whether filter was called for the pod of that uid. since: when we began to listen.
    """
    return max((_longest_wait(managed, called, since, now) for managed in resources), default=0.0)


def _longest_wait(
    managed: ManagedResource, called: Callable[[str], bool], since: float, now: float
) -> float:
    fits: dict[tuple[Kind, frozenset[int], Demands], bool] = {}
    tried: Counter[str] = Counter()
    for pod in managed.ledger.waiting():
        if pod.gated or called(pod.uid):
            continue
        key = (pod.request.kind, pod.request.sizes, pod.demands)
        if key not in fits:
            tried[pod.ref.namespace] += 1
            if tried[pod.ref.namespace] > _MAX_OF_ONE:
                continue
            if len(fits) == _MAX_REQUESTS:
                break
            room = fits_somewhere(managed.ledger.snapshot(), pod.request)
            fits[key] = room and any(True for _ in managed.places(pod.request, pod.demands))
        if fits[key]:
            return max(0.0, now - max(pod.created, since))
    return 0.0
