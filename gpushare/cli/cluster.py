"""List the objects of a live cluster, also as nodes and pods for `gpushare simulate`.

Knows the API server's lists and objects, not the simulator. Nothing is written.

Tested in `tests/integration/test_simulate_cluster.py`.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TypeVar

from gpushare.cli.rights import without_cluster
from gpushare.core.amounts import charged_units
from gpushare.core.model import NodeSpec
from gpushare.errors import ApiError, WireError
from gpushare.kube.api import Getter, pages
from gpushare.trace.nodes_and_pods import MIB, TraceNode, TracePod
from gpushare.wire.annotations import Names
from gpushare.wire.codec import Codec
from gpushare.wire.inventory import check_unit
from gpushare.wire.nodes import node_spec, unit_of
from gpushare.wire.objects import NODES, PODS, Pod
from gpushare.wire.pods import observe_pod

_T = TypeVar("_T")
_TIMEOUT = 30.0
NOT_ENDED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
OF_A_DAEMON = "pod-template-generation"
"""The label that kube-controller-manager sets on the pods of DaemonSets."""


def live_trace(
    flag_values: Mapping[str, object], resource: str, unit: str
) -> tuple[list[TraceNode], list[TracePod], list[str]]:
    """Return (nodes, pods, notes about left-out objects).

    nodes: the open nodes that share GPU memory, less the amounts of DaemonSet pods. pods: pods with
    GPU memory, and pods on these nodes, without DaemonSet pods. flag_values: kubectl's, by names
    without dashes. unit: "" for that of the nodes. Raises SettingsError, ApiError, and MessageError
    for an unreadable answer.
    """
    # Commands that read through kubectl need no HTTP client.
    from gpushare.kube.client import KubeClient
    from gpushare.kube.session import ConnectionFlags

    if unit:
        check_unit(unit)
    names = Names.for_resource(resource)
    pods: list[TracePod] = []
    notes: list[str] = []
    specs = {}
    client = KubeClient(ConnectionFlags.of(flag_values), 1, "gpushare-simulate")
    with closing(client), _named_right():
        listed = list(items(client, "/api/v1/nodes", NODES, {}, notes))
        unit = unit or unit_of(listed, [names])
        for node in listed:
            spec = node_spec(node, names, unit)
            if spec.closed is None and not spec.capacity:
                continue  # no device is shared there
            reason = spec.closed.value if spec.closed is not None else ""
            if not reason and (spec.cpu is None or spec.memory is None):
                reason = "its CPU or memory is not known"
            if reason or not all(spec.capacity):
                notes.append(f"node {spec.name} is left out: {reason or 'a device has no memory'}")
            else:
                specs[spec.name] = spec
        for pod in items(client, "/api/v1/pods", PODS, NOT_ENDED, notes):
            _take_pod(pod, names, specs, pods, notes)
    nodes = [
        TraceNode(
            name=spec.name,
            cpu=spec.cpu or 0,
            memory=(spec.memory or 0) // MIB,
            devices=len(spec.capacity),
            capacity=max(spec.capacity),
            model=spec.models[0],
            mixed=spec.capacity if len(set(spec.capacity)) > 1 else (),
        )
        for spec in specs.values()
    ]
    return nodes, pods, notes


@contextmanager
def _named_right() -> Iterator[None]:
    """Raise an error that names the missing right in place of a refusal."""
    try:
        yield
    except ApiError as error:
        remedy = "; --nodes FILE and --pods FILE take tables of them"
        raise without_cluster(error, "simulate --from-cluster", remedy) from error


def _take_pod(
    pod: Pod, names: Names, specs: dict[str, NodeSpec], pods: list[TracePod], notes: list[str]
) -> None:
    try:
        observed = observe_pod(pod, names)
    except WireError as error:
        notes.append(f"a pod is left out: {error}")
        return
    request, host = observed.request, specs.get(observed.node)
    labels = (pod.metadata and pod.metadata.labels) or {}
    if not request.devices and OF_A_DAEMON in labels:
        if host is not None and host.cpu is not None and host.memory is not None:
            cpu, memory = max(host.cpu - request.cpu, 0), max(host.memory - request.memory, 0)
            specs[host.name] = replace(host, cpu=cpu, memory=memory)
    elif request.devices or host is not None:
        # A percentage counts as of the largest card that the pod may have.
        hosts = [host] if host is not None else specs.values()
        largest = max((size for spec in hosts for size in spec.capacity), default=0)
        pods.append(
            TracePod(
                name=str(observed.ref),
                cpu=request.cpu,
                memory=-(-request.memory // MIB),
                devices=request.devices,
                units=charged_units(request.units, request.percents, largest),
                models=request.models,
                created=observed.created,
                scheduled=None,
                deleted=None,
                cores=request.cores,
            )
        )


def items(
    api: Getter, path: str, codec: Codec[_T], query: Mapping[str, str], notes: list[str]
) -> Iterator[_T]:
    """Yield the objects of a list, page by page; add a note for each unreadable object."""
    for page in pages(api, path, codec.decode_list, query, timeout=_TIMEOUT):
        yield from page.items
        notes += [f"left out: {bad}" for bad in page.bad]
