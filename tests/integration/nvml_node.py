"""A node and a plug-in that asks NVML: the driver's, or a stand-in with the answers of a test."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.inventory import Inventory, decode_inventory
from gpushare_localcluster.api.resources import EVENTS
from tests.integration.cluster import PODS, Cluster, Json
from tests.integration.plugin_world import PluginNode


class NvmlNode(PluginNode):
    """The node. root: where its /proc and /sys are; cards: the answers of NVML."""

    def __init__(
        self,
        cluster: Cluster,
        *flags: str,
        cards: Sequence[Mapping[str, object]],
        root: Path = Path("/"),
    ) -> None:
        super().__init__(cluster, *flags, cards=cards)
        self.root = root

    def command(self) -> list[str]:
        words = super().command()
        place = words.index("--devices-file")
        more = ("--recover-seconds", "1", "--host-root", str(self.root))
        return [*words[:place], *words[place + 2 :], *more]

    def told(self) -> Inventory:
        notes = self.node_object()["metadata"]["annotations"]
        return decode_inventory(notes[ALIYUN.inventory])

    def say_started(self, pod: Json, ids: Sequence[str]) -> None:
        """Have the API server show these ids of the pod's containers, as a kubelet writes ids."""
        statuses = [
            {"name": f"c{number}", "containerID": f"containerd://{entry}"}
            for number, entry in enumerate(ids)
        ]

        def started(body: Json) -> Json:
            return {**body, "status": {**body["status"], "containerStatuses": statuses}}

        self.cluster.change(PODS, "default", pod["metadata"]["name"], started)

    def events(self, reason: str) -> list[str]:
        """Return the notes of the events with that reason about the existing pods."""
        pods = {body["metadata"]["uid"] for body in self.cluster.all(PODS)}
        return [
            body["message"]
            for body in self.cluster.all(EVENTS)
            if body["reason"] == reason and body["involvedObject"]["uid"] in pods
        ]

    def node_events(self, reason: str) -> list[str]:
        """Return the notes of the events with that reason about the node."""
        return [
            body["message"]
            for body in self.cluster.all(EVENTS)
            if (body["reason"], body["involvedObject"]["kind"]) == (reason, "Node")
            and body["involvedObject"]["name"] == self.name
        ]

    def samples(self, name: str) -> dict[str, float]:
        """Return the metric's value of each container, "pod/container/uuid"."""
        result = {}
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{name}{{"):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
                place = "/".join(labels[item] for item in ("pod", "container", "uuid"))
                result[place] = float(line.rpartition(" ")[2])
        return result


class StandInNode(NvmlNode):
    """A node with the NVML of stand_in_nvml.c, in the folder `library`."""

    def __init__(
        self,
        cluster: Cluster,
        library: Path,
        *flags: str,
        gpus: Sequence[str],
        driver: str = "",
    ) -> None:
        cards = [{"uuid": line.split()[0], "memoryMiB": int(line.split()[1])} for line in gpus]
        super().__init__(cluster, *flags, cards=cards)
        self.root = self.folder / "root"
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": str(library),
            "STAND_IN_NVML": str(self.folder / "nvml"),
            **({"STAND_IN_DRIVER": driver} if driver else {}),
        }
        self.says(*gpus)
        self.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")

    def says(self, *lines: str) -> None:
        new = self.folder / "nvml.new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.folder / "nvml")

    def write(self, path: str, text: str) -> None:
        """Write a file of the node."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, pod: Json, *pids: int) -> list[str]:
        """Run each container of the pod with that process; return the containers' ids."""
        meta, ids = pod["metadata"], [token_hex(32) for _ in pids]
        slices = "kubepods.slice/kubepods-pod" + meta["uid"].replace("-", "_") + ".slice"
        for pid, entry in zip(pids, ids, strict=True):
            path = f"{slices}/cri-containerd-{entry}.scope"
            self.write(f"proc/{pid}/cgroup", f"0::/{path}\n")
            self.write(f"sys/fs/cgroup/{path}/cgroup.procs", f"{pid}\n")
        self.say_started(pod, ids)
        return ids
