"""`inspect` for a user without rights on nodes: the pods of one namespace, by their annotations.

Devices and free memory stay unknown. Loaded only after a refusal of the API server. Standard
library alone.

Tested in `tests/unit/cli/test_rights.py`.
"""

import argparse
from dataclasses import asdict

from gpushare.cli.documents import dumped, report_document
from gpushare.cli.facts import PodFacts
from gpushare.cli.lister import observe_namespace
from gpushare.cli.report import Report
from gpushare.cli.rights import lacks, without_cluster
from gpushare.cli.tables import Style, align, as_tables, device_kind
from gpushare.core.amounts import charged_units, memory_percent
from gpushare.core.model import Shares
from gpushare.errors import ApiError
from gpushare.wire.printable import printable

_NO_UNIT = "units"
_UNKNOWN = ("total", "allocated", "unplaced", "free")


def own_pods(options: argparse.Namespace, style: Style, refusal: ApiError) -> tuple[str, list[str]]:
    """Return (the pods of the namespace in the requested format, the warnings).

    refusal: of the right to list nodes, or pods of all namespaces. Raises GpuShareError for a
    request about nodes, and the errors of `Kubectl.get`.
    """
    scope = options.scope
    if scope.nodes or scope.selector or options.watch or options.top or options.output == "name":
        raise without_cluster(refusal, "this", "; -n NAMESPACE alone shows the pods there")
    namespace = options.namespace or options.kubectl.namespace()
    observed = observe_namespace(options.kubectl, options.names, namespace)
    warnings = [
        f"{lacks(refusal)}: shown are the pods of namespace {namespace}, by their annotations",
        *sorted(observed.unread.values()),
    ]
    pods = sorted(observed.pods.values(), key=lambda pod: pod.ref.name)
    pending = sorted(observed.pending.values(), key=lambda pod: pod.ref.name)
    report = Report(
        options.names.resource,
        options.unit or _NO_UNIT,
        "flag" if options.unit else "guess",
        (),
        tuple(warnings),
        pending=tuple(pending),
    )
    if options.output:
        document = report_document(report) | dict.fromkeys(_UNKNOWN)
        return dumped(document | {"pods": list(map(_document, pods))}, options.output), warnings
    tables = [_table(report, pods, headers=options.headers)] if pods else []
    if options.headers and pending:
        tables.append(as_tables(report, style, pods=False, wide=False, headers=True))
    if not tables:
        warnings.append(f"no pod there has or requests {report.resource}")
    return "\n".join(tables), warnings


def _table(report: Report, pods: list[PodFacts], *, headers: bool) -> str:
    kind = device_kind(report.resource)
    head = ("POD", "NAMESPACE", "NODE", f"{kind} Memory({report.unit})", "DEVICES", "PHASE")
    rows = [
        (
            *map(printable, (pod.ref.name, pod.ref.namespace, pod.node)),
            f"{share * pod.request.devices}%" if share else str(pod.request.total),
            ",".join(f"{device}({units})" for device, units in _charges(pod)) or "-",
            printable(pod.phase) or "-",
        )
        for pod in pods
        for share in (memory_percent(pod.request.percents),)
    ]
    return align([head, *rows] if headers else rows)


def _document(pod: PodFacts) -> dict[str, object]:
    charges, share = _charges(pod), memory_percent(pod.request.percents)
    return asdict(pod.ref) | {
        "node": pod.node,
        "phase": pod.phase or None,
        "assigned": pod.assigned,
        "allocated": sum(units for _, units in charges) if share and charges else pod.request.total,
        **({"share": share} if share else {}),
        "devices": [{"index": device, "allocated": units} for device, units in charges],
    }


def _charges(pod: PodFacts) -> Shares:
    """Return the units charged on each device, if all have the size of the first one: only the
    Binding of the pod is known.
    """
    return tuple(
        (device, charged_units(units, percents, pod.capacity))
        for (device, units), percents in zip(
            pod.shares, pod.request.percents_on(pod.shares), strict=True
        )
    )
