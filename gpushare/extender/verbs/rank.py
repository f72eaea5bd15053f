"""The verb rank: the best node for a pod with claims, of those that kube-scheduler offers.

kube-scheduler calls rank by an entry without managedResources, about every pod. A pod
without claims, or one that asks for a managed resource, passes unchanged and costs next to nothing.
Rank refuses no pod.

Tested in `tests/unit/extender/verbs/test_rank.py`.
"""

from gpushare.core.model import PodRef
from gpushare.core.node_names import NodeNames
from gpushare.errors import MessageError
from gpushare.extender.claims.ranker import ClaimRanker
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.verbs.answer import VerbAnswer
from gpushare.wire.extender import (
    FilterArgs,
    NameLists,
    decode_filter,
    decode_pod,
    encode_filter,
    mirror_names,
)
from gpushare.wire.objects import Pod
from gpushare.wire.pods import names_any


def ranked_names(
    ranker: ClaimRanker, args: FilterArgs, *, ranks_all: bool = False
) -> tuple[NodeNames, dict[str, PodRef | str]]:
    """Return the nodes that the answer names for a pod with claims, and the values of the log line.

    These are the best node alone, or all nodes if none can be ranked, or with `ranks_all`.
    """
    name = args.ref or "?"
    ranked = ranker.rank(args.pod, args.names)
    if ranked is None:
        return args.names, {"pod": name}
    fit = args.names if ranks_all else NodeNames((ranked.best,))
    return fit, {"pod": name, "best": ranked.best}


class RankVerb:
    """Answers rank. ranker: None if no claims are followed; `lists`: as of `FilterVerb`."""

    def __init__(
        self, resources: ManagedResources, ranker: ClaimRanker | None, *, lists: NameLists
    ) -> None:
        self._managed = frozenset(resource.names.resource for resource in resources)
        self._ranker = ranker
        self._lists = lists

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of filter; an error stands in the field `Error`."""
        usual = decode_pod(body, self._lists)
        if usual is not None and self._ranker_for(usual[0]) is None:
            return VerbAnswer(mirror_names(usual[1]), "plain", {})
        try:
            args = decode_filter(body, self._lists)
        except MessageError as error:
            answer = encode_filter(None, error=f"gpushare: {error}")
            return VerbAnswer(answer, "malformed", {"error": str(error)})
        ranker = self._ranker_for(args.pod)
        if ranker is None:
            return VerbAnswer(encode_filter(args, args.names), "plain", {})
        fit, line = ranked_names(ranker, args)
        outcome = "ranked" if "best" in line else "plain"
        return VerbAnswer(encode_filter(args, fit, lists=self._lists), outcome, line)

    def _ranker_for(self, pod: Pod) -> ClaimRanker | None:
        """Return the ranker of nodes for the pod; None for a pod that passes."""
        ranker = self._ranker
        if ranker is None or not ranker.concerns(pod) or names_any(pod, self._managed):
            return None
        return ranker
