"""The kube-schedulers that the small one is compared with: their files, and what they do not know.

1.22 gets a configuration of its time, or a Policy, and pods of its time. It balances the resources
of a node by another formula, does not count the images of init containers, and rounds the spread of
pods in another way; so those three do not score there.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.binaries import OLD_SCHEDULER, RELEASE
from tests.e2e.random_clusters import PROFILES, as_of_1_22

Json = dict[str, Any]

_RATIO = {
    "type": "RequestedToCapacityRatio",
    "resources": [{"name": "cpu", "weight": 3}, {"name": "memory", "weight": 1}],
    "requestedToCapacityRatio": {
        "shape": [{"utilization": 0, "score": 2}, {"utilization": 70, "score": 9}]
        + [{"utilization": 100, "score": 0}]
    },
}
_STRATEGIES: dict[str, Json] = {
    "default-scheduler": {},
    "packing": {"scoringStrategy": {"type": "MostAllocated"}},
    "ratio": {"scoringStrategy": _RATIO},
}
FILE: Json = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "profiles": [
        {
            "schedulerName": name,
            "pluginConfig": [{"name": "NodeResourcesFit", "args": _STRATEGIES[name]}],
        }
        for name in PROFILES
    ],
}


_CHANGED = ("NodeResourcesBalancedAllocation", "ImageLocality", "PodTopologySpread")
OLD_FILE: Json = FILE | {
    "apiVersion": "kubescheduler.config.k8s.io/v1beta2",
    "profiles": [
        {
            **profile,
            "plugins": {"score": {"disabled": [{"name": name} for name in _CHANGED]}},
        }
        for profile in FILE["profiles"]
    ],
}
POLICY: Json = {
    "apiVersion": "v1",
    "kind": "Policy",
    "priorities": [
        {"name": "LeastRequestedPriority", "weight": 1},
        {"name": "NodeAffinityPriority", "weight": 1},
        {"name": "TaintTolerationPriority", "weight": 1},
        {"name": "InterPodAffinityPriority", "weight": 1},
    ],
}
"""What OLD_FILE says of its first profile, in the words of a Policy."""


def reasons_of_1_22(message: str) -> object:
    """How many nodes were rejected for what reason, in the words of the newest release.

    1.22 says nothing of preemption, names the taint, and looks at a node's name no earlier than at
    the rest of it; where that plays a part, messages are not compared.
    """
    if "didn't satisfy plugin(s) [NodeAffinity]" in message:
        return None
    found = Counter[str]()
    told = message.partition(" available: ")[2].partition(". preemption: ")[0].rstrip(".")
    for part in re.split(r", (?=\d)", told):
        count, _, reason = part.partition(" ")
        taint = r"had taint \{.*\}, that the pod didn't tolerate"
        found[re.sub(taint, "had untolerated taint(s)", reason)] += int(count)
    return found


@dataclass(frozen=True)
class Release:
    """A kube-scheduler: its version and file; which pods it gets, and what its messages say.

    judged: the file of the small one, where that does not follow the other.
    """

    version: str
    file: Json
    judged: Json
    pods: Callable[[Json], Json]
    said: Callable[[str], object]

    def flags(self, file: Path, kubeconfig: Path) -> tuple[str | Path, ...]:
        named: tuple[str | Path, ...] = ("--config", file, "--secure-port", "0")
        if self.version != OLD_SCHEDULER:
            return named
        if self.file["kind"] == "Policy":
            named = (
                *("--policy-config-file", file, "--kubeconfig", kubeconfig, "--leader-elect=false"),
                *("--kube-api-content-type", "application/json", "--secure-port", "0"),
                *("--kube-api-qps", "1000", "--kube-api-burst", "2000"),
            )
        # It would wait for a version of this API that newer API servers no longer serve.
        return (*named, "--port", "0", "--feature-gates=CSIStorageCapacity=false")


def _first_profile(pod: Json) -> Json:
    return {**pod, "spec": {**pod["spec"], "schedulerName": PROFILES[0]}}


RELEASES = {
    "newest": Release(RELEASE, FILE, FILE, lambda pod: pod, lambda message: message),
    "1.22": Release(OLD_SCHEDULER, OLD_FILE, OLD_FILE, as_of_1_22, reasons_of_1_22),
    "1.22-policy": Release(
        OLD_SCHEDULER,
        POLICY,
        OLD_FILE,
        lambda pod: _first_profile(as_of_1_22(pod)),
        # A Policy has an order of its own: which predicate rejects a node first differs.
        lambda _message: None,
    ),
}
