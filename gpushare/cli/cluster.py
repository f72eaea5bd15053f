"""A live cluster: its release, and its nodes and pods in the words of `gpushare simulate`.

Knows the API server's lists and what stands in them; not what is simulated. Nothing is written.

Tested in `tests/integration/test_simulate_cluster.py`.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpushare.core.model import NodeSpec
from gpushare.errors import MessageError, WireError
from gpushare.kube.api import Getter, pages
from gpushare.kube.client import KubeClient, connect
from gpushare.kube.session import usual_kubeconfig
from gpushare.wire.annotations import Names
from gpushare.wire.codec import Codec
from gpushare.wire.inventory import check_unit
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES, PODS, Pod
from gpushare.wire.pods import observe_pod

Cells = dict[str, object]

_T = TypeVar("_T")
_MIB = 1 << 20
_TIMEOUT = 30.0
NOT_ENDED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
OF_A_DAEMON = "pod-template-generation"
"""The label that the DaemonSet controller of kube-controller-manager gives its pods."""


@dataclass
class Cluster:
    """Rows of nodes and of pods, with the columns of `trace/nodes_and_pods.py`; what was left
    out.
    """

    nodes: list[Cells] = field(default_factory=list)
    pods: list[Cells] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def live_rows(
    kubeconfig: str, context: str, resource: str, unit: str
) -> dict[str, list[Cells] | list[str]]:
    """Return `nodes`, `pods` and `notes` of the cluster that kubectl would use, or of the one
    named.

    Raises SettingsError, ApiError, MessageError.
    """
    check_unit(unit)
    names = Names.for_resource(resource)
    with closing(_connect(kubeconfig, context, "gpushare-simulate")) as client:
        cluster = list_cluster(client, names, unit)
    return {"nodes": cluster.nodes, "pods": cluster.pods, "notes": cluster.notes}


def release(kubeconfig: str, context: str) -> str:
    """Return the release of that cluster's API server, such as 1.27.

    Raises SettingsError, ApiError, MessageError.
    """
    with closing(_connect(kubeconfig, context, "gpushare-scheduler-config")) as client:
        body = client.request("GET", "/version", timeout=_TIMEOUT)
    try:
        version = json.loads(body)
        return f"{version['major']}.{version['minor']}".rstrip("+")
    except (ValueError, TypeError, KeyError) as error:
        raise MessageError("/version of the API server names no release") from error


def _connect(kubeconfig: str, context: str, user_agent: str) -> KubeClient:
    return connect(
        kubeconfig or usual_kubeconfig(), context or None, pool_size=1, user_agent=user_agent
    )


def list_cluster(api: Getter, names: Names, unit: str) -> Cluster:
    """Return the nodes that share GPU memory, and the pods that ask for it or run beside those that
    do.

    What DaemonSets take of a node is there whatever comes: it makes the node smaller, and they are
    no pods here. A node that is closed is left out. Raises ApiError, and
    MessageError if an answer cannot be read.
    """
    cluster = Cluster()
    specs = {}
    for node in items(api, "/api/v1/nodes", NODES, {}, cluster.notes):
        spec = node_spec(node, names, unit)
        if spec.closed is None and not spec.capacity:
            continue  # it shares nothing
        why = spec.closed.value if spec.closed is not None else ""
        if not why and (spec.cpu is None or spec.memory is None):
            why = "its CPU or memory is not known"
        if why:
            cluster.notes.append(f"node {spec.name} is left out: {why}")
        else:
            specs[spec.name] = spec
    for pod in items(api, "/api/v1/pods", PODS, NOT_ENDED, cluster.notes):
        _take_pod(pod, names, specs, cluster)
    cluster.nodes = [
        {
            "name": spec.name,
            "cpu_milli": spec.cpu,
            "memory_mib": (spec.memory or 0) // _MIB,
            "gpu": len(spec.capacity),
            "units": list(spec.capacity) if len(set(spec.capacity)) > 1 else spec.capacity[0],
            "model": spec.models[0],
        }
        for spec in specs.values()
    ]
    return cluster


def _take_pod(pod: Pod, names: Names, specs: dict[str, NodeSpec], cluster: Cluster) -> None:
    try:
        seen = observe_pod(pod, names)
    except WireError as error:
        cluster.notes.append(f"a pod is left out: {error}")
        return
    request, host = seen.request, specs.get(seen.node)
    labels = (pod.metadata and pod.metadata.labels) or {}
    if not request.devices and OF_A_DAEMON in labels:
        if host is not None and host.cpu is not None and host.memory is not None:
            cpu, memory = max(host.cpu - request.cpu, 0), max(host.memory - request.memory, 0)
            specs[host.name] = replace(host, cpu=cpu, memory=memory)
    elif request.devices or host is not None:
        cluster.pods.append(
            {
                "name": str(seen.ref),
                "cpu_milli": request.cpu,
                "memory_mib": -(-request.memory // _MIB),
                "gpu": request.devices,
                "units": request.units,
                "models": list(request.models),
                **({"cores": request.cores} if request.cores else {}),
                "created": seen.created,
            }
        )


def items(
    api: Getter, path: str, codec: Codec[_T], query: Mapping[str, str], notes: list[str]
) -> Iterator[_T]:
    """Yield the objects of a list, page by page; what cannot be read is noted."""
    for page in pages(api, path, codec.decode_list, query, timeout=_TIMEOUT):
        yield from page.items
        notes += [f"left out: {bad}" for bad in page.bad]
