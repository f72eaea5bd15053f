"""Explain a pod for a user without rights on the whole cluster: by the pod, its condition
PodScheduled and the events of the extender about it.

Reads the user's own namespace alone.

Tested in `tests/unit/cli/test_rights.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpushare.cli.facts import Fields, elements, mapping, text
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.rights import lacks
from gpushare.core.model import PodRef
from gpushare.errors import ApiError, WireError
from gpushare.explain.pod import PodEvent, PodExplanation, asks_for_none
from gpushare.explain.text import NO_UNIT
from gpushare.wire.annotations import Names
from gpushare.wire.conditions import scheduler_view
from gpushare.wire.dra.objects import CLASS
from gpushare.wire.events import CONTROLLER
from gpushare.wire.objects import Pod, seconds_of
from gpushare.wire.pods import has_ended, observe_pod, pod_ref, request_among
from gpushare.wire.request_mistakes import misplaced

_MOST_EVENTS = 3
_NO_DEVICES = "its annotations name no devices"


def explain_alone(
    pod: Pod, managed_names: Sequence[Names], unit: str, kubectl: Kubectl, refusal: ApiError
) -> PodExplanation:
    """Return the explanation by the pod and its events.

    managed_names: none for a pod with claims. unit: "" if unknown. refusal: of the right to read
    the cluster. Raises MessageError for a pod that asks for none of the resources.
    """
    answer = _by_pod(pod, managed_names, unit or NO_UNIT)
    judged_by = "the pod and its condition PodScheduled alone"
    try:
        events = _events(kubectl, answer.ref)
        judged_by = "the pod, its condition PodScheduled and gpushare's events alone"
    except ApiError:
        events = ()
    return replace(answer, events=events, basis=f"by {judged_by}: {lacks(refusal)}")


def _by_pod(pod: Pod, managed_names: Sequence[Names], unit: str) -> PodExplanation:
    ref, node = pod_ref(pod), (pod.spec and pod.spec.node_name) or ""
    resources = ", ".join(names.resource for names in managed_names) or CLASS
    state = "bound" if node else "pending"
    answer = PodExplanation(ref, resources, unit, state, scheduler_view(pod), node=node)
    if has_ended(pod):
        return replace(answer, state="ended")
    if not managed_names:
        return answer
    try:
        match = request_among(pod, managed_names)
    except WireError as error:
        return replace(answer, state="refused", detail=str(error))
    if match is None:
        raise asks_for_none(pod, managed_names, None)
    names, request = managed_names[match[0]], match[1]
    shares = observe_pod(pod, names).placement
    return replace(
        answer,
        resource=names.resource,
        request=request,
        shares=shares,
        detail=_NO_DEVICES if node and not shares else "",
        mistake=misplaced(pod, request, names),
    )


def _events(kubectl: Kubectl, ref: PodRef) -> tuple[PodEvent, ...]:
    """Return the newest events of the extender about the pod. Raises ApiError."""
    path = f"/api/v1/namespaces/{ref.namespace}/events"
    items = elements(kubectl.get(path, fieldSelector=f"involvedObject.uid={ref.uid}").get("items"))
    of_extender = (
        item
        for item in map(mapping, items)
        # In events of the older API the source has the reporter.
        if (text(item.get("reportingComponent")) or mapping(item.get("source")).get("component"))
        == CONTROLLER
    )
    events = sorted(map(_event, of_extender), key=lambda event: -event.at)
    return tuple(events[:_MOST_EVENTS])


def _event(event: Fields) -> PodEvent:
    times = (mapping(event.get("series")).get("lastObservedTime"), event.get("lastTimestamp"))
    at = max(seconds_of(text(time)) for time in (*times, event.get("eventTime")))
    return PodEvent(at, text(event.get("reason")), text(event.get("message")))
