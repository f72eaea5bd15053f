"""One cluster of both worlds: a node with our DRA driver, and one with our device plug-in.

kube-apiserver, kube-scheduler, the controller of claims, our extender and both kubelets are real;
the container runtimes record their calls. The content of a CDI device is read from the driver's
files, as by a runtime.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from gpushare.wire.quantity import to_bytes
from tests.contract.apiserver.client import Json
from tests.e2e.binaries import needed
from tests.e2e.claims import CLAIMS, DRIVER, SLICES, memory_request, with_claims_entry
from tests.e2e.cluster import pod
from tests.e2e.node import Created, Node
from tests.e2e.objects import PODS, fresh
from tests.e2e.plane import SECOND_NODE, Plane
from tests.e2e.plugins import Ours
from tests.e2e.processes import Process, until
from tests.e2e.world import World, apply, give_lease_away

MIB_OF_GIB = 1024
_PROGRAM = (sys.executable, "-P", "-m", "gpushare_localcluster.dra.main")
_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


class Driver:
    """`gpushare-dra-driver` on a node, with the rights of the kubelet; sizes: GiB of the GPUs."""

    def __init__(self, plane: Plane, node: Node, folder: Path, *sizes: int) -> None:
        folder.mkdir()
        self._api, self._node, self._folder = plane.api(), node, folder
        self.sizes = {f"GPU-dra-{index}": gib for index, gib in enumerate(sizes)}
        devices = [
            {"uuid": uuid, "index": index, "memoryMiB": gib * MIB_OF_GIB, "model": "A100"}
            for index, (uuid, gib) in enumerate(self.sizes.items())
        ]
        self._file = folder / "devices.json"
        self._file.write_text(json.dumps({"devices": devices}))
        self._cdi = folder / "cdi"
        self.process: Process | None = None

    def start(self) -> None:
        """Wait for the slice."""
        node = self._node
        command: list[str | Path] = [
            *(*_PROGRAM, "--node-name", node.name, "--driver", DRIVER),
            *("--devices-file", self._file, "--kubelet-dir", node.root, "--cdi-dir", self._cdi),
            *("--kubeconfig", node.kubeconfig),
        ]
        self.process = Process("dra-driver", command, self._folder)
        self.process.wait(lambda: bool(self.slices()), "has no slice")

    def kill(self) -> None:
        if self.process:
            self.process.kill()

    @property
    def log(self) -> str:
        return self.process.log if self.process else ""

    def slices(self) -> list[str]:
        """The uids of the driver's slices."""
        items = self._api.get(SLICES).body["items"]
        return [item["metadata"]["uid"] for item in items]

    def prepared(self) -> Mapping[str, Mapping[str, str]]:
        """The variables of each CDI device, by name."""
        result = {}
        for file in self._cdi.glob("*.json"):
            try:
                document = json.loads(file.read_text())
            except FileNotFoundError:  # the claim has just been unprepared
                continue
            for device in document["devices"]:
                variables = device["containerEdits"]["env"]
                name = f"{document['kind']}={device['name']}"
                result[name] = dict(item.split("=", 1) for item in variables)
        return result

    def given(self) -> Mapping[str, int]:
        """GiB of each GPU in prepared claims."""
        result: dict[str, int] = defaultdict(int)
        for variables in self.prepared().values():
            for uuid in variables[_VISIBLE].split(","):
                result[uuid] += int(variables[_LIMIT]) // MIB_OF_GIB
        return result

    def told(self, created: Created) -> tuple[str, int]:
        """The GPU and the GiB that a container has been told of; ("", 0) for none."""
        env: dict[str, str] = {}
        for name in created.cdi_devices:
            env |= self.prepared()[name]
        return env.get(_VISIBLE, ""), int(env.get(_LIMIT, 0)) // MIB_OF_GIB


class BothWorlds:
    """The cluster, and the pods and claims that tests make in it."""

    def __init__(self, plane: Plane, folder: Callable[[str], Path]) -> None:
        """folder: makes a new one with a short path."""
        self.world = World(plane, folder("w"), flags=("--claims", DRIVER, "--pairing", "auto"))
        with_claims_entry(self.world.pair.file)
        apply(plane, "extender/claims")
        self.api, self.objects = plane.api(), plane.objects()
        program = needed("kube-controller-manager")
        self.controllers = plane.start_controllers(program, "resourceclaim-controller")
        # The kubelet retries a failed preparation of a claim only after this time.
        self.node = Node(plane, folder("a") / "node", sync="2s")
        self.driver = Driver(plane, self.node, folder("d") / "dra", 80, 24)
        self.other = Node(plane, folder("b") / "node", SECOND_NODE)
        self.plugin = Ours(plane, self.other, folder("p") / "plugin")
        self.second_plugin = Ours(plane, self.node, folder("q") / "plugin")

    def start(self) -> None:
        """Return when pods of both kinds can come."""
        for node in (self.node, self.other):
            node.start()
        self.driver.start()
        self.plugin.start()
        give_lease_away(self.api)
        self.world.start()
        self.world.extender.knows(self.other.name)

    def stop(self) -> None:
        self.driver.kill()
        self.plugin.kill()
        self.second_plugin.kill()
        for node in (self.node, self.other):
            node.stop()
        self.controllers.kill()
        self.world.stop()

    # -- made -----------------------------------------------------------------------------------

    def claim(self, gib: int) -> str:
        name = fresh("claim")
        spec = {"devices": {"requests": [memory_request(gib)]}}
        self.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
        return name

    def with_claim(self, claim: str, **spec: object) -> Json:
        """A new pod with the claim in the first of two containers."""
        body = pod(0, 0)
        body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
        return self.create(body, **spec)

    def create(self, body: Json, **spec: object) -> Json:
        body["spec"] |= spec
        return self.api.create(PODS, body).body

    # -- seen -----------------------------------------------------------------------------------

    def phase(self, pod: Json) -> str:
        return str(self.objects.get(pod)["status"].get("phase"))

    def run(self, *pods: Json) -> None:
        """Wait until all of the pods run."""
        for item in pods:
            until(
                lambda each=item: self.phase(each) == "Running",  # type: ignore[misc]  # its own
                lambda each=item: f"{self.objects.get(each)['status']}\n{self.told()}",  # type: ignore[misc]
            )

    def container(self, pod: Json, name: str = "main-0") -> Created:
        """The container as it was created last."""
        uid = pod["metadata"]["uid"]
        of_pod = [item for item in self.node.created() if (item.uid, item.container) == (uid, name)]
        return of_pod[-1]

    def has(self, pod: Json) -> tuple[str, int]:
        """The GPU and the GiB that the container with the pod's claim was told of."""
        return self.driver.told(self.container(pod))

    def allocated(self, claim: str) -> tuple[str, int]:
        """The GPU and the GiB that the claim was given."""
        status = self.api.get(f"{CLAIMS}/{claim}").body["status"]
        (result,) = status["allocation"]["devices"]["results"]
        index = int(result["device"].removeprefix("gpu-"))
        return list(self.driver.sizes)[index], to_bytes(result["consumedCapacity"]["memory"]) >> 30

    def waits(self, pod: Json, *texts: str) -> None:
        """Fail unless the pod is unbound and has an event that says so."""
        self.objects.refusal(pod, *texts)
        assert not self.objects.node_of(pod)

    def delete(self, *pods: Json) -> None:
        """Delete pods as a user does, and wait until the kubelet has stopped the pods."""
        for item in pods:
            self.api.delete(self.objects.path(item))
        for item in pods:
            path = self.objects.path(item)
            until(lambda path=path: self.api.get(path).status == 404, self.told)  # type: ignore[misc]

    def clear(self) -> None:
        """Delete all pods and claims, and wait until the claims are unprepared."""
        self.delete(*self.objects.pods())
        for item in self.api.get(CLAIMS).body["items"]:
            self.api.delete(f"{CLAIMS}/{item['metadata']['name']}")
        until(lambda: not self.api.get(CLAIMS).body["items"], self.told)
        until(lambda: not self.driver.prepared(), self.told)

    def told(self) -> str:
        """The state for the message of a failed wait."""
        driver = self.driver.process.last_lines() if self.driver.process else ""
        return f"{self.world.told()}\n{driver}\n{self.node.told()}"
