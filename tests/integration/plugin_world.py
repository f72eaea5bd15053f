"""A node of a test: an API server, a kubelet's device manager, and `gpushare device-plugin` as a
process. The extender's part, the Binding, is written by hand.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from gpushare.core.model import Allocation
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from gpushare.wire.objects import PODS as POD_CODEC
from gpushare.wire.pods import request_of
from tests.integration.cluster import MEM, NODES, PODS, Cluster, Json, fresh
from tests.integration.process import free_port
from tests.support.waiting import poll
from tests.unit.device_plugin.fake_kubelet import FakeKubelet

CARDS = 4
UNITS = 16


class PluginNode:
    """The node. flags: more flags of the plug-in; cards: the content of its devices file."""

    def __init__(
        self, cluster: Cluster, *flags: str, cards: Sequence[Mapping[str, object]] = ()
    ) -> None:
        # Short: a socket's path has at most 107 characters.
        self._temporary = tempfile.TemporaryDirectory(prefix="dp-")
        self.folder = Path(self._temporary.name)
        self.cluster = cluster
        self.flags = flags
        self.name = cluster.node(devices=0, total=0)
        self.kubelet = FakeKubelet(self.folder, pods_api="--pods-api-socket" in flags)
        self.cards = [dict(card) for card in cards] or [card(index) for index in range(CARDS)]
        self.write_cards()
        self.process: subprocess.Popen[bytes] | None = None
        self.log_file = self.folder / "plugin.log"
        self.health_port = free_port()
        self.environment: dict[str, str] = dict(os.environ)
        self._random = random.Random(0)

    @property
    def units(self) -> int:
        return sum(int(str(card["memoryMiB"])) // 1024 for card in self.cards)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def write_cards(self) -> None:
        new = self.folder / "devices.new"
        new.write_text(json.dumps({"devices": self.cards}))
        new.replace(self.folder / "devices.json")

    def start(self) -> Self:
        self.kubelet.start()
        self.start_plugin()
        self.kubelet.wait_advertised(self.units)
        return self

    def start_plugin(self, *, wait: bool = True) -> None:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=self.environment
            )
        if wait:
            poll(self.ready, "the plug-in is not ready", 60.0)

    def command(self) -> list[str]:
        flags = [
            *("--node-name", self.name, "--kubeconfig", self.cluster.kubeconfig(self.folder)),
            *("--devices-file", str(self.folder / "devices.json")),
            *("--device-plugin-dir", str(self.kubelet.plugins)),
            *("--pod-resources-socket", str(self.kubelet.pod_resources)),
            *("--health-port", str(self.health_port)),
        ]
        more = self.flags
        if "--pods-api-socket" not in more:
            more = (*more, "--pods-api-socket", "")
        more = tuple(str(self.kubelet.pods_socket) if item == "@" else item for item in more)
        return [sys.executable, "-P", "-m", "gpushare.cli.main", "device-plugin", *flags, *more]

    def ended(self, *more: str) -> tuple[int, str]:
        """Exit code and last line of a plug-in that does not start."""
        completed = subprocess.run(
            [*self.command(), *more],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
        )
        return completed.returncode, completed.stderr.splitlines()[-1]

    def get(self, path: str) -> tuple[int, str]:
        try:
            url = f"http://127.0.0.1:{self.health_port}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        return self.get("/readyz")[0] == 200

    def metric(self, name: str) -> float:
        """The sum of the samples of that name."""
        lines = self.get("/metrics")[1].splitlines()
        result = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in result)

    def knows(self, *pods: Json) -> None:
        """Return when the plug-in's watch has shown that many pods with a request for memory."""
        poll(lambda: self.metric("gpushare_device_plugin_pods") == len(pods), "pods are not seen")

    def stop_plugin(self, number: int = signal.SIGTERM) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(20)
        self.process = None
        return code

    def replace_plugin(self) -> None:
        """As a DaemonSet with maxSurge does: end the old one when the new one is ready."""
        old, self.health_port = self.process, free_port()
        self.start_plugin()
        new, self.process = self.process, old
        self.stop_plugin()
        self.process = new

    def stop(self) -> None:
        self.stop_plugin(signal.SIGKILL)
        self.kubelet.stop()
        self._temporary.cleanup()

    # -- pods -------------------------------------------------------------------------------------

    def pod(
        self,
        *units: int,
        devices: Sequence[int] = (0,),
        inits: Sequence[int] = (),
        sidecars: Sequence[int] = (),
        name: str = "",
        count: int = 1,
        annotations: Mapping[str, str] | None = None,
        cores: Sequence[int] = (),
    ) -> Json:
        """A new pod that is bound here, with these devices by index, as the API server shows it.

        The pod has a container for each number of units, and such init containers. annotations:
        beside those of the Binding, or in their place. cores: percent of compute of each, or ().
        """
        before = [_container(f"i{n}", entry) for n, entry in enumerate(inits)]
        before += [
            {**_container(f"s{n}", entry), "restartPolicy": "Always"}
            for n, entry in enumerate(sidecars)
        ]
        spec = {"initContainers": before} if before else {}
        if cores:
            percents = zip(units, cores, strict=True)
            spec["containers"] = [_container(f"c{n}", *entry) for n, entry in enumerate(percents)]
        wish = {ALIYUN.count: str(count)} if count > 1 else {}
        body = self.cluster.pod(*units, name=name, annotations=wish, spec=spec)
        request = request_of(POD_CODEC.decode(json.dumps(body).encode()), ALIYUN)
        item = request.total // len(devices)
        names = tuple(self.uuid(index) for index in devices)
        shares = tuple((device, item) for device in devices)
        allocation = Allocation(self.name, shares, names)
        notes = encode(allocation, request, UNITS, str(self._random.getrandbits(60)), ALIYUN)
        self.cluster.annotate_pod(body, {**notes, **(annotations or {})})
        meta = body["metadata"]
        self.cluster.change(
            PODS,
            "default",
            meta["name"],
            lambda body: {**body, "spec": {**body["spec"], "nodeName": self.name}},
        )
        return self.cluster.get(body)

    def uuid(self, index: int) -> str:
        return str(self.cards[index]["uuid"])

    def node_object(self) -> Json:
        return dict(self.cluster.store.get(NODES.table, "", self.name).body)

    def assigned(self, pod: Json) -> bool:
        return self.cluster.annotations(pod).get(ALIYUN.assigned) == "true"


def card(index: int, units: int = UNITS) -> dict[str, object]:
    """A card as a devices file has it."""
    uuid = f"GPU-{index:08x}-0000-4000-8000-{fresh('x')[2:]:0>12}"
    return {"uuid": uuid, "index": index, "memoryMiB": units * 1024, "model": "T4"}


def _container(name: str, units: int, cores: int = 0) -> Json:
    limits = {MEM: str(units)} | ({ALIYUN.cores: str(cores)} if cores else {})
    return {"name": name, "image": "x", "resources": {"limits": limits}}
