"""What if, explain, and a move that makes room, asked of the commands as at a terminal.

The commands read the cluster through kubectl: without one on PATH the scenario says so and ends.
"""

import json
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from kubernetes import client as k8s

from gpushare_localcluster.demo import programs
from gpushare_localcluster.demo.programs import container, expect, node, pod, say, wait_for

HOUR_AGO = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))


def scenario(client: k8s.ApiClient) -> None:
    """Two nodes with 7 and 12 of 16 GiB free, and a pod of 14: one move makes room."""
    if shutil.which("kubectl") is None:
        say("kubectl is not on PATH, and the commands read the cluster through it")
        return
    core, apps = k8s.CoreV1Api(client), k8s.AppsV1Api(client)
    for name in ("left", "right"):
        core.create_node(node(name, cards=1))
    for home, units in (("left", 9), ("right", 4)):
        body = {"spec": {"unschedulable": True}}
        other = "right" if home == "left" else "left"
        core.patch_node(other, body)
        apps.create_namespaced_deployment(
            "default", deployment(f"on-{home}", units, movable=home == "left")
        )
        allow_eviction(k8s.PolicyV1Api(client), f"on-{home}")
        wait_for(lambda home=home: [*homes(core, f"on-{home}")] == [home])
        core.patch_node(other, {"spec": {"unschedulable": None}})
    say("a pod that has just started is not moved: these two are given an hour")
    for item in core.list_namespaced_pod("default").items:
        started = {"status": {"startTime": HOUR_AGO}}
        core.patch_namespaced_pod_status(item.metadata.name, "default", started)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config")
        config.write_text(json.dumps(kubeconfig(client.configuration.host)))
        gpushare = partial(programs.gpushare, hidden=("--kubeconfig", str(config)))
        gpushare("whatif", "--pods", "14GiB x 1", "--pods", "5GiB x 2", code=1)
        gpushare("whatif", "--gang", "7GiB x 2", code=0)
        core.create_namespaced_pod("default", pod("late", 14))
        wait_for(lambda: homes(core, "late", waiting=True) == [""])
        gpushare("explain", "late", code=0)
        gpushare("defrag", "--for", "pod", "late", "--apply", "--yes", code=0)
    wait_for(lambda: homes(core, "late") == ["left"])
    expect(homes(core, "on-left") == ["right"], "the pod that was moved runs on the other node")


def kubeconfig(server: str) -> dict[str, Any]:
    """Return a kubeconfig for the server."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "demo", "cluster": {"server": server}}],
        "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": ""}}],
        "current-context": "demo",
    }


def deployment(name: str, units: int, *, movable: bool) -> k8s.V1Deployment:
    """Return a Deployment of one pod of so many GiB; movable: whether its owner consents."""
    labels = {"app": name}
    template = k8s.V1PodTemplateSpec(
        metadata=k8s.V1ObjectMeta(labels={**labels, "gpushare.io/movable": str(movable).lower()}),
        spec=k8s.V1PodSpec(containers=[container(units)]),
    )
    return k8s.V1Deployment(
        metadata=k8s.V1ObjectMeta(name=name),
        spec=k8s.V1DeploymentSpec(
            replicas=1, selector=k8s.V1LabelSelector(match_labels=labels), template=template
        ),
    )


def allow_eviction(policy: k8s.PolicyV1Api, name: str) -> None:
    """Let the pod of the Deployment be evicted; there is no controller of budgets here."""
    budget = k8s.V1PodDisruptionBudget(
        metadata=k8s.V1ObjectMeta(name=name),
        spec=k8s.V1PodDisruptionBudgetSpec(
            max_unavailable=1, selector=k8s.V1LabelSelector(match_labels={"app": name})
        ),
    )
    policy.create_namespaced_pod_disruption_budget("default", budget)
    status = {"status": {"disruptionsAllowed": 1, "observedGeneration": 1}}
    policy.patch_namespaced_pod_disruption_budget_status(name, "default", status)


def homes(core: k8s.CoreV1Api, prefix: str, *, waiting: bool = False) -> list[str]:
    """Return the nodes of the running pods, or "" for each that has been found to fit nowhere."""
    pods = [
        pod
        for pod in core.list_namespaced_pod("default").items
        if pod.metadata.name.startswith(prefix)
    ]
    if waiting:
        return ["" for pod in pods if pod.status.conditions]
    return [pod.spec.node_name for pod in pods if pod.status.phase == "Running"]
