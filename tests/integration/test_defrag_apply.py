"""`gpushare defrag --apply` on the demo's cluster: two pods move, and one that waits is bound."""

import json
import os
import subprocess
from functools import partial
from typing import Any

from gpushare.wire.annotations import ALIYUN
from tests.integration.test_demo_doctor import GPUSHARE, PODS, Kept, kept, pod
from tests.support.waiting import poll

__all__ = ["kept"]

APPS = "/apis/apps/v1/namespaces/default"
BINPACK = {ALIYUN.policy: "binpack"}


def workload(kind: str, name: str) -> dict[str, Any]:
    """One that makes one pod of 6 GiB, which may be moved."""
    template = pod("", "6", **BINPACK)
    template["metadata"] = {
        "labels": {"app": name, "gpushare.io/movable": "true"},
        "annotations": BINPACK,
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    more = {"serviceName": name} if kind == "StatefulSet" else {}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec | more,
    }


def budget(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}},
        "status": {"disruptionsAllowed": 1},
    }


def running(kept: Kept) -> dict[str, str]:
    """The nodes of the pods that run, by name."""
    return {
        item["metadata"]["name"]: item["spec"]["nodeName"]
        for item in kept.api.get(PODS)["items"]
        if item["status"].get("phase") == "Running"
    }


def are_running(kept_items: Kept, count: int) -> bool:
    return len(running(kept_items)) == count


def age(kept_items: Kept) -> None:
    """Let all pods have run for long."""
    for name in running(kept_items):
        started = {"status": {"startTime": "2026-01-01T00:00:00Z"}}
        kept_items.api.patch(f"{PODS}/{name}/status", started)


def test_a_pod_that_fits_nowhere_is_bound_once_two_pods_have_moved(kept: Kept) -> None:
    for name in running(kept):
        kept.api.delete(f"{PODS}/{name}")
    poll(lambda: not kept.api.get(PODS)["items"], "the demo's own pods are gone")
    for at, (kind, name) in enumerate((("Deployment", "web"), ("StatefulSet", "db")), 1):
        kept.api.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget(name))
        kept.api.create(f"{APPS}/{kind.lower()}s", workload(kind, name))
        poll(partial(are_running, kept, at), f"{name} runs")
    (hole,) = set(running(kept).values())
    kept.api.create(PODS, pod("filler", "16", **BINPACK))
    poll(lambda: "filler" in running(kept), "one device is full")
    kept.api.create(PODS, pod("fixed", "9", **BINPACK))
    poll(lambda: "fixed" in running(kept), "the other node is used, too")
    kept.api.delete(f"{PODS}/filler")
    poll(lambda: "filler" not in running(kept), "that device is free again")
    before = running(kept)
    assert before.pop("fixed") != hole
    assert set(before.values()) == {hole}
    age(kept)
    kept.api.create(PODS, pod("late", "32", **BINPACK, **{ALIYUN.count: "2"}))
    command = [*GPUSHARE, "defrag", "--for", "pod", "default/late", "--policy", "binpack"]
    environment = {**os.environ, "KUBECONFIG": kept.kubeconfig}
    ran = subprocess.run(
        [*command, "--apply", "--yes", "--wait", "60", "-o", "json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    document = json.loads(ran.stdout)["apply"]
    assert {item["name"] for item in document["moved"]} == before.keys()
    assert (document["left"], document["stopped"], document["boundTo"]) == ([], None, hole)
    poll(lambda: running(kept).get("late") == hole, "the pod runs")
    after = running(kept)
    assert after.keys() >= {item["as"].partition("/")[2] for item in document["moved"]}
    assert {node for name, node in after.items() if name != "late"} == {
        item["to"] for item in document["moved"]
    }
