"""The scenes of docs/autoscalers.md with a running autoscaler and the options of gpushare.

The autoscaler counts sums, as cluster-autoscaler does. The extender has `--placeholders` and
`--scale-down-guard`; after the scenario the demo restarts the extender without the options and
checks that nothing is left.
"""

import json
from typing import Any

from kubernetes import client as k8s

from gpushare_localcluster.demo.programs import container, say, wait_for

GUARD = "gpushare.io/scale-down-guard"
SYSTEM = "kube-system"
Object = dict[str, Any]


def scenario(client: k8s.ApiClient) -> None:
    """An autoscaler counts sums: a node it would not add, and one it should not remove."""
    scene = Scene(client)
    scene.from_zero()
    scene.a_full_node()
    scene.a_node_that_is_needed()
    scene.two_that_could_be_emptied_into_each_other()
    scene.a_pod_waits_when_it_is_switched_off()


scenario.autoscaler = True  # type: ignore[attr-defined]  # the demo runs one while it sees this


class Scene:
    """A cluster with an autoscaler; all pods belong to Deployments."""

    def __init__(self, client: k8s.ApiClient) -> None:
        self._core = k8s.CoreV1Api(client)
        self._apps = k8s.AppsV1Api(client)

    def from_zero(self) -> None:
        """The autoscaler knows a group without nodes only by its description."""
        say("two pods of 10 wait. Of a group without nodes the autoscaler knows what it is told:")
        self._core.create_node(node("cpu"))
        self._run("ten", 10, replicas=2)
        self._groups("0x16GiB")
        wait_for(
            lambda: self._thinks("pods", "ten") == ["gpu: Insufficient aliyun.com/gpu-mem"] * 2,
            "a group that says nothing of gpu-mem brings no node",
        )
        self._groups("2x16GiB,min=1,max=1")
        wait_for(
            lambda: self._homes("ten") == ["gpu-1", "gpu-1"],
            "one that says 2 devices of 16 brings one, with a device for each pod",
        )

    def a_full_node(self) -> None:
        """The sum has room and no device has."""
        say("gpu-1 has 6 + 6 left, and a pod of 8 comes. Its group may not grow yet:")
        self._run("eight", 8)
        wait_for(
            lambda: self._thinks("pods", "eight") == ["fits gpu-1"],
            "by the sum it fits gpu-1: no node would come for it, ever",
        )
        wait_for(
            lambda: self._thinks("pods", "for-") == ["gpu: max node group size reached"],
            "the extender's placeholder counts, which may not be on gpu-1",
        )
        self._groups("2x16GiB,min=2,max=4")
        wait_for(lambda: self._homes("eight") == ["gpu-2"], "now a node comes for it")
        wait_for(
            lambda: self._status().get("pods") == {} and not self._placeholders(),
            "nobody waits, and the placeholder is gone",
        )
        wait_for(lambda: self._nodes() == ["gpu-1", "gpu-2"], "it was one node")

    def a_node_that_is_needed(self) -> None:
        """By the sum both tens fit gpu-2, and by device one."""
        say("by sums gpu-1 could go: 20 of 24 that gpu-2 has left. By device one of them fits:")
        wait_for(
            lambda: set(self._kept()) == {"gpu-1", "gpu-2"},
            "the extender annotates both nodes",
        )
        say(f"of gpu-1 it says: {self._kept()['gpu-1']}")
        self._groups("2x16GiB")
        wait_for(
            lambda: self._thinks("nodes", "gpu-") == ["ScaleDownDisabledAnnotation"] * 2,
            "the autoscaler leaves them alone",
        )

    def two_that_could_be_emptied_into_each_other(self) -> None:
        """One of them is kept, the other one goes."""
        say("of the tens one goes. Each node could be emptied into the other now:")
        self._apps.patch_namespaced_deployment_scale("ten", "default", {"spec": {"replicas": 1}})
        wait_for(lambda: len(self._nodes()) == 1, "one of them goes")
        wait_for(
            lambda: self._homes("ten") == self._homes("eight") == self._nodes(),
            "its pod was made again, and has a device on the other one",
        )
        wait_for(lambda: [*self._kept()] == self._nodes(), "which stays annotated")

    def a_pod_waits_when_it_is_switched_off(self) -> None:
        """A placeholder and a kept node are there when the extender's options end."""
        say("6 and 8 are left, a pod of 9 comes, and the group may not grow:")
        self._groups("2x16GiB,max=1")
        self._run("nine", 9)
        wait_for(self._placeholders, "a placeholder is there, and an annotated node")

    def _groups(self, gpu: str) -> None:
        """Write the group of the autoscaler."""
        body = {"metadata": {"name": "node-groups"}, "data": {"gpu": gpu}}
        try:
            self._core.patch_namespaced_config_map("node-groups", SYSTEM, body)
        except k8s.ApiException as error:
            if error.status != 404:
                raise
            self._core.create_namespaced_config_map(SYSTEM, body)

    def _run(self, name: str, units: int, replicas: int = 1) -> None:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container(units)]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        self._apps.create_namespaced_deployment(
            "default", {"metadata": {"name": name}, "spec": spec}
        )

    def _homes(self, name: str) -> list[str | None]:
        """Return the nodes of its pods."""
        pods = self._core.list_namespaced_pod("default", label_selector=f"app={name}").items
        return [pod.spec.node_name for pod in pods]

    def _nodes(self) -> list[str]:
        nodes = self._core.list_node(label_selector="gpushare=true").items
        return [item.metadata.name for item in nodes]

    def _kept(self) -> dict[str, str]:
        """Return why nodes are kept, by the extender's own annotation."""
        notes = {
            item.metadata.name: (item.metadata.annotations or {}).get(GUARD)
            for item in self._core.list_node().items
        }
        return {name: json.loads(note)["why"] for name, note in notes.items() if note}

    def _placeholders(self) -> list[str]:
        return [pod.metadata.name for pod in self._core.list_namespaced_pod("placeholders").items]

    def _status(self) -> Object:
        """Return the status of the autoscaler."""
        for config_map in self._core.list_namespaced_config_map(SYSTEM).items:
            if config_map.metadata.name == "cluster-autoscaler-status":
                status: Object = json.loads(config_map.data["status"])
                return status
        return {}

    def _thinks(self, of: str, name: str) -> list[str]:
        """Return the status texts of the pods or nodes with this prefix."""
        entries = self._status().get(of, {}).items()
        return [text for key, text in entries if key.rpartition("/")[2].startswith(name)]


def node(name: str) -> Object:
    """A node without a device, of no group."""
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    return {"metadata": {"name": name}, "status": {"capacity": amounts, "allocatable": amounts}}
