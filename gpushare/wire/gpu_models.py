"""The GPU model of a node, by the usual labels.

Standard library only, so that `kubectl inspect gpushare` starts without more.
"""

from collections.abc import Mapping
from sys import intern

LABELS = ("nvidia.com/gpu.product", "aliyun.accelerator/nvidia_name")
"""Node labels that name the model: of NVIDIA's GPU feature discovery, and of Alibaba's ACK."""


def node_model(labels: Mapping[str, str]) -> str:
    """Return the model that the labels of a node name; "" if none does."""
    return intern(next((labels[key] for key in LABELS if labels.get(key)), ""))


def label_value(model: str) -> str:
    """Return a model as a label spells it: labels hold no blanks, so discovery writes hyphens."""
    return intern("-".join(model.split()))
