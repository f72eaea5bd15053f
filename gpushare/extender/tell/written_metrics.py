"""Metrics in Prometheus' text format without prometheus_client: of devices, of the memory by
namespace and pod, of claims, and of the shadow policy.

For 5,000 nodes with 8 devices prometheus_client takes 3.5 s of CPU for the 200,000 lines.

Names of tenants are in the metrics only if the operator enables that: any pod of the cluster may be
able to read metrics. The series of namespaces and pods are limited.

Tested in `tests/unit/extender/tell/test_memory_metrics.py`,
`tests/unit/extender/tell/test_claims_metrics.py` and `tests/unit/extender/shadow/test_shadow.py`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.model import NodeSpec
from gpushare.core.neighbours import MANY, devices_by_pods
from gpushare.core.node_filters import Availability, NodeState
from gpushare.core.states.entry import NodeBooks, memory_limits
from gpushare.core.stranded import stranded_units
from gpushare.core.workload_names import workload_name
from gpushare.extender.claims.view import ClaimsView
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.shadow.follower import Counts
from gpushare.extender.shadow.shadow import Shadow
from gpushare.extender.tell.node_values import NodeValues

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
"""Of the values of labels."""

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[Labels, float]
"""The value of each sample by labels."""

_Held = Counter[tuple[str, ...]]
"""Units by names."""
NAMESPACES = 100
"""Upper bound of the series of a resource; one more series has the sum of all other namespaces."""
PODS = 500
"""The same for pods."""
OTHERS = "_others"
"""In place of each name in that one. No namespace or pod can be called so."""


_STATE = "gpushare_node_state"
_UNAVAILABLE = "gpushare_memory_unavailable_bytes"
_TYPICAL, _BY_PODS = "gpushare_typical_request_bytes", "gpushare_devices"
_HELP = {
    "gpushare_device_memory_bytes": "Memory of a device, as its node advertises it",
    "gpushare_device_memory_allocated_bytes": (
        "Memory given to pods, or to claims; kubectl inspect gpushare -d says to which"
    ),
    "gpushare_device_memory_free_bytes": (
        "Memory that can be given out; 0 where the device is closed or its node takes no pods"
    ),
    "gpushare_device_memory_stranded_bytes": (
        "Free memory of a device where the commonest request has no room; smaller pods may fit"
    ),
    "gpushare_device_memory_limits_bytes": (
        "Memory that the pods of a device may use together, where some have a limit above their"
        " request; more than the device has: a program may find none although it keeps its limit"
    ),
    "gpushare_device_healthy": (
        "1 for a device in order; 0: closed, kubectl inspect gpushare shows which"
    ),
    _STATE: "1 for the state of a node; no pod comes to one that is not open or tainted",
    _UNAVAILABLE: (
        "Unused memory that no pod can get, by the state of its node; closed: or of its device"
    ),
    _BY_PODS: f"Open devices by the pods that hold a part of each; {MANY}: as many or more",
    _TYPICAL: "What most pods, bound or waiting, ask for on each device; 0: there are none",
    **{
        f"gpushare_device_{amount.noun}_allocated_percent": (
            f"{amount.noun.capitalize()} of a device given to pods, in percent of the device"
        )
        for amount in PERCENT_AMOUNTS
    },
    **{
        f"gpushare_device_memory_stranded_by_{amount.noun}_bytes": (
            f"Memory that would be free, if all {amount.noun} of the device were not given to pods"
        )
        for amount in PERCENT_AMOUNTS
        if amount.is_exclusive
    },
}
"""The help of the gauges of devices and nodes."""

_NodeInputs = tuple[int, tuple[int, ...], NodeState | None]
"""(units of the typical request, indices of the shown amounts in PERCENT_AMOUNTS, state)."""
_NodeTexts = tuple[dict[str, bytes], Availability, int]
"""(the lines of a node by name of the gauge, for `unavailable` a state and the units there)."""


class DeviceMetrics:
    """The gauges of all devices and nodes, and of the typical request that stranded memory is for.

    The gauges of an amount in percent exist for a resource if a pod has a part of the amount. The
    lines of a node are kept until the node changes. unit_bytes: bytes of a memory unit.
    """

    def __init__(self, unit_bytes: int) -> None:
        self._unit_bytes = unit_bytes
        self._lines: dict[str, NodeValues[_NodeInputs, _NodeTexts]] = {}

    def text(self, resources: Iterable[ManagedResource]) -> bytes:
        """Return the gauges of the resources in Prometheus' text format."""
        lines: dict[str, list[bytes]] = {gauge: [] for gauge in _HELP}
        for managed_resource in resources:
            resource = managed_resource.names.resource
            view = managed_resource.ledger.view()
            percents_used = enumerate(view.snapshot.percents_used)
            amounts = tuple(at for at, used in percents_used if used.any())
            inputs: _NodeInputs = view.typical_units, amounts, None
            label = f'resource="{resource.translate(_ESCAPES)}"'
            typical = float(inputs[0] * self._unit_bytes)
            lines[_TYPICAL].append(f"{_TYPICAL}{{{label}}} {typical}\n".encode())
            for count, devices in enumerate(devices_by_pods(view.snapshot)):
                line = f'{_BY_PODS}{{pods="{count}",{label}}} {float(devices)}\n'
                lines[_BY_PODS].append(line.encode())
            if resource not in self._lines:
                make = partial(_node_texts, managed_resource, label, self._unit_bytes)
                self._lines[resource] = NodeValues(make)
            states = managed_resource.filters.states
            by_node = {name: (*inputs[:2], states.get(name)) for name in view.nodes}
            unavailable = {state: 0 for state in Availability if not state.takes_pods}
            for texts, state, units in self._lines[resource].all(
                managed_resource.ledger, inputs, by_node
            ):
                unavailable[state] += units
                for gauge, text in texts.items():
                    lines[gauge].append(text)
            for spec in view.nodes.values():
                if spec.capacity:
                    continue
                on_node = (entry for entry in view.entries.values() if entry.node == spec.name)
                if managed_resource.concerns(spec, on_node):
                    availability = managed_resource.judge(spec)[0]
                    lines[_STATE].append(_state_line(label, spec, availability))
            for state, units in unavailable.items():
                labels, value = f'{label},state="{state}"', float(units * self._unit_bytes)
                lines[_UNAVAILABLE].append(f"{_UNAVAILABLE}{{{labels}}} {value}\n".encode())
        return b"".join(
            part
            for gauge, texts in lines.items()
            if texts
            for part in (f"# HELP {gauge} {_HELP[gauge]}\n# TYPE {gauge} gauge\n".encode(), *texts)
        )


def _node_texts(
    resource: ManagedResource, label: str, unit_bytes: int, books: NodeBooks, inputs: _NodeInputs
) -> _NodeTexts:
    """Return the texts of a node. label: of the resource. inputs: the state may be older."""
    typical, shown_amounts, _ = inputs
    name, lines = books.spec.name.translate(_ESCAPES), defaultdict[str, list[str]](list)
    availability, unavailable = resource.judge(books.spec)[0], 0
    limits = memory_limits(books.entries, books.used, books.spec.capacity)
    for device, units in enumerate(books.spec.capacity):
        usable = books.spec.healthy[device] and not books.spec.closed
        unused = max(units - books.used[device], 0)
        if not (usable and availability.takes_pods and books.has_place(device)):
            unavailable += unused
            unused = 0
        values: dict[str, float] = {
            "memory_bytes": units * unit_bytes,
            "memory_allocated_bytes": books.used[device] * unit_bytes,
            "healthy": usable,
        }
        if limits:
            values["memory_limits_bytes"] = limits[device] * unit_bytes
        for index in shown_amounts:
            amount, percent = PERCENT_AMOUNTS[index], books.percents_used[index][device]
            values[f"{amount.noun}_allocated_percent"] = percent
            if amount.is_exclusive:
                is_full = percent >= amount.whole
                stranded = unused * unit_bytes if is_full else 0
                values[f"memory_stranded_by_{amount.noun}_bytes"] = stranded
                unused = 0 if is_full else unused
        values["memory_free_bytes"] = unused * unit_bytes
        values["memory_stranded_bytes"] = stranded_units(unused, typical) * unit_bytes
        labels = f'{{device="{device}",node="{name}",{label}}}'
        for gauge, value in values.items():
            lines[gauge].append(f"gpushare_device_{gauge}{labels} {float(value)}\n")
    texts = {f"gpushare_device_{gauge}": "".join(of).encode() for gauge, of in lines.items()}
    texts[_STATE] = _state_line(label, books.spec, availability)
    is_open = availability.takes_pods
    return texts, Availability.CLOSED if is_open else availability, unavailable


def _state_line(label: str, spec: NodeSpec, availability: Availability) -> bytes:
    labels = f'node="{spec.name.translate(_ESCAPES)}",{label},state="{availability}"'
    return f"{_STATE}{{{labels}}} 1.0\n".encode()


def usage_metrics(
    resources: Iterable[ManagedResource],
    unit_bytes: int,
    detail: str,
    claims: ManagedResource | None = None,
) -> bytes:
    """Return the gauges of namespaces and of pods.

    unit_bytes: bytes of a memory unit. detail: `devices` for neither, `namespaces` for these alone,
    `pods` for both. claims: a resource with claims instead of pods; only namespaces are told.
    """
    if detail == "devices":
        return b""
    namespaces: dict[Labels, float] = {}
    pods: dict[Labels, float] = {}
    for managed_resource in [*resources, *([claims] if claims else [])]:
        resource = ("resource", managed_resource.names.resource)
        by_pod: _Held = Counter()
        by_namespace: _Held = Counter()
        for node in managed_resource.ledger.dump():
            for entry in node.entries:
                units, ref = entry.units(node.spec.capacity), entry.ref
                by_namespace[ref.namespace,] += units
                # Two pods have one name if the first has ended and its successor exists.
                # Labels are known of pods that the watch has shown on a node.
                is_shown = entry.assumption is None
                workload = workload_name(ref.name, dict(entry.labels)) if is_shown else ""
                by_pod[ref.namespace, ref.name, node.spec.name, workload] += units
        for (namespace,), units in _largest(by_namespace, NAMESPACES):
            namespaces[("namespace", namespace), resource] = units * unit_bytes
        if managed_resource is not claims:
            for names, units in _largest(by_pod, PODS):
                labels = zip(("namespace", "pod", "node", "workload"), names, strict=True)
                pods[(*labels, resource)] = units * unit_bytes
    text = family_text(
        "gpushare_namespace_memory_allocated_bytes",
        f"Memory given to the pods of a namespace; {OTHERS}: of all but the {NAMESPACES} largest",
        namespaces,
    )
    if detail == "pods":
        text += family_text(
            "gpushare_pod_memory_allocated_bytes",
            f"Memory given to a pod; {OTHERS}: to all but the {PODS} largest",
            pods,
        )
    return text.encode()


_OF_CLAIMS = {
    "gpushare_claims": "Claims that have devices of the driver",
    "gpushare_claim_offers": "Pods with a node that filter has answered, and without a shown"
    " allocation",
    "gpushare_claim_pods_total": "Filter calls about pods with claims: ranked, or not_ranked: all"
    " nodes were answered",
    "gpushare_claim_predictions_total": "Allocations of claims on offered nodes, by whether first"
    " fit predicted the devices: right, other_device, other_node",
    "gpushare_claim_selectors_unevaluated_total": "CEL selectors that could not be evaluated and"
    " counted as true, by why",
    "gpushare_claim_nodes_unmodelled": "Nodes whose slices are too many or too large to be read;"
    " they rank last",
}
_OF_SHADOW = {
    "gpushare_shadow_on": "1 while the shadow policy follows; 0 for long: it failed, the log says"
    " how",
    "gpushare_shadow_choices_total": "Pods that filter answered for, by whether the shadow policy,"
    " on the real books, would choose the same place or another node or device",
    "gpushare_shadow_pods_total": "Pods by which books took them: both, the real ones alone, or the"
    " shadow's alone",
    "gpushare_shadow_inexact_total": "Pods that the shadow's books could not follow exactly, by"
    " why",
    "gpushare_shadow_rebases_total": "How often the shadow's books began anew with the real ones",
    "gpushare_shadow_dropped_total": "What the shadow had no time for: choices not compared;"
    " events, after which its books begin anew",
    "gpushare_shadow_running_pods": "Pods in the real books and in the shadow's",
    "gpushare_shadow_allocated_bytes": "Memory given to pods in the real books and in the shadow's",
    "gpushare_shadow_stranded_bytes": "Free memory of devices where the commonest request has no"
    " room, in both books",
}


def claims_metrics(view: ClaimsView | None) -> bytes:
    """Return the metrics of claims, except devices; nothing if claims are not followed."""
    if view is None:
        return b""
    counts = view.counts()
    driver: Labels = (("driver", view.driver),)
    samples: tuple[Samples, ...] = (
        {driver: counts.claims},
        {driver: counts.offers},
        counts_by("outcome", counts.pods),
        counts_by("outcome", counts.predictions),
        counts_by("why", counts.unevaluated_selectors),
        {driver: counts.unmodelled_nodes},
    )
    return families_text(_OF_CLAIMS, samples).encode()


def shadow_metrics(shadow: Shadow | None, unit_bytes: int) -> bytes:
    """Return all that is told of the shadow. unit_bytes: bytes of a memory unit."""
    if shadow is None:
        return b""
    counts = {("resource", name): tally for name, tally in shadow.counts.items()}
    sums = {
        (of, ("books", books)): figures
        for of, tally in counts.items()
        for books, figures in (("real", tally.real), ("shadow", tally.shadow))
    }

    def by(label: str, count_of: Callable[[Counts], Mapping[str, int]]) -> Samples:
        return {
            (of, *value): number
            for of, tally in counts.items()
            for value, number in counts_by(label, count_of(tally)).items()
        }

    samples: tuple[Samples, ...] = (
        {(("policy", shadow.policy),): shadow.follows},
        by("choice", lambda tally: tally.choices),
        by("taken", lambda tally: tally.pods),
        by("why", lambda tally: tally.inexact),
        {(of,): tally.rebases for of, tally in counts.items()},
        counts_by("what", shadow.dropped),
        {of: figures.pods for of, figures in sums.items()},
        {of: figures.allocated * unit_bytes for of, figures in sums.items()},
        {of: figures.stranded * unit_bytes for of, figures in sums.items()},
    )
    return families_text(_OF_SHADOW, samples).encode()


def counts_by(label: str, counts: Mapping[str, int]) -> Samples:
    """Return a sample for each count, by the value of a label."""
    return {((label, value),): count for value, count in counts.items()}


def families_text(texts: Mapping[str, str], samples: Iterable[Samples]) -> str:
    """Return the metric families with these names and texts, with samples in the same order."""
    return "".join(
        family_text(name, text, of_family)
        for (name, text), of_family in zip(texts.items(), samples, strict=True)
    )


def family_text(name: str, text: str, samples: Samples) -> str:
    """Return a metric family; a name that ends in _total makes a counter."""
    kind = "counter" if name.endswith("_total") else "gauge"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples.items():
        pairs = ",".join(f'{key}="{label.translate(_ESCAPES)}"' for key, label in labels)
        labels_text = f"{{{pairs}}}" if pairs else ""
        lines.append(f"{name}{labels_text} {float(value)}")
    return "\n".join(lines) + "\n"


def _largest(holders: _Held, max_series: int) -> list[tuple[tuple[str, ...], int]]:
    """Return the `max_series` largest, among equals always the same, and the sum of the rest."""
    ordered = sorted(holders.items(), key=lambda item: (-item[1], item[0]))
    smaller = ordered[max_series:]
    remainder = (
        [((OTHERS,) * len(smaller[0][0]), sum(units for _, units in smaller))] if smaller else []
    )
    return ordered[:max_series] + remainder
