"""The verb prioritize: how good each node is for a pod, by the policy.

It reads a snapshot, and changes nothing.

Tested in `tests/unit/extender/test_service.py`.
"""

from collections.abc import Callable

from gpushare.core.decide import BEST, score_rows
from gpushare.errors import MessageError, NotReady, WireError
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.verbs.answer import VerbAnswer, pod_name
from gpushare.wire.extender import decode_filter, encode_priorities
from gpushare.wire.name_lists import NameLists


class PrioritizeVerb:
    """Answers prioritize. The arguments are those of `FilterVerb`."""

    def __init__(
        self, resources: ManagedResources, *, not_ready: Callable[[], str], lists: NameLists
    ) -> None:
        self._resources = resources
        self._not_ready = not_ready
        self._lists = lists

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of prioritize. Raises MessageError or NotReady."""
        args = decode_filter(body, self._lists)
        if not_ready := self._not_ready():
            raise NotReady(not_ready)
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            raise MessageError(str(error)) from error
        name = pod_name(args.pod)
        if resource_request is None:
            return VerbAnswer(encode_priorities({}), "plain", {"pod": name})
        managed, request = resource_request
        snapshot = managed.ledger.snapshot()
        rows = args.names.rows(snapshot.row)
        places = score_rows(snapshot, rows, request, managed.scorer(request))
        scores = {
            score: [*map(args.names.__getitem__, some.tolist())] for score, some in places.items()
        }
        line = {
            "pod": name,
            "units": request.units,
            "nodes": len(args.names),
            "best": scores[BEST][0] if scores else "-",
        }
        return VerbAnswer(encode_priorities(scores), "scored", line)
