"""The verb preempt: which of the victims that kube-scheduler proposes make room on a device.

Each node is judged alone (core/preemption/preemptor.py), by the ledger.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpushare.core.preemption.preemptor import Preemptor, Victims, trim_victims
from gpushare.core.preemption.selection import Budget
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.states.entry import Entry
from gpushare.errors import MessageError, NotReady, UnknownNode, WireError
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.verbs.answer import NOT_READY, VerbAnswer
from gpushare.ledger import Ledger
from gpushare.wire.pods import may_preempt, pod_name, priority_of
from gpushare.wire.preempt import decode_preempt, encode_preempt

STEPS = 500_000
"""Steps of one call: one to two of the 10 seconds that our files let kube-scheduler wait."""

BudgetsOf = Callable[[Sequence[Entry]], Sequence[Budget]]
"""Returns the disruption budgets that cover any of these pods."""


def no_budgets(entries: Sequence[Entry]) -> Sequence[Budget]:
    """Return no budgets, for a process that does not watch budgets."""
    del entries
    return ()


class PreemptVerb:
    """Answers preempt. The arguments are those of `Service`."""

    def __init__(
        self,
        resources: ManagedResources,
        *,
        not_ready: Callable[[], str],
        budgets_of: BudgetsOf,
        wall: Callable[[], float],
    ) -> None:
        self._resources = resources
        self._not_ready = not_ready
        self._budgets_of = budgets_of
        self._wall = wall

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of preempt. Raises MessageError or NotReady."""
        args = decode_preempt(body)
        if reason := self._not_ready():
            raise NotReady(NOT_READY + reason)
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            raise MessageError(str(error)) from error
        name = pod_name(args.pod)
        if resource_request is None:
            return VerbAnswer(encode_preempt(args.victims), "plain", {"pod": name})
        resource, request = resource_request
        trimmed: dict[str, Victims] = {}
        if may_preempt(args.pod):
            is_counted = resource.counted_by_scheduler
            preemptor = Preemptor(request, priority_of(args.pod), is_counted, self._wall())
            trimmed = trim_candidates(resource.ledger, preemptor, args.victims, self._budgets_of)
        line = {
            "pod": name,
            "units": request.units,
            "devices": request.devices,
            "candidates": len(args.victims),
            "left": len(trimmed),
            "changed": sum(some != args.victims[node] for node, some in trimmed.items()),
        }
        return VerbAnswer(encode_preempt(trimmed), "victims" if trimmed else "no_victims", line)


def trim_candidates(
    ledger: Ledger, preemptor: Preemptor, candidates: Mapping[str, Victims], budgets_of: BudgetsOf
) -> dict[str, Victims]:
    """Return by node the victims whose end makes room on the node's devices.

    Nodes without such victims are left out. Each node may use an equal share of the remaining
    steps.
    """
    trimmed_by_node: dict[str, Victims] = {}
    spare = STEPS
    for number, (node, proposed) in enumerate(candidates.items()):
        if _is_charged_elsewhere(ledger, node, proposed.uids):
            continue
        try:
            dumped = ledger.dump(node)
        except UnknownNode:
            continue
        for books in dumped:
            steps = StepBudget(spare // (len(candidates) - number))
            spare -= steps.remaining
            trimmed = trim_victims(books, preemptor, proposed, steps, budgets_of(books.entries))
            spare += steps.remaining
            if trimmed is not None:
                trimmed_by_node[node] = trimmed
    return trimmed_by_node


def _is_charged_elsewhere(ledger: Ledger, node: str, uids: Iterable[str]) -> bool:
    """Return whether a pod named as a victim is charged to another node.

    In that case kube-scheduler and the ledger see different clusters, and an answer that names a
    pod which is not on the node would fail the whole call.
    """
    entries = (ledger.entry(uid) for uid in uids)
    return any(entry is not None and entry.node != node for entry in entries)
