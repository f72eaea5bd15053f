"""How a pod's memory is split over devices where the parts are not the same: its annotation.

Standard library only, so that the command line shares it. Tested in `tests/unit/wire/test_pods.py`.
"""

from collections.abc import Mapping

from gpushare.core.model import MAX_UNITS, Shares
from gpushare.errors import AnnotationError, MessageError
from gpushare.wire.annotations import MAX_DEVICES_PER_POD, Names, strict_number

SPLIT = "gpushare.io/split"
"""The units of each device, such as "10+30", or OWN_DEVICES."""
OWN_DEVICES = "containers"
"""Each container has a device of its own, with what it asks for."""


def split_parts(
    annotations: Mapping[str, str], total: int, containers: Shares, names: Names
) -> tuple[int, ...]:
    """Return the units on each device as the annotation says, the most first; () without it.

    total: of the pod; containers: of each that asks. Raises AnnotationError for one that makes no
    sense, MessageError for one that does not match the pod.
    """
    text = annotations.get(SPLIT)
    if text is None:
        return ()
    asked = [units for _, units in containers]
    if sum(asked) != total:
        # The map of what is where has no place for init containers.
        raise MessageError(
            f"{SPLIT}: an init container needs more {names.resource} at once than the containers'"
            f" {sum(asked)}: let them ask for as much, or leave out the split"
        )
    numbers: list[int | None] = [*asked]
    if text != OWN_DEVICES:
        numbers = [strict_number(each.strip(), MAX_UNITS) for each in text.split("+")]
    parts = [number for number in numbers if number]
    if len(parts) < len(numbers) or len(parts) > MAX_DEVICES_PER_POD:
        raise AnnotationError(
            f"{SPLIT}: {text[:40]!a} is neither {OWN_DEVICES!r} nor units of 1 to"
            f" {MAX_DEVICES_PER_POD} devices such as 10+30"
        )
    if sum(parts) != total:
        raise MessageError(
            f"{SPLIT}: {text[:40]} is {sum(parts)} in all, and the pod asks for {total}"
            f" {names.resource}: write parts of {total}"
        )
    counted = annotations.get(names.count)
    if counted is not None and counted != str(len(parts)):
        raise AnnotationError(
            f"{SPLIT}: {len(parts)} parts, and {names.count} says {counted[:20]!a} devices: leave"
            f" out {names.count}"
        )
    return tuple(sorted(parts, reverse=True))
