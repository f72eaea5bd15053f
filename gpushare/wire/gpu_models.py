"""The GPU model and the GPUs of a node, by the usual labels.

Standard library only, so that `kubectl inspect gpushare` starts without more.
"""

from collections.abc import Mapping
from sys import intern

from gpushare.wire.annotations import strict_number

LABELS = ("nvidia.com/gpu.product", "aliyun.accelerator/nvidia_name")
"""Node labels that name the model: of NVIDIA's GPU feature discovery, and of Alibaba's ACK."""
COUNT, MEMORY = "nvidia.com/gpu.count", "nvidia.com/gpu.memory"
"""Node labels of GPU feature discovery: how many GPUs there are, and the MiB of each."""
_MOST_GPUS, _MOST_MIB = 64, 2**31 - 1


def labelled_gpus(labels: Mapping[str, str]) -> tuple[int, int]:
    """Return how many GPUs the labels of a node tell, and the MiB of each; zeros without labels."""
    count = strict_number(labels.get(COUNT, ""), _MOST_GPUS)
    mib = strict_number(labels.get(MEMORY, ""), _MOST_MIB)
    return (count, mib) if count and mib else (0, 0)


def node_model(labels: Mapping[str, str]) -> str:
    """Return the model that the labels of a node name; "" if none does."""
    return intern(next((labels[key] for key in LABELS if labels.get(key)), ""))


def label_value(model: str) -> str:
    """Return a model as a label spells it: labels hold no blanks, so discovery writes hyphens."""
    return intern("-".join(model.split()))
