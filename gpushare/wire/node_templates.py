"""Nodes that do not exist yet, as an autoscaler makes them up: from the structs to NodeSpec.

A template is a copy of a node of its group under another name, or, of a group that has no node,
what the cloud provider is told of it: labels and sums. Sums say nothing of single devices, so a
label may: `gpushare.io/shape: 4x24GiB`.

Tested in `tests/unit/wire/test_node_templates.py`.
"""

import re
from dataclasses import replace

from gpushare.core.model import NodeSpec
from gpushare.errors import AnnotationError
from gpushare.wire.annotations import Names
from gpushare.wire.gpu_models import node_model
from gpushare.wire.inventory import MAX_DEVICES, units_of
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import Node

SHAPE = re.compile(r"(\d{1,3})x(\d{1,9})(GiB|MiB)?", re.ASCII)
"""How many devices, and the memory of each; without GiB or MiB in units of the cluster."""


def template_spec(node: Node, names: Names, unit: str) -> NodeSpec:
    """Return the devices of a node that comes of this template, in units.

    The inventory or the total and the count lead, as of any node; where they say nothing that can
    be used the label does. The cards of the node that was copied are not those that come: all are
    healthy, and none has a uuid. Raises AnnotationError for a label that makes no sense,
    MessageError as `node_spec`.
    """
    spec = node_spec(node, names, unit)
    metadata = node.metadata
    label = ((metadata and metadata.labels) or {}).get(names.shape)
    has_inventory = names.inventory in ((metadata and metadata.annotations) or {})
    if label is not None and not has_inventory and (spec.closed or not any(spec.capacity)):
        capacity = _capacity(label, names.shape, unit)
        model = node_model((metadata and metadata.labels) or {})
        models = (model,) * len(capacity)
        spec = replace(spec, capacity=capacity, models=models, closed=None, counted=False)
    size = len(spec.capacity)
    return replace(spec, healthy=(True,) * size, uuids=("",) * size, gone=())


def _capacity(text: str, label: str, unit: str) -> tuple[int, ...]:
    found = SHAPE.fullmatch(text)
    if found is None:
        raise AnnotationError(f"label {label}: {text[:63]!a} is not as 4x24GiB")
    devices, size = int(found[1]), int(found[2])
    units = units_of(size, found[3], unit) if found[3] else size
    if not units:
        raise AnnotationError(f"label {label}: {text[:63]!a} is no number of units of {unit}")
    if not 0 < devices <= MAX_DEVICES:
        raise AnnotationError(f"label {label}: a node has from 1 to {MAX_DEVICES} devices")
    return (units,) * devices
