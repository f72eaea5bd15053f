"""The kube-schedulers that the small scheduler is compared with: files and omissions.

Both schedulers read the same file. 1.22 gets a configuration or a Policy of its time, and pods of
its time. Behaviour that differs from the newest release is left out: the plug-ins of _CHANGED do
not score on 1.22, which gets no budgets either, one of them not before 1.37, and 1.30 gets no
sidecars. docs/local-cluster.md lists the differences.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.binaries import OLD_SCHEDULER, OLDEST, RELEASE
from tests.e2e.random_clusters import OWN_SPREAD, PROFILES, as_of_1_22, without_sidecars
from tests.integration.process import free_port

Json = dict[str, Any]

_RATIO = {
    "type": "RequestedToCapacityRatio",
    "resources": [{"name": "cpu", "weight": 3}, {"name": "memory", "weight": 1}],
    "requestedToCapacityRatio": {
        "shape": [{"utilization": 0, "score": 2}, {"utilization": 70, "score": 9}]
        + [{"utilization": 100, "score": 0}]
    },
}
_OWN_DEFAULTS = {
    "defaultingType": "List",
    "defaultConstraints": [
        {
            "maxSkew": 2,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
        },
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
        },
    ],
}
_ARGS: dict[str, Json] = {
    "default-scheduler": {},
    "packing": {"NodeResourcesFit": {"scoringStrategy": {"type": "MostAllocated"}}},
    OWN_SPREAD: {
        "NodeResourcesFit": {"scoringStrategy": _RATIO},
        "PodTopologySpread": _OWN_DEFAULTS,
    },
}
FILE: Json = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "profiles": [
        {
            "schedulerName": name,
            "pluginConfig": [{"name": plugin, "args": args} for plugin, args in configured.items()],
        }
        for name, configured in _ARGS.items()
    ],
}


_CHANGED = ("NodeResourcesBalancedAllocation", "ImageLocality", "PodTopologySpread")


def _without_score(file: Json, *plugins: str) -> Json:
    """The file where these plug-ins give no points."""
    disabled = {"plugins": {"score": {"disabled": [{"name": name} for name in plugins]}}}
    return file | {"profiles": [profile | disabled for profile in file["profiles"]]}


OLD_FILE = _without_score(FILE, *_CHANGED) | {"apiVersion": "kubescheduler.config.k8s.io/v1beta2"}
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
"""The first profile of OLD_FILE as a Policy."""
_NAMES_OTHERS = "node(s) didn't satisfy plugin(s) [NodeAffinity]"


def reasons(message: str) -> Counter[str]:
    """The number of rejected nodes by reason, in the words of the newest release.

    Up to 1.33 the message names the taint, and counts more nodes for preemption, so the part after
    `preemption:` is ignored. Nodes excluded by `matchFields` are ignored too, as 1.30 does not
    count these.
    """
    result = Counter[str]()
    text = message.partition(" available: ")[2].partition("preemption: ")[0].rstrip(" .")
    for part in re.split(r", (?=\d)", text):
        count, _, reason = part.partition(" ")
        if reason and reason != _NAMES_OTHERS:
            taint = r"had (untolerated )?taint \{.*\}(, that the pod didn't tolerate)?"
            result[re.sub(taint, "had untolerated taint(s)", reason)] += int(count)
    return result


def reasons_of_1_22(message: str) -> object:
    """The same; None for a pod that names nodes: 1.22 looks at names with the rest."""
    return None if _NAMES_OTHERS in message else reasons(message)


@dataclass(frozen=True)
class Release:
    """A kube-scheduler: version, file, generated pods, and the reading of messages."""

    version: str
    file: Json
    pods: Callable[[Json], Json]
    said: Callable[[str], object]

    @property
    def of_today(self) -> bool:
        """Whether points for the spread of pods, and budgets, are compared, too."""
        return self.version != OLD_SCHEDULER

    def whole(self, access: Json) -> Json:
        """The file with the way to the API server; 1.22 has to be told where it may listen."""
        if self.file["kind"] == "Policy":
            return self.file
        place = f"127.0.0.1:{free_port()}"
        listens = (
            {} if self.of_today else {"healthzBindAddress": place, "metricsBindAddress": place}
        )
        return self.file | {"clientConnection": access} | listens

    def flags(self, file: Path, kubeconfig: Path) -> tuple[str | Path, ...]:
        names: tuple[str | Path, ...] = ("--config", file, "--secure-port", "0")
        if self.of_today:
            return names
        if self.file["kind"] == "Policy":
            names = (
                *("--policy-config-file", file, "--kubeconfig", kubeconfig, "--leader-elect=false"),
                *("--kube-api-content-type", "application/json", "--secure-port", "0"),
                *("--kube-api-qps", "1000", "--kube-api-burst", "2000"),
            )
        # It would wait for a version of this API that newer API servers no longer serve.
        return (*names, "--port", "0", "--feature-gates=CSIStorageCapacity=false")


def _first_profile(pod: Json) -> Json:
    return {**pod, "spec": {**pod["spec"], "schedulerName": PROFILES[0]}}


def _as_it_is(version: str) -> Release:
    """A current release, without behaviour that differs from the newest one."""
    minor = int(version.split(".")[1])
    file = FILE if minor >= 37 else _without_score(FILE, "NodeResourcesBalancedAllocation")
    pods = (lambda pod: pod) if minor >= 33 else without_sidecars
    output = (lambda message: message) if minor >= 34 else reasons
    return Release(version, file, pods, output)


RELEASES = {
    "tested": _as_it_is(RELEASE),
    **({} if RELEASE == OLDEST else {"1.30": _as_it_is(OLDEST)}),
    "1.22": Release(OLD_SCHEDULER, OLD_FILE, as_of_1_22, reasons_of_1_22),
    "1.22-policy": Release(
        OLD_SCHEDULER,
        POLICY,
        lambda pod: _first_profile(as_of_1_22(pod)),
        reasons_of_1_22,
    ),
}
"""The release under test, the oldest that is supported, and 1.22."""
