"""The request of a pod for devices: the sums of the containers, read with the annotations.

Node labels cannot tell the cards of one node apart, so annotations of a pod name wanted and refused
cards: our annotations, or HAMi's with the same meaning (pkg/device/nvidia/device.go). Each value is
a list with commas; a model is any part of a model name, in capitals or not, and blanks count as
hyphens, as in labels.

Standard library only: the command line shares this module. Tested in
`tests/unit/wire/test_device_request.py` and, with whole pods, in `tests/unit/wire/test_pods.py`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from gpushare.core.amounts import DEVICE_AMOUNTS, PERCENT_AMOUNTS, memory_percent, of_one_device
from gpushare.core.model import (
    ANY_CARD,
    ANY_NEIGHBOURS,
    FEW_NEIGHBOURS,
    MAX_UNITS,
    Apart,
    Cards,
    Request,
    Shares,
)
from gpushare.errors import AnnotationError, MessageError, QuantityError
from gpushare.wire.annotations import (
    MAX_DEVICES_PER_POD,
    Names,
    has_own_devices,
    is_uuid,
    strict_number,
)
from gpushare.wire.gpu_models import label_value
from gpushare.wire.quantity import Quantity, peak, to_bytes, to_units

NEIGHBOURS = "gpushare.io/neighbours"
"""The number of other pods that the devices of the pod should have: `few` or `any`."""
_LIMITS: Mapping[str, int | None] = {"": None, "few": FEW_NEIGHBOURS, "any": ANY_NEIGHBOURS}

APART = "gpushare.io/apart"
"""Whether the pods of a workload stay on different devices: `required` or `preferred`."""

MEMORY_LIMIT = "gpushare.io/memory-limit"
"""The most units that the pod may use over all devices, where that is more than the request."""
LIMITS_LABEL = "gpushare.io/memory-limits"
"""The label, written by operators, of nodes whose device plug-in holds containers to the limit."""

SPLIT = "gpushare.io/split"
"""The units of each device of an uneven split, such as "10+30", or OWN_DEVICES."""
OWN_DEVICES = "containers"
"""Each container has one device, of the container's units."""

USE_MODELS, NOT_MODELS = "gpushare.io/use-models", "gpushare.io/not-models"
USE_UUIDS, NOT_UUIDS = "gpushare.io/use-uuids", "gpushare.io/not-uuids"
WISHES = {
    USE_MODELS: "nvidia.com/use-gputype",
    NOT_MODELS: "nvidia.com/nouse-gputype",
    USE_UUIDS: "nvidia.com/use-gpuuuid",
    NOT_UUIDS: "nvidia.com/nouse-gpuuuid",
}
"""Our annotations of pods, in the order of `Cards`, and HAMi's name for each."""
_ALL_WISHES = frozenset({*WISHES, *WISHES.values()})

MOST_WISHES = 64
_MOST_CHARACTERS = 128
MOST_WISHED = 6 * 1024
"""Characters of all wishes of a pod together."""
_POLICY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_NO_HOST = Request()
_NOTHING: tuple[int, Shares, Shares] = (0, (), ())
_NO_SELECTOR: Mapping[str, str] = {}
_WITHOUT_MEMORY = (
    "{resource}: {amount.name} are asked for without {names.resource} in the same container; a"
    " device is given out by its memory, and its {amount.name} with it: ask for both"
)


class _AnyResources(Protocol):
    @property
    def limits(self) -> Mapping[str, Quantity] | None: ...

    @property
    def requests(self) -> Mapping[str, Quantity] | None: ...


class _AnyContainer(Protocol):
    """A container of a struct, or as the command line reads it."""

    @property
    def resources(self) -> _AnyResources | None: ...

    @property
    def restart_policy(self) -> object: ...


class ContainerSums(NamedTuple):
    """The sums of the requests of a pod's containers; each field has one value for each of
    `DEVICE_AMOUNTS`.
    """

    totals: tuple[int, ...]
    """The sums over all devices of the pod."""

    containers: tuple[Shares, ...]
    """(index in spec.containers, amount) of each container that asks."""

    inits: tuple[Shares, ...]
    """(index in spec.initContainers, amount) of each init container and sidecar that asks."""


def container_sums(
    containers: Sequence[_AnyContainer],
    inits: Sequence[_AnyContainer],
    names: Names,
    *,
    strict: bool = True,
) -> ContainerSums:
    """Return the sums of the amounts that the containers and init containers ask for.

    Limits count before requests; Kubernetes wants both equal. Raises QuantityError; if not
    `strict`, an unreadable percent is a whole device, which may be the request of the pod.
    """
    requested = [
        {**(resources.requests or {}), **(resources.limits or {})} if resources else {}
        for resources in [container.resources for container in (*containers, *inits)]
    ]
    requested_names = {name for amounts in requested for name in amounts}
    resource_names = (names.resource, *[of_amount.resource for of_amount in names.percents])
    sums: list[tuple[int, Shares, Shares]] = []
    for amount, resource in zip(DEVICE_AMOUNTS, resource_names, strict=True):
        if resource not in requested_names:
            sums.append(_NOTHING)
            continue
        quantities = [amounts.get(resource, 0) for amounts in requested]
        try:
            numbers = [to_units(quantity) for quantity in quantities]
            regular, before = numbers[: len(containers)], numbers[len(containers) :]
            total = sum(regular)
            if inits:
                policies = [container.restart_policy for container in inits]
                total = peak([total], zip(before, policies, strict=True))
            if total > MAX_UNITS:
                raise QuantityError(f"the pod's total is larger than {MAX_UNITS}")
        except QuantityError as error:
            if strict or not amount.whole:
                hint = "" if amount.whole else _in_gib(quantities)
                raise QuantityError(f"{resource}: {error}{hint}") from error
            total, regular, before = amount.whole, [], []
        of_containers = tuple([share for share in enumerate(regular) if share[1]])
        of_inits = tuple([share for share in enumerate(before) if share[1]])
        sums.append((total, of_containers, of_inits))
    return ContainerSums(*zip(*sums, strict=True))


def _in_gib(quantities: Iterable[Quantity]) -> str:
    """Return the text to write instead of an amount in bytes, such as 5Gi; "" without one."""
    for quantity in quantities:
        with suppress(QuantityError):
            gib = -(-to_bytes(quantity) // 2**30)
            if str(quantity)[-1:].isalpha() and to_bytes(quantity) >= 2**20:
                return f": the unit is GiB already (unless --unit says otherwise): write {gib}"
    return ""


def request_of_one_device(sums: ContainerSums, host: Request = _NO_HOST) -> Request:
    """Return the request of a bound pod whose annotations make no sense: everything of the pod may
    be on one device. host: as of `device_request`.
    """
    units, *percents = sums.totals
    return Request(
        units=units,
        devices=1,
        cpu=host.cpu,
        memory=host.memory,
        containers=sums.containers[0],
        inits=tuple([share for _, share in sums.inits[0]]),
        resources=host.resources,
        percents=of_one_device(tuple(percents)),
        percent_containers=sums.containers[1:] if any(percents) else (),
    )


def device_request(
    sums: ContainerSums,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    names: Names,
    *,
    host: Request = _NO_HOST,
    models: tuple[str, ...] = (),
    workload: str = "",
    node_selector: Mapping[str, str] = _NO_SELECTOR,
) -> Request:
    """Return the request of a pod. host: CPU, memory and other resources; models: accepted GPU
    models; workload: as of `Apart`, "" for none; node_selector: of the pod's spec.

    Annotation or label `names.count` splits the memory and the percents evenly over several
    devices, annotation SPLIT splits the memory unevenly. Raises AnnotationError for an annotation
    that makes no sense, MessageError if a total cannot be split, or for percents that no device
    has.
    """
    units, *percents = sums.totals
    asks_percents = any(percents)
    if not units:
        index = next((at for at, percent in enumerate(percents) if percent), 0)
        raise MessageError(_without_memory(index, names))
    count, devices = annotations.get(names.count, labels.get(names.count)), 1
    if count is not None:
        devices = strict_number(count, MAX_DEVICES_PER_POD) or 0
        if not devices:
            raise AnnotationError(
                f"{names.count}: {count[:20]!a} is not a number of devices"
                f" from 1 to {MAX_DEVICES_PER_POD}"
            )
    parts: tuple[int, ...] = ()
    if SPLIT in annotations:
        parts = _parts(sums, annotations, names)
        devices = len(parts)
    elif units % devices:
        below = units - units % devices
        instead = f"{below} or {below + devices}" if below else str(devices)
        raise MessageError(
            f"{names.resource}: {units} cannot be split evenly over {devices} devices"
            f" ({names.count}): write {instead}, or another count"
        )
    policy = annotations.get(names.policy, "")
    if policy and _POLICY.fullmatch(policy) is None:
        raise AnnotationError(f"{names.policy}: {policy[:20]!a} is not the name of a policy")
    limit = annotations.get(NEIGHBOURS, "")
    if limit not in _LIMITS:
        raise AnnotationError(f"{NEIGHBOURS}: {limit[:20]!a} is neither 'few' nor 'any'")
    request = Request(
        units=parts[0] if parts else units // devices,
        devices=devices,
        cpu=host.cpu,
        memory=host.memory,
        containers=sums.containers[0],
        policy=policy,
        models=models,
        inits=tuple([share for _, share in sums.inits[0]]),
        resources=host.resources,
        percents=tuple([percent // devices for percent in percents]) if asks_percents else (),
        percent_containers=sums.containers[1:] if asks_percents else (),
        cards=ANY_CARD if _ALL_WISHES.isdisjoint(annotations) else wanted_cards(annotations),
        split=parts if len(set(parts)) > 1 else (),
        neighbours=_LIMITS[limit],
        apart=wanted_apart(annotations, workload) if APART in annotations else None,
        memory_limit=(
            _memory_limit(sums, annotations[MEMORY_LIMIT], node_selector, names)
            if MEMORY_LIMIT in annotations
            else 0
        ),
    )
    for index, total in enumerate(percents):
        if total:
            _check_percents(index, sums, request, names)
    return request


def wanted_apart(annotations: Mapping[str, str], workload: str) -> Apart | None:
    """Return the wish for devices without other pods of the workload; None for no wish.

    Raises AnnotationError for a value that makes no sense.
    """
    wish = annotations.get(APART)
    if wish == "nodes":
        raise AnnotationError(
            f"{APART}: kube-scheduler keeps pods on different nodes: write podAntiAffinity with the"
            f" topologyKey kubernetes.io/hostname, and leave out {APART}"
        )
    if wish not in (None, "required", "preferred"):
        raise AnnotationError(f"{APART}: {wish[:20]!a} is neither 'required' nor 'preferred'")
    return Apart(workload, wish == "required") if wish and workload else None


def _memory_limit(
    sums: ContainerSums, text: str, node_selector: Mapping[str, str], names: Names
) -> int:
    """Return the most units that the pod may use, 0 if no more than the request.

    The node selector keeps the pod on nodes of LIMITS_LABEL: kube-scheduler, autoscalers and the
    kubelet compare it. Raises AnnotationError for a value that makes no sense.
    """
    units, *percents = sums.totals
    limit = strict_number(text, MAX_UNITS)
    if limit is None:
        raise AnnotationError(f"{MEMORY_LIMIT}: {text[:20]!a} is not a number of units")
    if limit < units:
        raise AnnotationError(
            f"{MEMORY_LIMIT}: {limit} is less than the {units} {names.resource} that the pod"
            " asks for: write as much or more"
        )
    if memory_percent(tuple(percents)):
        raise AnnotationError(
            f"{MEMORY_LIMIT}: a pod with a percentage of the memory of a card has no limit in"
            " units: leave out one of them"
        )
    if node_selector.get(LIMITS_LABEL) != "true":
        raise AnnotationError(
            f"{MEMORY_LIMIT}: only nodes with the label {LIMITS_LABEL} hold a pod to it: write"
            f' {LIMITS_LABEL}: "true" into the nodeSelector of the pod'
        )
    return limit if limit > units else 0


def _parts(sums: ContainerSums, annotations: Mapping[str, str], names: Names) -> tuple[int, ...]:
    """Return the units on each device by the annotation SPLIT, the largest first."""
    text, total = annotations[SPLIT], sums.totals[0]
    by_container = [units for _, units in sums.containers[0]]
    if sum(by_container) != total:
        # The map by container has no place for init containers.
        raise MessageError(
            f"{SPLIT}: an init container needs more {names.resource} at once than the containers'"
            f" {sum(by_container)}: let them ask for as much, or leave out the split"
        )
    numbers: list[int | None] = [*by_container]
    if text != OWN_DEVICES:
        numbers = [strict_number(part.strip(), MAX_UNITS) for part in text.split("+")]
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
    device_count = annotations.get(names.count)
    if device_count is not None and device_count != str(len(parts)):
        raise AnnotationError(
            f"{SPLIT}: {len(parts)} parts, and {names.count} says {device_count[:20]!a} devices:"
            f" leave out {names.count}"
        )
    return tuple(sorted(parts, reverse=True))


def wanted_cards(annotations: Mapping[str, str]) -> Cards:
    """Return the cards that the annotations of the pod name.

    Raises AnnotationError for a wish that makes no sense, or that stands under both names with
    different values.
    """
    wishes = []
    for own_name, hami_name in WISHES.items():
        name = own_name if own_name in annotations else hami_name
        wish = _values(annotations.get(name, ""), name)
        if (
            name == own_name
            and hami_name in annotations
            and wish != _values(annotations[hami_name], hami_name)
        ):
            raise AnnotationError(
                f"{own_name} and {hami_name} mean the same and differ: leave out one of them"
            )
        wishes.append(wish)
    characters = sum(len(value) for wish in wishes for value in wish)
    if characters > MOST_WISHED:
        raise AnnotationError(
            f"{', '.join(WISHES)}: {characters} characters together; {MOST_WISHED} are allowed:"
            " leave out some values"
        )
    return Cards(*wishes)


def _values(text: str, name: str) -> tuple[str, ...]:
    """Return the values, each once and sorted, so that equal wishes are equal values."""
    values = {value.strip() for value in text.split(",")} - {""}
    if text.strip() and not values:
        raise AnnotationError(f"{name}: {text[:20]!a} names nothing")
    if len(values) > MOST_WISHES or any(len(value) > _MOST_CHARACTERS for value in values):
        raise AnnotationError(
            f"{name}: more than {MOST_WISHES} values, or one of more than {_MOST_CHARACTERS}"
            " characters"
        )
    if name in (USE_MODELS, NOT_MODELS, WISHES[USE_MODELS], WISHES[NOT_MODELS]):
        return tuple(sorted({label_value(value).lower() for value in values}))
    for value in values:
        if not is_uuid(value):
            raise AnnotationError(f"{name}: {value[:20]!a} is no uuid of a card")
    return tuple(sorted(values))


def _without_memory(index: int, names: Names) -> str:
    if PERCENT_AMOUNTS[index].is_memory:
        return (
            f"{names.percents[index].resource}: is asked for without {names.resource} in the same"
            " container, by which the device plug-in knows the container: write"
            f" {names.resource}: 1 beside it"
        )
    return _WITHOUT_MEMORY.format(
        resource=names.percents[index].resource, amount=PERCENT_AMOUNTS[index], names=names
    )


def _check_percents(index: int, sums: ContainerSums, request: Request, names: Names) -> None:
    """Check that the devices with the pod's memory can have the percents.

    index: of the amount in PERCENT_AMOUNTS.
    """
    amount, resource = PERCENT_AMOUNTS[index], names.percents[index].resource
    total, devices, units = sums.totals[index + 1], request.devices, dict(sums.containers[0])
    of_containers = sums.containers[index + 1]
    # (percent, units) of each init container and sidecar, and of all containers.
    of_inits = _beside_units(sums.inits[index + 1], sums.inits[0])
    pairs = [*_beside_units(of_containers, sums.containers[0]), *of_inits]
    if total % devices:
        raise MessageError(
            f"{resource}: {total} cannot be split evenly over {devices} devices"
            f" ({names.count}): write {total - total % devices + devices}, or another count"
        )
    if total // devices > amount.whole:
        needed = -(-total // amount.whole)
        raise MessageError(
            f"{resource}: {total // devices} are asked of one device, which has {amount.whole}"
            f" (percent): write {amount.whole * devices} or less, or ask for {needed} devices"
            f" ({names.count})"
        )
    if not all(own_units for _, own_units in pairs):
        raise MessageError(_without_memory(index, names))
    if amount.is_memory and request.inits:
        raise MessageError(
            f"{resource}: a sidecar or init container of the pod has {names.resource}, which cannot"
            f" be beside {amount.name}: ask for it in the containers alone"
        )
    if request.split:
        if (
            not has_own_devices(request)
            or any(percent * devices != total for _, percent in of_containers)
            or any(percent * devices > total for percent, _ in of_inits)
        ):
            raise MessageError(
                f"{resource}: a pod that is split ({SPLIT}) can have {amount.noun} where each"
                " container has a device of its own, and as much of each: write"
                f" {SPLIT}: {OWN_DEVICES}, and as much {resource} in each container"
            )
    elif amount.is_memory and not _is_in_proportion(total, dict(of_containers), units):
        raise MessageError(
            f"{resource}: each container needs {amount.name} in proportion to its {names.resource},"
            f" since the memory is charged for the pod as a whole; the pod has {total}"
            f" {amount.name} for {request.total}"
        )
    elif devices > 1 and any(
        percent * request.total > total * own_units for percent, own_units in pairs
    ):
        raise MessageError(
            f"{resource}: over {devices} devices ({names.count}) several containers have parts"
            f" of different devices, so each needs {amount.name} in proportion to its"
            f" {names.resource}; the pod has {total} {amount.name} for {request.total}"
        )


def _beside_units(percents: Shares, units: Shares) -> list[tuple[int, int]]:
    """Return (percent, units) of each container with percents; 0 units for one without memory."""
    of_container = dict(units)
    return [(percent, of_container.get(container, 0)) for container, percent in percents]


def _is_in_proportion(total: int, percents: Mapping[int, int], units: Mapping[int, int]) -> bool:
    """Return whether each container with units has as large a part of the percents as of the units:
    then the larger of both, summed over the containers, is the larger of both sums.
    """
    of_all = sum(units.values())
    return all(
        percents.get(container, 0) * of_all == total * own for container, own in units.items()
    )
