"""The verb prioritize: how good each node is for a pod, by the policy.

Prioritize reads a snapshot, and changes nothing but the hold of the pod (holds.py).

Tested in `tests/unit/extender/test_service.py`.
"""

import time
from collections.abc import Callable

from gpushare.core.decide import BEST, score_rows
from gpushare.core.model import Request
from gpushare.errors import MessageError, NotReady, WireError
from gpushare.extender.claims.ranker import ClaimRanker
from gpushare.extender.managed_resources import ManagedResource, ManagedResources, ResourceRequest
from gpushare.extender.verbs.answer import NOT_READY, VerbAnswer
from gpushare.extender.verbs.tickets import Tickets
from gpushare.wire.extender import NameLists, decode_filter, encode_priorities
from gpushare.wire.objects import Pod
from gpushare.wire.pods import claimant


class PrioritizeVerb:
    """Answers prioritize. The arguments are those of `FilterVerb`."""

    def __init__(
        self,
        resources: ManagedResources,
        tickets: Tickets,
        *,
        not_ready: Callable[[], str],
        lists: NameLists,
        ranker: ClaimRanker | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources = resources
        self._tickets = tickets
        self._not_ready = not_ready
        self._lists = lists
        self._ranker = ranker
        self._clock = clock

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of prioritize. Raises MessageError or NotReady."""
        args = decode_filter(body, self._lists)
        if reason := self._not_ready():
            raise NotReady(NOT_READY + reason)
        resource_request: ResourceRequest | None
        try:
            if (last := self._tickets.last_request) and last[0] is args.pod:
                resource_request = last[1]
            else:
                resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            raise MessageError(str(error)) from error
        name = args.ref or "?"
        if resource_request is None:
            ranked = None
            if self._ranker is not None and self._ranker.concerns(args.pod):
                ranked = self._ranker.rank(args.pod, args.names)
            by_score = ranked.scores() if ranked is not None else {}
            return VerbAnswer(encode_priorities(by_score), "plain", {"pod": name})
        resource, request = resource_request
        snapshot = resource.ledger.snapshot()
        rows = args.names.rows(snapshot.row)
        places = score_rows(snapshot, rows, request, resource.scorer(request))
        scores = {
            score: [*map(args.names.__getitem__, nodes.tolist())] for score, nodes in places.items()
        }
        best = scores[BEST][0] if scores else ""
        if best and args.ref is not None and resource.holds.by_key:
            self._hold(resource, args.pod, request, best)
        line = {
            "pod": name,
            "units": request.units,
            "nodes": len(args.names),
            "best": best or "-",
        }
        return VerbAnswer(encode_priorities(scores), "scored", line)

    def _hold(self, resource: ManagedResource, pod: Pod, request: Request, node: str) -> None:
        """Hold the best node for the pod, after filter answered several nodes.

        kube-scheduler filters the next pod before the bind of this pod is charged; without the
        hold both pods could be offered one device.
        """
        claim = claimant(pod, request)
        is_charged = resource.ledger.entry(claim.ref.uid) is not None
        if not (is_charged or self._resources.scope.refusal(pod)):
            resource.holds.offered(claim, node, self._clock())
