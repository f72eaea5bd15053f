"""`kubectl inspect gpushare --top`: the use of GPUs by container, by the device plug-ins' metrics.

Asks the device plug-in of each node through the API server's proxy to pods. Loaded only with --top.

Tested in `tests/unit/cli/test_inspect_top.py`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpushare.cli.facts import Fields, elements, mapping, text
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.tables import align
from gpushare.errors import ApiError, MessageError
from gpushare.wire.metrics import family, read_samples
from gpushare.wire.printable import printable

_PLUGINS = "app=gpushare-device-plugin"
_HEALTH_PORT = 32765
_PARALLEL = 8
_MIB = 2**20
_PREFIX = "gpushare_device_plugin_container_"


@dataclass(frozen=True, slots=True, order=True)
class UseLine:
    """The use of one card by one container."""

    node: str
    namespace: str
    pod: str
    container: str
    uuid: str
    sm_percent: int | None = None
    """None if NVML has no samples of the card."""
    used_bytes: int | None = None
    """None if NVML does not tell."""
    granted_bytes: int | None = None


def read_uses(kubectl: Kubectl, nodes: Collection[str]) -> tuple[Sequence[UseLine], Sequence[str]]:
    """Return (the uses on these nodes, warnings about nodes without an answer).

    Raises ApiError if pods cannot be listed, and as `Kubectl.get`.
    """
    document = kubectl.get("/api/v1/pods", labelSelector=_PLUGINS)
    plugins = {
        text(mapping(pod.get("spec")).get("nodeName")): pod
        for pod in map(mapping, elements(document.get("items")))
    }
    found = [name for name in sorted(nodes) if name in plugins]
    warnings = [f"node {name} has no device plug-in" for name in sorted({*nodes} - {*found})]
    uses: list[UseLine] = []
    with ThreadPoolExecutor(_PARALLEL) as pool:
        answers = [(name, pool.submit(_metrics, kubectl, plugins[name])) for name in found]
        for name, answer in answers:
            try:
                uses += uses_in(answer.result(), name)
            except (ApiError, MessageError) as error:
                warnings.append(f"node {name}: the device plug-in's metrics are not known: {error}")
    return uses, warnings


def uses_in(metrics: str, node: str) -> Iterator[UseLine]:
    """Yield the uses in the metrics of a node's device plug-in."""
    samples = read_samples(metrics)
    values: dict[tuple[str, ...], dict[str, int]] = {}
    for kind in ("sm_percent", "memory_used_bytes", "memory_given_bytes"):
        for labels, value in family(samples, _PREFIX + kind):
            key = tuple(labels.get(name, "") for name in ("namespace", "pod", "container", "uuid"))
            values.setdefault(key, {})[kind] = int(value)
    for (namespace, pod, container, uuid), amounts in values.items():
        yield UseLine(
            node=node,
            namespace=namespace,
            pod=pod,
            container=container,
            uuid=uuid,
            sm_percent=amounts.get("sm_percent"),
            used_bytes=amounts.get("memory_used_bytes"),
            granted_bytes=amounts.get("memory_given_bytes"),
        )


def use_table(uses: Iterable[UseLine], *, headers: bool) -> str:
    """Return the table, the largest use of SMs first, then the largest use of memory."""
    heads = ("NODE", "NAMESPACE", "POD", "CONTAINER", "GPU", "SM", "MEMORY(MiB)", "GRANTED(MiB)")
    lines = sorted(uses, key=lambda use: (-(use.sm_percent or 0), -(use.used_bytes or 0), use))
    rows = [
        (
            *map(printable, (use.node, use.namespace, use.pod, use.container, use.uuid)),
            "-" if use.sm_percent is None else f"{use.sm_percent}%",
            _mib(use.used_bytes),
            _mib(use.granted_bytes),
        )
        for use in lines
    ]
    return align([heads, *rows] if headers else rows)


def _mib(size: int | None) -> str:
    return "-" if size is None else str(-(-size // _MIB))


def _metrics(kubectl: Kubectl, pod: Fields) -> str:
    metadata, port = mapping(pod.get("metadata")), _HEALTH_PORT
    for container in map(mapping, elements(mapping(pod.get("spec")).get("containers"))):
        for item in map(mapping, elements(container.get("ports"))):
            number = item.get("containerPort")
            if item.get("name") == "health" and isinstance(number, int):
                port = number
    namespace, name = text(metadata.get("namespace")), text(metadata.get("name"))
    path = f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics"
    return kubectl.request("GET", path, query={}).decode(errors="replace")
