"""Write the answers of `gpushare whatif`, with --need and without: lines for people, documents for
programs, and the needed shapes for autoscalers, which know no shape of a node that does not exist
yet: a stream of YAML, in which a comment before each document names the autoscaler.

Tested in `tests/unit/cli/test_whatif.py`, `tests/unit/cli/test_need.py` and
`tests/unit/cli/test_overlay.py`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from gpushare.cli.documents import API_VERSION, to_yaml
from gpushare.cli.listed_cluster import ListedResource
from gpushare.cli.plans import ResourcePlan
from gpushare.cli.tables import PLAIN, Style, align, device_kind
from gpushare.core.amounts import PERCENT_AMOUNTS, DeviceAmount, by_name
from gpushare.core.node_filters import CPU, MEMORY
from gpushare.explain.need import NewNode, NodeNeed
from gpushare.explain.placer import MOST, PlacementResult
from gpushare.explain.pod import GroupNeed
from gpushare.explain.text import NO_UNIT, amount, group_text, verdict_sentence
from gpushare.explain.whatif import DeviceSums, Shape, WhatIfAnswer
from gpushare.wire.annotations import Names
from gpushare.wire.gpu_models import LABELS
from gpushare.wire.inventory import mib_of
from gpushare.wire.printable import printable

_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_TEMPLATE = "k8s.io/cluster-autoscaler/node-template"
_CAPACITY = "capacity.cluster-autoscaler.kubernetes.io"
_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
"""The value of a label."""

_LONGEST = 50
"""The most characters of a shape's name in the name of an object."""


def overlay_text(need: NodeNeed, names: Names, unit: str) -> str:
    """Return the documents. unit: of the books."""
    needed = [
        (shape, count) for shape, count in zip(need.shapes, need.counts, strict=True) if count
    ]
    left_out = sum(pods.missing for pods in need.left_out)
    if not needed and not left_out:
        return "# no node is needed: what is there has room\n"
    without_room = f"# no node of these shapes takes {left_out} of the pods\n" if left_out else ""
    if not needed:
        return without_room
    parts = []
    names_in_use: set[str] = set()
    for shape, count in needed:
        words = re.sub("[^a-z0-9]+", "-", shape.name.lower())[:_LONGEST].strip("-")
        name, number = f"gpushare-{words}", 1
        while name in names_in_use:
            number += 1
            name = f"gpushare-{words}-{number}"
        names_in_use.add(name)
        title = f"# {count} x {printable(shape.name)}\n"
        parts.append(title + "---\n".join(_documents(shape, name, names, unit)))
    return without_room + "---\n".join(parts)


def _documents(shape: Shape, name: str, names: Names, unit: str) -> Iterator[str]:
    labels = _labels(shape, names, unit)
    # The amounts that the device plug-in will advertise, by resource.
    amounts = {names.resource: str(shape.units)}
    for row, of_amount in zip(PERCENT_AMOUNTS, names.percents, strict=True):
        percent = row.whole * len(shape.spec.capacity)
        # An autoscaler counts what the pod asks for, too, where no node advertises it.
        if not row.is_memory and shape.like is not None and shape.like.allocatable is not None:
            percent = shape.like.allocatable.get(of_amount.resource, 0)
        if percent:
            amounts[of_amount.resource] = str(percent)
    of_node_pool = ""
    if labels:
        of_node_pool = "# Labels of the NodePool, in spec.template.metadata.labels:\n"
        of_node_pool += "".join(f"#   {line}\n" for line in to_yaml(labels).splitlines())
    # The instance type of the existing node, or the instance types of a NodePool with the label.
    key, value = _INSTANCE_TYPE, ((shape.like and shape.like.labels) or {}).get(_INSTANCE_TYPE)
    if value is None and names.shape in labels:
        key, value = names.shape, labels[names.shape]
    requirement = {"key": key, "operator": "In", "values": [value or "INSTANCE-TYPE"]}
    yield (
        "# Karpenter, with its feature gate NodeOverlay.\n"
        + of_node_pool
        + to_yaml(
            {
                "apiVersion": "karpenter.sh/v1alpha1",
                "kind": "NodeOverlay",
                "metadata": {"name": name},
                "spec": {"requirements": [requirement], "capacity": amounts},
            }
        )
    )
    tags = {f"{_TEMPLATE}/resources/{key}": value for key, value in amounts.items()}
    tags |= {f"{_TEMPLATE}/label/{key}": value for key, value in labels.items()}
    yield "# cluster-autoscaler on AWS: tags of the Auto Scaling group.\n" + to_yaml({"tags": tags})
    # Cluster API has one GPU resource, of any name.
    annotations = {}
    if shape.spec.cpu is not None:
        annotations[f"{_CAPACITY}/{CPU}"] = f"{shape.spec.cpu}m"
    if shape.spec.memory is not None:
        annotations[f"{_CAPACITY}/{MEMORY}"] = f"{shape.spec.memory >> 20}Mi"
    annotations[f"{_CAPACITY}/gpu-type"] = names.resource
    annotations[f"{_CAPACITY}/gpu-count"] = str(shape.units)
    if labels:
        pairs = (f"{key}={value}" for key, value in labels.items())
        annotations[f"{_CAPACITY}/labels"] = ",".join(pairs)
    yield (
        "# cluster-autoscaler with Cluster API: annotations of the MachineDeployment.\n"
        + to_yaml({"annotations": annotations})
    )


def _labels(shape: Shape, names: Names, unit: str) -> dict[str, str]:
    """Return the labels of nodes of this shape before a device plug-in runs there.

    There is no label for devices of several sizes.
    """
    sizes, models = {*shape.spec.capacity}, {*shape.spec.models}
    labels = {}
    if len(sizes) == 1:
        (size,) = sizes
        if unit == NO_UNIT:
            amount = str(size)
        else:
            amount = f"{size}GiB" if unit == "GiB" else f"{size * mib_of(unit)}MiB"
        labels[names.shape] = f"{len(shape.spec.capacity)}x{amount}"
    if len(models) == 1 and _VALUE.fullmatch(model := models.pop()):
        node_labels = (shape.like and shape.like.labels) or {}
        labels[next((key for key in LABELS if key in node_labels), LABELS[0])] = model
    return labels


KIND = "GPUShareWhatIf"
NEED_KIND = "GPUShareNeed"
_MOST_NODES = 5
_MOST_PODS = 5
_MOST_KINDS = 12
_MOST_COMING = 10
_MOST_LEFT_OUT = 8
NOT_JUDGED = (
    "affinity to other pods, spread constraints, ports, volumes, quotas and preemption do not count"
)


def lines_of(outcome: WhatIfAnswer, plan: ResourcePlan, policy: str) -> Iterator[str]:
    """Yield the lines of an answer. policy: the name of the policy that placed the pods."""
    books = plan.books
    yield from _now_lines(outcome.before, plan)
    if plan.without:
        fit = sum(result.fit for result in outcome.moved_results)
        number = len(outcome.moved_results)
        pods = f"{fit} of {number} pod{'s' * (number > 1)} fit elsewhere"
        yield f"Without:  {', '.join(plan.without)}: {pods if outcome.moved_results else 'no pods'}"
        yield from (
            f"          {_placed(result)}" for result in outcome.moved_results if not result.all_fit
        )
    if plan.added:
        nodes = "1 node" if len(plan.added) == 1 else f"{len(plan.added)} nodes"
        yield f"Added:    {nodes}: {some([spec.name for spec in plan.added])}"
    yield from _waiting(outcome)
    yield from _pods_lines(outcome.requested_results, books.unit)
    for gang in outcome.gangs:
        when = "" if plan.without or plan.added or plan.pods else " now"
        for result in gang.results:
            request, count = result.batch.request, result.batch.count or 0
            need = GroupNeed(((request, count, result.fit),), at_once=True)
            text = group_text(need, books.unit, when)
            yield f"Gang:     {result.batch.name}: {text}{_where(result)}"
        if len(gang.results) > 1 and not gang.fits:
            yield "          so none of these pods is placed"
    if outcome.unknown:
        pods = number_of(sum(outcome.unknown.values()))
        models = some(sorted(outcome.unknown))
        yield f"Left out: {pods}: only a model that no node has would do: {models}"
    yield f"Then:     {_sums_text(outcome.after, books.unit)}"
    yield judged_line(books, policy)


def _now_lines(before: DeviceSums, plan: ResourcePlan) -> Iterator[str]:
    """Yield the sums of the cluster, and the nodes that kube-scheduler leaves out."""
    books = plan.books
    title = f"{books.names.resource} of {books.driver}" if books.driver else books.names.resource
    yield f"Now:      {_sums_text(before, books.unit)} ({title})"
    if plan.left_out:
        nodes = [f"{name} {label}" for name, label in plan.left_out.items()]
        yield f"Nodes:    {some(nodes, '; ')}"
    if plan.tolerated:
        taints = some([str(taint) for taint in plan.tolerated])
        yield f"Taints:   pods in words tolerate {taints} (--tolerate says otherwise)"


def judged_line(books: ListedResource, policy: str) -> str:
    """Return the line with the policy and the limits of the answer."""
    notes = [*books.notes, NOT_JUDGED]
    return f"Judged:   by policy {policy}; {'; '.join(notes)}"


def _pods_lines(results: Sequence[PlacementResult], unit: str) -> Iterator[str]:
    """Yield lines about the requested pods; many equal pods share a line."""
    if len(results) > _MOST_KINDS:
        number = sum(result.batch.count or result.fit for result in results)
        yield f"Pods:     {sum(result.fit for result in results)} of {number} fit"
        results = _together(results)
    for result in results[:_MOST_KINDS]:
        yield f"Pods:     {_placed(result)}"
        if result.explanation is not None:
            yield f"          {verdict_sentence(result.explanation, unit)}"
    if len(results) > _MOST_KINDS:
        yield f"          and {len(results) - _MOST_KINDS} more kinds"


def _together(results: Sequence[PlacementResult]) -> list[PlacementResult]:
    """Return one result for all equal pods, results with most missing pods first."""
    by_kind: dict[object, list[PlacementResult]] = {}
    for result in results:
        batch = result.batch
        by_kind.setdefault((batch.kind, batch.priority), []).append(result)
    merged = []
    for alike in by_kind.values():
        first = alike[0].batch
        if len(alike) == 1 or first.count is None:
            merged.append(alike[0])
            continue
        on: Counter[str] = Counter()
        for result in alike:
            on.update(result.on)
        count = sum(pods.batch.count or 0 for pods in alike)
        name = f"{first.name} and {count - 1} like it"
        reasons = next((pods.reasons for pods in alike if pods.reasons), {})
        fit = sum(pods.fit for pods in alike)
        merged.append(PlacementResult(replace(first, name=name, count=count), fit, on, reasons))
    return sorted(merged, key=lambda pods: -pods.missing)


def _waiting(outcome: WhatIfAnswer) -> Iterator[str]:
    results, gated = outcome.pending_results, outcome.gated
    if results:
        fit = sum(result.fit for result in results)
        yield f"Waiting:  {_pods_wait(len(results))} already; {fit} of {len(results)} fit"
        yield from (f"          {_placed(result)}" for result in results[:_MOST_PODS])
        if len(results) > _MOST_PODS:
            yield f"          and {len(results) - _MOST_PODS} more"
    if gated:
        yield _gated_line(gated)


def _gated_line(gated: int) -> str:
    return f"Gated:    {_pods_wait(gated)} until scheduling gates are removed, and take nothing"


def _pods_wait(number: int) -> str:
    return "1 pod waits" if number == 1 else f"{number} pods wait"


def number_of(pods: int) -> str:
    """Return the number with its noun."""
    return "1 pod" if pods == 1 else f"{pods} pods"


def _sums_text(sums: DeviceSums, unit: str) -> str:
    free = f"{amount(sums.free, unit)} of {amount(sums.total, unit)} free"
    devices = f"{sums.devices} device{'s' * (sums.devices != 1)}"
    stranded = f", {amount(sums.stranded, unit)} stranded by compute" if sums.stranded else ""
    return f"{free} on {devices} of {sums.nodes} node{'s' * (sums.nodes != 1)}{stranded}"


def _sums_document(sums: DeviceSums) -> dict[str, int]:
    """Return the sums as part of a document; strandedByCores only with stranded units."""
    document = asdict(sums)
    stranded = document.pop("stranded")
    return document | ({"strandedByCores": stranded} if stranded else {})


def _placed(result: PlacementResult) -> str:
    """Return the number of fitting pods, their nodes, and reasons against more as text."""
    batch = result.batch
    if batch.count is None:
        fit = f"{result.fit} fit" if result.fit < MOST else f"{MOST} fit, and more"
    else:
        fit = f"{result.fit} of {batch.count} fit"
    name = f"{batch.name} (priority {batch.priority})" if batch.priority else batch.name
    return f"{name}: {fit}{_where(result)}"


def _where(result: PlacementResult) -> str:
    """Return the nodes of the pods, and the reasons against more pods as text."""
    places = some([f"{count} on {node}" for node, count in result.on.items()])
    text = f" ({places})" if places else ""
    if result.fit and result.all_fit:
        return text
    reasons = ", ".join(f"{count} {reason}" for reason, count in result.reasons.items())
    return f"{text}; then: {reasons or 'there are no nodes'}"


def some(parts: Sequence[str], between: str = ", ") -> str:
    """Return the first parts and the number of the remaining ones as text."""
    more = [f"{len(parts) - _MOST_NODES} more"] if len(parts) > _MOST_NODES else []
    return between.join([*parts[:_MOST_NODES], *more])


def document_of(outcome: WhatIfAnswer, plan: ResourcePlan, policy: str) -> dict[str, Any]:
    """Return the document."""
    return {
        **_first_fields(KIND, plan, policy, outcome.before),
        "moved": [_placed_document(result) for result in outcome.moved_results],
        "waiting": [_placed_document(result) for result in outcome.pending_results],
        "gated": outcome.gated,
        "pods": [_placed_document(result) for result in outcome.requested_results],
        "gangs": [
            {"fits": gang.fits, "pods": [_placed_document(result) for result in gang.results]}
            for gang in outcome.gangs
        ],
        "unknownModels": dict(outcome.unknown),
        "after": _sums_document(outcome.after),
        "notes": [*plan.books.notes, NOT_JUDGED],
    }


def _first_fields(kind: str, plan: ResourcePlan, policy: str, before: DeviceSums) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "resource": plan.books.names.resource,
        "unit": plan.books.unit,
        "policy": policy,
        "before": _sums_document(before),
        "leftOut": [{"node": node, "why": reason} for node, reason in plan.left_out.items()],
        "tolerated": [asdict(taint) for taint in plan.tolerated],
    }


def _placed_document(result: PlacementResult) -> dict[str, Any]:
    request = result.batch.request
    return {
        "name": result.batch.name,
        "units": request.units,
        "devices": request.devices,
        **({"split": list(request.split)} if request.split else {}),
        **by_name(request.percents),
        "priority": result.batch.priority,
        "wanted": result.batch.count,
        "fit": result.fit,
        "verdict": result.verdict,
        "on": [{"node": node, "pods": count} for node, count in result.on.items()],
        "reasons": [{"reason": reason, "nodes": count} for reason, count in result.reasons.items()],
    }


def need_lines(need: NodeNeed, plan: ResourcePlan, policy: str, style: Style = PLAIN) -> str:
    """Return the text: needed nodes, left-out pods, remaining room, and a table of new nodes."""
    unit = plan.books.unit
    lines = [*_now_lines(need.before, plan), *_needed(need, unit)]
    lines.append(f"Pods:     {_fitting(need)}")
    if need.left_out:
        pods = number_of(sum(pods_left.missing for pods_left in need.left_out))
        lines.append(
            f"Left out: {pods} that no node of these shapes takes, and no other has room for"
        )
        # Equal pods share a line.
        merged = _together(need.left_out)
        for result in merged[:_MOST_LEFT_OUT]:
            reason = "; ".join(result.reasons)
            lines.append(f"          {result.batch.name}: {result.missing}: {reason}")
        if len(merged) > _MOST_LEFT_OUT:
            lines.append(f"          and {len(merged) - _MOST_LEFT_OUT} more kinds")
    if need.gated:
        lines.append(_gated_line(need.gated))
    lines.append(f"Then:     {_sums_text(need.after, unit)}{_largest(need, unit)}")
    lines.append(judged_line(plan.books, policy))
    text = "".join(f"{printable(line)}\n" for line in lines)
    if not need.nodes:
        return text
    kind = device_kind(plan.books.names.resource)
    text += f"\n{style.fitted(lambda narrower: _rows(need, kind, narrower))}"
    omitted = len(need.nodes) - _MOST_COMING
    return f"{text}and {omitted} more\n" if omitted > 0 else text


def _needed(need: NodeNeed, unit: str) -> Iterator[str]:
    number = sum(need.counts)
    nodes = "1 node" if number == 1 else f"{number} nodes"
    if not number:
        if need.left_out:
            yield f"Need:     {nodes}: more of these shapes take none of the pods that are left out"
        else:
            yield f"Need:     {nodes}: what is there has room"
        return
    shapes = []
    for shape, count in zip(need.shapes, need.counts, strict=True):
        size = ""
        if shape.name.startswith("like "):  # the name tells no sizes
            sizes = Counter(shape.spec.capacity).items()
            texts = (f"{devices} x {amount(units, unit)}" for units, devices in sizes)
            size = f" ({' and '.join(texts)})"
        if count:
            shapes.append(f"{count} x {shape.name}{size}")
    yield f"Need:     {nodes}: {', '.join(shapes)}; with one node fewer the pods do not all fit"


def _fitting(need: NodeNeed) -> str:
    """Return the number of fitting pods, by source and on existing and new nodes, as text."""
    new = {node.name for node in need.nodes}
    fit = sum(result.fit for result in need.results)
    on_new = sum(pods for result in need.results for node, pods in result.on.items() if node in new)
    if not need.results:
        return "none wait; --pods and --more say which would come"
    moved_pods, pending_pods = need.moved_pods, need.pending_pods
    pods_in_all = sum(result.batch.count or 0 for result in need.results)
    whose = [
        f"{number} {text}"
        for number, text in (
            (pending_pods, "wait already"),
            (moved_pods, "are of nodes that go"),
            (pods_in_all - moved_pods - pending_pods, "are asked for"),
        )
        if number
    ]
    return (
        f"{fit} of {pods_in_all} fit ({', '.join(whose)}): {fit - on_new} on nodes that are there,"
        f" {on_new} on new ones"
    )


def _largest(need: NodeNeed, unit: str) -> str:
    """Return the largest pods without compute that still fit as text."""
    sizes = {units: devices for devices, units in enumerate(need.largest, 1)}
    texts = [
        f"{amount(units, unit)} on {'one device' if devices == 1 else f'each of {devices}'}"
        for units, devices in sizes.items()
    ]
    kind = "pod without compute" if need.any_percents else "pod"
    return f"; the largest {kind} that still fits: {some(texts, ' or ')}" if texts else ""


def _rows(need: NodeNeed, kind: str, style: Style) -> str:
    """Return a table of the new nodes with the units in use."""
    nodes = need.nodes[:_MOST_COMING]
    devices = max(len(node.used) for node in nodes)
    rows = [["NODE", *(f"{kind}{index}" for index in range(devices)), "SHAPE"]]
    for node in nodes:
        shape = need.shapes[node.shape]
        cells = [
            style.device(
                used,
                total,
                is_closed=False,
                is_stranded=used < total and bool(_full_amounts(node, index)),
            )
            for index, (used, total) in enumerate(zip(node.used, shape.spec.capacity, strict=True))
        ]
        cells += [""] * (devices - len(cells))
        rows.append([node.name, *cells, printable(shape.name)])
    return align(rows)


def _full_amounts(node: NewNode, device: int) -> list[DeviceAmount]:
    """Return the exclusive amounts of which the pods of a device have the whole."""
    return [
        row
        for row, percents in zip(PERCENT_AMOUNTS, node.percents, strict=True)
        if row.is_exclusive and percents[device] >= row.whole
    ]


def need_document(need: NodeNeed, plan: ResourcePlan, policy: str) -> dict[str, Any]:
    """Return the document."""
    moved_pods, pending_pods = need.moved_pods, need.pending_pods
    parts = {
        "moved": need.results[:moved_pods],
        "waiting": need.results[moved_pods : moved_pods + pending_pods],
        "pods": need.results[moved_pods + pending_pods :],
    }
    nodes = []
    for node in need.nodes:
        shape, devices = need.shapes[node.shape], []
        amounts = zip(shape.spec.capacity, node.used, strict=True)
        for index, (total, used) in enumerate(amounts):
            full = _full_amounts(node, index)
            free = 0 if full else total - used
            device = {"index": index, "total": total, "allocated": used, "free": free}
            for row, percents in zip(PERCENT_AMOUNTS, node.percents, strict=True):
                if need.any_percents:
                    stranded = total - used if row in full else 0
                    device |= {f"strandedBy{row.title}": stranded} if row.is_exclusive else {}
                    device[f"{row.name}Allocated"] = percents[index]
            devices.append(device)
        nodes.append({"name": node.name, "shape": shape.name, "devices": devices})
    return {
        **_first_fields(NEED_KIND, plan, policy, need.before),
        "needed": sum(need.counts),
        "shapes": [
            {
                "name": shape.name,
                "devices": [*shape.spec.capacity],
                "model": next(iter(shape.spec.models), "") or None,
                "cpu": shape.spec.cpu,
                "memory": shape.spec.memory,
                "nodes": count,
            }
            for shape, count in zip(need.shapes, need.counts, strict=True)
        ],
        "nodes": nodes,
        **{name: [_placed_document(result) for result in part] for name, part in parts.items()},
        "gated": need.gated,
        "podsLeftOut": [
            {
                "name": pods.batch.name,
                "pods": pods.missing,
                "reasons": [
                    {"reason": reason, "shapes": count} for reason, count in pods.reasons.items()
                ],
            }
            for pods in need.left_out
        ],
        "largest": [
            {"devices": devices, "units": units} for devices, units in enumerate(need.largest, 1)
        ],
        "after": _sums_document(need.after),
        "notes": [*plan.books.notes, NOT_JUDGED],
    }
