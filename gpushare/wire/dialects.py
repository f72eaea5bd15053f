"""Names by which other products ask for a part of a GPU, and ours for the same.

Pods keep such names when they come from there; nobody counts them here. docs/dialects.md has the
same names for people, and a test holds the two together. The facts are from HAMi's
pkg/device/nvidia/device.go, Volcano's vGPU guide, vgpu-manager's and gpu-manager's READMEs,
Koordinator's deviceshare/utils.go and KAI's docs/gpu-sharing.

Tested in `tests/unit/wire/test_request_mistakes.py`.
"""

from collections.abc import Collection
from typing import NamedTuple

from gpushare.wire.annotations import Names


class ForeignName(NamedTuple):
    """What a name of another product means."""

    product: str
    ours: str
    """The field of `Names` that means the same, or "" if nothing does."""
    difference: str = ""
    """How its value differs from ours, or what to write if nothing means the same."""


_MIB, _SHARE = "it counts MiB", "a share of a card's memory cannot be asked for: write units"
RESOURCES = {
    "nvidia.com/gpumem": ForeignName("HAMi", "resource", _MIB),
    "nvidia.com/gpumem-percentage": ForeignName("HAMi", "", _SHARE),
    "nvidia.com/gpucores": ForeignName("HAMi", "cores"),
    "volcano.sh/vgpu-number": ForeignName("Volcano", "count"),
    "volcano.sh/vgpu-memory": ForeignName("Volcano", "resource", _MIB),
    "volcano.sh/vgpu-memory-percentage": ForeignName("Volcano", "", _SHARE),
    "volcano.sh/vgpu-cores": ForeignName("Volcano", "cores"),
    "nvidia.com/vgpu-number": ForeignName("vgpu-manager", "count"),
    "nvidia.com/vgpu-memory": ForeignName("vgpu-manager", "resource", _MIB),
    "nvidia.com/vgpu-cores": ForeignName("vgpu-manager", "cores"),
    "koordinator.sh/gpu-core": ForeignName("Koordinator", "cores"),
    "koordinator.sh/gpu-memory": ForeignName("Koordinator", "resource", "it counts bytes"),
    "koordinator.sh/gpu-memory-ratio": ForeignName("Koordinator", "", _SHARE),
    "koordinator.sh/gpu.shared": ForeignName("Koordinator", "count"),
    "tencent.com/vcuda-core": ForeignName("gpu-manager", "cores"),
    "tencent.com/vcuda-memory": ForeignName("gpu-manager", "resource", "it counts 256 MiB"),
}
"""By the name of a resource of containers."""
ANNOTATIONS = {
    "gpu-memory": ForeignName("KAI", "resource", _MIB),
    "gpu-fraction": ForeignName("KAI", "", _SHARE),
    "gpu-sm-percentage": ForeignName("KAI", "cores", "over all devices"),
    "gpu-fraction-num-devices": ForeignName("KAI", "count"),
    "gpu-fraction-container-name": ForeignName("KAI", "", "the container that asks gets the card"),
    "nvidia.com/numa-bind": ForeignName("HAMi", "", "which NUMA node a card is on is not known"),
    "tencent.com/vcuda-core-limit": ForeignName(
        "gpu-manager", "", "what a pod asks for is the most that it gets"
    ),
}
"""By the name of an annotation of the pod."""


def foreign_name(resources: Collection[str], annotations: Collection[str], names: Names) -> str:
    """Return what to write instead of other products' names that a pod has beside ours; "" if it
    has none.
    """
    found = []
    for table, there in ((RESOURCES, resources), (ANNOTATIONS, annotations)):
        for name, meaning in table.items():
            if name in there:
                instead = _instead(meaning, names)
                found.append(f"{name} is {meaning.product}'s, and nobody counts it here: {instead}")
    return "; ".join(found)


def _instead(meaning: ForeignName, names: Names) -> str:
    if not meaning.ours:
        return meaning.difference
    where = " as an annotation of the pod" if meaning.ours == "count" else ""
    but = f" ({meaning.difference})" if meaning.difference else ""
    return f"write {getattr(names, meaning.ours)}{where} instead{but}"
