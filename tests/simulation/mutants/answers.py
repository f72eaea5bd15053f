"""Bugs about answers: the word of an intermediary is mistaken for the API server's."""

from typing import Any

from gpushare.core.decide import Judgement, Refusals
from gpushare.core.model import Reason
from gpushare.extender.verbs.bind import binder
from gpushare.kube import responses
from gpushare.wire.codec import Codec
from tests.simulation.mutants.museum import mutant


@mutant("A17", "ours, once: any 2xx is taken for a Binding that was done", binder, "check_bound")
def takes_any_2xx_for_done(original: Any) -> Any:
    del original

    return lambda *_: None


@mutant("A17", "ours, once: whatever is read is taken for the pod", Codec, "decode_answer")
def reads_any_object_as_the_pod(original: Any) -> Any:
    del original

    def decode_answer(self: Any, body: bytes, namespace: str, name: str) -> Any:
        return self.decode(body)

    return decode_answer


@mutant("A17", "ours, once: what is no list is taken for an empty one", Codec, "_items")
def lists_nothing_for_any_object(original: Any) -> Any:
    del original

    def items(self: Any, page: Any) -> Any:
        return page.items if isinstance(page.items, list) else ()

    return items


@mutant("A17", "ours, once: a proxy's 404 is taken for a pod that is gone", responses, "_message")
def believes_a_proxys_404(original: Any) -> Any:
    def message(body: bytes) -> str:
        return original(body) or "a page"

    return message


@mutant(
    "A12",
    "ours, once: filter keeps a charged pod to its node, and forgets the others",
    Judgement,
    "refusals",
)
def forgets_the_other_nodes(original: Any) -> Any:

    def refusals(self: Any, names: Any) -> Any:
        busy, never, counts = original(self, names)
        final_reasons = {
            name: reason for name, reason in never.items() if reason != Reason.BEING_BOUND.value
        }
        return Refusals(busy, final_reasons, counts)

    return refusals
