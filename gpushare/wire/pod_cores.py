"""Which compute of devices a pod can have beside its memory there.

Standard library only, so that the command line shares it. Tested in `tests/unit/wire/test_pods.py`.
"""

from gpushare.core.model import ALL_CORES, Request
from gpushare.errors import MessageError
from gpushare.wire.annotations import Names, has_own_devices
from gpushare.wire.split import OWN_DEVICES, SPLIT


def without_memory(names: Names) -> str:
    """Return why cores without memory cannot be had."""
    return (
        f"{names.cores}: cores are asked for without {names.resource} in the same container; a"
        " device is given out by its memory, and its cores with it: ask for both"
    )


def check_cores(total: int, request: Request, names: Names) -> None:
    """Check that the cores can be had of the devices on which the pod has its memory.

    total: cores over all devices. Raises MessageError.
    """
    devices, units = request.devices, dict(request.containers)
    if total % devices:
        raise MessageError(
            f"{names.cores}: {total} cannot be split evenly over {devices} devices"
            f" ({names.count}): write {total - total % devices + devices}, or another count"
        )
    if total // devices > ALL_CORES:
        needed = -(-total // ALL_CORES)
        raise MessageError(
            f"{names.cores}: {total // devices} are asked of one device, which has {ALL_CORES}"
            f" (percent): write {ALL_CORES * devices} or less, or ask for {needed} devices"
            f" ({names.count})"
        )
    if any(container not in units for container, _ in request.core_containers):
        raise MessageError(without_memory(names))
    if request.split:
        if not has_own_devices(request) or any(
            percent != request.cores for _, percent in request.core_containers
        ):
            raise MessageError(
                f"{names.cores}: a pod that is split ({SPLIT}) can have compute where each"
                " container has a device of its own, and as much of each: write"
                f" {SPLIT}: {OWN_DEVICES}, and as much {names.cores} in each container"
            )
    elif devices > 1 and any(
        percent * request.total != total * units[container]
        for container, percent in request.core_containers
    ):
        raise MessageError(
            f"{names.cores}: over {devices} devices ({names.count}) several containers have parts"
            f" of different devices, so each needs cores in proportion to its {names.resource};"
            f" the pod has {total} cores for {request.total}"
        )
