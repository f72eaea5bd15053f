"""Clusters in odd states, pods by chance, the statements of all surfaces, and followed advice.

Speaks to any API server by HTTP: that of the local cluster, or a real kube-apiserver.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

from gpushare.cli.main import main
from gpushare.core.explain import PodVerdict
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.inventory import MAX_SHARERS
from gpushare_localcluster.client import HttpClient
from tests.e2e.objects import COUNT, MEM, NODES, PODS, Objects, fresh
from tests.e2e.processes import until
from tests.support.sentences import CURES, verdicts_of

Json = dict[str, Any]

OTHER = "example.com/thing"
_MAPS = "/api/v1/namespaces/kube-system/configmaps"
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_DEDICATED = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
_CLOUD = {"key": "example.com/gpu", "value": "present", "effect": "NoSchedule"}
_TAINTS = {
    "not ready": [_NOT_READY],
    "not ready, tainted": [_NOT_READY, _DEDICATED],
    "tainted": [_DEDICATED],
    "tainted twice": [_CLOUD, _DEDICATED],
}
_ALLOCATABLE = {
    "less": {MEM: "20"},
    "nothing": {MEM: "0"},
    "few": {"pods": "2"},
    "small": {"cpu": "1"},
}
_UNASKED = "no scheduler has asked gpushare about it"
_EVENTS_CHECKED = 2
"""Pods with an event that is read: a namespace has ten events at once, and then few."""
STATES = (*("plain", "plain", "cordoned", "dead card"), *_TAINTS, *_ALLOCATABLE)


def make_node(
    objects: Objects,
    state: str,
    zone: str,
    units: int = 16,
    *,
    has_inventory: bool = False,
    sharers: str = "",
) -> str:
    """The name of a new node of two devices with so many GiB in that state. sharers: the most pods
    on one device.
    """
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", OTHER: "2"}
    capacity = amounts | {MEM: str(2 * units), COUNT: "2"}
    name = fresh(re.sub("[ ,]+", "-", state))
    annotations = {}
    if has_inventory:
        healthy = (True, state != "dead card")
        annotations = _inventory({"mem": units, "healthy": is_healthy} for is_healthy in healthy)
    elif state == "dead card":
        close_card(objects, name, 1)
    ready = "False" if state.startswith("not ready") else "True"
    objects.api.create(
        NODES,
        {
            "metadata": {
                "name": name,
                "labels": {"zone": zone} | ({MAX_SHARERS: sharers} if sharers else {}),
                "annotations": annotations,
            },
            "spec": {"unschedulable": state == "cordoned", "taints": _TAINTS.get(state, [])},
            "status": {
                "capacity": capacity,
                "allocatable": capacity | _ALLOCATABLE.get(state, {}),
                "conditions": [{"type": "Ready", "status": ready, "reason": "x"}],
            },
        },
    )
    return name


def _inventory(devices: Iterable[Json]) -> dict[str, str]:
    return {ALIYUN.inventory: json.dumps({"v": 1, "unit": "GiB", "devices": list(devices)})}


def close_card(objects: Objects, node: str, device: int) -> None:
    """Let a card of the node die."""
    body = {"metadata": {"name": f"unhealthy-gpu-{node}"}, "data": {"gpus": str(device)}}
    objects.api.create(_MAPS, body)


def make_pod(chance: Random, name: str) -> Json:
    """A pod that asks for much or little, and may use few nodes or many."""
    limits = {MEM: str(chance.choice((2, 4, 8, 8, 16, 24)))}
    annotations = {}
    if chance.random() < 0.2:
        limits[MEM], annotations[COUNT] = "16", "2"
    elif chance.random() < 0.3:
        limits |= {MEM: "1", ALIYUN.share: chance.choice(("30", "60", "100"))}
    if chance.random() < 0.4:
        limits["cpu"] = chance.choice(("500m", "2", "9"))
    if chance.random() < 0.2:
        limits[OTHER] = "1"
    container: Json = {"name": "main", "image": "x", "resources": {"limits": limits}}
    if chance.random() < 0.2:
        container["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    spec: Json = {
        "containers": [container],
        "tolerations": chance.choice(([], [], [{"operator": "Exists"}], [_DEDICATED])),
        "terminationGracePeriodSeconds": 0,
    }
    if chance.random() < 0.4:
        spec["nodeSelector"] = {"zone": chance.choice("abc")}
    if chance.random() < 0.2:
        term = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}
        required = {"nodeSelectorTerms": [term]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        spec["affinity"] = {"nodeAffinity": affinity}
    if chance.random() < 0.15:
        spec["schedulingGates"] = [{"name": "example.com/quota"}]
    metadata = {"name": name, "annotations": annotations}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec}


def outcome(objects: Objects, pod: Json) -> str:
    """The node of the pod; "" once kube-scheduler has rejected or gated the pod."""

    def condition() -> str:
        conditions = objects.get(pod).get("status", {}).get("conditions", ())
        result = [item for item in conditions if item["type"] == "PodScheduled"]
        return str(result[0].get("reason", "bound")) if result else ""

    until(
        lambda: bool(objects.node_of(pod)) or condition() in {"Unschedulable", "SchedulingGated"},
        lambda: f"an outcome: {objects.get(pod)}",
    )
    return objects.node_of(pod)


def run(objects: Objects, pod: Json) -> None:
    """Let the bound pod run, as the kubelet and a device plug-in do: equal pods wait for that."""
    running = {"status": {"phase": "Running"}}
    objects.patch(objects.path(pod), {"metadata": {"annotations": {ALIYUN.assigned: "true"}}})
    objects.patch(f"{objects.path(pod)}/status", running)


class Sayings:
    """The statements of the commands, the page, the events and the metrics about a cluster.

    page, health: addresses of the extender's listeners.
    """

    def __init__(
        self, objects: Objects, kubeconfig: str, *, page: str, health: str, folder: Path
    ) -> None:
        self._objects, self._folder = objects, folder
        self._config, self._page, self._health = kubeconfig, page, health

    def _run(self, *words: str) -> Json:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            main([*words, "--kubeconfig", self._config, "-o", "json"])
        assert out.getvalue(), err.getvalue()
        result: Json = json.loads(out.getvalue())
        return result

    def whatif(self, pod: Json) -> Json:
        """The prediction for the pod."""
        file = self._folder / "pod.json"
        file.write_text(json.dumps(pod))
        result: Json = self._run("whatif", "--pods", str(file))["pods"][0]
        return result

    def explain(self, name: str) -> Json:
        """The explanation by the extender's books, which must be that by lists."""
        listed = self._run("explain", name, "-n", "default")
        booked: Json = {}

        def agrees() -> bool:
            booked.clear()
            booked.update(self._run("explain", name, "-n", "default", "--extender", self._health))
            return bool(booked["explanation"] == listed["explanation"])

        until(agrees, lambda: f"{booked['explanation']} is {listed['explanation']}")
        return booked

    def booked(self, pod: Json) -> Json:
        """The explanation by the extender's books alone, which have its holds."""
        name = pod["metadata"]["name"]
        return self._run("explain", name, "-n", "default", "--extender", self._health)

    def doctor(self) -> list[Json]:
        """The findings about pods that wait."""
        findings = self._run("doctor")["findings"]
        return [finding for finding in findings if finding["check"] == "pending-pods"]

    def note(self, pod: Json) -> str:
        """The note of the event that no node takes the pod; "" without one."""
        uid = pod["metadata"]["uid"]
        items = self._objects.api.get(_EVENTS).body["items"]
        notes = [
            item["note"]
            for item in items
            if item["reason"] == "GPUShareNoFit" and item["regarding"].get("uid") == uid
        ]
        return str(notes[-1]) if notes else ""

    def page(self, waiting: Collection[str] | None = None) -> Json:
        """The part of the page, once it has the pods of these names and explains each."""
        part: Json = {}

        def told() -> bool:
            with closing(HttpClient(self._page)) as page:
                answer = page.call("GET", "/ui/books.json", timeout=10.0)
            part.update(json.loads(answer.body)["resources"][0])
            shown = {pod["name"]: pod["why"] for pod in part["pending"]}
            if waiting is None:
                return all(shown.values())
            # The watch shows kube-scheduler's answer a moment later.
            is_new = any(pod["scheduler"] == _UNASKED for pod in part["pending"])
            return all(shown.values()) and shown.keys() == set(waiting) and not is_new

        until(told, lambda: f"explained pods: {part}")
        return part

    def node_states(self, count: int) -> None:
        """Wait until the command, the page and the metrics know so many nodes, in equal states and
        with as much free memory.
        """
        told: dict[str, dict[str, tuple[str, int]]] = {}

        def agree() -> bool:
            with closing(HttpClient(self._health)) as health:
                text = health.call("GET", "/metrics", timeout=10.0).body.decode()
            free: Counter[str] = Counter()
            for labels, value in _samples(text, "gpushare_device_memory_free_bytes"):
                free[labels["node"]] += round(float(value)) >> 30
            told["metrics"] = {
                labels["node"]: (labels["state"], free[labels["node"]])
                for labels, _ in _samples(text, "gpushare_node_state")
            }
            for place, document in (("inspect", self._run("inspect")), ("page", self.page())):
                nodes = document["nodes"]
                told[place] = {node["name"]: (node["state"], node["free"]) for node in nodes}
            return all(len(of) == count and of == told["inspect"] for of in told.values())

        until(agree, lambda: f"equal states: {told}")


def _samples(text: str, name: str) -> Iterator[tuple[dict[str, str], str]]:
    """The samples of a gauge: (labels, value)."""
    for labels, value in re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE):
        yield dict(re.findall(r'(\w+)="([^"]*)"', labels)), value


def follow(objects: Objects, remedy: Json) -> None:
    """Do what the remedy of an explanation says."""
    objects.delete(*({"metadata": pod} for pod in remedy["ends"]))
    node = remedy["node"]
    if remedy["opens"]:
        _open(objects, node)
    for cure in remedy["cures"]:
        for pattern, action in _CURES.items():
            if match := re.fullmatch(pattern, cure):
                action(objects, node, *match.groups())
                break
        else:
            raise AssertionError(f"nobody knows how to follow {cure!r}")


def _open(objects: Objects, node: str) -> None:
    """Let all closed cards of the node return."""
    if objects.api.get(f"{_MAPS}/unhealthy-gpu-{node}").status == 200:
        objects.patch(f"{_MAPS}/unhealthy-gpu-{node}", {"data": {"gpus": ""}})
    annotations = objects.api.get(f"{NODES}/{node}").body["metadata"].get("annotations", {})
    if text := annotations.get(ALIYUN.inventory):
        devices = [device | {"healthy": True} for device in json.loads(text)["devices"]]
        objects.patch(f"{NODES}/{node}", {"metadata": {"annotations": _inventory(devices)}})


def _uncordon(objects: Objects, node: str) -> None:
    objects.patch(f"{NODES}/{node}", {"spec": {"unschedulable": False}})


def _untaint(objects: Objects, node: str, key: str) -> None:
    taints = objects.api.get(f"{NODES}/{node}").body["spec"].get("taints", [])
    remaining = [taint for taint in taints if taint["key"] != key]
    objects.patch(f"{NODES}/{node}", {"spec": {"taints": remaining}})


def _make_ready(objects: Objects, node: str) -> None:
    conditions = [{"type": "Ready", "status": "True", "reason": "x"}]
    objects.patch(f"{NODES}/{node}/status", {"status": {"conditions": conditions}})
    _untaint(objects, node, _NOT_READY["key"])


def _offer(objects: Objects, node: str, resource: str) -> None:
    status = objects.api.get(f"{NODES}/{node}").body["status"]
    amounts = {resource: status["capacity"][resource]}
    objects.patch(f"{NODES}/{node}/status", {"status": {"allocatable": amounts}})


def _empty(objects: Objects, node: str, _resource: str = "") -> None:
    pods = [pod for pod in objects.pods() if pod["spec"].get("nodeName") == node]
    objects.delete(*pods)


_ACTIONS = (_uncordon, _make_ready, _untaint, _offer, _offer, _empty)
_CURES: dict[str, Callable[..., None]] = dict(zip(CURES, _ACTIONS, strict=True))
"""How to bring about what an obstacle says after "once"."""


def open_all(objects: Objects) -> None:
    """End all pods, and open all nodes and devices."""
    objects.delete(*objects.pods())
    for node in objects.nodes():
        name = node["metadata"]["name"]
        _uncordon(objects, name)
        _make_ready(objects, name)
        objects.patch(f"{NODES}/{name}", {"spec": {"taints": []}})
        _offer(objects, name, MEM)
        _open(objects, name)


def check(objects: Objects, sayings: Sayings, chance: Random, *, nodes: int, pods: int) -> None:
    """Check that all surfaces say of a cluster by chance what kube-scheduler does, and that advice
    helps.
    """
    for _ in range(nodes):
        make_node(
            objects,
            chance.choice(STATES),
            chance.choice("ab"),
            chance.choice((16, 32)),
            has_inventory=chance.random() < 0.5,
            sharers=chance.choice(("", "", "1", "2")),
        )
    sayings.node_states(nodes)
    waiting: dict[str, Json] = {}
    for number in range(pods):
        if number == pods // 2 and (used := _used_nodes(objects)):
            close_card(objects, chance.choice(used), 0)
            sayings.node_states(nodes)
        pod = make_pod(chance, fresh("pod"))
        promised = sayings.whatif(pod)
        created = objects.api.create(PODS, pod).body
        node = outcome(objects, created)
        if "schedulingGates" in pod["spec"]:
            assert not node
        else:
            expected = promised["fit"] == 1 and not (_has_port(pod) and not node)
            assert expected == bool(node), (promised, pod, objects.nodes())
        if node:
            run(objects, created)
        else:
            is_judged = "schedulingGates" not in pod["spec"] and not _has_port(pod)
            if promised["verdict"] and is_judged:
                explained = sayings.explain(pod["metadata"]["name"])
                assert promised["verdict"] == _verdict_of(explained)[0], (promised, explained)
            waiting[pod["metadata"]["name"]] = created
    _check_statements(sayings, waiting)
    ungated = [pod for pod in waiting.values() if "schedulingGates" not in pod["spec"]]
    objects.delete(*waiting.values())
    never = [
        pod
        for place, pod in enumerate(ungated)
        if not _check_advice(objects, sayings, chance, pod, has_event=place < _EVENTS_CHECKED)
    ]
    open_all(objects)
    for pod in never:
        again = objects.again(pod)
        assert not outcome(objects, again), (pod, objects.nodes())
        objects.delete(again)


def check_large_cards(objects: Objects, sayings: Sayings, chance: Random, state: str) -> None:
    """Check that nobody says "never" of a pod whose cards are full, or on a node in this state."""
    for node_state, units in (("plain", 16), (state, 32)):
        make_node(objects, node_state, "a", units)
    sayings.node_states(2)
    if state == "plain":
        for _ in range(2):
            holder = objects.pod(32)
            assert outcome(objects, holder)
            run(objects, holder)
    pod = objects.pod(24)
    assert not outcome(objects, pod)
    _check_statements(sayings, {pod["metadata"]["name"]: pod})
    objects.delete(pod)
    assert _check_advice(objects, sayings, chance, pod, has_event=True)


def _node_with_two_pods(objects: Objects, sayings: Sayings, units: int) -> tuple[str, list[Json]]:
    """Return a new node and the two pods that run there, with so many units each."""
    node = make_node(objects, "plain", "a")
    sayings.node_states(1)
    holders = [objects.pod(units), objects.pod(units)]
    for holder in holders:
        assert outcome(objects, holder) == node
        run(objects, holder)
    return node, holders


def check_dead_card(objects: Objects, sayings: Sayings, chance: Random) -> None:
    """Check that the advice for a pod counts a pod on a dead card, which the node's sums have."""
    node, holders = _node_with_two_pods(objects, sayings, 12)
    (device,) = objects.devices_of(holders[0])
    close_card(objects, node, device)
    pod = objects.pod(16)
    assert not outcome(objects, pod)
    _check_statements(sayings, {pod["metadata"]["name"]: pod})
    objects.delete(pod)
    assert _check_advice(objects, sayings, chance, pod, has_event=True)


def check_reservation(objects: Objects, sayings: Sayings) -> None:
    """Check that nobody calls room free that filter keeps for a pod with a reservation."""
    node, holders = _node_with_two_pods(objects, sayings, 16)
    large = objects.pod(32, annotations={COUNT: "2"})
    assert not outcome(objects, large)
    until(lambda: bool(sayings.booked(large)["reserved"]), "the node is reserved")
    objects.delete(holders[0])
    late = objects.pod(12)
    assert not outcome(objects, late)
    name, booked = late["metadata"]["name"], sayings.booked(late)
    assert booked["held"][0]["node"] == node, booked
    verdict, _ = _verdict_of(booked)
    assert verdict is PodVerdict.MAY_FIT, booked
    shown = {pod["name"]: pod["why"] for pod in sayings.page()["pending"]}
    assert shown[name].endswith(_verdict(booked)), (shown, booked)
    until(lambda: _verdict(booked) in sayings.note(late), lambda: sayings.note(late))
    objects.delete(holders[1])
    objects.lands(large)


def _used_nodes(objects: Objects) -> list[str]:
    """The nodes with pods and without a dead card."""
    used = {pod["spec"].get("nodeName", "") for pod in objects.pods()} - {""}
    return sorted(node for node in used if not node.startswith("dead-card"))


def _has_port(pod: Json) -> bool:
    """Whether the pod asks for a port of the host, which nodes do not show."""
    return "ports" in pod["spec"]["containers"][0]


def _check_statements(sayings: Sayings, waiting: dict[str, Json]) -> None:
    """Check that the surfaces say the same of the pods that wait."""
    shown = {pod["name"]: pod for pod in sayings.page(waiting.keys())["pending"]}
    findings = sayings.doctor()
    assert {item["level"] for item in findings} <= {"ok", "warn"}, findings
    assert not [item for item in findings if "without a word" in item["what"]], findings
    for name, pod in waiting.items():
        is_gated = "schedulingGates" in pod["spec"]
        explained = sayings.explain(name)
        assert explained["state"] == "pending", explained
        assert explained["scheduler"]["gated"] == is_gated
        text = shown[name]
        if is_gated:
            assert text["scheduler"] == "its scheduling gates hold it back"
            continue
        verdict = _verdict(explained)
        assert not explained["explanation"]["fit"] or _has_port(pod), explained
        assert text["asked"] == (text["scheduler"] is None), text
        assert text["scheduler"] in {None, "kube-scheduler's own filters leave it no node"}
        assert text["why"].endswith(verdict), (text, explained)


def _verdict(explained: Json) -> str:
    """The verdict of `gpushare explain` as the words of a sentence."""
    verdict, text = _verdict_of(explained)
    words = {PodVerdict.NEVER_FITS: "can never fit:"}.get(verdict, str(verdict))
    return f"it {words} {text}"


def _verdict_of(explained: Json) -> tuple[PodVerdict, str]:
    """The verdict of `gpushare explain`, and its text."""
    for line in explained["lines"]:
        label, _, text = line.partition(":")
        text = re.sub(r"(, as nodes and devices are now|; kube-scheduler tries).*", "", text)
        for verdict in verdicts_of(text.strip()):
            if label == verdict.capitalize():
                return verdict, text.strip()
    raise AssertionError(f"no verdict: {explained['lines']}")


def _check_advice(
    objects: Objects, sayings: Sayings, chance: Random, pod: Json, *, has_event: bool
) -> bool:
    """Follow advice for the pod, alone in the queue; return whether there was any.

    has_event: whether the limits on events let the extender write one if it was called.
    """
    created = objects.again(pod)
    if outcome(objects, created):
        run(objects, created)
        return True
    explained = sayings.explain(pod["metadata"]["name"])
    explanation, verdict = explained["explanation"], _verdict(explained)
    if has_event and explained["scheduler"]["asked"]:
        until(lambda: bool(sayings.note(created)), "the pod has an event")
        assert verdict[:300] in sayings.note(created), (sayings.note(created), explained)
    if explanation["never"]:
        objects.delete(created)
        return False
    if explanation["fit"]:
        assert _has_port(pod), (explanation, pod)
        objects.delete(created)
        return True
    assert explanation["remedies"], (explanation, pod, objects.nodes())
    remedy = chance.choice(explanation["remedies"])
    follow(objects, remedy)
    if remedy["lacks"] or _has_port(pod):
        objects.delete(created)
        return True
    until(
        lambda: objects.node_of(created) == remedy["node"],
        lambda: f"bound by the advice {remedy}: {objects.get(created)}, {objects.nodes()}",
    )
    run(objects, created)
    return True
