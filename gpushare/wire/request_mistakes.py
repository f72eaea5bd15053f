"""Mistakes in the request of a pod, with the probable meaning, for texts that users read.

Pure. To Kubernetes an extended resource is a plain number. The cluster agrees on the unit (GiB,
MiB, a chunk), but people write bytes or MiB nevertheless.

Other products have other names for a part of a GPU. Pods moved from there keep such names, which
nobody counts here. docs/dialects.md has the same names for people, and a test compares the two. The
facts are from HAMi's pkg/device/nvidia/device.go, Volcano's vGPU guide, vgpu-manager's and
gpu-manager's READMEs, TKE's guide of qGPU, Koordinator's deviceshare/utils.go and KAI's
docs/gpu-sharing. near_misses.py has misspelt names.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from gpushare.core.model import Request
from gpushare.errors import WireError
from gpushare.wire.annotations import Names
from gpushare.wire.device_request import APART
from gpushare.wire.groups import workload_of
from gpushare.wire.inventory import mib_of
from gpushare.wire.near_misses import near_miss
from gpushare.wire.objects import Container, Pod, PodSpec, Resources
from gpushare.wire.pods import lacks_room, names_any, request_of
from gpushare.wire.whole_card import whole_card_mistake

VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Variables that say which cards a container sees; a kubelet lets those of the pod win."""

SEES_NONE = ("", "none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES that make NVIDIA's toolkit give a container no card."""

NO_CARD_HAS = 1000
"""GiB that no card has, for the comparison if no device is known."""

Largest = Callable[[], int]
"""Returns the units of the largest device there is; 0, as `int` does: none is known."""


class ForeignName(NamedTuple):
    """The meaning of another product's name."""

    product: str
    field_name: str
    """The field of `Names` that means the same, or "" if nothing does."""
    difference: str = ""
    """How the value differs from ours, or the text to write if nothing means the same."""


_MIB = "it counts MiB"
_FRACTION = "in percent of a card, over all devices"
RESOURCES = {
    "aliyun.com/gpu-core.tflops": ForeignName("ACK", "cores", "in percent of a card"),
    "nvidia.com/gpumem": ForeignName("HAMi", "resource", _MIB),
    "nvidia.com/gpumem-percentage": ForeignName("HAMi", "share"),
    "nvidia.com/gpucores": ForeignName("HAMi", "cores"),
    "volcano.sh/vgpu-number": ForeignName("Volcano", "count"),
    "volcano.sh/vgpu-memory": ForeignName("Volcano", "resource", _MIB),
    "volcano.sh/vgpu-memory-percentage": ForeignName("Volcano", "share"),
    "volcano.sh/vgpu-cores": ForeignName("Volcano", "cores"),
    "nvidia.com/vgpu-number": ForeignName("vgpu-manager", "count"),
    "nvidia.com/vgpu-memory": ForeignName("vgpu-manager", "resource", _MIB),
    "nvidia.com/vgpu-cores": ForeignName("vgpu-manager", "cores"),
    "koordinator.sh/gpu-core": ForeignName("Koordinator", "cores"),
    "koordinator.sh/gpu-memory": ForeignName("Koordinator", "resource", "it counts bytes"),
    "koordinator.sh/gpu-memory-ratio": ForeignName("Koordinator", "share"),
    "koordinator.sh/gpu.shared": ForeignName("Koordinator", "count"),
    "tencent.com/vcuda-core": ForeignName("gpu-manager", "cores"),
    "tencent.com/vcuda-memory": ForeignName("gpu-manager", "resource", "it counts 256 MiB"),
    "tke.cloud.tencent.com/qgpu-core": ForeignName("qGPU", "cores"),
    "tke.cloud.tencent.com/qgpu-memory": ForeignName("qGPU", "resource", "it counts GiB"),
}
"""By the name of a resource of containers."""
ANNOTATIONS = {
    "gpu-memory": ForeignName("KAI", "resource", _MIB),
    "gpu-fraction": ForeignName("KAI", "share", _FRACTION),
    "gpu-sm-percentage": ForeignName("KAI", "cores", "over all devices"),
    "gpu-fraction-num-devices": ForeignName("KAI", "count"),
    "gpu-fraction-container-name": ForeignName("KAI", "", "the container that asks gets the card"),
    "nvidia.com/numa-bind": ForeignName("HAMi", "", "which NUMA node a card is on is not known"),
    "tencent.com/vcuda-core-limit": ForeignName(
        "gpu-manager", "", "what a pod asks for is the most that it gets"
    ),
}
"""By the name of an annotation of the pod."""


def mistake_of(pod: Pod, names: Names, unit: str, largest: Largest = int) -> str:
    """Return the mistake in the pod's request with the text to write instead; "" without one."""
    try:
        request = request_of(pod, names)
    except WireError as error:
        return str(error)
    mistake = lacks_room(pod, request, names) or misplaced(pod, request, names)
    return mistake or wrong_unit(request, names, unit, largest)


def misplaced(pod: Pod, request: Request, names: Names) -> str:
    """Return a request that does not go with device memory, and its mend; "" without one."""
    if names_any(pod, (names.count,)):
        cause = (
            f"{names.count} is among the resources of a container; kube-scheduler and the kubelet"
            " count it there by itself, so that pods wait where it is used up though devices have"
            " room"
        )
        if not request.devices:
            return (
                f"{cause}; of {names.resource} the pod asks for nothing, so it gets no device,"
                f" and may see all cards of its node: write {names.resource} there, and"
                f" {names.count} as an annotation of the pod"
            )
        return (
            f"{cause}; how many devices a pod gets is said by its annotation of that name alone:"
            f" this one gets {request.devices}; write {names.count} as an annotation, not there"
        )
    if not request.devices:
        return ""
    annotations = (pod.metadata and pod.metadata.annotations) or {}
    resources = resources_of(pod)
    if mistake := foreign_name(resources, annotations, names) or near_miss(
        resources, annotations, names
    ):
        return mistake
    if APART in annotations and not workload_of(pod):
        return (
            f"{APART} has no effect: the pod has no controller and is in no group, so it has no"
            " other pods to stay apart from"
        )
    if whole_cards := sorted(filter(is_whole, resources)):
        return (
            f"{whole_cards[0]} is asked for beside {names.resource}: two device plug-ins would give"
            " it cards without knowing of each other; ask for one of the two"
        )
    return whole_card_mistake(annotations, request, names) or sees_more(pod, names)


def without_request(resources: Collection[str], annotations: Collection[str], names: Names) -> str:
    """Return why a pod that asks for none of our resources gets no part of a card, and the mend; ""
    if nothing says that the pod wants one.

    resources: of all containers, without those that nodes offer.
    """
    mistake = near_miss(resources, annotations, names) or foreign_name(
        resources, annotations, names
    )
    whole_cards = sorted(filter(is_whole, resources))
    if mistake or not whole_cards:
        return mistake
    return (
        f"{whole_cards[0]} asks for whole cards, and no node offers it: for a part of a card write"
        f" {names.resource}"
    )


def foreign_name(resources: Collection[str], annotations: Collection[str], names: Names) -> str:
    """Return the texts to write instead of other products' names that a pod has beside ours; ""
    without such names.
    """
    hints = []
    for table, pod_keys in ((RESOURCES, resources), (ANNOTATIONS, annotations)):
        for name, meaning in table.items():
            if name in pod_keys:
                instead = meaning.difference
                if meaning.field_name:
                    place = " as an annotation of the pod" if meaning.field_name == "count" else ""
                    but = f" ({meaning.difference})" if meaning.difference else ""
                    instead = f"write {getattr(names, meaning.field_name)}{place} instead{but}"
                hints.append(f"{name} is {meaning.product}'s, and nobody counts it here: {instead}")
    return "; ".join(hints)


def sees_more(pod: Pod, names: Names) -> str:
    """Return the container that sees other cards than its own, and the mend; "" without one."""
    for container in _containers(pod):
        if names.resource not in _amounts(container):
            continue
        variables = [variable.name for variable in container.env or () if variable.name in VISIBLE]
        if variables:
            return (
                f"container {container.name} sets {variables[0]} itself, which wins over what the"
                " device plug-in tells it: it sees other cards than it was given; leave it out"
            )
        if container.security_context and container.security_context.privileged:
            return (
                f"container {container.name} is privileged, so it sees all cards of its node: leave"
                " that out, or ask for the capabilities that it needs"
            )
    return ""


def is_whole(resource: str) -> bool:
    """Return whether the resource is NVIDIA's device plug-in's: whole cards, or slices of cards."""
    return resource not in RESOURCES and resource.startswith(("nvidia.com/gpu", "nvidia.com/mig-"))


def resources_of(pod: Pod) -> set[str]:
    """Return the resources that the containers ask for."""
    return {name for container in _containers(pod) for name in _amounts(container)}


def _containers(pod: Pod) -> Iterator[Container]:
    spec = pod.spec or PodSpec()
    yield from (*(spec.containers or ()), *(spec.init_containers or ()))


def _amounts(container: Container) -> Mapping[str, object]:
    resources = container.resources or Resources()
    return {**(resources.limits or {}), **(resources.requests or {})}


def wrong_unit(request: Request, names: Names, unit: str, largest: Largest = int) -> str:
    """Return the text to write instead of more units than any device has, if the number is probably
    in MiB or bytes; "" otherwise.
    """
    mib = mib_of(unit)
    for meant, factor in (("MiB are", mib), ("bytes (a suffix such as Mi) are", mib << 20)):
        # From half a unit on: 17 units if the largest device has 16 are not 17 MiB.
        likely = factor > 1 and factor <= 2 * request.units <= 2 * factor * mib_of("GiB")
        if not likely:
            continue
        largest_units = largest()
        if request.units <= (largest_units or NO_CARD_HAS * 1024 // mib):
            return ""
        unit_text = unit if unit in ("GiB", "MiB") else f"x {unit}"
        limit = (
            f"the largest has {largest_units}"
            if largest_units
            else f"no card has {NO_CARD_HAS} GiB"
        )
        instead = sum(-(-part // factor) for part in request.parts)
        return (
            f"{names.resource}: {request.units} {unit_text} are asked of one device, and {limit};"
            f" the unit is {unit} already: if {meant} meant, write {instead}"
        )
    return ""
