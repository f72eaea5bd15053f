"""A kubelet's device manager and the sockets around it, over real gRPC on real unix sockets.

It does what k8s.io/kubernetes pkg/kubelet/cm/devicemanager does: registration, reuse of the ids of
init containers, preferred ids, the checkpoint, PreStartContainer. Pods are the API's JSON. Not
there: topology, and what a kubelet does beside devices.
"""

import base64
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.checkpoint import FILE
from gpushare.localcluster.grants import container_units

Json = dict[str, Any]

RESOURCE = "aliyun.com/gpu-mem"


class AdmissionError(Exception):
    """The pod fails with UnexpectedAdmissionError."""


@dataclass
class Held:
    """What a container has of the resource, and the bytes of what it was told."""

    uid: str
    container: str
    ids: frozenset[str]
    response: bytes

    @property
    def envs(self) -> dict[str, str]:
        return dict(pb.ContainerAllocateResponse.FromString(self.response).envs)


@dataclass
class FakeKubelet:
    """One kubelet. folder: short, as a socket's path has at most 107 characters.

    lists: whether pod-resources answers. shows_ended: as before 1.34. pods_api: as from 1.37 on.
    take_preferred: no kubelet leaves preferred ids; by this one the answer shows that it need not.
    one_plugin: as before kubernetes#135437: when a plug-in ends, it drops the one that registered
    last, which may be another. gaps: how often no device was healthy. refuses: how many
    registrations it refuses next.
    """

    folder: Path
    seed: int = 0
    lists: bool = True
    shows_ended: bool = False
    pods_api: bool = False
    take_preferred: bool = True
    one_plugin: bool = False
    pods: dict[str, Json] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)
    registered: int = 0
    gaps: int = 0
    refuses: int = 0

    def __post_init__(self) -> None:
        self.plugins = self.folder / "plugins"
        self.pod_resources = self.folder / "pr.sock"
        self.pods_socket = self.folder / "pods.sock"
        self.plugins.mkdir(exist_ok=True)
        self._random = random.Random(self.seed)
        self._news = threading.Condition()
        self._admission = threading.Lock()
        self._servers: list[grpc.Server] = []
        self._clients: dict[str, grpc.Channel] = {}
        self._reuse: dict[str, set[str]] = {}
        self.lists_seen = 0

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        for path in self.plugins.iterdir():
            if path.name != FILE:
                path.unlink()
        with suppress(FileNotFoundError):
            self.held = list(self._read_checkpoint())
        self._serve(
            self.plugins / "kubelet.sock",
            "v1beta1.Registration",
            {"Register": (self._register, pb.RegisterRequest)},
        )
        self._serve(self.pod_resources, "v1.PodResourcesLister", {"List": (self._list, pb.Empty)})
        if self.pods_api:
            self._serve(
                self.pods_socket, "v1alpha1.Pods", {"ListPods": (self._list_pods, pb.Empty)}
            )

    def stop(self) -> None:
        """As by a kill: what was admitted stays in the checkpoint alone."""
        clients, self._clients = self._clients, {}
        for channel in list(clients.values()):
            channel.close()
        self._take(dict.fromkeys(self.devices, "Unhealthy"))
        for server in self._servers:
            server.stop(0).wait(5)
        self._servers.clear()
        self.devices = {}
        self.registered = 0

    def restart(self) -> None:
        """Start again; the pods come anew from the API server, see `admit`."""
        self.stop()
        self.pods, self._reuse = {}, {}
        self.start()

    def drop_plugins(self) -> None:
        """Follow no plug-in any more, as where another one has come in its place."""
        for channel in list(self._clients.values()):
            channel.close()

    def wait(self, true: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        with self._news:
            assert self._news.wait_for(true, seconds), what

    def wait_advertised(self, count: int) -> None:
        def well() -> int:
            return sum(health == "Healthy" for health in self.devices.values())

        self.wait(lambda: well() == count, f"{count} healthy devices")

    # -- pods -------------------------------------------------------------------------------------

    def add(self, pod: Json) -> None:
        """Add the pod, and admit it; raises AdmissionError where it fails."""
        uid = pod["metadata"]["uid"]
        with self._admission:
            self.pods[uid] = pod
            try:
                for container in self._containers(pod):
                    self._allocate(pod, container)
            except AdmissionError as error:
                self.failed[uid] = str(error)
                self.held = [each for each in self.held if each.uid != uid]
                raise

    def remove(self, uid: str) -> None:
        with self._admission:
            self.pods.pop(uid, None)
            self.held = [each for each in self.held if each.uid != uid]
            self.write_checkpoint()

    def start_container(self, uid: str, name: str) -> dict[str, str]:
        """Return the variables of the container; raises grpc.RpcError where it is refused."""
        (held,) = (each for each in self.held if (each.uid, each.container) == (uid, name))
        request = pb.PreStartContainerRequest(devices_ids=self._shuffled(held.ids))
        self.call("PreStartContainer", request, pb.Empty)
        return held.envs

    def envs(self, uid: str, name: str) -> dict[str, str]:
        """What the container was told at its admission."""
        (held,) = (each for each in self.held if (each.uid, each.container) == (uid, name))
        return held.envs

    def allocate(self, ids: list[str]) -> pb.ContainerAllocateResponse:
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer = self._asked("Allocate", request, pb.AllocateResponse)
        assert isinstance(answer, pb.AllocateResponse)
        return answer.container_responses[0]

    def hold(self, pod: Json, container: str, ids: list[str], envs: dict[str, str]) -> None:
        """Have a container on record that another plug-in was asked for."""
        uid = pod["metadata"]["uid"]
        response = pb.ContainerAllocateResponse(envs=envs).SerializeToString()
        with self._admission:
            self.pods[uid] = pod
            self.held.append(Held(uid, container, frozenset(ids), response))
            self.write_checkpoint()

    # -- device manager ---------------------------------------------------------------------------

    def _allocate(self, pod: Json, container: Json) -> None:
        uid, name = pod["metadata"]["uid"], container["name"]
        needed = container_units(container)
        if not needed or any((each.uid, each.container) == (uid, name) for each in self.held):
            return
        self._reuse = {uid: self._reuse.get(uid, set())}
        ids = self._to_allocate(needed, self._reuse[uid])
        response = self.allocate(self._shuffled(ids)).SerializeToString()
        self.held.append(Held(uid, name, frozenset(ids), response))
        self.write_checkpoint()
        inits = [each["name"] for each in pod["spec"].get("initContainers") or ()]
        if name in inits and container.get("restartPolicy") != "Always":
            self._reuse[uid] |= ids
        else:
            self._reuse[uid] -= ids

    def _to_allocate(self, needed: int, reusable: set[str]) -> set[str]:
        chosen = set(self._shuffled(reusable)[:needed])
        if len(chosen) == needed:
            return chosen
        used = {device for each in self.held for device in each.ids} | chosen
        free = {device for device, health in self.devices.items() if health == "Healthy"} - used
        if len(free) < needed - len(chosen):
            raise AdmissionError("requested number of devices unavailable")
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=self._shuffled(free | chosen),
                    must_include_deviceIDs=self._shuffled(chosen),
                    allocation_size=needed,
                )
            ]
        )
        answer = self._asked("GetPreferredAllocation", request, pb.PreferredAllocationResponse)
        preferred = [*answer.container_responses[0].deviceIDs] if self.take_preferred else []
        chosen |= set([each for each in preferred if each in free][: needed - len(chosen)])
        return chosen | set(self._shuffled(free - chosen)[: needed - len(chosen)])

    def _containers(self, pod: Json) -> list[Json]:
        spec = pod["spec"]
        return [*(spec.get("initContainers") or ()), *spec["containers"]]

    def _shuffled(self, ids: Any) -> list[str]:
        # A set of Go has no order.
        return self._random.sample(sorted(ids), len(ids))

    def _asked(self, method: str, request: Message, answer: Any) -> Any:
        try:
            return self.call(method, request, answer)
        except grpc.RpcError as error:
            raise AdmissionError(f"{method}: {error.details()}") from error

    def call(self, method: str, request: Message, answer: Any) -> Any:
        if not self._clients:
            raise AdmissionError("unknown Device Plugin")
        *_, channel = self._clients.values()
        call = channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", type(request).SerializeToString, answer.FromString
        )
        return call(request, timeout=20)

    def write_checkpoint(self) -> None:
        entries = [
            {
                "PodUID": each.uid,
                "ContainerName": each.container,
                "ResourceName": RESOURCE,
                "DeviceIDs": {"-1": sorted(each.ids)},
                "AllocResp": base64.b64encode(each.response).decode(),
            }
            for each in self.held
        ]
        data = {"PodDeviceEntries": entries, "RegisteredDevices": {RESOURCE: [*self.devices]}}
        new = self.folder / "checkpoint.new"
        new.write_text(json.dumps({"Data": data, "Checksum": 0}))
        new.replace(self.plugins / FILE)

    def _read_checkpoint(self) -> Iterator[Held]:
        document = json.loads((self.plugins / FILE).read_text())
        for each in document["Data"]["PodDeviceEntries"]:
            ids = frozenset(device for group in each["DeviceIDs"].values() for device in group)
            response = base64.b64decode(each["AllocResp"])
            yield Held(each["PodUID"], each["ContainerName"], ids, response)

    # -- served -----------------------------------------------------------------------------------

    def _serve(self, path: Path, service: str, methods: dict[str, Any]) -> None:
        path.unlink(missing_ok=True)
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                call, request.FromString, lambda message: message.SerializeToString()
            )
            for name, (call, request) in methods.items()
        }
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    def _register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        if request.version != "v1beta1":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "version")
        assert request.resource_name == RESOURCE
        assert request.options.pre_start_required
        assert request.options.get_preferred_allocation_available
        if self.refuses:
            self.refuses -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        options = [("grpc.max_receive_message_length", 4 << 20)]
        channel = grpc.insecure_channel(f"unix:{self.plugins / request.endpoint}", options)
        grpc.channel_ready_future(channel).result(10)
        if request.endpoint in self._clients:
            context.abort(grpc.StatusCode.UNKNOWN, "device plugin already connected")
        self._clients[request.endpoint] = channel
        stream = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            pb.Empty.SerializeToString,
            pb.ListAndWatchResponse.FromString,
        )(pb.Empty())
        told = (self._clients, request.endpoint, stream)
        threading.Thread(target=self._follow, args=told, daemon=True).start()
        with self._news:
            self.registered += 1
            self._news.notify_all()
        return pb.Empty()

    def _follow(self, clients: dict[str, grpc.Channel], endpoint: str, stream: Any) -> None:
        with suppress(grpc.RpcError):
            for answer in stream:
                self._take({device.ID: device.health for device in answer.devices})
        gone = [*clients] if self.one_plugin else [endpoint]
        channels = [channel for each in gone if (channel := clients.pop(each, None))]
        for channel in channels:
            channel.close()
        if channels and not clients and clients is self._clients:
            self._take(dict.fromkeys(self.devices, "Unhealthy"))

    def _take(self, devices: dict[str, str]) -> None:
        with self._news:
            self.devices = devices
            self.gaps += bool(devices) and "Healthy" not in devices.values()
            self._news.notify_all()

    def _list(
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        self.lists_seen += 1
        if not self.lists:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        pods = []
        for uid, pod in list(self.pods.items()):
            if not self.shows_ended and uid in self.failed:
                continue
            containers = [
                pb.ContainerResources(name=container["name"], devices=self._shown(uid, container))
                for container in self._containers(pod)
                if container in pod["spec"]["containers"]
                or container.get("restartPolicy") == "Always"
            ]
            meta = pod["metadata"]
            pods.append(
                pb.PodResources(
                    name=meta["name"], namespace=meta["namespace"], containers=containers
                )
            )
        return pb.ListPodResourcesResponse(pod_resources=pods)

    def _shown(self, uid: str, container: Json) -> list[pb.ContainerDevices]:
        ids = [
            device
            for each in self.held
            if (each.uid, each.container) == (uid, container["name"])
            for device in each.ids
        ]
        return [pb.ContainerDevices(resource_name=RESOURCE, device_ids=ids)] if ids else []

    def _list_pods(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.ListPodsResponse:
        pods = [_message(pod).SerializeToString() for pod in list(self.pods.values())]
        return pb.ListPodsResponse(pods=pods)


def _message(pod: Json) -> pb.Pod:
    """The pod as a kubelet sends it."""
    meta, spec = pod["metadata"], pod["spec"]

    def container(each: Json) -> pb.Container:
        limits = (each.get("resources") or {}).get("limits") or {}
        return pb.Container(
            name=each["name"],
            resources=pb.ResourceRequirements(
                limits={name: pb.Quantity(string=str(amount)) for name, amount in limits.items()}
            ),
            restart_policy=each.get("restartPolicy", ""),
        )

    return pb.Pod(
        metadata=pb.ObjectMeta(
            name=meta["name"],
            namespace=meta["namespace"],
            uid=meta["uid"],
            annotations=meta.get("annotations") or {},
            deletion_timestamp=pb.Time(seconds=1) if meta.get("deletionTimestamp") else None,
        ),
        spec=pb.PodSpec(
            containers=map(container, spec["containers"]),
            init_containers=map(container, spec.get("initContainers") or ()),
            node_name=spec.get("nodeName", ""),
        ),
        status=pb.PodStatus(phase="Pending"),
    )
