"""The parts of the tests of the extender: pods as JSON, and managed resources with
empty books.

Everything here is the real thing; only the API server is played (see pod_store.py).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot
from gpushare.core.trial import Trial, run_trial
from gpushare.core.workload import Workload
from gpushare.errors import ApiError
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.kube.responses import response_error
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.objects import NODES, PODS, Node, Pod

NPU = Names.for_resource("example.com/npu-mem")


def try_here(
    names: Sequence[str], workload: Workload, snapshot: Snapshot, seed: int
) -> Trial | None:
    """Try policies in this process."""
    return run_trial(snapshot, workload, names, seed)


RANKINGS = {name: Ranking(load_policy(name)) for name in policy_names()}


def managed_resource(names: Names = ALIYUN, pairing: Pairing = Pairing.OFF) -> ManagedResource:
    """A managed resource with an empty ledger."""
    return ManagedResource(names, Ledger(pairing), RANKINGS, "device-bestfit")


def managed_resources(*names: Names) -> ManagedResources:
    """Managed resources with empty ledgers: aliyun's if none is named."""
    return ManagedResources(tuple(managed_resource(name) for name in names or (ALIYUN,)))


def pod_json(
    name: str,
    units: int | str = 0,
    *,
    uid: str = "",
    node: str = "",
    resource: str = ALIYUN.resource,
    annotations: Mapping[str, str] | None = None,
    phase: str = "Pending",
    limits: Mapping[str, int | str] | None = None,
) -> dict[str, Any]:
    """A pod of one container as the API server writes it."""
    request = dict(limits or {}) | ({resource: str(units)} if units else {})
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid or f"uid-{name}",
            "annotations": dict(annotations or {}),
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": request}}]},
        "status": {"phase": phase},
    }


def node_json(name: str, total: int | str, count: int = 1, **annotations: str) -> dict[str, Any]:
    """A node as the aliyun device plug-in advertises it."""
    return {
        "metadata": {"name": name, "annotations": annotations},
        "status": {
            "capacity": {ALIYUN.resource: str(total), ALIYUN.count: str(count)},
            "allocatable": {ALIYUN.resource: str(total), ALIYUN.count: str(count)},
        },
    }


def read_pod(document: Mapping[str, Any]) -> Pod:
    """The pod as the extender reads it."""
    return PODS.decode(json.dumps(document).encode())


def read_node(document: Mapping[str, Any]) -> Node:
    """The node as the extender reads it."""
    return NODES.decode(json.dumps(document).encode())


def refusal(text: str, status: int = 403) -> ApiError:
    """The client's error for the API server's refusal of a write in these words."""
    document = {"kind": "Status", "status": "Failure", "message": text, "code": status}
    return response_error("POST /api/v1/any", status, json.dumps(document).encode())


NO_RIGHT = refusal('any is forbidden: User "jo" cannot create resource "any" in API group ""')
