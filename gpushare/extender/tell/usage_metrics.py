"""The metrics of who holds the memory: by namespace and by pod, with a limit on the series.

Names of tenants are told only if the operator asks for them: any pod of the cluster may be able
to read metrics.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from gpushare.core.states.entry import NodeBooks
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.tell.device_metrics import ESCAPES, gauge

Held = Counter[tuple[str, ...]]
"""Units by names."""
NAMESPACES = 100
"""Series of a resource at most; what the other namespaces hold is in one more."""
PODS = 500
"""The same for pods."""
OTHERS = "_others"
"""In place of each name in that one. No namespace or pod can be called so."""


def usage_metrics(
    resources: Iterable[ManagedResource],
    unit_bytes: int,
    detail: str,
    claims: ManagedResource | None = None,
) -> bytes:
    """Return the gauges of namespaces and of pods.

    unit_bytes: bytes of a memory unit. detail: `devices` for neither, `namespaces` for these alone,
    `pods` for both. claims: a resource whose pods are claims, of which namespaces alone are told.
    """
    if detail == "devices":
        return b""
    namespaces: list[str] = []
    pods: list[str] = []
    for managed in [*resources, *([claims] if claims else [])]:
        by_pod = _by_pod(managed.ledger.dump())
        by_namespace: Held = Counter()
        for (namespace, _, _), units in by_pod.items():
            by_namespace[namespace,] += units
        for names, units in _largest(by_namespace, NAMESPACES):
            labels = _labels(names, ("namespace",), managed.names.resource)
            namespaces.append(f"{labels} {float(units * unit_bytes)}")
        for names, units in _largest(by_pod, PODS) if managed is not claims else ():
            labels = _labels(names, ("namespace", "pod", "node"), managed.names.resource)
            pods.append(f"{labels} {float(units * unit_bytes)}")
    text = gauge(
        "gpushare_namespace_memory_allocated_bytes",
        f"Memory given to the pods of a namespace; {OTHERS}: of all but the {NAMESPACES} largest",
        namespaces,
    )
    if detail == "pods":
        text += gauge(
            "gpushare_pod_memory_allocated_bytes",
            f"Memory given to a pod; {OTHERS}: to all but the {PODS} largest",
            pods,
        )
    return text.encode()


def _by_pod(nodes: Sequence[NodeBooks]) -> Held:
    """Return the units of each (namespace, pod, node)."""
    held: Held = Counter()
    for node in nodes:
        for entry in node.entries:
            # There are two of one name if one has ended and its successor is there already.
            held[entry.ref.namespace, entry.ref.name, node.spec.name] += entry.request.total
    return held


def _largest(held: Held, most: int) -> list[tuple[tuple[str, ...], int]]:
    """Return the `most` largest, among equals always the same, and the sum of the rest."""
    ordered = sorted(held.items(), key=lambda item: (-item[1], item[0]))
    rest = ordered[most:]
    others = [((OTHERS,) * len(rest[0][0]), sum(units for _, units in rest))] if rest else []
    return ordered[:most] + others


def _labels(values: Sequence[str], labels: Sequence[str], resource: str) -> str:
    pairs = zip((*labels, "resource"), (*values, resource), strict=True)
    return "{" + ",".join(f'{key}="{value.translate(ESCAPES)}"' for key, value in pairs) + "}"
