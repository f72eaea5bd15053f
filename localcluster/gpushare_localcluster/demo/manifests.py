"""Plans as Kubernetes objects: nodes as the device plug-in leaves them, pods as users write them.

Pure: a plan in, a document out. A node has the resources of the aliyun device plug-in (sum of
device memory, count of devices) and compute; a node of unequal devices also has our inventory. The
devices of a DRA driver add none of this (see `claims`).
"""

from typing import Any
from urllib.parse import urlsplit

from gpushare.core.model import ALL_CORES
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import APART, MEMORY_LIMIT, SPLIT
from gpushare.wire.inventory import Inventory, InventoryDevice, encode_inventory
from gpushare_localcluster.demo.plan import NodePlan, PodPlan, Protect
from gpushare_localcluster.kubelet import RUN_SECONDS

Json = dict[str, Any]

NAMESPACE = "default"
_IMAGE = "registry.k8s.io/pause:3.10"
_UNIT = "GiB"
_CLAIM = "gpu"
"""The name of the claim in a pod."""


def node_document(plan: NodePlan, number: int) -> Json:
    """Return the Node object; `number` gives it an address."""
    amounts = {"cpu": plan.cpu, "memory": plan.memory, "pods": "110"}
    labels = {"kubernetes.io/hostname": plan.name, **plan.labels}
    if plan.devices and not plan.driver:
        amounts[ALIYUN.resource] = str(sum(plan.devices))
        amounts[ALIYUN.count] = str(len(plan.devices))
        amounts[ALIYUN.cores] = str(ALL_CORES * len(plan.devices))
        labels["gpushare"] = "true"
    meta: Json = {"name": plan.name, "labels": labels}
    if plan.mixed and not plan.driver:
        inventory = Inventory(_UNIT, tuple(InventoryDevice(units) for units in plan.devices))
        meta["annotations"] = {ALIYUN.inventory: encode_inventory(inventory)}
    spec: Json = {}
    if plan.cordoned:
        spec["unschedulable"] = True
    if plan.taints:
        spec["taints"] = [dict(taint) for taint in plan.taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "spec": spec,
        "status": {
            "capacity": amounts,
            "allocatable": dict(amounts),
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
            ],
            "addresses": [
                {"type": "InternalIP", "address": f"10.0.{number // 250}.{number % 250 + 1}"},
                {"type": "Hostname", "address": plan.name},
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.37.0",
                "operatingSystem": "linux",
                "architecture": "amd64",
                "containerRuntimeVersion": "none://0",
                "osImage": "gpushare local cluster",
                "kernelVersion": "",
                "kubeProxyVersion": "",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
            },
        },
    }


def pod_document(plan: PodPlan) -> Json:
    """Return the Pod object. The first container requests cpu and memory."""
    meta: Json = {"name": plan.name, "namespace": NAMESPACE}
    annotations = _annotations(plan)
    if annotations:
        meta["annotations"] = annotations
    if plan.labels:
        meta["labels"] = dict(plan.labels)
    spec: Json = {
        "containers": [_container(plan, index) for index in range(len(plan.containers))],
    }
    if plan.claim_class:
        spec["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": plan.name}]
    if plan.priority:
        spec["priorityClassName"] = _class_name(plan.priority)
    if plan.scheduler_name:
        spec["schedulerName"] = plan.scheduler_name
    if plan.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in plan.tolerations]
    if plan.spread_over:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": plan.spread_over,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": dict(plan.labels)},
            }
        ]
    if plan.node_selector:
        spec["nodeSelector"] = dict(plan.node_selector)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def priority_class_document(priority: int) -> Json:
    """Return the PriorityClass of this priority, since pods cannot have a number alone."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": _class_name(priority)},
        "value": priority,
    }


def budget_document(plan: Protect) -> Json:
    """Return the PodDisruptionBudget, with the status that a controller would write."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": plan.name, "namespace": NAMESPACE},
        "spec": {
            "maxUnavailable": plan.allowed_count,
            "selector": {"matchLabels": dict(plan.labels)},
        },
        "status": {"disruptionsAllowed": plan.allowed_count},
    }


def free_lease_document() -> Json:
    """Return the extender's Lease as released by a leader (client-go: release).

    An extender takes it at once. Without a Lease an extender waits 20 s, since the Lease of a
    leader may have been deleted.
    """
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "gpushare-extender", "namespace": "kube-system"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
    }


def metrics_endpoints_document(url: str) -> Json:
    """Return the Endpoints of the extender at this URL, by which a Prometheus finds its metrics."""
    parts = urlsplit(url)
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "gpushare-extender", "namespace": "kube-system"},
        "subsets": [
            {
                "addresses": [{"ip": parts.hostname}],
                "ports": [{"name": "health", "port": parts.port}],
            }
        ],
    }


def _class_name(priority: int) -> str:
    return f"priority-{priority}" if priority >= 0 else f"priority-minus-{-priority}"


def _annotations(plan: PodPlan) -> dict[str, str]:
    annotations: dict[str, str] = {}
    if plan.gpu_count > 1 and not plan.claim_class:
        annotations[ALIYUN.count] = str(plan.gpu_count)
    if plan.gpu_split:
        annotations[SPLIT] = plan.gpu_split
    if plan.run_seconds is not None:
        annotations[RUN_SECONDS] = str(plan.run_seconds)
    if plan.policy:
        annotations[ALIYUN.policy] = plan.policy
    if plan.gpu_limit:
        annotations[MEMORY_LIMIT] = str(plan.gpu_limit)
    if plan.apart:
        annotations[APART] = plan.apart
    return annotations


def _container(plan: PodPlan, index: int) -> Json:
    resources: Json = {}
    if plan.claim_class:
        resources["claims"] = [{"name": _CLAIM}]
    elif plan.containers[index]:
        resources["limits"] = {ALIYUN.resource: str(plan.containers[index])}
    if index == 0:
        if plan.gpu_cores:
            resources["limits"][ALIYUN.cores] = str(plan.gpu_cores)
        if plan.gpu_percent:
            resources["limits"][ALIYUN.share] = str(plan.gpu_percent)
        resources["requests"] = {"cpu": plan.cpu, "memory": plan.memory}
    name = "main" if len(plan.containers) == 1 else f"main-{index}"
    return {"name": name, "image": _IMAGE, "resources": resources}


def scheduler_config(port: int) -> dict[str, object]:
    """Return the file for scheduler and extender, as for a real kube-scheduler."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}/gpushare-scheduler",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                # Above the sum of all in-tree scores: the extender's order decides.
                "weight": 150,
                "bindVerb": "bind",
                "preemptVerb": "preempt",
                # A bind may wait for the other pods of its group.
                "httpTimeout": "30s",
                "nodeCacheCapable": True,
                "ignorable": False,
                "managedResources": [
                    {"name": name, "ignoredByScheduler": name == ALIYUN.share}
                    for name in (ALIYUN.resource, ALIYUN.cores, ALIYUN.share)
                ],
            }
        ],
    }
