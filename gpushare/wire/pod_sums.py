"""What the containers of a pod ask for, summed up by Kubernetes' formula.

Pure. The formula: the larger of the running phase (containers and sidecars) and of each init
container with the sidecars before it; for CPU and memory then the overhead. Tested in
`tests/unit/wire/test_pods.py`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

from gpushare.core.model import HOST_BOUND, MAX_UNITS, Request, Shares
from gpushare.errors import QuantityError
from gpushare.wire.objects import Container, Pod, PodSpec, Resources
from gpushare.wire.pod_peak import peak
from gpushare.wire.quantity import MAX_VALUE, Quantity, to_bytes, to_milli, to_units

# Most pods have a controller, and ask for the same as others.
_remembered = lru_cache(maxsize=1 << 12, typed=True)
_to_milli, _to_bytes = _remembered(to_milli), _remembered(to_bytes)

MOST_RESOURCES = 64
"""Resources that are kept of what one pod asks for, and of what a node has."""

_OF_THE_HOST = frozenset({"cpu", "memory"})


@_remembered
def _once(resources: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Return the same for all pods that ask for the same."""
    return resources


def units_of(pod: Pod, resource: str) -> int:
    """Return the units a pod asks for, over all its devices: the `total` of its request.

    A tenth of the cost of `observe_pod`. Raises QuantityError.
    """
    spec = pod.spec or PodSpec()
    regular, inits = spec.containers or (), spec.init_containers or ()
    total = 0
    for container in regular:
        total += gpu_units(container, resource)
    if inits:
        total = peak([total], ((gpu_units(each, resource), each.restart_policy) for each in inits))
    if total > MAX_UNITS:
        raise QuantityError(f"{resource}: the pod's total is larger than {MAX_UNITS}")
    return total


def host_sums(pod: Pod) -> Request:
    """Return the request without GPU."""
    spec = pod.spec or PodSpec()
    regular, inits = spec.containers or (), spec.init_containers or ()
    cpu = _host_sum(spec, regular, inits, "cpu", _to_milli)
    memory = _host_sum(spec, regular, inits, "memory", _to_bytes)
    return _cpu_only(cpu, memory, resource_sums(pod))


@_remembered
def _cpu_only(cpu: int, memory: int, resources: tuple[tuple[str, int], ...]) -> Request:
    """Return the request, one for all pods that ask for the same."""
    return Request(cpu=cpu, memory=memory, resources=resources)


def resource_sums(pod: Pod) -> tuple[tuple[str, int], ...]:
    """Return (name, amount) of each resource but CPU and memory, by name; at most MOST_RESOURCES.

    One of which an amount makes no sense is left out.
    """
    spec = pod.spec or PodSpec()
    regular, inits = spec.containers or (), spec.init_containers or ()
    names = set(spec.overhead or ())
    for container in (*regular, *inits):
        if container.resources is not None:
            names.update(container.resources.requests or (), container.resources.limits or ())
    names -= _OF_THE_HOST
    if not names:
        return ()
    found = []
    for name in sorted(names)[:MOST_RESOURCES]:
        with suppress(QuantityError):
            found.append((name, _host_sum(spec, regular, inits, name, _to_bytes)))
    return _once(tuple(each for each in found if each[1]))


def device_sums(pod: Pod, resource: str) -> tuple[int, Shares, tuple[int, ...]]:
    """Return (total GPU units, `containers` and `inits` of the Request)."""
    total = units_of(pod, resource)
    if not total:
        return 0, (), ()
    spec = pod.spec or PodSpec()
    regular, inits = spec.containers or (), spec.init_containers or ()
    units = (gpu_units(container, resource) for container in regular)
    containers = tuple((index, count) for index, count in enumerate(units) if count)
    before = (gpu_units(container, resource) for container in inits)
    return total, containers, tuple(count for count in before if count)


def gpu_units(container: Container, resource: str) -> int:
    """Return the units a container is limited to.

    Kubernetes wants limit and request equal; limits lead.
    """
    resources = container.resources
    if resources is None:
        return 0
    quantity = (resources.limits or {}).get(resource)
    if quantity is None:
        quantity = (resources.requests or {}).get(resource)
    if quantity is None:
        return 0
    try:
        return to_units(quantity)
    except QuantityError as error:
        raise QuantityError(f"{resource}: {error}{_without_suffix(quantity)}") from error


def _without_suffix(quantity: Quantity) -> str:
    """Return what to write instead of an amount in bytes, such as 5Gi; "" if it is none."""
    try:
        amount = to_bytes(quantity)
    except QuantityError:
        return ""
    if not str(quantity)[-1:].isalpha() or amount < 2**20:
        return ""
    return f": the unit is GiB already (unless --unit says otherwise): write {-(-amount // 2**30)}"


def _host_sum(
    spec: PodSpec,
    regular: Sequence[Container],
    inits: Sequence[Container],
    name: str,
    convert: Callable[[Quantity], int],
) -> int:
    """Return CPU or memory of the pod: pod-level if given (1.34), else by the formula; then
    overhead.

    At most HOST_BOUND. Raises QuantityError if it is more than Kubernetes itself can count.
    """
    total = _amount(spec.resources, name, convert)
    if not total:
        for container in regular:
            total += _amount(container.resources, name, convert)
        if inits:
            before = (
                (_amount(each.resources, name, convert), each.restart_policy) for each in inits
            )
            total = peak([total], before)
    if spec.overhead:
        total += _amount(Resources(requests=spec.overhead), name, convert)
    if total > MAX_VALUE:
        raise QuantityError(f"{name}: the pod's total is larger than {MAX_VALUE}")
    # No node has so much: what is beyond it would only overflow the arithmetic of policies.
    return min(total, HOST_BOUND)


def _amount(resources: Resources | None, name: str, convert: Callable[[Quantity], int]) -> int:
    """Return the request, or the limit if there is none, as the API server fills it in."""
    if resources is None:
        return 0
    quantity = (resources.requests or {}).get(name)
    if quantity is None:
        quantity = (resources.limits or {}).get(name)
    return 0 if quantity is None else convert(quantity)
