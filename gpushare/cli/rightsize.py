"""The sizes of `gpushare report --rightsize`: what containers were given, the most that they used,
the request that is enough, and what that would free. Reads a Prometheus and changes nothing.

Tested in `tests/unit/cli/test_rightsize.py` and `tests/e2e/test_report.py`.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from gpushare.cli.documents import API_VERSION
from gpushare.cli.prometheus import HELD, NAMELESS, USED, Window
from gpushare.cli.tables import align
from gpushare.errors import SettingsError
from gpushare.wire.printable import printable

KIND = "GPUShareRightsizeReport"
_GIVEN = "gpushare_device_plugin_container_memory_given_bytes"
_ADVICE = "have it scrape the port health of the device plug-ins (docs/alerts.md)"
_FEW_SCRAPES = 4
"""Scrapes of the extender that a pod may last without one of a figure of the device plug-in."""
_MARGIN = re.compile(r"(\d{1,3})%", re.ASCII)
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of one container of a workload, in MiB on each of its cards."""

    namespace: str
    workload: str
    container: str
    pods: int
    """That ran at some time."""
    given: int
    """The most on a card at any time."""
    used: int | None
    """The most of all its pods at any time; None: nothing measured it."""
    enough: int | None
    """The most with the margin, in whole units."""
    frees: int | None
    """Of the sizes of now on all cards that its pods have now; negative if they need more."""


def margin_of(text: str) -> float:
    """Return the share of a margin such as 20%. Raises SettingsError."""
    match = _MARGIN.fullmatch(text)
    if match is None:
        raise SettingsError(f"--margin: {text[:40]!r} is not from 0% to 999%")
    return int(match[1]) / 100


def read_sizes(window: Window, namespace: str, margin: float, unit_mib: int) -> list[Size]:
    """Return the sizes by what they would free, then those of which nothing is known.

    Raises MessageError.
    """
    namespaces = {namespace} if namespace else window.namespaces(_GIVEN)
    if not namespaces:
        raise window.lacks(_GIVEN, _ADVICE)
    if not namespace:
        namespaces |= window.namespaces(HELD)
    sizes: list[Size] = []
    for name in sorted(namespaces):
        sizes += _sizes_in(window, name, margin, unit_mib)
    return sorted(
        sizes,
        key=lambda size: (
            size.frees is None,
            -(size.frees or 0),
            size.namespace,
            size.workload,
            size.container,
        ),
    )


def _sizes_in(window: Window, namespace: str, margin: float, unit_mib: int) -> Iterator[Size]:
    def by_container(expression: str) -> dict[tuple[str, str], float]:
        return {
            (labels.get("pod", ""), labels.get("container", "")): value
            for labels, value in window.prometheus.query(expression)
        }

    by = "by (pod, container)"
    given = by_container(f"max {by} (max_over_time({window.over(_GIVEN, namespace=namespace)}))")
    used = by_container(f"max {by} (max_over_time({window.over(USED, namespace=namespace)}))")
    cards: dict[tuple[str, str], list[float]] = defaultdict(list)
    of_now = window.now(_GIVEN, namespace=namespace)
    for labels, size in window.prometheus.query(f"max by (pod, container, uuid) ({of_now})"):
        cards[labels.get("pod", ""), labels.get("container", "")].append(size)
    workloads = window.workloads(namespace)
    if not workloads:
        window.prometheus.warn(
            f"{namespace}: the extender names no workloads: --metrics-detail pods"
        )
    elif nameless := {pod for pod, _ in given} - workloads.keys():
        window.prometheus.warn(f"{namespace}: a row for each of {len(nameless)} pods {NAMELESS}")
    pods_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pod, container in given:
        pods_of[workloads.get(pod, f"Pod/{pod}"), container].append(pod)
    for (workload, container), pods in pods_of.items():
        measures = [used[pod, container] for pod in pods if (pod, container) in used]
        most = math.ceil(max(measures) / _MIB) if measures else None
        enough = frees = None
        if most is not None:
            units = math.ceil(round(most * (1 + margin) / unit_mib, 6))
            enough = max(1, units) * unit_mib
            frees = sum(
                math.ceil(size / _MIB) - enough for pod in pods for size in cards[pod, container]
            )
        yield Size(
            namespace=namespace,
            workload=workload,
            container=container,
            pods=len(pods),
            given=math.ceil(max(given[pod, container] for pod in pods) / _MIB),
            used=most,
            enough=enough,
            frees=frees,
        )
    # The extender knows pods whose device plug-in nobody scrapes, or that ended before a scrape.
    unmeasured = workloads.keys() - {pod for pod, _ in given}
    if unmeasured:
        counts = f"max by (pod) (count_over_time({window.over(HELD, namespace=namespace)}))"
        samples = window.prometheus.query(f"{counts} <= {_FEW_SCRAPES}")
        brief = unmeasured & {labels.get("pod", "") for labels, _ in samples}
        reasons = (
            (brief, f"they ran too briefly to be measured, for {_FEW_SCRAPES} scrapes at most"),
            (unmeasured - brief, _ADVICE),
        )
        for pods_without, reason in reasons:
            if pods_without:
                number = f"{len(pods_without)} of {len(workloads)} pods"
                window.prometheus.warn(f"{namespace}: no figures of {number}: {reason}")
    for workload in {workloads[pod] for pod in unmeasured} - {key[0] for key in pods_of}:
        pods = [pod for pod in workloads if workloads[pod] == workload]
        yield Size(
            namespace=namespace,
            workload=workload,
            container="",
            pods=len(pods),
            given=0,
            used=None,
            enough=None,
            frees=None,
        )


def sizes_table(sizes: Iterable[Size]) -> str:
    """Return the table; a container of which nothing is known has `-`."""
    head = (
        *("NAMESPACE", "WORKLOAD", "CONTAINER", "PODS"),
        *("GIVEN(MiB)", "MOST USED", "ENOUGH", "FREES NOW"),
    )
    lines = [
        (
            *map(printable, (size.namespace, size.workload, size.container or "-")),
            str(size.pods),
            str(size.given or "-"),
            *(
                "-" if value is None else str(value)
                for value in (size.used, size.enough, size.frees)
            ),
        )
        for size in sizes
    ]
    return align([head, *lines])


def sizes_document(sizes: Iterable[Size], margin: str, seconds: int) -> dict[str, Any]:
    """Return the sizes as a document; what is not known is null."""
    keys = {"given": "givenMiB", "used": "mostUsedMiB", "enough": "enoughMiB", "frees": "freesMiB"}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "seconds": seconds,
        "margin": margin,
        "containers": [
            {keys.get(name, name): value for name, value in asdict(size).items()} for size in sizes
        ],
    }
