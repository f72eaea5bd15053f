"""Mistakes in what a pod asks for: what was probably meant, for texts that users read.

Pure. To Kubernetes an extended resource is a plain number. Its unit (GiB, MiB, a chunk) is agreed
on in the cluster, but people write bytes or MiB nevertheless.
"""

from collections.abc import Callable

from gpushare.core.model import Request
from gpushare.errors import WireError
from gpushare.wire.annotations import Names
from gpushare.wire.inventory import mib_of
from gpushare.wire.objects import Pod
from gpushare.wire.pods import check_annotations, names_any, request_of

NO_CARD_HAS = 1000
"""GiB that no card has, for the comparison if no device is known."""

Largest = Callable[[], int]
"""Returns the units of the largest device there is; 0: none is known."""


def unknown() -> int:
    """Return 0: no device is known."""
    return 0


def mistake_of(pod: Pod, names: Names, unit: str, largest: Largest = unknown) -> str:
    """Return what is wrong with what the pod asks for, and what to write; "" if nothing is."""
    try:
        request = request_of(pod, names)
        check_annotations(pod, request, names)
    except WireError as error:
        return str(error)
    if request.devices and names_any(pod, (names.count,)):
        return (
            f"{names.count} is among the resources of a container, where it has no effect: write it"
            f" as an annotation of the pod; as it is, the pod gets {request.devices} device(s)"
        )
    return wrong_unit(request, names, unit, largest)


def wrong_unit(request: Request, names: Names, unit: str, largest: Largest = unknown) -> str:
    """Return what to write instead of more units than any device has, if these were probably
    meant as MiB or bytes; "" if nothing tells so.
    """
    mib = mib_of(unit)
    for meant, factor in (("MiB are", mib), ("bytes (a suffix such as Mi) are", mib << 20)):
        # From half a unit on: 17 units if the largest device has 16 are not 17 MiB.
        likely = factor > 1 and factor <= 2 * request.units <= 2 * factor * mib_of("GiB")
        if not likely:
            continue
        most = largest()
        if request.units <= (most or NO_CARD_HAS * 1024 // mib):
            return ""
        counted = unit if unit in ("GiB", "MiB") else f"x {unit}"
        limit = f"the largest has {most}" if most else f"no card has {NO_CARD_HAS} GiB"
        instead = -(-request.units // factor) * request.devices
        return (
            f"{names.resource}: {request.units} {counted} are asked of one device, and {limit};"
            f" the unit is {unit} already: if {meant} meant, write {instead}"
        )
    return ""
