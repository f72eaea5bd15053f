"""Metrics in Prometheus' text format without prometheus_client: of devices, of the memory by
namespace and pod, of claims, and of the shadow policy.

For 5,000 nodes with 8 devices this module writes 200,000 lines in 0.3 s of CPU; prometheus_client
takes 3.5 s.

Names of tenants are in the metrics only if the operator enables that: any pod of the cluster may be
able to read metrics. The series of namespaces and pods are limited.

Tested in `tests/unit/extender/tell/test_memory_metrics.py`,
`tests/unit/extender/tell/test_claims_metrics.py` and `tests/unit/extender/shadow/test_shadow.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.node_filters import Availability
from gpushare.core.states.entry import NodeBooks
from gpushare.core.stranded import stranded_units
from gpushare.extender.claims.view import ClaimsView
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.shadow.follower import Counts
from gpushare.extender.shadow.shadow import Shadow

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
"""Of the values of labels."""

_Labels = tuple[tuple[str, str], ...]
_Samples = Mapping[_Labels, float]
"""The value of each sample by labels."""

_Held = Counter[tuple[str, ...]]
"""Units by names."""
NAMESPACES = 100
"""Upper bound of the series of a resource; one more series has the sum of all other namespaces."""
PODS = 500
"""The same for pods."""
OTHERS = "_others"
"""In place of each name in that one. No namespace or pod can be called so."""


def device_metrics(resources: Iterable[ManagedResource], unit_bytes: int) -> bytes:
    """Return the gauges of all devices and nodes, and of the typical request that stranded memory
    is for.

    The gauges of an amount in percent exist for a resource if a pod has a part of the amount.
    unit_bytes: bytes of a memory unit.
    """
    # Of each gauge, the lines without the name.
    capacity: list[str] = []
    used: list[str] = []
    free: list[str] = []
    stranded: list[str] = []
    healthy: list[str] = []
    percents: list[list[str]] = [[] for _ in PERCENT_AMOUNTS]
    stranded_by: list[list[str]] = [[] for _ in PERCENT_AMOUNTS]
    typical: list[str] = []
    states: list[str] = []
    unavailable: list[str] = []

    @cache
    def as_bytes(units: int) -> str:
        return str(float(units * unit_bytes))

    for managed_resource in resources:
        nodes = managed_resource.ledger.dump()
        typical_request = managed_resource.ledger.view().typical_units
        used_amounts = [
            (index, amount)
            for index, amount in enumerate(PERCENT_AMOUNTS)
            if any(any(node.percents_used[index]) for node in nodes)
        ]
        resource = managed_resource.names.resource.translate(_ESCAPES)
        typical.append(f'{{resource="{resource}"}} {as_bytes(typical_request)}')
        availabilities = [managed_resource.judge(node.spec)[0] for node in nodes]
        for node, availability in zip(nodes, availabilities, strict=True):
            name = node.spec.name.translate(_ESCAPES)
            if node.spec.capacity or node.spec.closed:
                of_node = f'node="{name}",resource="{resource}",state="{availability}"'
                states.append(f"{{{of_node}}} 1.0")
            for device, units in enumerate(node.spec.capacity):
                of = f'{{device="{device}",node="{name}",resource="{resource}"}} '
                usable = node.spec.healthy[device] and not node.spec.closed
                is_open = usable and availability.takes_pods
                unused = max(units - node.used[device], 0) if is_open else 0
                for index, amount in used_amounts:
                    percent = node.percents_used[index][device]
                    percents[index].append(f"{of}{float(percent)}")
                    if amount.is_exclusive:
                        is_full = percent >= amount.whole
                        stranded_by[index].append(of + as_bytes(unused if is_full else 0))
                        unused = 0 if is_full else unused
                capacity.append(of + as_bytes(units))
                used.append(of + as_bytes(node.used[device]))
                free.append(of + as_bytes(unused))
                stranded.append(of + as_bytes(stranded_units(unused, typical_request)))
                healthy.append(of + ("1.0" if usable else "0.0"))
        for state, units in _unavailable_units(nodes, availabilities).items():
            unavailable.append(f'{{resource="{resource}",state="{state}"}} {as_bytes(units)}')
    families = [
        _gauge(
            "gpushare_device_memory_bytes",
            "Memory of a device, as its node advertises it",
            capacity,
        ),
        _gauge(
            "gpushare_device_memory_allocated_bytes",
            "Memory given to pods, or to claims; kubectl inspect gpushare -d says to which",
            used,
        ),
        _gauge(
            "gpushare_device_memory_free_bytes",
            "Memory that can be given out; 0 where the device is closed or its node takes no pods",
            free,
        ),
        _gauge(
            "gpushare_device_memory_stranded_bytes",
            "Free memory of a device where the commonest request has no room; smaller pods may fit",
            stranded,
        ),
        _gauge(
            "gpushare_device_healthy",
            "1 for a device in order; 0: closed, kubectl inspect gpushare shows which",
            healthy,
        ),
        _gauge(
            "gpushare_node_state",
            "1 for the state of a node; no pod comes to one that is not open or tainted",
            states,
        ),
        _gauge(
            "gpushare_memory_unavailable_bytes",
            "Unused memory that no pod can get, by the state of its node; closed: or of its device",
            unavailable,
        ),
        _gauge(
            "gpushare_typical_request_bytes",
            "What most pods, bound or waiting, ask for on each device; 0: there are none",
            typical,
        ),
    ]
    for amount, lines, stranded_lines in zip(PERCENT_AMOUNTS, percents, stranded_by, strict=True):
        if lines:
            families.append(
                _gauge(
                    f"gpushare_device_{amount.noun}_allocated_percent",
                    f"{amount.noun.capitalize()} of a device given to pods, in percent of the"
                    " device",
                    lines,
                )
            )
        if stranded_lines:
            families.append(
                _gauge(
                    f"gpushare_device_memory_stranded_by_{amount.noun}_bytes",
                    f"Memory that would be free, if all {amount.noun} of the device were not given"
                    " to pods",
                    stranded_lines,
                )
            )
    return "".join(families).encode()


def _unavailable_units(
    nodes: Iterable[NodeBooks], availabilities: Iterable[Availability]
) -> dict[Availability, int]:
    """Return the unused units that no pod can get, by the state of the node; those of closed
    devices on nodes that take pods are in CLOSED.
    """
    units_by_state = {state: 0 for state in Availability if not state.takes_pods}
    for node, availability in zip(nodes, availabilities, strict=True):
        is_open = availability.takes_pods
        state = Availability.CLOSED if is_open else availability
        devices = zip(node.spec.capacity, node.used, node.spec.healthy, strict=True)
        units_by_state[state] += sum(
            max(units - used, 0)
            for units, used, is_healthy in devices
            if not (is_open and is_healthy)
        )
    return units_by_state


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
    namespaces: dict[_Labels, float] = {}
    pods: dict[_Labels, float] = {}
    for managed_resource in [*resources, *([claims] if claims else [])]:
        resource = ("resource", managed_resource.names.resource)
        by_pod: _Held = Counter()
        by_namespace: _Held = Counter()
        for node in managed_resource.ledger.dump():
            for entry in node.entries:
                units, ref = entry.request.total, entry.ref
                by_namespace[ref.namespace,] += units
                # Two pods have one name if the first has ended and its successor exists.
                by_pod[ref.namespace, ref.name, node.spec.name] += units
        for (namespace,), units in _largest(by_namespace, NAMESPACES):
            namespaces[("namespace", namespace), resource] = units * unit_bytes
        if managed_resource is not claims:
            for (namespace, pod, name), units in _largest(by_pod, PODS):
                of = (("namespace", namespace), ("pod", pod), ("node", name), resource)
                pods[of] = units * unit_bytes
    text = _family(
        "gpushare_namespace_memory_allocated_bytes",
        f"Memory given to the pods of a namespace; {OTHERS}: of all but the {NAMESPACES} largest",
        namespaces,
    )
    if detail == "pods":
        text += _family(
            "gpushare_pod_memory_allocated_bytes",
            f"Memory given to a pod; {OTHERS}: to all but the {PODS} largest",
            pods,
        )
    return text.encode()


def claims_metrics(view: ClaimsView | None) -> bytes:
    """Return the metrics of claims, except devices; nothing if claims are not followed."""
    if view is None:
        return b""
    counts = view.counts()
    families = (
        _family(
            "gpushare_claims",
            "Claims that have devices of the driver",
            {(("driver", view.driver),): float(counts.claims)},
        ),
        _family(
            "gpushare_claim_offers",
            "Pods with a node that filter has answered, and without a shown allocation",
            {(("driver", view.driver),): float(counts.offers)},
        ),
        _family(
            "gpushare_claim_pods_total",
            "Filter calls about pods with claims: ranked, or not_ranked: all nodes were answered",
            {(("outcome", outcome),): number for outcome, number in counts.pods.items()},
        ),
        _family(
            "gpushare_claim_predictions_total",
            "Allocations of claims on offered nodes, by whether first fit predicted the devices:"
            " right, other_device, other_node",
            {(("outcome", outcome),): number for outcome, number in counts.predictions.items()},
        ),
        _family(
            "gpushare_claim_selectors_unevaluated_total",
            "CEL selectors that could not be evaluated and counted as true, by why",
            {(("why", reason),): number for reason, number in counts.unevaluated_selectors.items()},
        ),
        _family(
            "gpushare_claim_nodes_unmodelled",
            "Nodes whose slices are too many or too large to be read; they rank last",
            {(("driver", view.driver),): float(counts.unmodelled_nodes)},
        ),
    )
    return "".join(families).encode()


def shadow_metrics(shadow: Shadow | None, unit_bytes: int) -> bytes:
    """Return all that is told of the shadow. unit_bytes: bytes of a memory unit."""
    if shadow is None:
        return b""
    counts = {(("resource", name),): tally for name, tally in shadow.counts.items()}
    sums = {
        (*of, ("books", books)): figures
        for of, tally in counts.items()
        for books, figures in (("real", tally.real), ("shadow", tally.shadow))
    }

    def by(label: str, count_of: Callable[[Counts], Mapping[str, int]]) -> _Samples:
        return {
            (*of, (label, value)): number
            for of, tally in counts.items()
            for value, number in count_of(tally).items()
        }

    families = (
        _family(
            "gpushare_shadow_on",
            "1 while the shadow policy follows; 0 for long: it failed, the log says how",
            {(("policy", shadow.policy),): float(shadow.follows)},
        ),
        _family(
            "gpushare_shadow_choices_total",
            "Pods that filter answered for, by whether the shadow policy, on the real books, would"
            " choose the same place or another node or device",
            by("choice", lambda tally: tally.choices),
        ),
        _family(
            "gpushare_shadow_pods_total",
            "Pods by which books took them: both, the real ones alone, or the shadow's alone",
            by("taken", lambda tally: tally.pods),
        ),
        _family(
            "gpushare_shadow_inexact_total",
            "Pods that the shadow's books could not follow exactly, by why",
            by("why", lambda tally: tally.inexact),
        ),
        _family(
            "gpushare_shadow_rebases_total",
            "How often the shadow's books began anew with the real ones",
            {of: tally.rebases for of, tally in counts.items()},
        ),
        _family(
            "gpushare_shadow_dropped_total",
            "What the shadow had no time for: choices not compared; events, after which its books"
            " begin anew",
            {(("what", kind),): number for kind, number in shadow.dropped.items()},
        ),
        _family(
            "gpushare_shadow_running_pods",
            "Pods in the real books and in the shadow's",
            {of: figures.pods for of, figures in sums.items()},
        ),
        _family(
            "gpushare_shadow_allocated_bytes",
            "Memory given to pods in the real books and in the shadow's",
            {of: figures.allocated * unit_bytes for of, figures in sums.items()},
        ),
        _family(
            "gpushare_shadow_stranded_bytes",
            "Free memory of devices where the commonest request has no room, in both books",
            {of: figures.stranded * unit_bytes for of, figures in sums.items()},
        ),
    )
    return "".join(families).encode()


def _family(name: str, text: str, samples: _Samples) -> str:
    """Return a metric family; a name that ends in _total makes a counter."""
    kind = "counter" if name.endswith("_total") else "gauge"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples.items():
        pairs = ",".join(f'{key}="{label.translate(_ESCAPES)}"' for key, label in labels)
        lines.append(f"{name}{{{pairs}}} {float(value)}")
    return "\n".join(lines) + "\n"


def _gauge(name: str, text: str, samples: Sequence[str]) -> str:
    """Return a metric family. samples: the text after the name of each sample."""
    return f"\n{name}".join([f"# HELP {name} {text}\n# TYPE {name} gauge", *samples]) + "\n"


def _largest(holders: _Held, max_series: int) -> list[tuple[tuple[str, ...], int]]:
    """Return the `max_series` largest, among equals always the same, and the sum of the rest."""
    ordered = sorted(holders.items(), key=lambda item: (-item[1], item[0]))
    smaller = ordered[max_series:]
    remainder = (
        [((OTHERS,) * len(smaller[0][0]), sum(units for _, units in smaller))] if smaller else []
    )
    return ordered[:max_series] + remainder
