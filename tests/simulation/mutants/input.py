"""Bugs about data of others: sizes, indices and marks that users can forge or edit."""

from dataclasses import replace
from typing import Any

from gpushare.core.model import Cover
from gpushare.core.states import records
from gpushare.extender.follow import watch_handlers
from gpushare.extender.verbs.bind import transaction
from gpushare.ledger import Ledger
from gpushare.wire import annotations, pods
from tests.simulation.mutants.museum import mutant

_POD = "ALIYUN_COM_GPU_MEM_POD"


@mutant("E5", "Python's int() reads more than numbers", annotations, "strict_number")
def reads_numbers_loosely(original: Any) -> Any:
    del original

    def number(text: str, limit: int = annotations.MAX_INDEX) -> int | None:
        try:
            return max(0, int(text))
        except ValueError:
            return None

    return number


@mutant(
    "E6", "the original believes the size that a pod says it has", watch_handlers, "observe_pod"
)
def believes_the_annotated_size(original: Any) -> Any:
    def observe(pod: Any, names: Any) -> Any:
        pod_ = original(pod, names)
        text = (pod.metadata.annotations or {}).get(_POD, "")
        if pod_.node and pod_.request.devices == 1 and text.isdigit() and int(text) > 0:
            request = replace(pod_.request, units=int(text))
            return pod_._replace(request=request)
        return pod_

    return observe


@mutant("E6", "the original skips a pod that says it holds nothing", Ledger, "replace_pods")
def skips_who_says_nothing(original: Any) -> Any:
    def replace_pods(self: Any, all_pods: Any, keep: Any, started: float) -> Any:
        kept_pods = (pod for pod in all_pods if pod.placement is not None or not pod.node)
        return original(self, kept_pods, keep, started)

    return replace_pods


@mutant("E7", "the original frees the device that the edited pod names", records, "_shown_again")
def moves_with_an_edit(original: Any) -> Any:
    def shown_again(entry: Any, pod: Any) -> Any:
        step = original(entry, pod)
        if pod.placement != entry.cover.written:
            return step._replace(record=replace(entry, cover=Cover(pod.placement)))
        return step

    return shown_again


@mutant("E6", "a pod that says it is assigned is not told apart", pods, "placement")
def places_by_index_alone(original: Any) -> Any:
    def placed(pod_annotations: Any, request: Any, names: Any) -> Any:
        placement = original(pod_annotations, request, names)
        if placement is None and pod_annotations.get(names.idx):
            return ((0, request.total),)
        return placement

    return placed


@mutant(
    "E6",
    "a first draft wrote no map where it was empty: the owner's stays",
    transaction,
    "encode",
)
def leaves_the_owners_map(original: Any) -> Any:
    def encode(*of: Any) -> dict[str, str]:
        return {key: text for key, text in original(*of).items() if text != "{}"}

    return encode
