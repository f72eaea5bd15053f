"""What the containers of a pod ask for, summed up by Kubernetes' formula.

Pure. The formula: the larger of the running phase (containers and sidecars) and of each init
container with the sidecars before it; for CPU and memory then the overhead. Tested in
`tests/unit/wire/test_pods.py`.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain

from gpushare.core.model import HOST_BOUND, MAX_UNITS, Request, Shares
from gpushare.errors import QuantityError
from gpushare.wire.objects import Container, Pod, PodSpec, Resources
from gpushare.wire.pod_peak import peak
from gpushare.wire.quantity import MAX_VALUE, Quantity, to_bytes, to_milli, to_units

# Most pods have a controller, and ask for the same as others.
_remembered = lru_cache(maxsize=1 << 12, typed=True)
_to_units, _to_milli, _to_bytes = map(_remembered, (to_units, to_milli, to_bytes))

MOST_RESOURCES = 64
"""Resources that are kept of what one pod asks for, and of what a node has."""

_OF_THE_HOST = ("cpu", "memory")
_NOTHING: Mapping[str, Quantity] = {}


def units_of(pod: Pod, resource: str) -> int:
    """Return the units a pod asks for, over all its devices: the `total` of its request.

    A tenth of the cost of `observe_pod`. Raises QuantityError.
    """
    return device_sums(pod, resource)[0]


def device_sums(pod: Pod, resource: str) -> tuple[int, Shares, tuple[int, ...]]:
    """Return (total GPU units, `containers` and `inits` of the Request). Raises QuantityError."""
    spec = pod.spec or PodSpec()
    regular = [gpu_units(each, resource) for each in spec.containers or ()]
    inits = [
        (gpu_units(each, resource), each.restart_policy) for each in spec.init_containers or ()
    ]
    total = peak([sum(regular)], inits) if inits else sum(regular)
    if total > MAX_UNITS:
        raise QuantityError(f"{resource}: the pod's total is larger than {MAX_UNITS}")
    if not total:
        return 0, (), ()
    containers = tuple((index, count) for index, count in enumerate(regular) if count)
    return total, containers, tuple(count for count, _ in inits if count)


def host_sums(pod: Pod, *, strict: bool = True) -> Request:
    """Return the request without GPU: CPU, memory, and at most MOST_RESOURCES others by name.

    Requests count, or the limits if there are none, as the API server fills them in; those of the
    pod itself if it has them (1.34). At most HOST_BOUND: no node has so much, and what is beyond it
    would only overflow the arithmetic of policies. Raises QuantityError if CPU or memory makes no
    sense or is more than Kubernetes itself can count; such an amount of another resource is left
    out, and if not `strict` these too.
    """
    spec = pod.spec or PodSpec()
    own, overhead = _asked(spec.resources), spec.overhead or {}
    regular = [_asked(each.resources) for each in spec.containers or ()]
    inits = [(_asked(each.resources), each.restart_policy) for each in spec.init_containers or ()]
    every = {*overhead, *chain(*regular), *chain(*(asked for asked, _ in inits))}
    others = sorted(every.difference(_OF_THE_HOST))[:MOST_RESOURCES]
    sums = dict.fromkeys(_OF_THE_HOST, 0)
    for name in (*_OF_THE_HOST, *others):
        convert = _to_milli if name == "cpu" else _to_bytes
        try:
            total = convert(own.get(name, 0))
            if not total:
                total = sum(convert(asked[name]) for asked in regular if name in asked)
                if inits:
                    before = ((convert(asked.get(name, 0)), policy) for asked, policy in inits)
                    total = peak([total], before)
            total += convert(overhead.get(name, 0))
            if total > MAX_VALUE:
                raise QuantityError(f"{name}: the pod's total is larger than {MAX_VALUE}")
        except QuantityError:
            if strict and name in sums:
                raise
            continue
        sums[name] = min(total, HOST_BOUND)
    cpu, memory, *left = sums.items()
    return _cpu_only(cpu[1], memory[1], tuple(each for each in left if each[1]))


def _asked(resources: Resources | None) -> Mapping[str, Quantity]:
    if resources is None:
        return _NOTHING
    requests, limits = resources.requests or _NOTHING, resources.limits or _NOTHING
    return {**limits, **requests} if requests and limits else requests or limits


@_remembered
def _cpu_only(cpu: int, memory: int, resources: tuple[tuple[str, int], ...]) -> Request:
    """Return the request, one for all pods that ask for the same."""
    return Request(cpu=cpu, memory=memory, resources=resources)


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
        return _to_units(quantity)
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
