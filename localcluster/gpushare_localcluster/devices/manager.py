"""A device manager of a kubelet: sockets, the ids and the variables of containers, the checkpoint.

Does the same as k8s.io/kubernetes pkg/kubelet/cm/devicemanager: reuse of the ids of init
containers, preferred ids, the checkpoint, PreStartContainer. Pods are JSON of the API. Left out:
topology, and the options of plug-ins (preferred ids and PreStartContainer are always called). Real
gRPC on real unix sockets: deviceplugin/v1beta1 and podresources/v1. Each registered plug-in is
watched on its own socket; the last one gets the calls.
"""

import base64
import json
import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.experimental
from google.protobuf.message import Message

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.kubelet import CHECKPOINT
from gpushare_localcluster.pod_status import (
    AdmissionError,
    Json,
    container_units,
    containers,
    is_plain_init,
)

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

_LARGEST_LIST = 4 << 20
_CONNECT_SECONDS = 10.0
_CALL_SECONDS = 20.0
# Otherwise a stream has two threads, and the reading thread polls ten times a second.
_IN_ITS_THREAD = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
_STOP_SECONDS = 5.0

_AnswerT = TypeVar("_AnswerT", bound=Message)


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    """The ids of a container, and the encoded answer of the device plug-in."""

    uid: str
    container: str
    ids: frozenset[str]
    response: bytes

    @property
    def envs(self) -> dict[str, str]:
        """The variables in the answer."""
        return dict(pb.ContainerAllocateResponse.FromString(self.response).envs)


class DeviceManager:
    """The device manager of one node, for one resource.

    folder: of the sockets; the path of a socket has at most 107 characters. on_change: called
    after each change of `devices`, by any thread.
    """

    def __init__(
        self,
        folder: Path,
        resource: str,
        on_change: Callable[[], None] = lambda: None,
        seed: int = 0,
    ) -> None:
        self.folder = folder
        self.plugins = folder / "plugins"
        self.pod_resources = folder / "pr.sock"
        self.resource = resource
        self.devices: dict[str, str] = {}
        """The health of each device by id, as reported by the plug-in."""
        self.registered = 0
        """The number of registrations since the start."""
        self._changed = on_change
        self._random = random.Random(seed)
        self._news = threading.Condition()
        self._servers: list[grpc.Server] = []
        self._clients: dict[str, grpc.Channel] = {}
        self.pods: dict[str, Json] = {}
        self.failed: dict[str, str] = {}
        """Reasons for failed admissions, by uid of the pod."""
        self.grants: list[ContainerGrant] = []
        self._admission = threading.Lock()
        self._reusable: tuple[str, set[str]] = ("", set())

    def start(self) -> None:
        """Read the checkpoint, and listen; as in the kubelet, old sockets are removed."""
        with suppress(FileNotFoundError):
            self.grants = list(self._read_checkpoint())
        self.plugins.mkdir(parents=True, exist_ok=True)
        for path in self.plugins.glob("*.sock"):
            path.unlink()
        register = {"Register": (self._register, pb.RegisterRequest)}
        self._serve(self.plugins / "kubelet.sock", "v1beta1.Registration", register)
        pod_resources = {"List": (self._list, pb.Empty)}
        self._serve(self.pod_resources, "v1.PodResourcesLister", pod_resources)

    def stop(self) -> None:
        """Close all sockets; the checkpoint stays."""
        # Servers stop first: a disconnected plug-in registers again at once.
        for server in self._servers:
            server.stop(0).wait(_STOP_SECONDS)
        self._servers.clear()
        clients, self._clients = self._clients, {}
        for channel in list(clients.values()):
            channel.close()
        self._take(dict.fromkeys(self.devices, UNHEALTHY))
        self.devices = {}
        self.registered = 0

    def call(self, method: str, request: Message, answer: type[_AnswerT]) -> _AnswerT:
        """Return the plug-in's answer. Raises AdmissionError or RpcError."""
        if not self._clients:
            raise AdmissionError("unknown Device Plugin")
        *_, channel = self._clients.values()
        call: Callable[..., _AnswerT] = channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", type(request).SerializeToString, answer.FromString
        )
        return call(request, timeout=_CALL_SECONDS)

    def shuffled(self, ids: Collection[str]) -> list[str]:
        """Return the ids in random order, as the kubelet keeps ids in sets."""
        return sorted(sorted(ids), key=lambda _: self._random.random())

    def add(self, pod: Json) -> None:
        """Add the pod, and allocate ids. Raises AdmissionError."""
        uid = pod["metadata"]["uid"]
        with self._admission:
            self.pods[uid] = pod
            try:
                for container in containers(pod):
                    self._allocate(pod, container)
            except AdmissionError as error:
                self.failed[uid] = str(error)
                self.grants = [grant for grant in self.grants if grant.uid != uid]
                raise

    def remove(self, uid: str) -> None:
        """Release the devices of the pod, if any."""
        with self._admission:
            self.failed.pop(uid, None)
            if self.pods.pop(uid, None) is not None:
                self.grants = [grant for grant in self.grants if grant.uid != uid]
                self.write_checkpoint()

    def start_container(self, uid: str, name: str) -> dict[str, str]:
        """Return the variables of a starting container. Raises RpcError if the plug-in refuses."""
        grant = self._grant(uid, name)
        request = pb.PreStartContainerRequest(devices_ids=self.shuffled(grant.ids))
        self.call("PreStartContainer", request, pb.Empty)
        return grant.envs

    def envs(self, uid: str, name: str) -> dict[str, str]:
        """Return the variables of the container since admission."""
        return self._grant(uid, name).envs

    def allocate(self, ids: Collection[str]) -> pb.ContainerAllocateResponse:
        """Return the plug-in's answer for a container with these ids. Raises AdmissionError."""
        container = pb.ContainerAllocateRequest(devices_ids=ids)
        request = pb.AllocateRequest(container_requests=[container])
        return self._asked("Allocate", request, pb.AllocateResponse).container_responses[0]

    def listed(self) -> Iterable[pb.PodResources]:
        """Return the pods with the ids of their containers, without plain init containers."""
        pods = self.shown()
        return [
            pb.PodResources(
                name=pod["metadata"]["name"],
                namespace=pod["metadata"]["namespace"],
                containers=[
                    pb.ContainerResources(
                        name=container["name"], devices=self._devices(uid, container)
                    )
                    for container in containers(pod)
                    if not is_plain_init(pod, container)
                ],
            )
            for uid, pod in pods.items()
        ]

    def shown(self) -> Mapping[str, Json]:
        """Return the pods that pod-resources lists: those that were not refused (from 1.34 on)."""
        return {uid: pod for uid, pod in list(self.pods.items()) if uid not in self.failed}

    def write_checkpoint(self) -> None:
        """Write the checkpoint."""
        entries = [
            {
                "PodUID": grant.uid,
                "ContainerName": grant.container,
                "ResourceName": self.resource,
                "DeviceIDs": {"-1": sorted(grant.ids)},
                "AllocResp": base64.b64encode(grant.response).decode(),
            }
            for grant in self.grants
        ]
        data = {"PodDeviceEntries": entries, "RegisteredDevices": {self.resource: [*self.devices]}}
        new = self.folder / "checkpoint.new"
        new.write_text(json.dumps({"Data": data, "Checksum": 0}), encoding="utf-8")
        new.replace(self.plugins / CHECKPOINT)

    def _serve(self, path: Path, service: str, methods: dict[str, Any]) -> None:
        path.unlink(missing_ok=True)
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                call, request.FromString, lambda message: message.SerializeToString()
            )
            for name, (call, request) in methods.items()
        }
        server = grpc.server(ThreadPoolExecutor(4, "kubelet socket"))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    def _register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        if request.version != "v1beta1" or request.resource_name != self.resource:
            description = f"{request.resource_name} by {request.version}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no room for {description}")
        clients = self._clients
        options = [("grpc.max_receive_message_length", _LARGEST_LIST), _IN_ITS_THREAD]
        channel = grpc.insecure_channel(f"unix:{self.plugins / request.endpoint}", options)
        grpc.channel_ready_future(channel).result(_CONNECT_SECONDS)
        if clients is not self._clients:
            channel.close()
            context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet has ended")
        if request.endpoint in clients:
            context.abort(grpc.StatusCode.UNKNOWN, "device plugin already connected")
        clients[request.endpoint] = channel
        follow = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            pb.Empty.SerializeToString,
            pb.ListAndWatchResponse.FromString,
        )
        arguments = (clients, request.endpoint, follow(pb.Empty()))
        threading.Thread(target=self._follow, args=arguments, daemon=True).start()
        with self._news:
            self.registered += 1
            self._news.notify_all()
        return pb.Empty()

    def _follow(self, clients: dict[str, grpc.Channel], endpoint: str, stream: Any) -> None:  # noqa: ANN401 -- gRPC's
        with suppress(grpc.RpcError):
            for answer in stream:
                if clients is not self._clients:
                    break
                self._take({device.ID: device.health for device in answer.devices})
        ended = self._gone_with(endpoint, clients)
        channels = [channel for name in ended if (channel := clients.pop(name, None))]
        for channel in channels:
            channel.close()
        if channels and not clients and clients is self._clients:
            self._take(dict.fromkeys(self.devices, UNHEALTHY))

    def _gone_with(self, endpoint: str, clients: Collection[str]) -> list[str]:
        """Return the plug-ins to disconnect after this one ended: this one (kubernetes#135437)."""
        del clients
        return [endpoint]

    def _take(self, devices: dict[str, str]) -> None:
        with self._news:
            self.devices = devices
            self._news.notify_all()
        self._changed()

    def _list(
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        del request, context
        return pb.ListPodResourcesResponse(pod_resources=self.listed())

    def _allocate(self, pod: Json, container: Json) -> None:
        uid, name = pod["metadata"]["uid"], container["name"]
        needed = container_units(container)
        if not needed or any((grant.uid, grant.container) == (uid, name) for grant in self.grants):
            return
        reusable = self._reusable[1] if self._reusable[0] == uid else set[str]()
        ids = self._to_allocate(needed, reusable)
        response = self.allocate(self.shuffled(ids)).SerializeToString()
        self.grants.append(ContainerGrant(uid, name, frozenset(ids), response))
        self.write_checkpoint()
        reusable_next = reusable | ids if is_plain_init(pod, container) else reusable - ids
        self._reusable = (uid, reusable_next)

    def _to_allocate(self, needed: int, reusable: set[str]) -> set[str]:
        """Return the ids to allocate. Raises AdmissionError for too few free ids."""
        chosen = set(self.shuffled(reusable)[:needed])
        if len(chosen) == needed:
            return chosen
        used = {device for item in self.grants for device in item.ids} | chosen
        free = {device for device, health in self.devices.items() if health == HEALTHY} - used
        if len(free) < needed - len(chosen):
            raise AdmissionError(
                f"requested number of devices unavailable for {self.resource}. Requested:"
                f" {needed}, Available: {len(free) + len(chosen)}"
            )
        preferred = [item for item in self._preferred(free, chosen, needed) if item in free]
        chosen |= set(preferred[: needed - len(chosen)])
        return chosen | set(self.shuffled(free - chosen)[: needed - len(chosen)])

    def _preferred(self, free: set[str], chosen: set[str], needed: int) -> list[str]:
        """Return the ids that the plug-in prefers. Raises AdmissionError."""
        container = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=self.shuffled(free | chosen),
            must_include_deviceIDs=self.shuffled(chosen),
            allocation_size=needed,
        )
        request = pb.PreferredAllocationRequest(container_requests=[container])
        answer = self._asked("GetPreferredAllocation", request, pb.PreferredAllocationResponse)
        return [*answer.container_responses[0].deviceIDs]

    def _asked(self, method: str, request: Message, answer: type[_AnswerT]) -> _AnswerT:
        try:
            return self.call(method, request, answer)
        except grpc.RpcError as error:
            raise AdmissionError(f"{method}: {said(error)}") from error

    def _grant(self, uid: str, name: str) -> ContainerGrant:
        (grant,) = (item for item in self.grants if (item.uid, item.container) == (uid, name))
        return grant

    def _devices(self, uid: str, container: Json) -> list[pb.ContainerDevices]:
        ids = [
            device
            for grant in self.grants
            if (grant.uid, grant.container) == (uid, container["name"])
            for device in grant.ids
        ]
        return [pb.ContainerDevices(resource_name=self.resource, device_ids=ids)] if ids else []

    def _read_checkpoint(self) -> Iterator[ContainerGrant]:
        document = json.loads((self.plugins / CHECKPOINT).read_text(encoding="utf-8"))
        for entry in document["Data"]["PodDeviceEntries"]:
            ids = frozenset(device for group in entry["DeviceIDs"].values() for device in group)
            response = base64.b64decode(entry["AllocResp"])
            yield ContainerGrant(entry["PodUID"], entry["ContainerName"], ids, response)


def said(error: Any) -> str:  # noqa: ANN401 -- an RpcError is a Call as well
    """Return the error of the plug-in as text."""
    return f"rpc error: code = {error.code().name} desc = {error.details()}"
