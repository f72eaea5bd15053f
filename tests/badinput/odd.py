"""Valid documents, and ways to spoil them: JSON values, texts and bytes from a seed.

Knows the shapes of the protocol's documents.
"""

import copy
import json
import random
from typing import Any

Json = Any

MEM = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"

POD: Json = {
    "metadata": {
        "name": "odd",
        "namespace": "default",
        "uid": "uid-odd",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "labels": {"app": "odd"},
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": True}
        ],
        "annotations": {
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "4",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "scheduler.framework.gpushare.allocation": '{"0":{"0":4}}',
            COUNT: "1",
            "gpushare.io/policy": "binpack",
            "gpushare.io/apart": "required",
            "gpushare.io/neighbours": "few",
        },
    },
    "spec": {
        "nodeName": "",
        "priority": 5,
        "containers": [
            {
                "name": "c",
                "resources": {
                    "limits": {
                        MEM: "4",
                        f"{MEM}.percentage": "30",
                        "aliyun.com/gpu-core.percentage": 50,
                        "cpu": "500m",
                        "memory": "1Gi",
                    }
                },
            }
        ],
        "initContainers": [{"restartPolicy": "Always", "resources": {"requests": {MEM: 0}}}],
        "overhead": {"cpu": "1"},
        "schedulingGates": [],
    },
    "status": {"phase": "Pending", "startTime": None},
}
INVENTORY: Json = {
    "v": 1,
    "unit": "GiB",
    "devices": [{"uuid": "GPU-1", "model": "A100", "mem": 16}, {"mem": 8, "healthy": False}],
    "marksAssigned": True,
    "servesByIdentity": True,
}
NODE: Json = {
    "metadata": {
        "name": "gpu",
        "annotations": {"gpushare.io/devices": json.dumps(INVENTORY)},
        "labels": {"gpushare.io/max-sharers": "4"},
    },
    "status": {
        "capacity": {MEM: "32", COUNT: 2, "cpu": "96", "memory": "1Ti"},
        "allocatable": {MEM: "32", COUNT: "2"},
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    },
}
LEASE: Json = {
    "kind": "Lease",
    "metadata": {"name": "gpushare-extender", "resourceVersion": "1"},
    "spec": {
        "holderIdentity": "a_1",
        "leaseDurationSeconds": 15,
        "renewTime": "2026-11-01T00:00:00.000000Z",
        "leaseTransitions": 3,
    },
}
_ENTRY: Json = {
    "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
    "filterVerb": "filter",
    "bindVerb": "bind",
    "weight": 1,
    "httpTimeout": "5s",
    "nodeCacheCapable": True,
    "managedResources": [{"name": MEM, "ignoredByScheduler": False}],
}
SCHEDULER: Json = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": True},
    "profiles": [{"schedulerName": "default-scheduler"}],
    "extenders": [_ENTRY],
}
POLICY: Json = {"apiVersion": "v1", "kind": "Policy", "extenders": [_ENTRY]}
BUDGET: Json = {
    "metadata": {"name": "b", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a"}]}},
    "status": {"disruptionsAllowed": 1, "disruptedPods": {"p": "2026"}},
}
_ASSIGNMENT: Json = {
    "name": "main",
    "flavors": {MEM: "a10"},
    "count": 2,
    "topologyAssignment": {
        "levels": ["rack"],
        "slices": [
            {
                "domainCount": 2,
                "valuesPerLevel": [{"individual": {"prefix": "r-", "roots": ["1", "2"]}}],
                "podCounts": {"individual": [1, 1]},
            }
        ],
    },
}
WORKLOAD: Json = {
    "metadata": {"name": "job-odd", "namespace": "default", "uid": "u", "resourceVersion": "7"},
    "spec": {"priority": 5, "podSets": [{"name": "main", "count": 3, "template": POD}]},
    "status": {
        "admission": {"podSetAssignments": [_ASSIGNMENT]},
        "admissionChecks": [{"name": "gpus", "state": "Pending", "retryCount": 1}],
        "conditions": [{"type": "QuotaReserved", "status": "True"}],
        "reclaimablePods": [{"name": "main", "count": 1}],
        "requeueState": {"requeueAt": "2026-11-01T00:00:00Z"},
    },
}
ADMISSION_CHECK: Json = {
    "metadata": {"name": "gpus", "resourceVersion": "7"},
    "spec": {"controllerName": "gpushare.io/devices", "parameters": None},
    "status": {"conditions": [{"type": "Active", "status": "True"}]},
}
FLAVOR: Json = {
    "metadata": {"name": "a10"},
    "spec": {"nodeLabels": {"gpu": "a10"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
}

TEXTS = (
    *(
        "",
        " ",
        "0",
        "-1",
        "+7",
        "1_000",
        "\u0667",
        "1e3",
        "1e999",
        "0x10",
        "NaN",
        "null",
        "16Gi",
        "4.",
    ),
    *(
        "9" * 30,
        "9" * 5000,
        "a" * 300,
        "../../x",
        "a/b",
        "a b",
        "a\nb",
        "a\r\nX: y",
        "\0",
        "é",
        "😀",
    ),
    *(
        "\x1b[31m",
        "\u2028",
        "%s%n",
        "${x}",
        "'; --",
        "<b>",
        "0,1",
        "0,,1",
        "{}",
        "[]",
        '{"0":{"0":1}}',
    ),
    *("A.B", "-a", "a-", "Infinity", "true", "2147483648", "9223372036854775808"),
)
NUMBERS = (0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 1.5, -0.0, 1e308, 1e-320)
_PLAIN: tuple[Json, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, *NUMBERS)


def value(rng: random.Random, depth: int = 3) -> Json:
    """Any JSON value, often one that somebody will trip over."""
    kind = rng.randrange(6)
    if kind < 2:
        return rng.choice(TEXTS)
    if kind < 4 or not depth:
        return copy.deepcopy(rng.choice(_PLAIN))
    if kind == 4:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXTS): value(rng, depth - 1) for _ in range(rng.randrange(4))}


def spoiled(rng: random.Random, document: Json) -> Json:
    """The document with one to three values replaced, removed, or added."""
    result = json.loads(json.dumps(document))
    for _ in range(rng.randint(1, 3)):
        result = _spoil(rng, result)
    return result


def _spoil(rng: random.Random, document: Json) -> Json:
    if not isinstance(document, dict | list) or not document or rng.random() < 0.05:
        return value(rng)
    key: Any
    if isinstance(document, list):
        key = rng.randrange(len(document))
    else:
        key = rng.choice(sorted(document))
    act = rng.random()
    if act < 0.65:
        document[key] = _spoil(rng, document[key])
    elif act < 0.85:
        document[key] = value(rng)
    elif isinstance(document, list):
        document.append(value(rng))
    elif act < 0.93:
        del document[key]
    else:
        document[rng.choice((*TEXTS, str(key).upper(), str(key).lower()))] = value(rng)
    return document


def bytes_of(rng: random.Random, text: bytes) -> bytes:
    """The bytes with some flipped, cut out, doubled or put in."""
    data = bytearray(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        act = rng.randrange(4)
        if act == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif act == 1:
            del data[at : at + rng.randint(1, 8)]
        elif act == 2:
            data[at:at] = data[at : at + rng.randint(1, 16)]
        else:
            data[at:at] = rng.choice(
                (b"\xff", b"\x00", b"\xc0\xaf", b"\xed\xa0\x80", b"{", b"]", b'"')
            )
    return bytes(data)
