"""The GPU model of a node, and the models that a pod accepts, by the usual labels.

Knows the labels' keys. kube-scheduler alone enforces a pod's selector; we read it because a policy
that knows which pods can only run on a scarce model keeps that model free for them.
"""

from collections.abc import Mapping
from sys import intern

from gpushare.wire.objects import PodSpec

LABELS = ("nvidia.com/gpu.product", "aliyun.accelerator/nvidia_name")
"""Node labels that name the model: of NVIDIA's GPU feature discovery, and of Alibaba's ACK."""

MAX_MODELS = 64
"""Models that are kept of what one pod accepts."""

_MAX_LENGTH = 63
"""Characters of the value of a label."""


def node_model(labels: Mapping[str, str]) -> str:
    """Return the model that the labels of a node name; "" if none does."""
    return intern(next((labels[key] for key in LABELS if labels.get(key)), ""))


def label_value(model: str) -> str:
    """Return a model as a label spells it: labels hold no blanks, so discovery writes hyphens."""
    return intern("-".join(model.split()))


def accepted_models(spec: PodSpec) -> tuple[str, ...]:
    """Return the models that the pod's node selector and its required node affinity accept, sorted.

    () means any, and stands for more than MAX_MODELS too. Affinity counts if it is one term:
    several are alternatives, of which each may name other labels. A value that is longer than any
    label's is no model. A node has to meet all conditions.
    """
    selector = spec.node_selector or {}
    conditions = [frozenset({selector[key]}) for key in LABELS if key in selector]
    node = spec.affinity and spec.affinity.node_affinity
    terms = (node and node.required and node.required.node_selector_terms) or ()
    conditions += [
        frozenset(each.values or ())
        for each in (len(terms) == 1 and terms[0].match_expressions) or ()
        if each.key in LABELS and each.operator == "In"
    ]
    if not conditions:
        return ()
    models = [each for each in frozenset.intersection(*conditions) if len(each) <= _MAX_LENGTH]
    return tuple(sorted(models)) if len(models) <= MAX_MODELS else ()
