"""Facts of a healthy cluster, and changes that break the cluster. Knows no check."""

from dataclasses import replace
from typing import Any

from gpushare import __version__
from gpushare.doctor.checks.server import REQUIRED, lease_rights, move_rights, optional_rights
from gpushare.doctor.facts import (
    ApiServer,
    ExtenderAnswers,
    Facts,
    ListedLease,
    ListedNode,
    ListedPod,
    ListedPods,
    SchedulerFile,
    UnhealthyConfigMap,
)
from gpushare.doctor.finding import Finding
from gpushare.doctor.objects import Fields, read_closed, read_node
from gpushare.doctor.report import run_checks
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.scheduler.config import decode_scheduler_config

NOW = 1_800_000_000.0
MEM, COUNT, CORES = ALIYUN.resource, ALIYUN.count, ALIYUN.cores
RIGHTS = dict.fromkeys(
    (
        *REQUIRED,
        *lease_rights("kube-system"),
        *optional_rights("kube-system"),
        *move_rights("kube-system"),
    ),
    True,
)
V1 = "kubescheduler.config.k8s.io/v1"


def entry(**changes: object) -> dict[str, object]:
    """An extender's entry as `gpushare scheduler-config` prints it; None leaves a key out."""
    fields: dict[str, object] = {
        "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 150,
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "httpTimeout": "10s",
        "nodeCacheCapable": True,
        "managedResources": [{"name": MEM, "ignoredByScheduler": False}],
    }
    return {key: value for key, value in (fields | changes).items() if value is not None}


def config(*, top: dict[str, object] | None = None, **changes: object) -> SchedulerFile:
    """A scheduler's file with that entry; top: fields beside it."""
    document = {
        "apiVersion": V1,
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "extenders": [entry(**changes)],
        **(top or {}),
    }
    return SchedulerFile("scheduler.yaml", decode_scheduler_config(document), document)


def policy(**changes: object) -> SchedulerFile:
    """A legacy Policy with that entry."""
    fields = entry(httpTimeout=10 * 10**9, **changes)
    document = {"apiVersion": "v1", "kind": "Policy", "priorities": [], "extenders": [fields]}
    return SchedulerFile("policy.json", decode_scheduler_config(document), document)


def node_json(
    *,
    name: str = "n1",
    total: object = "32",
    count: object = "2",
    usable: object = None,
    inventory: str | None = None,
    labels: dict[str, str] | None = None,
    notes: dict[str, str] | None = None,
    cordoned: bool = False,
    ready: str = "True",
    cores: object = None,
) -> Fields:
    """Return a node from the API server. total, cores: None for a node that advertises none."""
    amounts = {} if total is None else {MEM: total, COUNT: count}
    amounts |= {} if cores is None else {CORES: cores}
    allocatable = amounts if usable is None else {**amounts, MEM: usable}
    inventories = {} if inventory is None else {ALIYUN.inventory: inventory}
    annotations = inventories | (notes or {})
    return {
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "capacity": amounts,
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def node(unit: str = "GiB", **parts: Any) -> ListedNode:
    """Return the facts about the node of `node_json`."""
    return read_node(node_json(**parts), ALIYUN, unit)


def closing(node: str = "n1", **data: str) -> UnhealthyConfigMap:
    """Return the facts about a ConfigMap that closes devices of a node."""
    body = {"metadata": {"name": f"{ALIYUN.unhealthy}{node}"}, "data": data}
    unhealthy = read_closed(body, ALIYUN)
    assert unhealthy is not None
    return unhealthy


def extender(**changes: Any) -> ExtenderAnswers:
    """An extender that is called."""
    samples = {
        f'gpushare_build_info{{version="{__version__}"}}': 1.0,
        'gpushare_requests_total{outcome="fit",verb="filter"}': 7.0,
        'gpushare_ranking_policy{policy="spread",resource="aliyun.com/gpu-mem"}': 1.0,
        'gpushare_alarms_total{kind="bound_by_another",resource="aliyun.com/gpu-mem"}': 0.0,
    }
    return replace(ExtenderAnswers(200, 200, "ok\n", 0.0, samples), **changes)


def lease(**changes: Any) -> ListedLease:
    """A Lease that is held."""
    return replace(ListedLease("kube-system", "pod-1", 15.0, NOW - 2, NOW - 1000), **changes)


def bound(**changes: Any) -> ListedPod:
    """A pod that our extender has bound in the leader's term."""
    pod = ListedPod("default/a", "n1", age=120.0, bound_at=NOW - 100, placement=((0, 4),))
    return replace(pod, **{"assumed": True, "mapped": True, "assigned": True, **changes})


def waiting(**changes: Any) -> ListedPod:
    """A pod that waits, and the extender has said why."""
    message = "0/1 nodes are available: 1 Insufficient GPU Memory in one device."
    pod = ListedPod("default/w", age=120.0, reason="Unschedulable", message=message)
    return replace(pod, **changes)


def healthy(**changes: Any) -> Facts:
    """Return the facts of a healthy cluster with these changes."""
    facts = Facts(
        now=NOW,
        api=ApiServer("v1.32.0", 32, 0.0),
        nodes=(node(),),
        pods=ListedPods([bound(), waiting()]),
        leases=(lease(),),
        rights=RIGHTS,
        config_maps=(closing(gpus="1"),),
        scheduler=config(),
        extender=extender(),
        route=405,
        own_account=True,
    )
    return replace(facts, **changes)


def found(facts: Facts, check: str) -> Finding:
    """Return the finding of the check."""
    findings = {finding.check: finding for finding in run_checks(facts)}
    assert check in findings, findings
    return findings[check]
