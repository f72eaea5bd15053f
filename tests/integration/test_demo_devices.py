"""The local cluster's kubelet asks real device plug-ins, and its containers show the answers."""

import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from gpushare.core.model import Allocation
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from gpushare.wire.inventory import decode_inventory
from gpushare.wire.objects import PODS as POD_CODEC
from gpushare.wire.pods import request_of
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.demo import processes
from gpushare_localcluster.kubelet import Kubelet
from gpushare_localcluster.main import main
from tests.integration.cluster import MEM, NODES, PODS, Cluster, Json
from tests.support.waiting import poll

UNITS = 16


class Place:
    """A cluster with a kubelet and its device plug-ins; the extender's part is written by hand."""

    def __init__(self, ends: ExitStack) -> None:
        self.cluster = Cluster()
        ends.callback(self.cluster.stop)
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="dd-")))
        kubeconfig = Path(self.cluster.kubeconfig(folder))
        devices, _ = processes.start_device_plugins(folder, kubeconfig, ends)
        self.devices, self.folder = devices, folder
        self.plugin_log = folder / "device-plugins.log"
        api = ApiClient(self.cluster.server.url, user_agent="kubelet")
        kubelet = Kubelet(api, self.cluster.server.logs, devices)
        ends.callback(kubelet.stop)
        kubelet.start()

    def node(self, devices: int = 2, units: int = UNITS) -> str:
        """A new node with a running device plug-in, if the node gets one."""
        name = self.cluster.node(devices=devices, total=devices * units)
        poll(lambda: self.devices.serve({name}), "the device plug-in does not serve")
        return name

    def bound(self, node: str, *units: int, device: int = 0, inits: tuple[int, ...] = ()) -> Json:
        """A new pod that is bound to a device of the node."""
        before = [
            {"name": f"i{n}", "image": "x", "resources": {"limits": {MEM: str(entry)}}}
            for n, entry in enumerate(inits)
        ]
        pod = self.cluster.pod(*units, spec={"initContainers": before} if before else {})
        request = request_of(POD_CODEC.decode(json.dumps(pod).encode()), ALIYUN)
        allocation = Allocation(node, ((device, request.total),))
        self.cluster.annotate_pod(pod, encode(allocation, request, UNITS, "1", ALIYUN))
        name = pod["metadata"]["name"]
        self.cluster.change(
            PODS, "default", name, lambda body: {**body, "spec": {**body["spec"], "nodeName": node}}
        )
        return pod

    def status(self, pod: Json) -> Json:
        return dict(self.cluster.get(pod).get("status") or {})

    def becomes(self, pod: Json, phase: str) -> Json:
        poll(lambda: self.status(pod).get("phase") == phase, f"it is not {phase}")
        return self.status(pod)

    def log(self, pod: Json, container: str) -> list[str]:
        lines = self.cluster.server.logs.read(pod["metadata"]["uid"], container)
        return [line for _, line in lines]

    def held(self, pod: Json) -> list[str]:
        """The containers of the pod that hold devices."""
        name = pod["metadata"]["name"]
        return [container for owner, container, _ in self.devices.told() if owner == name]

    def healthy(self, node: str) -> int:
        body = self.cluster.store.get(NODES.table, "", node).body
        return int(body["status"]["allocatable"][MEM])


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with ExitStack() as ends:
        yield Place(ends)


def test_each_container_is_told_the_device_of_its_pod_and_its_log_shows_it(place: Place) -> None:
    node = place.node()
    pod = place.bound(node, 2, 3, device=1, inits=(4,))
    place.becomes(pod, "Running")
    for container, units in (("c0", 2), ("c1", 3)):
        log = place.log(pod, container)
        assert f"NVIDIA_VISIBLE_DEVICES=GPU-{node}-1" in log
        assert f"ALIYUN_COM_GPU_MEM_CONTAINER={units}" in log
    poll(lambda: place.cluster.annotations(pod).get(ALIYUN.assigned) == "true", "not marked")


def test_equal_pods_bound_at_once_are_each_on_the_device_of_their_own(place: Place) -> None:
    node = place.node(4)
    pods = {index: place.bound(node, UNITS, device=index) for index in (3, 1, 0, 2)}
    for index, pod in pods.items():
        place.becomes(pod, "Running")
        assert f"NVIDIA_VISIBLE_DEVICES=GPU-{node}-{index}" in place.log(pod, "c0")


def test_the_node_says_what_its_plug_in_tells_and_that_it_serves_by_identity(place: Place) -> None:
    node = place.node()
    notes = place.cluster.store.get(NODES.table, "", node).body["metadata"]["annotations"]
    inventory = decode_inventory(notes[ALIYUN.inventory])
    assert inventory.serves_by_identity
    assert [device.uuid for device in inventory.devices] == [f"GPU-{node}-0", f"GPU-{node}-1"]
    manager = next(path for path in place.folder.glob("*/node") if path.read_text() == node)
    file = manager.with_name("devices.json")
    document = json.loads(file.read_text())
    document["devices"][1]["healthy"] = False
    new = file.with_name("new")
    new.write_text(json.dumps(document))
    new.replace(file)
    poll(lambda: place.healthy(node) == UNITS, "the node still offers what is broken")


def test_a_pod_that_the_plug_in_refuses_fails_with_its_words(place: Place) -> None:
    pod = place.bound(place.node(), 4, device=7)
    status = place.becomes(pod, "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "Allocate failed due to GetPreferredAllocation: rpc error" in status["message"]
    assert "gpushare: " in status["message"]


def test_on_a_node_of_too_many_units_the_kubelet_marks_the_pods_itself(place: Place) -> None:
    pod = place.bound(place.node(units=20_000), 9000, device=1)
    place.becomes(pod, "Running")
    assert "9000 units of device memory on device 1" in place.log(pod, "c0")
    assert not place.held(pod)
    assert place.cluster.annotations(pod)[ALIYUN.assigned] == "true"


def test_a_pods_units_are_free_when_it_is_gone_and_a_node_takes_its_plug_in_along(
    place: Place,
) -> None:
    node = place.node(1)
    for _ in range(2):
        pod = place.bound(node, UNITS)
        place.becomes(pod, "Running")
        assert place.held(pod) == ["c0"]
        place.cluster.delete(PODS, "default", pod["metadata"]["name"])
        poll(partial(lambda gone: not place.held(gone), pod), "its units are still held")
    place.cluster.delete(NODES, "", node)
    poll(lambda: not place.devices.serve({node}), "the device manager is still there")
    stopped = f"device plug-in ended node={node}"
    poll(lambda: stopped in place.plugin_log.read_text(), "the device plug-in is still there")


def test_the_plug_ins_end_when_their_parent_is_gone(tmp_path: Path) -> None:
    module = "gpushare_localcluster.devices.plugins"
    plugins = [sys.executable, "-P", "-m", module, "kubeconfig", str(tmp_path)]
    start = (
        "import os, subprocess, time\n"
        f"print(subprocess.Popen([*{plugins!r}, str(os.getpid())]).pid, flush=True)\n"
        "time.sleep(99)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", start], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        process = Path("/proc") / parent.stdout.readline().strip() / "cmdline"
        poll(lambda: module.encode() in process.read_bytes(), "it has not started")
        parent.kill()
    poll(lambda: not process.exists() or not process.read_bytes(), "it still runs")


def test_the_demo_shows_what_containers_were_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["2"]) == 0
    output = capsys.readouterr().out
    placements = dict(re.findall(r"pod (half-\d) -> node gpu-a device (\d)", output))
    assert placements
    for pod, device in placements.items():
        assert f"   {pod}, container main: NVIDIA_VISIBLE_DEVICES=GPU-gpu-a-{device} " in output


def test_on_more_nodes_than_the_limit_the_kubelet_stands_in_and_the_demo_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "_MOST_NODES", 1)
    file = tmp_path / "three.yaml"
    file.write_text(
        "nodes: [{prefix: n, count: 3, gpus: 1, gpuMemory: 4}]\n"
        "steps:\n"
        "- apply: {name: p, gpuMem: 4, replicas: 3}\n"
        "- waitFor: {pods: p-*, is: bound}\n"
    )
    assert main([str(file)]) == 0
    output = capsys.readouterr().out
    message = "device plug-ins run on 1 of 3 nodes, which is the limit; the kubelet stands in"
    assert message in output
    assert output.count("NVIDIA_VISIBLE_DEVICES") == 1


@pytest.mark.parametrize(("files", "most"), [(1024, 78), (100, 0), (-1, 200)])
def test_device_plugins_run_on_as_many_nodes_as_may_have_files_open(
    files: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, files))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert processes.most_nodes() == most
