"""Write the needed shapes for autoscalers, which know no shape of a node that does not exist yet.

The output of `gpushare whatif --need --overlay` is a stream of YAML; a comment before each document
names the autoscaler.

Tested in `tests/unit/cli/test_overlay.py`.
"""

import re
from collections.abc import Iterator

from gpushare.cli.documents import to_yaml
from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.node_filters import CPU, MEMORY
from gpushare.explain.need import NodeNeed
from gpushare.explain.text import NO_UNIT
from gpushare.explain.whatif import Shape
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
    for amount, of_amount in zip(PERCENT_AMOUNTS, names.percents, strict=True):
        percent = amount.whole * len(shape.spec.capacity)
        # An autoscaler counts what the pod asks for, too, where no node advertises it.
        if not amount.is_memory and shape.like is not None and shape.like.allocatable is not None:
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
