"""Placeholders under a real API server and kube-scheduler: from a pod that fits by the sum alone to
its binding on a new node, and to the removal of all traces.

The waits of the extender are short, and the test creates the nodes.
"""

import sys
from typing import Any

from tests.e2e.conftest import MakeWorld
from tests.e2e.processes import until
from tests.e2e.world import World

_OFF = ("--leadership", "off")
_ON = (*_OFF, "--placeholders", "asks")
_PODS = "/api/v1/namespaces/asks/pods"
_RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/asks"
_QUICK = """
import os, runpy, sys
from gpushare.extender.follow import placeholders
placeholders.EVERY = placeholders.AGAIN = 1.0
placeholders.WAITING = placeholders.AFTER_JOIN = 0.0
{more}
del sys.argv[:4]  # -c, then python -P -m
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
_DIES = "placeholders.Placeholders._tell = lambda *_: os.kill(os.getpid(), 9)"
"""Between the create and the status."""


def _prefix(more: str = "") -> tuple[str, ...]:
    return (sys.executable, "-c", _QUICK.format(more=more))


def _may_ask(world: World) -> None:
    """The namespace, and the rights in it that the chart gives."""
    create = world.api.create
    create("/api/v1/namespaces", {"metadata": {"name": "asks"}})
    account = {"metadata": {"name": "default"}}
    create("/api/v1/namespaces/asks/serviceaccounts", account)
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    ]
    name = {"metadata": {"name": "placeholders"}}
    create(f"{_RBAC}/roles", {**name, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "placeholders"}
    who = {"kind": "ServiceAccount", "name": "gpushare-extender", "namespace": "kube-system"}
    create(f"{_RBAC}/rolebindings", {**name, "roleRef": role, "subjects": [who]})


def _there(world: World) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = world.api.get(_PODS).body["items"]
    return result


def _told(world: World) -> list[str]:
    """The messages of those that an autoscaler would count."""
    return [
        str(item["message"])
        for pod in _there(world)
        for item in pod["status"].get("conditions") or ()
        if (item["type"], item["status"], item["reason"])
        == ("PodScheduled", "False", "Unschedulable")
    ]


def test_a_node_is_asked_for_and_nothing_is_left(make_world: MakeWorld) -> None:
    dying = make_world(flags=_ON, extender_prefix=_prefix(_DIES))
    _may_ask(dying)
    full = dying.objects.node()
    tens = dying.objects.many([10, 10])
    dying.start()
    for pod in tens:
        dying.objects.lands(pod, dying.told)
    web = dying.objects.pod(8)
    until(lambda: bool(_there(dying)), dying.told)
    dying.kill()
    assert _told(dying) == []
    world = make_world(flags=_ON, extender_prefix=_prefix())
    world.start()
    until(lambda: bool(_told(world)), world.told)
    (created,) = _there(world)
    assert created["metadata"]["name"] == f"for-{web['metadata']['uid']}"
    affinity = created["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [item["values"] for item in term["matchExpressions"]] == [[full]]
    new = world.objects.node()
    assert world.objects.lands(web, world.told)[0] == new
    until(lambda: not _there(world), world.told)
    late = world.objects.pod(12)
    world.objects.lands(late, world.told)
    # The new node has 8 and 4 left.
    world.objects.pod(9)
    until(lambda: bool(_told(world)), world.told)
    world.stop()
    after = make_world(flags=_OFF, extender_prefix=_prefix())
    after.start()
    until(lambda: not _there(after), after.told)
